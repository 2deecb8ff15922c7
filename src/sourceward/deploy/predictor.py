"""`Predictor`: a model folder as a function from columns to columns, for Ray Data, Spark and `datasets`.

torch is imported on the first call, so that a driver which only ships the object stays light.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from copy import copy
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sourceward._util.errors import InputError, unknown_name

if TYPE_CHECKING:
    from sourceward.adaptation import AdaptationResult
    from sourceward.model import Model

TOO_FAR = "so far from the sources that it has no finite prediction"


class Predictor:
    """Predict columns: a dictionary of NumPy arrays in, a dictionary of NumPy arrays out.

    It is small to pickle and loads the model on the first call, once per process. Arrays may be read-only. A
    row that cannot be predicted does not raise: its `status` is `unreadable` and `reason` says why.

    The input column is `features` (a matrix, or a vector per row), `text`, or `image` (encoded bytes, paths,
    arrays, PIL images, or {"bytes", "path"} as in `datasets`), whichever the model reads; other usual names,
    such as `path` and `embedding`, are found, too. An array in place of the dictionary is that column.

    Output columns: `label`, `probability`, `trust`, `agreement`, `status`, `reason`, for each source
    `label_NAME`, `energy_before_NAME` and `energy_after_NAME`, and on request `probability_CLASS`.

    Args:
        run: a model folder, written by `fit`.
        column: the input column, where it has no usual name.
        keep: input columns to copy to the output.
        columns: of the output, in this order; all when None.
        root: folder that image paths are relative to and must not leave; anywhere when None.
        num_steps: Langevin steps in place of the model's own number; 0 predicts without adaptation.
        tta: transforms of test-time augmentation in place of the model's own; "none" for none.
        device: `cpu`, `cuda` or `auto`.
        probabilities: also return the probability of every class.

    Example:
        >>> predictor = Predictor("run", keep=["id"])
        >>> predictor
        Predictor('run', keep=['id'])
        >>> dataset.map_batches(predictor)  # doctest: +SKIP
    """

    def __init__(
        self,
        run: str | Path,
        *,
        column: str | None = None,
        keep: Sequence[str] = (),
        columns: Sequence[str] | None = None,
        root: str | Path | None = None,
        num_steps: int | None = None,
        tta: str | None = None,
        device: str = "auto",
        probabilities: bool = False,
    ) -> None:
        self.run, self.column, self.keep = str(run), column, list(keep)
        self.columns = None if columns is None else list(columns)
        self.root = None if root is None else str(root)
        self.num_steps, self.tta, self.device, self.probabilities = num_steps, tta, device, probabilities
        self._model: Model | None = None
        self._base = "" if self.root is None else self.root

    def __repr__(self) -> str:
        named = ("column", "keep", "columns", "root", "num_steps", "tta")
        given = [f"{name}={getattr(self, name)!r}" for name in named if getattr(self, name) not in (None, [])]
        given += ["probabilities=True"] if self.probabilities else []
        return f"Predictor({', '.join([repr(self.run), *given])})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_model": None}

    def beside(self, table: str) -> "Predictor":
        """The same predictor; without `root`, image paths are relative to the table."""
        other = copy(self)
        other._base = os.path.dirname(table) if self.root is None else self.root
        return other

    @property
    def model(self) -> "Model":
        """The model, loaded when it is first needed."""
        if self._model is None:
            self._model = _loaded(self.run, self.device, self.num_steps, self.tta, folder_id(self.run))
        return self._model

    def __call__(self, batch: Mapping[str, Any] | np.ndarray) -> dict[str, np.ndarray]:
        """Predict every row of a batch."""
        from sourceward.deploy.rows import find_rows, locate, read_rows

        model = self.model
        column = find_rows(batch, model.kind, self.column) if isinstance(batch, Mapping) else batch
        for name in self.keep if isinstance(batch, Mapping) else ():
            if name not in batch:
                raise InputError(f"Expected a column {name!r} to keep, but got {', '.join(batch)}.")
        find = partial(locate, base=self._base, root=self.root)
        parts = [self._predict(rows, reasons) for rows, reasons in read_rows(model, column, find)]
        answer = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        kept = {name: np.asarray(batch[name]) for name in self.keep} if isinstance(batch, Mapping) else {}
        for name in self.columns or ():
            if name not in answer:
                raise unknown_name("column of a prediction", name, answer)
        return {**kept, **{name: answer[name] for name in self.columns or answer}}

    def _predict(self, rows: Any, reasons: list[str]) -> dict[str, np.ndarray]:
        """Predict the readable rows of a chunk, and fill in the others.

        Args:
            rows: the readable ones, as the model takes them.
            reasons: of every row, "" where it is readable.
        """
        model, readable = self.model, np.array([not reason for reason in reasons], dtype=bool)
        if model.kind == "image":
            result = model.adapt_images(rows) if readable.any() else None
        else:
            result = model.adapt(rows) if readable.any() else None
        return answer_columns(result, readable, reasons, model.classes, model.sources, self.probabilities)


def answer_columns(
    result: "AdaptationResult | None",
    readable: np.ndarray,
    reasons: Sequence[str],
    classes: Sequence[str],
    sources: Sequence[str],
    probabilities: bool = False,
) -> dict[str, np.ndarray]:
    """The columns of a prediction; rows that are not readable have no label, NaN, and a reason.

    Args:
        result: of the readable rows; None without any.
        readable: (n,) bool.
        reasons: of every row.
        classes: names.
        sources: names.
        probabilities: whether every class has a column.
    """
    from sourceward.model.prediction import UNREADABLE

    names = np.array([*classes, ""])
    reason = np.array([*reasons, TOO_FAR])[:-1]  # wide enough for both
    label = np.full((len(readable), 1 + len(sources)), len(classes))
    numbers = np.full((len(readable), 3 + 2 * len(sources)), np.nan, dtype=np.float32)
    status = np.full(len(readable), UNREADABLE, dtype="U16")
    if result is not None:
        finite = np.isfinite(result.probabilities).all(1)
        best = result.probabilities.argmax(1)
        top = result.probabilities[np.arange(len(best)), best]
        found = np.column_stack([best, result.per_source.argmax(2)])
        label[readable] = np.where(finite[:, None], found, len(classes))
        shares = top, result.trust, result.agreement
        values = np.column_stack([*shares, result.energy_before, result.energy_after])
        numbers[readable] = np.where(finite[:, None], values, np.nan)
        status[readable] = np.where(finite, result.status, UNREADABLE)
        reason[readable] = np.where(finite, "", TOO_FAR)
    columns = {"label": names[label[:, 0]]}
    for number, name in enumerate(("probability", "trust", "agreement")):
        columns[name] = numbers[:, number].copy()
    columns |= {"status": status, "reason": reason}
    for number, name in enumerate(sources, 1):
        columns[f"label_{name}"] = names[label[:, number]]
    for kind, first in (("before", 3), ("after", 3 + len(sources))):
        for number, name in enumerate(sources, first):
            columns[f"energy_{kind}_{name}"] = numbers[:, number].copy()
    if probabilities:
        each = np.full((len(readable), len(classes)), np.nan, dtype=np.float32)
        if result is not None:
            each[readable] = result.probabilities
        columns |= {f"probability_{name}": each[:, number].copy() for number, name in enumerate(classes)}
    return columns


def load_model(
    run: str | Path, device: str = "auto", num_steps: int | None = None, tta: str | None = None
) -> "Model":
    """Load a model folder with another number of steps or other transforms.

    0 steps mean no adaptation, so the model's own test-time augmentation is off then, too.
    """
    from sourceward.model import load

    model = load(run, device)
    if tta is not None:
        model = model.with_tta("" if tta == "none" else tta)
    elif num_steps == 0:
        model = model.with_tta("")
    if num_steps is not None:
        model.adapter.set_params(num_steps=num_steps)
    return model


@lru_cache(maxsize=1)
def _loaded(run: str, device: str, num_steps: int | None, tta: str | None, folder: str) -> "Model":
    """The model of this process: Ray and Spark make a new `Predictor` for every task."""
    return load_model(run, device, num_steps, tta)


def folder_id(run: str | Path) -> str:
    """A hash that changes with the configuration and the weights of a model folder, without reading these."""
    from sourceward._util.storage import read_metadata
    from sourceward.model.file import WEIGHTS, read_model_config

    config = read_model_config(Path(run))
    weights = read_metadata(Path(run) / WEIGHTS).get("sha256")
    return hashlib.blake2b(repr((sorted(config.items()), weights)).encode(), digest_size=8).hexdigest()
