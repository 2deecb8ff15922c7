"""Modules with parameters. Their maths lives in `functional`."""

from sourceward.nn.distilled import DistilledStep
from sourceward.nn.energy import StackedEnergy
from sourceward.nn.folded import Folded, folded
from sourceward.nn.frozen import frozen_call
from sourceward.nn.heads import HEADS, ConcatHead, Head, LinearHead, PooledPrototypeHead, PrototypeHead
from sourceward.nn.latent import LatentNet
from sourceward.nn.network import Network
from sourceward.nn.replay import ReplayBuffer

__all__ = [
    "HEADS",
    "ConcatHead",
    "DistilledStep",
    "Folded",
    "Head",
    "LatentNet",
    "LinearHead",
    "Network",
    "PooledPrototypeHead",
    "PrototypeHead",
    "ReplayBuffer",
    "StackedEnergy",
    "folded",
    "frozen_call",
]
