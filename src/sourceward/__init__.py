"""sourceward: adapt each test sample to the source domains; no weight of the model changes.

Public names are imported when they are first used, so that `import sourceward` loads neither torch nor NumPy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sourceward._util.errors import InputError, TrainingError
    from sourceward.adaptation import AdaptationResult, create_adapter, list_adapters
    from sourceward.data import list_datasets, open_dataset
    from sourceward.data.transforms import list_transforms
    from sourceward.deploy.export import export
    from sourceward.deploy.predictor import Predictor
    from sourceward.estimator import EnergyAdapter
    from sourceward.estimator.splitting import LeaveOneDomainOut
    from sourceward.fitting import fit
    from sourceward.model import Model, estimate_gain, evaluate, load
    from sourceward.nn.backbones import create_backbone, list_backbones
    from sourceward.training.methods import list_methods
    from sourceward.training.presets import list_presets
    from sourceward.validation.expected_gain import ExpectedGain

__version__ = "0.2.0"

__all__ = [
    "AdaptationResult",
    "EnergyAdapter",
    "ExpectedGain",
    "InputError",
    "LeaveOneDomainOut",
    "Model",
    "Predictor",
    "TrainingError",
    "create_adapter",
    "create_backbone",
    "estimate_gain",
    "evaluate",
    "export",
    "fit",
    "list_adapters",
    "list_backbones",
    "list_datasets",
    "list_methods",
    "list_presets",
    "list_transforms",
    "load",
    "open_dataset",
]

_HOME = {
    "AdaptationResult": "adaptation",
    "EnergyAdapter": "estimator",
    "ExpectedGain": "validation.expected_gain",
    "InputError": "_util.errors",
    "LeaveOneDomainOut": "estimator.splitting",
    "Model": "model",
    "Predictor": "deploy.predictor",
    "TrainingError": "_util.errors",
    "create_adapter": "adaptation",
    "create_backbone": "nn.backbones",
    "estimate_gain": "model",
    "evaluate": "model",
    "export": "deploy.export",
    "fit": "fitting",
    "list_adapters": "adaptation",
    "list_backbones": "nn.backbones",
    "list_datasets": "data",
    "list_methods": "training.methods",
    "list_presets": "training.presets",
    "list_transforms": "data.transforms",
    "load": "model",
    "open_dataset": "data",
}
"""The module that defines each public name."""


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sourceward' has no attribute {name!r}")
    value = getattr(import_module(f"sourceward.{_HOME[name]}"), name)
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    """Return the public names, whether they are imported yet or not, and the dunder names."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
