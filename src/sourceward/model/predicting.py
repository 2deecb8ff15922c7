"""From files to a file of predictions: every input gets a row, an unreadable one says why."""

import csv
import glob
import json
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch

from sourceward.data.arrays import load_safetensors
from sourceward.data.decode import Geometry, decode_image, map_threads, reason_of
from sourceward.data.table import find_column, read_parquet, separator_of
from sourceward.data.tree import IMAGE_SUFFIXES, StoredFile, is_image, read_tree
from sourceward.errors import InputError
from sourceward.inputs import image_geometry
from sourceward.model.ahead import ahead, send
from sourceward.model.model import Model, Prediction
from sourceward.nn.backbones import ImagePreprocessing
from sourceward.progress import progress_bar

CHUNK = 256
UNREADABLE = "unreadable"
TABLES = (".csv", ".tsv", ".parquet")


@dataclass(frozen=True)
class Input:
    """One sample to predict: its name in the output, and the file, text, feature vector or `Failure`."""

    name: str
    value: Any


@dataclass(frozen=True)
class Failure:
    name: str
    reason: str


def predict_files(
    model: Model,
    inputs: Sequence[str | Path],
    out: str | Path,
    *,
    column: str | None = None,
    delimiter: str | None = None,
    progress: bool | None = None,
) -> list[Failure]:
    """Write a row for every input to `out` (.csv or .jsonl) and return what could not be read.

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
    writer = _writer_for(Path(out), model.sources)
    samples = list(find_inputs(model, inputs, column, delimiter))
    if not samples:
        raise InputError(f"Found nothing to predict in {', '.join(map(str, inputs))}.")
    failures: list[Failure] = []
    with progress_bar(len(samples), "predicting", progress) as advance, _whole_or_nothing(out) as stream:
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
    return failures


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


def find_inputs(
    model: Model, inputs: Sequence[str | Path], column: str | None = None, delimiter: str | None = None
) -> Iterator[Input]:
    """Samples in the order given; folders and globs in alphabetical order.

    One input alone has to be there; among several, a missing one is a sample that cannot be read.
    """
    for given in map(str, inputs):
        paths = _expand(given, model.kind)
        if not paths and not Path(given).is_dir():
            if len(inputs) == 1:
                raise InputError(f"No such file: '{given}'. Expected files, folders or globs.")
            yield Input(given, Failure(given, "no such file"))
        for path in paths:
            if path.suffix.lower() in TABLES and model.kind != "features":
                yield from _table(path, model.kind, column, delimiter)
            elif model.kind == "image" and path.suffix.lower() == ".tar":
                yield from (Input(f"{path}:{name}", file) for name, file in read_tree(path).images().items())
            elif model.kind == "image":
                yield Input(str(path), _stored(path))
            elif model.kind == "text":
                yield from _lines(path)
            else:
                yield from _matrix(path)


def _expand(given: str, kind: str) -> list[Path]:
    """The files that an input stands for; none where there is no such file."""
    path = Path(given)
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
        images = [p for p in found if is_image(p.name)]
        if kind == "image" and not images:
            raise InputError(
                f"Expected images in '{given}', but found none of {', '.join(sorted(IMAGE_SUFFIXES))}."
            )
        return images if kind == "image" else found
    if path.exists():
        return [path]
    matches = [Path(name) for name in sorted(glob.glob(given, recursive=True))]
    return [match for match in matches if match.is_file()]


def _table(path: Path, kind: str, column: str | None, delimiter: str | None) -> Iterator[Input]:
    for number, value in _cells(path, "text" if kind == "text" else "path", column, delimiter):
        yield Input(f"{path}:{number}", value if kind == "text" else _stored(path.parent / value))


def _cells(path: Path, role: str, column: str | None, delimiter: str | None) -> Iterator[tuple[int, str]]:
    """Each row's number, in a text table that of its line, and what the wanted column holds."""

    def wanted(names: Sequence[str]) -> str:
        found = find_column(names, role, column, str(path))
        if found is None:
            raise InputError(
                f"'{path}' has no column {role!r}; it has {', '.join(names) or 'none'}. "
                "Name the one to read with --column."
            )
        return found

    if path.suffix.lower() == ".parquet":
        columns = read_parquet(path)
        values = columns[wanted(list(columns))]
        yield from ((number, "" if v is None else str(v)) for number, v in enumerate(values, 1))
        return
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream, delimiter=separator_of(path, delimiter))
            name = wanted(reader.fieldnames or [])
            yield from ((number, row[name] or "") for number, row in enumerate(reader, 2))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"Expected '{path}' to be a UTF-8 table, but {error}. Save it as UTF-8 CSV."
        ) from None


