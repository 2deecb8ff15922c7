"""Predict files and write a file of predictions: a row for every input, with a reason if it is unreadable."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sourceward._util.errors import InputError
from sourceward._util.progress import progress_bar
from sourceward.adaptation.stream import AdaptationStream
from sourceward.data.decode import Geometry, decode_image, map_threads, reason_of
from sourceward.data.loading import image_geometry
from sourceward.data.stored import StoredFile
from sourceward.model.inputs import Failure, Input, find_inputs
from sourceward.model.items import prefetch, send
from sourceward.model.model import Model
from sourceward.model.prediction import Prediction, atomic_text_file, writer_for
from sourceward.nn.backbones import ImagePreprocessing

TOO_FAR = "so far from the sources that it has no finite prediction"

ABSTAINED = "abstained"

CHUNK = 256
"""Samples that are read and predicted at a time."""


def predict_files(
    model: Model,
    inputs: Sequence[str | Path],
    out: str | Path,
    *,
    column: str | None = None,
    delimiter: str | None = None,
    root: str | None = None,
    stream: AdaptationStream[list[Prediction]] | None = None,
    abstain_below: float = 0.0,
    probabilities: bool = False,
    progress: bool | None = None,
) -> tuple[int, list[Failure]]:
    """Write a row for every input to `out`; return the number of predictions, and the failures.

    Args:
        model: see `load`.
        inputs: what the model reads: images, folders, globs and .tar files of images; text files with one
            text per line; tables (.csv, .tsv, .parquet) with a column of texts or image paths; .npy, .npz or
            .safetensors files of features.
        out: a .csv or .jsonl file; written atomically.
        column: of the table; the columns that `fit` recognises (`text`, `path`, ...) are found without it.
        delimiter: of the table; by default a comma, or a tab in a .tsv.
        root: folder that the images of tables are relative to and must lie in; by default a path is relative
            to its table and may lead anywhere.
        stream: of the model, to predict the inputs in order with its state.
        abstain_below: where trust is lower, a row has the status `abstained` and no label.
        probabilities: also write the probability of every class.
        progress: show a bar; None shows it if standard error is a terminal.
    """
    writer = writer_for(Path(out), model.sources, model.classes if probabilities else ())
    samples = list(find_inputs(model.kind, inputs, column, delimiter, root))
    if not samples:
        raise InputError(f"Found nothing to predict in {', '.join(map(str, inputs))}.")
    failures: list[Failure] = []
    with progress_bar(len(samples), "predicting", progress) as advance, atomic_text_file(out) as file:
        write = writer(file)
        done = 0
        for chunk, values, readable in _read_chunks(model, samples):
            predictions = iter([] if readable is None else _predict(model, readable, stream, probabilities))
            for sample, value in zip(chunk, values):
                answer = value if isinstance(value, Failure) else next(predictions)
                if isinstance(answer, Prediction) and answer.trust < abstain_below:
                    answer = replace(answer, label="", status=ABSTAINED)
                answer = Failure(sample.name, TOO_FAR) if answer is None else answer
                write(sample.name, answer)
                failures += [answer] if isinstance(answer, Failure) else []
            done += len(chunk)
            advance(done)
        if len(failures) == len(samples):
            first = failures[0]
            raise InputError(
                f"None of the {len(samples):,} inputs could be read as {_NOUN[model.kind]}, which this model "
                f"expects. The first, '{first.name}': {first.reason.removesuffix('.')}."
            )
    return len(samples) - len(failures), failures


def _read_chunks(model: Model, samples: list[Input]) -> Iterator[tuple[list[Input], list[Any], Any]]:
    """Yield chunks of samples, the value or `Failure` of each, and all readable values as one model input."""
    chunks = [samples[i : i + CHUNK] for i in range(0, len(samples), CHUNK)]

    def read(chunk: list[Input]) -> tuple[list[Input], list[Any], Any]:
        values = list(_read(model, chunk))
        readable = [value for value in values if not isinstance(value, Failure)]
        return chunk, values, _stack(model, readable) if readable else None

    return prefetch(read, chunks)


def _stack(model: Model, values: list[Any]) -> Any:
    """Return texts as a list, features as a matrix, images as a tensor on the model's device."""
    if model.kind != "image":
        return values if model.kind == "text" else np.stack(values)
    return send(torch.from_numpy(np.stack(values)), model.device)


_NOUN = {"image": "an image", "text": "a text", "features": "features"}


def _read(model: Model, chunk: list[Input]) -> Iterator[Any]:
    """Yield what `Model.predict` takes, or the `Failure` of a sample."""
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
        yield sample.value if ok else Failure(sample.name, "the text is empty" if text else "NaN or infinity")


def _decode(sample: Input, shape: Geometry) -> np.ndarray | Failure:
    """Return the image as uint8 (3, height, width), or why it cannot be decoded."""
    if isinstance(sample.value, Failure):
        return sample.value
    try:
        return decode_image(sample.value.read(), shape)
    except Exception as error:  # PIL raises different exceptions for each format
        return Failure(sample.name, "the file is empty" if _is_empty(sample.value) else reason_of(error))


def _is_empty(file: StoredFile) -> bool:
    return file.size == 0


def _predict(
    model: Model, values: Any, stream: AdaptationStream[list[Prediction]] | None, probabilities: bool
) -> list[Prediction | None]:
    """A prediction for each value; None where it would not be finite."""
    result = model.adapt_images(values) if model.kind == "image" else model.adapt(values)
    result = result if stream is None else stream.update(result)
    finite = np.isfinite(result.probabilities).all(1)
    return [found if ok else None for found, ok in zip(model.explain(result, probabilities), finite)]
