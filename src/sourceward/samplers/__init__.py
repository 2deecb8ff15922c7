"""Samplers: one step each, as pure functions, and a runner that loops them."""

from sourceward.samplers.accept import ACCEPT_RULES
from sourceward.samplers.base import SAMPLERS, Info, Noise, State, StepSettings, Target
from sourceward.samplers.chain import run_chain
from sourceward.samplers.distilled import distilled
from sourceward.samplers.fused import fused_langevin
from sourceward.samplers.langevin import langevin, textbook
from sourceward.samplers.nesterov import nesterov
from sourceward.samplers.run import Chain, generator_noise, keyed_noise, run

__all__ = [
    "ACCEPT_RULES",
    "SAMPLERS",
    "Chain",
    "Info",
    "Noise",
    "State",
    "StepSettings",
    "Target",
    "distilled",
    "fused_langevin",
    "generator_noise",
    "keyed_noise",
    "langevin",
    "nesterov",
    "run",
    "run_chain",
    "textbook",
]
