"""The contract of an adapter, its declared traits, and the result that it returns.

An adapter predicts from (network, features or inputs). It may adapt the features or a copy of the network; it
never changes the network itself. A call is one stream, rows in order: the state of a stateful adapter starts
with the call and ends with it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Protocol

import numpy as np
from torch import Tensor

from sourceward._util.errors import InputError, unknown_name
from sourceward._util.registry import Registry
from sourceward.adaptation.notebook import result_html
from sourceward.functional import calibration
from sourceward.nn import Network, Projected
from sourceward.nn.backbones import Backbone, ImagePreprocessing

ADAPTED = "adapted"
NOT_ADAPTED = "not_adapted"
ENERGY_NOT_LOWER = "energy_not_lower"
NONFINITE = "nonfinite"

STATUS_TEXT = {
    ADAPTED: "The prediction uses adaptation.",
    NOT_ADAPTED: "The prediction is the classifier's own: adaptation is off, or the sample needed no copies.",
    ENERGY_NOT_LOWER: "No step lowered the energy of any source: the sample was not changed. "
    "A smaller `step_size` may help.",
    NONFINITE: "Adaptation gave NaN or infinity: the prediction is the classifier's own. "
    "Use a smaller `step_size` or learning rate.",
}

Inputs = Tensor | dict[str, Tensor]
"""What a backbone takes: normalised images, or tokens by name."""

Stream = Inputs | Iterable[Inputs]
"""All rows at once, or batches of any length in order."""


class Unsuitable(InputError):
    """The adapter cannot be used with this network. A bench skips the run and reports why."""


@dataclass(frozen=True)
class AdaptationResult:
    """Predictions for n samples and how they came about. The first axis is always the sample."""

    features: np.ndarray
    """(n, sources, dim): the adapted sample of each source, in the units of the input."""
    probabilities: np.ndarray
    """(n, classes): aggregated over the sources."""
    per_source: np.ndarray
    """(n, sources, classes): of each source; the aggregate, repeated, where an adapter has none."""
    energy_before: np.ndarray
    """(n, sources)."""
    energy_after: np.ndarray
    """(n, sources)."""
    steps: np.ndarray
    """(n, sources): accepted Langevin steps; the mean over draws, rounded, where there are several."""
    status: np.ndarray
    """(n,) of the names in `STATUS_TEXT`."""
    trajectory: np.ndarray | None = None
    """(n, num_steps + 1, sources, dim), when recorded."""
    agreement: np.ndarray = None  # type: ignore[assignment]
    """(n,): share of the predictions of copies and sources that are the predicted label."""
    trust: np.ndarray = None  # type: ignore[assignment]
    """(n,): estimated probability that the label is right: its probability at the model's temperature."""

    def __post_init__(self) -> None:
        if self.agreement is None:
            own = calibration.agreement(self.per_source, self.probabilities.argmax(1))
            object.__setattr__(self, "agreement", own)
        if self.trust is None:
            object.__setattr__(self, "trust", self.probabilities.max(1))

    def with_trust(self, temperature: float) -> "AdaptationResult":
        """The same result with trust at another temperature; 1 is the probability of the label."""
        return replace(self, trust=calibration.trust(self.probabilities, temperature))

    @property
    def label(self) -> np.ndarray:
        """(n,): number of the most probable class."""
        return self.probabilities.argmax(1)

    def __len__(self) -> int:
        return len(self.probabilities)

    def __repr__(self) -> str:
        n, sources, classes = self.per_source.shape
        names, counts = np.unique(self.status, return_counts=True)
        status = ", ".join(f"{name} {count}" for name, count in zip(names, counts))
        lines = [f"AdaptationResult: {n} samples, {classes} classes, {sources} sources", f"status: {status}"]
        if n:
            fell = (self.energy_before - self.energy_after).mean()
            lines.append(
                f"means: trust {self.trust.mean():.3f}, agreement {self.agreement.mean():.3f}, "
                f"{self.steps.mean():.1f} steps, energy lower by {fell:.3f}"
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The same in a notebook, with a plot of the chain and the first samples."""
        return result_html(self)


def join(parts: Sequence[AdaptationResult]) -> AdaptationResult:
    """Concatenate results, rows in order."""
    if len(parts) == 1:
        return parts[0]

    def concatenated(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        return None if values[0] is None else np.concatenate(values)

    return AdaptationResult(**{field.name: concatenated(field.name) for field in fields(AdaptationResult)})


def select_rows(result: AdaptationResult, rows: np.ndarray) -> AdaptationResult:
    """The rows of a result that a mask or a list of numbers names."""

    def selected(name: str) -> Any:
        value = getattr(result, name)
        return None if value is None else value[rows]

    return AdaptationResult(**{field.name: selected(field.name) for field in fields(AdaptationResult)})


def replace_rows(result: AdaptationResult, rows: np.ndarray, other: AdaptationResult) -> AdaptationResult:
    """The result with the rows of a mask replaced by those of another result."""

    def replaced(name: str) -> Any:
        value = getattr(result, name)
        if value is None:
            return None
        value, new = value.copy(), getattr(other, name)
        value = value.astype(np.result_type(value, new), copy=False)  # a longer status, a wider number
        value[rows] = new
        return value

    return AdaptationResult(**{field.name: replaced(field.name) for field in fields(AdaptationResult)})


class Adapter(Protocol):
    """Callable on what it reads; the flags say what a deployment must provide."""

    changes_weights: ClassVar[bool]
    keeps_state: ClassVar[bool]
    needs_batch: ClassVar[bool]
    reads: ClassVar[str]

    def __call__(self, network: Network, inputs: Any) -> AdaptationResult: ...


@dataclass(frozen=True)
class Traits:
    """What an adapter requires of a deployment."""

    changes_weights: bool
    """Weights are changed at test time (those of a copy)."""
    keeps_state: bool
    """An answer depends on the samples that came before."""
    needs_batch: bool
    """A prediction depends on the other samples of its batch."""
    reads: str
    """`features`: rescaled features, (n, dim). `inputs`: what the backbone takes, see `Stream`."""

    def __str__(self) -> str:
        costs = {
            "changes weights": self.changes_weights,
            "keeps state": self.keeps_state,
            "needs a batch": self.needs_batch,
        }
        return f"reads {self.reads}; " + (", ".join(c for c, paid in costs.items() if paid) or "one by one")


ADAPTERS: Registry[type] = Registry("adapter")


def create_adapter(name: str, **settings: object) -> Adapter:
    """Build an adapter by name.

    >>> create_adapter("none").keeps_state
    False
    """
    kind = ADAPTERS[name]
    known = [field.name for field in fields(kind)]
    for option in settings:
        if option not in known:
            raise unknown_name(f"option of adapter '{name}',", option, known)
    return kind(**settings)


def list_adapters() -> list[str]:
    """Names that `create_adapter` knows."""
    return list(ADAPTERS)


def adapter_traits(name: str) -> Traits:
    """What the adapter of this name requires of a deployment.

    >>> print(adapter_traits("t3a"))
    reads features; changes weights, keeps state
    """
    kind = ADAPTERS[name]
    return Traits(**{field.name: getattr(kind, field.name) for field in fields(Traits)})


def traits_table() -> list[dict[str, Any]]:
    """A row for each adapter: name and traits."""
    return [{"name": name, **asdict(adapter_traits(name))} for name in ADAPTERS]


def inner_backbone(network: Network) -> Backbone | None:
    """Return the backbone without the projection that may follow it; None where inputs are features."""
    backbone = network.backbone
    inner = backbone.backbone if isinstance(backbone, Projected) else backbone
    return inner if isinstance(inner, Backbone) else None


def image_backbone(network: Network) -> Backbone:
    """Return the image backbone itself, without the projection that may follow it."""
    backbone = inner_backbone(network)
    if backbone is not None and backbone.kind == "image":
        return backbone
    raise Unsuitable("This adapter transforms images, but this model has no image backbone.")


def image_preprocessing(network: Network) -> ImagePreprocessing:
    """Return how the backbone's images are normalised."""
    preprocessing = image_backbone(network).preprocessing
    assert isinstance(preprocessing, ImagePreprocessing)
    return preprocessing
