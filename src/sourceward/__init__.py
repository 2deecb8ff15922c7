"""sourceward: move each test sample toward the source domains, without changing a weight."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sourceward._util.errors import InputError, TrainingError
from sourceward.adaptation import AdaptationResult, create_adapter, list_adapters
from sourceward.estimator import EnergyAdapter

if TYPE_CHECKING:
    from sourceward.data import list_datasets, open_dataset
    from sourceward.fitting import fit
    from sourceward.model import Model, evaluate, load
    from sourceward.nn.backbones import create_backbone, list_backbones
    from sourceward.training.presets import list_presets

__version__ = "0.1.0"

__all__ = [
    "AdaptationResult",
    "EnergyAdapter",
    "InputError",
    "Model",
    "TrainingError",
    "create_adapter",
    "create_backbone",
    "evaluate",
    "fit",
    "list_adapters",
    "list_backbones",
    "list_datasets",
    "list_presets",
    "load",
    "open_dataset",
]

_LAZY = {
    "Model": "model",
    "create_backbone": "nn.backbones",
    "evaluate": "model",
    "fit": "fitting",
    "list_backbones": "nn.backbones",
    "list_datasets": "data",
    "list_presets": "training.presets",
    "load": "model",
    "open_dataset": "data",
}
"""Names that are imported when they are first used: vision libraries take a second to load."""


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"sourceward.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'sourceward' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What a person may want: no helper of this file, and what is not imported yet."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
