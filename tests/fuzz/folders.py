"""Cases of folders and of files that belong to something: states of streams, results of a report, predictions
for drift, runs that go on, settings, caches, and files of known datasets."""

import csv
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from sourceward import load, open_dataset
from sourceward._util.storage import load_tensors, save_tensors
from sourceward._util.values import read_config
from sourceward.data.cache import trim_cache
from sourceward.data.decode import decode_images
from sourceward.deploy.monitor import measure_drift
from sourceward.model.predicting import predict_files
from sourceward.report.document import document
from sourceward.report.results import read_all, readable, report_html
from sourceward.training.configuration import settings_for
from tests.fuzz.kinds import Finding, Random, World, pipe
from tests.fuzz.mutate import VALUES, WORDS, damage, odd_json, pick
from tests.tiny_runs import fit_tiny, kill_at, tiny_features, tiny_images, weights_of

RESULTS = Path(__file__).parents[2] / "results"
SMALL = 150_000
"""Bytes of a results file that is damaged."""
LONG = {"max_iter": 65}


def kept(world: World, name: str, make: Any) -> Any:
    """Something that cases share, made when it is first needed; below `models`, which no case changes."""
    if name not in world.shared:
        world.shared[name] = make(world.folder / "models" / name)
    return world.shared[name]


def states(world: World, rng: Random) -> str:
    """The state of a stream: damage is noticed, and whatever is taken predicts shares of 1."""
    folder, _, _ = world.models["features"]
    inputs = tiny_features().items

    def make(path: Path) -> Any:
        stream = load(folder, "cpu").stream()
        stream.predict(inputs)
        stream.save(path)
        return path, load(folder, "cpu").stream().load(path).predict_proba(inputs)

    path, expected = kept(world, "state", make)
    file = world.work / "state"
    noticed = rng.random() < 0.4
    if noticed:
        file.write_bytes(damage(path.read_bytes(), rng))
    else:
        tensors, meta = load_tensors(path)
        tensors, meta = _odd_tensors(tensors, rng), odd_json(meta, rng) if rng.random() < 0.5 else meta
        save_file(tensors, file, metadata={"sourceward": json.dumps(meta)})
    pipe(file, rng)
    found = load(folder, "cpu").stream().load(file).predict_proba(inputs)
    if noticed and not np.array_equal(found, expected):
        raise Finding("a damaged state predicts something else")
    if not np.isfinite(found).all() or np.abs(found.sum(1) - 1).max() > 1e-3:
        raise Finding("a state leads to a prediction that is none")
    return "used"


def _odd_tensors(tensors: dict[str, torch.Tensor], rng: Random) -> dict[str, torch.Tensor]:
    """One tensor is missing, of another type or shape, or holds something odd."""
    found = {name: tensor.clone() for name, tensor in tensors.items()}
    name = pick(rng, sorted(found))
    changes = (
        lambda one: one.reshape(-1)[:1].clone(),
        lambda one: one.to(pick(rng, (torch.int32, torch.float16, torch.bfloat16, torch.bool))),
        lambda one: torch.full_like(one, pick(rng, (-1, 0, 2, 10**6))),
        lambda one: one.double() * float("nan"),
        lambda one: torch.zeros(one.shape or (2,), dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
        lambda one: one * float("nan") if one.is_floating_point() else one - 2**62,
        lambda one: one * 1e30 if one.is_floating_point() else one * 10**6,
    )
    if rng.random() < 0.15:
        del found[name]
    else:
        found[name] = pick(rng, changes)(found[name])
    return found


def results(world: World, rng: Random) -> str:
    """A report of damaged results, of a run or of a bench: a page, or one sentence."""
    sources = [path for path in sorted(RESULTS.rglob("results.json")) if path.stat().st_size < SMALL]
    folder = world.work / "results"
    if rng.random() < 0.25:
        shutil.copytree(world.models["features"][0], folder)
        file = folder / "config.json"
    else:
        folder.mkdir()
        file = folder / "results.json"
        shutil.copy(pick(rng, sources), file)
    whole = file.read_bytes()
    if rng.random() < 0.25:
        file.write_bytes(damage(whole, rng))
    else:
        content = json.loads(whole)
        for _ in range(int(rng.integers(1, 4))):
            content = odd_json(content, rng)
        file.write_text(json.dumps(content))
    if rng.random() < 0.3:
        with readable(folder):
            return "used" if document("x", read_all(folder), []) else "refused"
    return "used" if report_html(folder) else "refused"


def drift(world: World, rng: Random) -> str:
    """Predictions with odd cells, columns or bytes."""
    folder, _, _ = world.models["features"]

    def make(path: Path) -> Path:
        path.mkdir()
        np.save(path / "x.npy", np.tile(tiny_features().items, (2, 1)))
        predict_files(load(folder, "cpu"), [path / "x.npy"], path / "p.csv")
        return path / "p.csv"

    rows = list(csv.reader(kept(world, "drift", make).read_text().splitlines()))
    for _ in range(int(rng.integers(1, 6))):
        row = rows[int(rng.integers(0 if rng.random() < 0.3 else 1, len(rows)))]
        row[int(rng.integers(len(row)))] = pick(rng, (*WORDS, "1e999", "0x1", "-inf", "1_0", "٣"))
    if rng.random() < 0.5:
        file = world.work / "p.csv"
        stream = io.StringIO()
        csv.writer(stream).writerows(rows)
        file.write_bytes(stream.getvalue().encode("utf-8", "replace"))
    else:
        file = world.work / "p.parquet"
        file.write_bytes(_parquet(rows, rng))
    if rng.random() < 0.4:
        file.write_bytes(damage(file.read_bytes(), rng))
    pipe(file, rng)
    found = measure_drift(folder, [file], window=int(pick(rng, (20, 50, 10**6))))
    json.dumps(found, allow_nan=False)
    return "used"


def _parquet(rows: list[list[str]], rng: Random) -> bytes:
    import pyarrow
    from pyarrow import parquet

    def number(text: str) -> float | None:
        try:
            return float(text)
        except ValueError:
            return None

    columns: dict[str, Any] = {}
    for place, name in enumerate(rows[0]):
        cells = [row[place].encode("utf-8", "replace").decode() for row in rows[1:]]
        numbers = [number(cell) for cell in cells]
        kinds = (numbers, numbers, numbers, cells, [[n] for n in numbers], [{"a": n} for n in numbers])
        columns[name.encode("utf-8", "replace").decode()] = pick(rng, kinds)
    keys = (b"{}", b"", b"[]", b"no json", b'{"tta": 3}')
    stream = io.BytesIO()
    table = pyarrow.table(columns).replace_schema_metadata({b"sourceward": pick(rng, keys)})
    parquet.write_table(table, stream)
    return stream.getvalue()


def runs(world: World, rng: Random) -> str:
    """A killed fit whose files are damaged: it is refused, or goes on to the same bits."""
    from unittest.mock import patch as mock

    import pytest

    from sourceward.training.finetune import FineTuner
    from sourceward.training.trainer import Trainer

    kind = pick(rng, ("features", "features", "images"))
    data = tiny_images() if kind == "images" else tiny_features()
    options: dict[str, Any] = {} if kind == "images" else {"settings": LONG}

    def make(path: Path) -> tuple[Path, str]:
        fit_tiny(data, path / "whole", **options)
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, *((8, FineTuner) if kind == "images" else (62, Trainer)))
            try:
                fit_tiny(data, path / "half", **options)
            except KeyboardInterrupt:
                return path / "half", weights_of(path / "whole")
        raise AssertionError("it was not killed")

    half, expected = kept(world, f"run of {kind}", make)
    folder = world.work / "run"
    shutil.copytree(half, folder)
    file = pick(rng, [path for path in sorted(folder.iterdir()) if path.is_file()])
    draw = rng.random()
    if draw < 0.15:
        file.unlink()
        os.mkfifo(file)
    elif file.suffix == ".safetensors" and draw < 0.5:  # with a right checksum
        tensors, meta = load_tensors(file)
        if rng.random() < 0.5:
            meta = odd_json(meta, rng)
        else:
            tensors.pop(pick(rng, sorted(tensors)))
        save_tensors(file, tensors, meta)
    elif file.suffix == ".json" and draw < 0.5:
        file.write_text(json.dumps(odd_json(json.loads(file.read_text()), rng)))
    else:
        file.write_bytes(damage(file.read_bytes(), rng))
    with mock("warnings.warn"):
        fit_tiny(data, folder, **options)
    if draw >= 0.5 and weights_of(folder) != expected:  # damage, not somebody who knows of the checksum
        raise Finding(f"a run whose {file.name} is damaged ends with other bits")
    return "used"


