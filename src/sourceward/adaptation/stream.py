"""`AdaptationStream`: class prototypes that follow a stream of test samples; the one part with state.

As in T3A (Iwasawa & Matsuo, NeurIPS 2021), a class is represented by a unit vector in whitened features:
first that of the sources' class centre, then the mean direction of the samples predicted as that class. Here
every sample counts for every class by its squared probability without state, and the prototypes are mixed
with that prediction. Probabilities without state decide what is learned, so a wrong prototype does not feed
itself. The state is one vector and one share per class, whatever the number of samples.

Where recent predictions are nearly all of a few classes, as in a stream that is sorted by class, prototypes
of the other classes would be made of errors: nothing is learned, and the answer is that without state.
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
from sourceward.nn import Network

SHARE = 0.8
"""Weight of the prototypes' logits beside the log-probabilities without state."""

SHARPNESS = 2.0
"""Power of a probability by which a sample counts for a class."""

MEMORY = 100.0
"""Samples that a prototype remembers: older ones are forgotten at this rate."""

BALANCE = 0.5
"""Least number of classes among recent predictions, as a share of all classes: exp(entropy) / classes."""

WINDOW, WINDOW_PER_CLASS = 50, 4
"""Recent predictions, at least, and for each class."""

KIND = "sourceward stream"

T = TypeVar("T")


@dataclass
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

    def reset(self) -> None:
        """Forget all samples."""
        centers = self.network.centers.mean(0).cpu().numpy().astype(np.float64)
        self._sums = _unit(centers)
        self._recent = np.full(len(centers), 1 / len(centers))
        self.seen = self.guarded = 0

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
        used = np.zeros(len(result), dtype=bool)
        if together:
            for row in np.random.default_rng(0).permutation(np.flatnonzero(finite)):  # a file may be sorted
                self._learn(feature[row], probability[row])
            used = finite & self._balanced()
            for row in np.flatnonzero(used):
                probability[row] = self._mixed(feature[row], probability[row])
        else:
            for row in np.flatnonzero(finite):
                used[row] = self._learn(feature[row], probability[row])
                if used[row]:
                    probability[row] = self._mixed(feature[row], probability[row])
        self.seen += len(result)
        self.guarded += int((finite & ~used).sum())
        answer = probability.astype(result.probabilities.dtype)
        return replace(
            result,
            probabilities=answer,
            status=np.where(used, ADAPTED, result.status),
            agreement=np.where(used, agreement(result.per_source, answer.argmax(1)), result.agreement),
            trust=np.where(used, trust(answer, self.temperature), result.trust),
        )

    def inspect(self) -> dict[str, Any]:
        """What the state holds: samples, guard, and how close each prototype is to the sources."""
        centers = _unit(self.network.centers.mean(0).cpu().numpy().astype(np.float64))
        return {
            "seen": self.seen,
            "guarded": self.guarded,
            "recent": self._recent.tolist(),
            "samples": (np.linalg.norm(self._sums, axis=1) - 1).clip(0).tolist(),
            "cosine_to_sources": (_unit(self._sums) * centers).sum(1).tolist(),
        }

    def save(self, path: str | Path) -> None:
        """Write the state to one safetensors file."""
        state = {"sums": torch.from_numpy(self._sums), "recent": torch.from_numpy(self._recent)}
        meta = {"kind": KIND, "seen": self.seen, "guarded": self.guarded, "model": self._model()}
        save_tensors(path, state, meta)

    def load(self, path: str | Path) -> "AdaptationStream[T]":
        """Take the state that `save` wrote for the same model."""
        state, meta = load_tensors(path)
        if meta.get("kind") != KIND:
            raise InputError(f"Expected the state of a stream in '{path}', but it holds something else.")
        if meta["model"] != self._model():
            raise InputError(
                f"The state in '{path}' belongs to another model. Use it with that one, or start without it."
            )
        self._sums, self._recent = state["sums"].numpy().copy(), state["recent"].numpy().copy()
        self.seen, self.guarded = int(meta["seen"]), int(meta["guarded"])
        return self

    def _features(self, result: AdaptationResult) -> np.ndarray:
        """Rescaled features (n, dim): with Langevin steps the mean over the sources."""
        raw = torch.from_numpy(np.ascontiguousarray(result.features.mean(1))).to(self.network.scale)
        return self.network.rescale(raw).cpu().numpy().astype(np.float64)

    def _learn(self, feature: np.ndarray, probability: np.ndarray) -> bool:
        """Take one sample in; returns whether the state may be used."""
        classes = len(probability)
        keep = 1 - 1 / max(WINDOW, WINDOW_PER_CLASS * classes)
        self._recent *= keep
        self._recent[probability.argmax()] += 1 - keep
        if not self._balanced():
            return False
        unit = feature / max(float(np.linalg.norm(feature)), 1e-12)
        self._sums += probability[:, None] ** SHARPNESS * unit
        norm = np.linalg.norm(self._sums, axis=1, keepdims=True)
        self._sums *= np.minimum(1, MEMORY / np.maximum(norm, 1e-12))
        return True

    def _balanced(self) -> bool:
        share = self._recent
        return float(np.exp(-(share * np.log(share + 1e-12)).sum())) >= BALANCE * len(share)

    def _mixed(self, feature: np.ndarray, probability: np.ndarray) -> np.ndarray:
        logit = (1 - SHARE) * np.log(probability + 1e-12) + SHARE * (_unit(self._sums) @ feature)
        power = np.exp(logit - logit.max())
        return power / power.sum()

    def _model(self) -> str:
        return tensor_hash({"centers": self.network.centers, "shift": self.network.shift})


@ADAPTERS.register("stream")
@dataclass(frozen=True)
class StreamAdaptation:
    """Prototypes of the classes follow the stream, as `model.stream()` does; in `bench` after TTA."""

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


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
