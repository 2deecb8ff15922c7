"""Adapters: everything that turns (network, features) into an answer, behind one contract."""

from sourceward.adapters.base import ADAPTERS, STATUS_TEXT, Adapted, Adapter, create_adapter, list_adapters
from sourceward.adapters.ebtsa import EnergyAdaptation, NoAdaptation

__all__ = [
    "ADAPTERS",
    "STATUS_TEXT",
    "Adapted",
    "Adapter",
    "EnergyAdaptation",
    "NoAdaptation",
    "create_adapter",
    "list_adapters",
]