def configs(world: World, rng: Random) -> str:
    """A file of settings: refused, or settings that can be written and read again."""
    file = world.work / "settings.json"
    plain = settings_for(True).to_dict()
    some = {name: plain[name] for name in plain if rng.random() < 0.2 or isinstance(plain[name], dict)}
    for _ in range(int(rng.integers(1, 4))):
        some = odd_json(some, rng) if some else {pick(rng, WORDS): pick(rng, VALUES)}
    text = json.dumps(some).encode()
    file.write_bytes(damage(text, rng) if rng.random() < 0.2 else text)
    settings = settings_for(bool(rng.random() < 0.5), read_config(file))
    json.dumps(settings.to_dict())
    if rng.random() < 0.1:
        few = {
            "max_iter": 2,
            "batch_size": 6,
            "num_steps": 0,
            "train": {**settings.to_dict()["train"], "num_steps": 1},
        }
        fit_tiny(tiny_features(), world.work / "run", settings=few)
    return "used"


def caches(world: World, rng: Random) -> str:
    """A damaged cache of decoded images: the same pixels; and clearing deletes its own files alone."""
    from tests.tiny_runs import image_folder

    def make(path: Path) -> Any:
        data = open_dataset(image_folder(path))
        return data, decode_images(data, 16, cache_dir="").clone()

    data, expected = kept(world, "cached", make)
    folder = world.work / "cache"
    decode_images(data, 16, cache_dir=folder)
    file = pick(rng, sorted(folder.rglob("*.npy")))
    whole = file.read_bytes()
    header = damage(whole[:128], rng) + whole[128:]  # not the pixels, whose bits have no checksum
    file.write_bytes(
        pick(rng, (header, whole[: int(rng.integers(len(whole)))], damage(whole[:128], rng), b""))
    )
    rows = pick(rng, (np.arange(len(data)), np.arange(7)))
    if not (decode_images(data.select(rows), 16, cache_dir=folder) == expected[rows]).all():
        raise Finding("a damaged cache gives other pixels")
    foreign = folder / pick(rng, ("images/mine.npy", "images/x.keys.npy", "features/a.safetensors", "b.npy"))
    foreign.parent.mkdir(exist_ok=True)
    foreign.write_text("mine")
    before, os.environ["SOURCEWARD_CACHE"] = os.environ["SOURCEWARD_CACHE"], str(folder)
    try:
        trim_cache(0)
    finally:
        os.environ["SOURCEWARD_CACHE"] = before
    if not foreign.exists():
        raise Finding(f"clearing the cache deleted {foreign.name}")
    return "used"
