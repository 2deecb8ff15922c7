"""`AdaptationStream`: a classifier that is fitted to the samples of a stream; the one part with state.

The state is a memory of samples: whitened features, and probabilities without state. LDA is fitted to
them, with the sources' class centres as its prior, and predictions are mixed with those
of the nearest samples in memory (`functional/transduction.py`). Probabilities without state start every fit,
so an error does not feed itself. A full memory forgets the oldest sample of its most frequent class.

Where recent predictions are of a few classes, as in a stream that is sorted by class, means of the other
classes would be made of errors: nothing is learned, and the answer is that without state.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from sourceward._util.errors import InputError
from sourceward._util.storage import load_tensors, save_tensors, tensor_hash
from sourceward.adaptation.base import ADAPTED, ADAPTERS, NONFINITE, AdaptationResult
from sourceward.adaptation.energy import NoAdaptation
from sourceward.functional.calibration import agreement, trust
from sourceward.functional.transduction import beside_neighbours, fit_domain, lda_probability, unit_rows
from sourceward.nn import Network

MEMORY = 1000
"""Samples that are remembered."""

GROWTH = 0.2
"""The classifier is fitted again when this share of the memory is new."""

BALANCE = 0.65
"""Least number of classes among recent predictions, as a share of all classes: exp(entropy) / classes."""

WINDOW, WINDOW_PER_CLASS = 50, 4
"""Recent predictions, at least, and for each class."""

KIND = "sourceward stream"

STATE = ("feature", "norm", "probability", "answer", "age", "recent", "mean", "metric")
"""Arrays of a state."""

SHARES = ("probability", "answer", "recent")
"""Those that hold shares of 1."""

T = TypeVar("T")


@dataclass(repr=False)
class AdaptationStream(Generic[T]):
    """Predict samples in order, with a state that is kept between calls.

    Args:
        network: fitted.
        answer: predicts inputs without state.
        present: from a result to what `predict` returns.
        temperature: of trust.
    """

    network: Network
    answer: Callable[[Any], AdaptationResult]
    present: Callable[[AdaptationResult], T]
    temperature: float = 1.0
    seen: int = field(default=0, init=False)
    """Samples so far."""
    guarded: int = field(default=0, init=False)
    """Those that were answered without state, since recent predictions were of too few classes."""

    def __post_init__(self) -> None:
        self.reset()

    def __repr__(self) -> str:
        return f"AdaptationStream(seen={self.seen}, guarded={self.guarded})"

    def reset(self) -> None:
        """Forget all samples."""
        self._center = self.network.centers.mean(0).cpu().numpy().astype(np.float64)
        classes, dim = self._center.shape
        self._feature, self._norm = np.zeros((MEMORY, dim), np.float32), np.zeros(MEMORY, np.float32)
        self._probability, self._answer = np.zeros((MEMORY, classes)), np.zeros((MEMORY, classes))
        self._age, self._recent = np.zeros(MEMORY, dtype=np.int64), np.zeros(classes)
        self._mean, self._metric = self._center, np.eye(dim)
        self.seen = self.guarded = self._held = self._new = 0

    def predict(self, inputs: Any) -> T:
        """Predict inputs in order."""
        return self.present(self.adapt(inputs))

    def predict_proba(self, inputs: Any) -> np.ndarray:
        """Probability of each class, (n, classes)."""
        return self.adapt(inputs).probabilities

    def adapt(self, inputs: Any, *, together: bool = False) -> AdaptationResult:
        """Predict inputs in order, with details.

        Args:
            inputs: whatever the model predicts.
            together: learn from all of them before the first is answered: a batch, without order.
        """
        return self.update(self.answer(inputs), together=together)

    def update(self, result: AdaptationResult, *, together: bool = False) -> AdaptationResult:
        """`adapt` for predictions without state."""
        feature, probability = self._features(result), result.probabilities.astype(np.float64)
        finite = np.isfinite(probability).all(1) & np.isfinite(feature).all(1) & (result.status != NONFINITE)
        rows, used = np.flatnonzero(finite), np.zeros(len(result), dtype=bool)
        answer = result.probabilities.copy()
        if together and len(rows):
            labels = np.bincount(probability[rows].argmax(1), minlength=len(self._recent))
            self._recent = labels / len(rows)
            used = finite & self._balanced()
            if used.any():
                for row in np.random.default_rng(0).permutation(rows)[: 4 * MEMORY]:  # a file may be sorted
                    self._remember(feature[row], probability[row], probability[row])
                self._fit()
        for row in rows:
            if not together:
                self._count(probability[row])
                used[row] = self._balanced()
            if used[row]:
                answer[row] = found = self._mixed(feature[row], probability[row])
                if not together:
                    self._remember(feature[row], probability[row], found)
                    if self._new >= GROWTH * self._held:
                        self._fit()
        self.seen += len(result)
        self.guarded += int((finite & ~used).sum())
        return replace(
            result,
            probabilities=answer,
            status=np.where(used, ADAPTED, result.status),
            agreement=np.where(used, agreement(result.per_source, answer.argmax(1)), result.agreement),
            trust=np.where(used, trust(answer, self.temperature), result.trust),
        )

    def inspect(self) -> dict[str, Any]:
        """What the state holds: samples, guard, and how close each class mean is to the sources."""
        samples = np.bincount(self._probability[: self._held].argmax(1), minlength=len(self._center))
        return {
            "seen": self.seen,
            "guarded": self.guarded,
            "recent": self._recent.tolist(),
            "samples": samples.tolist(),
            "cosine_to_sources": (unit_rows(self._mean) * unit_rows(self._center)).sum(1).tolist(),
        }

    def save(self, path: str | Path) -> None:
        """Write the state to one safetensors file."""
        state = {name: torch.from_numpy(getattr(self, f"_{name}")) for name in STATE}
        counts = {"seen": self.seen, "guarded": self.guarded, "held": self._held, "new": self._new}
        save_tensors(path, state, {"kind": KIND, "model": self._model(), **counts})

    def load(self, path: str | Path) -> "AdaptationStream[T]":
        """Take the state that `save` wrote for the same model."""
        state, meta = load_tensors(path)
        if meta.get("kind") != KIND:
            raise InputError(f"Expected the state of a stream in '{path}', but it holds something else.")
        if meta.get("model") != self._model():
            raise InputError(
                f"The state in '{path}' belongs to another model. Use it with that one, or start without it."
            )
        counts: list[Any] = [meta.get(name) for name in ("seen", "guarded", "held", "new")]
        whole = all(type(n) is int and 0 <= n < 2**62 for n in counts)
        if not whole or counts[2] > MEMORY or not self._alike(state, counts[2]):
            raise InputError(
                f"The state in '{path}' is damaged, or was written by another version. Start without it."
            )
        for name in STATE:
            setattr(self, f"_{name}", state[name].numpy().copy())
        self.seen, self.guarded, self._held, self._new = counts
        return self

    def _alike(self, state: dict[str, Tensor], held: int) -> bool:
        """Whether tensors may be a state of this stream: all of them, finite, and shares that sum to 1."""
        for name in STATE:
            own, found = torch.from_numpy(getattr(self, f"_{name}")), state.get(name)
            if found is None or (found.shape, found.dtype) != (own.shape, own.dtype):
                return False
            if not found.isfinite().all() or (name in SHARES and not 0 <= found.min() <= found.max() < 1.001):
                return False
        sums = torch.cat([state[name][:held].sum(1) for name in ("probability", "answer")])
        rows = (state["feature"].abs() < 1.001).all()  # of norm 1
        return bool(rows and ((sums - 1).abs() < 1e-3).all())

    def _features(self, result: AdaptationResult) -> np.ndarray:
        """Rescaled features (n, dim): with Langevin steps the mean over the sources."""
        raw = torch.from_numpy(np.ascontiguousarray(result.features.mean(1))).to(self.network.scale)
        return self.network.rescale(raw).cpu().numpy().astype(np.float32)

    def _count(self, probability: np.ndarray) -> None:
        """Count a prediction among the recent ones."""
        keep = 1 - 1 / max(WINDOW, WINDOW_PER_CLASS * len(probability))
        self._recent *= keep
        self._recent[probability.argmax()] += 1 - keep

    def _balanced(self) -> bool:
        share = self._recent / max(self._recent.sum(), 1e-12)
        return float(np.exp(-(share * np.log(share + 1e-12)).sum())) >= BALANCE * len(share)

    def _remember(self, feature: np.ndarray, probability: np.ndarray, answer: np.ndarray) -> None:
        """Take one sample in; a full memory drops the oldest of its most frequent class."""
        row = self._held
        if row == MEMORY:
            label = self._probability.argmax(1)
            own = np.flatnonzero(label == np.bincount(label).argmax())
            row = own[self._age[own].argmin()]
        norm = max(float(np.linalg.norm(feature)), 1e-12)
        self._feature[row], self._norm[row] = feature / norm, norm
        self._probability[row], self._answer[row], self._age[row] = probability, answer, self._age.max() + 1
        self._held, self._new = min(self._held + 1, MEMORY), self._new + 1

    def _fit(self) -> None:
        """Fit the classifier to the memory."""
        held = slice(self._held)
        feature = self._feature[held].astype(np.float64) * self._norm[held, None]
        found = fit_domain(feature, self._probability[held], self._center)
        self._mean, self._metric, self._answer[held], self._new = *found, 0

    def _mixed(self, feature: np.ndarray, probability: np.ndarray) -> np.ndarray:
        row = feature[None].astype(np.float64)
        own = lda_probability(row, probability[None], self._mean, self._metric)
        similarity = unit_rows(feature[None]) @ self._feature[: self._held].T
        return beside_neighbours(own, similarity, self._answer[: self._held])[0]

    def _model(self) -> str:
        return tensor_hash({"centers": self.network.centers, "shift": self.network.shift})


@ADAPTERS.register("stream")
@dataclass(frozen=True)
class StreamAdaptation:
    """A classifier is fitted to the samples of the stream, as `model.stream()` does; in `bench` after TTA."""

    changes_weights: ClassVar[bool] = False
    keeps_state: ClassVar[bool] = True
    needs_batch: ClassVar[bool] = False
    reads: ClassVar[str] = "features"

    def __call__(self, network: Network, inputs: Tensor) -> AdaptationResult:
        return run_stream(network, NoAdaptation()(network, inputs))


def run_stream(
    network: Network, result: AdaptationResult, *, temperature: float = 1.0, together: bool = False
) -> AdaptationResult:
    """A stream of its own over predictions without state."""
    stream = AdaptationStream(network, lambda given: given, lambda found: found, temperature)
    return stream.update(result, together=together)