def _lines(path: Path) -> Iterator[Input]:
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line.strip():
                yield Input(f"{path}:{number}", line)
    except UnicodeDecodeError:
        raise InputError(f"Expected a file of texts, one a line, but '{path}' is no text in UTF-8.") from None


def _matrix(path: Path) -> Iterator[Input]:
    try:
        if path.suffix.lower() == ".safetensors":
            loaded: Any = load_safetensors(path)
        else:
            loaded = np.load(path, allow_pickle=False)
        rows = loaded if isinstance(loaded, np.ndarray) else loaded["features"]
        rows = np.atleast_2d(rows).astype(np.float32)
    except Exception:  # zipfile, zlib and numpy each have their own way to say "no array"
        raise InputError(
            f"This model reads features, but '{path}' is no readable .npy of numbers, or .npz or "
            ".safetensors with `features`."
        ) from None
    for number, row in enumerate(rows):
        yield Input(f"{path}:{number}", row)


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


def _stored(path: Path) -> StoredFile:
    """The whole file; one that is not there fails when it is read."""
    return StoredFile(str(path), path.stat().st_size if path.is_file() else -1)


def _is_empty(file: StoredFile) -> bool:
    return file.size == 0


def _answers(model: Model, values: Any) -> list[Prediction]:
    if model.kind == "image":
        return model.explain(model.adapt_images(values))
    return model.predict(values)


Write = Callable[[str, Prediction | Failure], None]


def _writer_for(out: Path, sources: Sequence[str]) -> Callable[[TextIO], Write]:
    if out.suffix.lower() == ".jsonl":
        return _jsonl
    if out.suffix.lower() == ".csv":
        return lambda stream: _csv(stream, sources)
    raise InputError(f"Expected --out to end in .csv or .jsonl, but got '{out}'.")


def _jsonl(stream: TextIO) -> Write:
    def write(name: str, answer: Prediction | Failure) -> None:
        if isinstance(answer, Failure):
            row: dict[str, Any] = {"status": UNREADABLE, "reason": answer.reason}
        else:
            row = dict(vars(answer))
        stream.write(json.dumps({"input": name, **row}, ensure_ascii=False) + "\n")

    return write


def _csv(stream: TextIO, sources: Sequence[str]) -> Write:
    table = csv.writer(stream)
    parts = ("vote", "energy_before", "energy_after")
    columns = [f"{part}_{name}" for part in parts for name in sources]
    table.writerow(["input", "label", "probability", "status", *columns, "reason"])

    def write(name: str, answer: Prediction | Failure) -> None:
        if isinstance(answer, Failure):
            table.writerow([name, "", "", UNREADABLE, *[""] * len(columns), answer.reason])
            return
        energies = [f"{e[s]:.6g}" for e in (answer.energy_before, answer.energy_after) for s in sources]
        votes = [answer.votes[source] for source in sources]
        label, probability = answer.label, f"{answer.probability:.6g}"
        table.writerow([name, label, probability, answer.status, *votes, *energies, ""])

    return write


@contextmanager
def _whole_or_nothing(path: str | Path) -> Iterator[TextIO]:
    """A text file that appears when it is complete."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", newline="", encoding="utf-8") as stream:
            yield stream
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"Could not write '{path}': {error.strerror or error}.") from None
    finally:
        temporary.unlink(missing_ok=True)
