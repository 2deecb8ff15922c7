"""Modules with parameters. Their maths lives in `functional`."""

from sourceward.nn.energy import DistilledStep, ReplayBuffer, StackedEnergy
from sourceward.nn.folded import Folded, folded
from sourceward.nn.heads import (
    HEADS,
    ConcatHead,
    Head,
    LatentNet,
    LinearHead,
    PooledPrototypeHead,
    PrototypeHead,
    frozen_call,
)
from sourceward.nn.network import Network, Projected
