"""Samplers: one step each, as pure functions, and runners that loop them into chains."""

from sourceward.samplers.base import SAMPLERS, Info, Noise, State, StepSettings, Target, energy_target
from sourceward.samplers.chain import fused_langevin, run_chain
from sourceward.samplers.distilled import distilled
from sourceward.samplers.langevin import langevin, langevin_unchecked
from sourceward.samplers.mala import mala
from sourceward.samplers.nesterov import nesterov
from sourceward.samplers.run import Chain, generator_noise, keyed_noise, run
