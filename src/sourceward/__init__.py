"""sourceward: move each test sample toward the source domains, without changing a weight."""

from sourceward.adapters import Adapted, create_adapter, list_adapters
from sourceward.errors import InputError, TrainingError
from sourceward.estimator import EnergyAdapter

__version__ = "0.1.0"

__all__ = [
    "Adapted",
    "EnergyAdapter",
    "InputError",
    "TrainingError",
    "create_adapter",
    "list_adapters",
]
