"""From files to a file of predictions: every input gets a row, an unreadable one says why."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sourceward._util.errors import InputError
from sourceward._util.progress import progress_bar
from sourceward.data.decode import Geometry, decode_image, map_threads, reason_of
from sourceward.data.loading import image_geometry
from sourceward.data.tree import StoredFile
from sourceward.model.inputs import Failure, Input, find_inputs
from sourceward.model.model import Model, Prediction
from sourceward.model.prediction_file import whole_or_nothing, writer_for
from sourceward.model.prefetch import ahead, send
from sourceward.nn.backbones import ImagePreprocessing

CHUNK = 256


def predict_files(
    model: Model,
    inputs: Sequence[str | Path],
    out: str | Path,
    *,
    column: str | None = None,
    delimiter: str | None = None,
    progress: bool | None = None,
) -> tuple[int, list[Failure]]:
    """Write a row for every input to `out` (.csv or .jsonl); return how many were answered, and the rest.

    Args:
        model: see `load`.
        inputs: images, folders, globs and .tar files of them; files of texts, one a line; tables (.csv,
            .tsv, .parquet) with a column of texts or paths; .npy, .npz or .safetensors files of features:
            whichever the model reads.
        out: written whole or not at all.
        column: of the table, where it has none of the names that `fit` finds (`text`, `path`, ...).
        delimiter: of the table, if not a comma, or a tab in a .tsv.
        progress: show a bar; when standard error is a terminal if None.
    """
    writer = writer_for(Path(out), model.sources)
    samples = list(find_inputs(model.kind, inputs, column, delimiter))
    if not samples:
        raise InputError(f"Found nothing to predict in {', '.join(map(str, inputs))}.")
    failures: list[Failure] = []
    with progress_bar(len(samples), "predicting", progress) as advance, whole_or_nothing(out) as stream:
        write = writer(stream)
        done = 0
        for chunk, values, good in _read_ahead(model, samples):
            answers = iter([] if good is None else _answers(model, good))
            for sample, value in zip(chunk, values):
                write(sample.name, value if isinstance(value, Failure) else next(answers))
            failures += [value for value in values if isinstance(value, Failure)]
            done += len(chunk)
            advance(done)
        if len(failures) == len(samples):
            first = failures[0]
            raise InputError(
                f"None of the {len(samples):,} inputs could be read as {_NOUN[model.kind]}, which this model "
                f"expects; the first, '{first.name}': {first.reason}."
            )
    return len(samples) - len(failures), failures


def _read_ahead(model: Model, samples: list[Input]) -> Iterator[tuple[list[Input], list[Any], Any]]:
    """Chunks of samples, what was read of them, and all that could be read as the model takes it."""
    chunks = [samples[i : i + CHUNK] for i in range(0, len(samples), CHUNK)]

    def read(chunk: list[Input]) -> tuple[list[Input], list[Any], Any]:
        values = list(_read(model, chunk))
        good = [value for value in values if not isinstance(value, Failure)]
        return chunk, values, _gathered(model, good) if good else None

    return ahead(read, chunks)


def _gathered(model: Model, values: list[Any]) -> Any:
    """Texts as they are, features as a matrix, images as a tensor that is where the model is."""
    if model.kind != "image":
        return values if model.kind == "text" else np.stack(values)
    return send(torch.from_numpy(np.stack(values)), model.device)


_NOUN = {"image": "an image", "text": "a text", "features": "features"}


def _read(model: Model, chunk: list[Input]) -> Iterator[Any]:
    """What `Model.predict` takes, or why it cannot be read."""
    if model.kind == "image":
        assert model.backbone is not None
        assert isinstance(model.backbone.preprocessing, ImagePreprocessing)
        shape = image_geometry(model.backbone.preprocessing)
        yield from map_threads(lambda row: _decode(chunk[row], shape), range(len(chunk)), None)
        return
    for sample in chunk:
        if isinstance(sample.value, Failure):
            yield sample.value
            continue
        text = isinstance(sample.value, str)
        ok = bool(sample.value.strip()) if text else bool(np.isfinite(sample.value).all())
        yield sample.value if ok else Failure(sample.name, "it is empty" if text else "NaN or infinity")


def _decode(sample: Input, shape: Geometry) -> np.ndarray | Failure:
    if isinstance(sample.value, Failure):
        return sample.value
    try:
        return decode_image(sample.value.read(), shape)
    except Exception as error:  # every format of PIL has its own exceptions for broken files
        return Failure(sample.name, "the file is empty" if _is_empty(sample.value) else reason_of(error))


def _is_empty(file: StoredFile) -> bool:
    return file.size == 0


def _answers(model: Model, values: Any) -> list[Prediction]:
    if model.kind == "image":
        return model.explain(model.adapt_images(values))
    return model.predict(values)
