"""The kinds of cases: each makes one odd input and uses it as a user would.

A case returns "used" or "refused". Anything but our own errors is a finding, and so is a `Finding`.
"""

import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.numpy import save as save_safetensors
from safetensors.torch import save_file as save_torch

from sourceward import EnergyAdapter, load, open_dataset
from sourceward._util.errors import InputError
from sourceward.data.dataset import DomainDataset
from sourceward.data.decode import Geometry, decode_image
from sourceward.data.diagnosis import doctor
from sourceward.model.card import model_card
from sourceward.model.file import describe_model
from sourceward.model.inputs import Failure, find_inputs
from sourceward.nn.backbones import create_backbone
from tests.fuzz.mutate import WORDS, damage, directed, odd_json, other_digit, pick
from tests.helpers import QUICK, make_domains
from tests.tiny_runs import fit_tiny, tiny_features, tiny_images

Random = np.random.Generator


class Finding(AssertionError):
    """Something that must not happen, and raises nothing by itself."""


@dataclass
class World:
    """What all cases share: a folder to work in, and trained models with their predictions."""

    folder: Path
    models: dict[str, tuple[Path, Any, np.ndarray]]
    estimator: tuple[bytes, np.ndarray, np.ndarray]
    loaded: Any = None
    """The model of features."""
    servers: dict[str, Any] = field(default_factory=dict)
    """See `http.served`."""
    shared: dict[str, Any] = field(default_factory=dict)
    """See `folders.kept`."""

    @classmethod
    def create(cls, folder: Path) -> "World":
        features, images = tiny_features().items[:3], tiny_images().items[:2]
        models, loaded = {}, None
        for name, data, inputs in (
            ("features", tiny_features(), features),
            ("images", tiny_images(), images),
        ):
            model = fit_tiny(data, folder / "models" / name)
            models[name] = (folder / "models" / name, inputs, model.predict_proba(inputs))
            loaded = loaded or model
        rows, label, source = make_domains(rows=15)
        fitted = EnergyAdapter(**{**QUICK, "max_iter": 3}).fit(rows, label, sample_domain=source)
        fitted.save(folder / "models" / "estimator")
        saved = (folder / "models" / "estimator").read_bytes()
        (folder / "work").mkdir()
        return cls(folder, models, (saved, rows[:3], fitted.predict_proba(rows[:3])), loaded)

    @property
    def work(self) -> Path:
        return self.folder / "work"


def image_bytes(rng: Random) -> bytes:
    mode, kind = pick(rng, ("L", "RGB", "RGBA", "P", "1", "I;16", "CMYK")), pick(rng, FORMATS)
    size = tuple(int(n) for n in rng.integers(1, 40, size=2))
    image = Image.fromarray(rng.integers(0, 255, (size[1], size[0], 3), dtype=np.uint8))
    image = Image.new("I;16", size, 300) if mode == "I;16" else image.convert(mode)
    stream = io.BytesIO()
    try:
        options: dict[str, Any] = {"progressive": True} if kind == "JPEG" and rng.random() < 0.5 else {}
        image.save(stream, kind, **options)
    except (OSError, KeyError, ValueError):  # not every format has every mode
        stream = io.BytesIO()
        image.convert("RGB").save(stream, kind)
    return stream.getvalue()


FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000")


def images(world: World, rng: Random) -> str:
    if rng.random() < 0.05:
        return _other_format(rng)
    data = damage(image_bytes(rng), rng) if rng.random() < 0.9 else image_bytes(rng)
    shape = Geometry(pick(rng, (8, 16)), 8, pick(rng, ("crop", "exact")), pick(rng, (1.0, 0.875)))
    name, most = pick(
        rng, (("", 0), ("SOURCEWARD_MAX_IMAGE_PIXELS", 200), ("SOURCEWARD_MAX_IMAGE_BYTES", 400))
    )
    with patch.dict(os.environ, {name: str(most)} if name else {}):
        found = decode_image(data, shape)
    with Image.open(io.BytesIO(data)) as image:
        size = {
            "SOURCEWARD_MAX_IMAGE_PIXELS": image.width * image.height,
            "SOURCEWARD_MAX_IMAGE_BYTES": len(data),
        }
    if name and size[name] > most:
        raise Finding(f"{size[name]} is more than {name}={most}")
    if found.shape != (3, shape.height, shape.width) or not np.array_equal(found, decode_image(data, shape)):
        raise Finding("another image the second time")
    return "used"


def _other_format(rng: Random) -> str:
    """An image of a format that Pillow reads and we do not: some of them start another program."""
    kind, stream = pick(rng, ("EPS", "ICO", "TGA", "PCX", "SGI", "IM", "DDS")), io.BytesIO()
    Image.new("RGB", (16, 16), (200, 3, 90)).save(stream, kind)
    decode_image(stream.getvalue(), Geometry(8, 8))
    raise Finding(f"an image of format {kind} was decoded")


def pipe(path: Path, rng: Random) -> None:
    """Now and then, put a pipe in the place of a file: whoever opens it waits forever."""
    if rng.random() < 0.03:
        path.unlink()
        os.mkfifo(path)


def features(world: World, rng: Random) -> str:
    plain = rng.random() < 0.4  # right in all but one thing
    count, width = int(rng.integers(9 * plain, 20)), 5 if plain else int(rng.integers(0, 7))
    kinds = ("<f4", "<f8", "<f2", ">f8", "<i4", "u1", "<c8", "<U3", "?", "<M8[s]")
    with np.errstate(all="ignore"):
        matrix = rng.normal(size=(count, width)) * pick(rng, (1, 1, 1, 1e6, 1e30, 1e300))
        matrix = matrix.astype(pick(rng, kinds[: 4 if plain else None]))
    if matrix.size and matrix.dtype.kind == "f" and rng.random() < 0.3:
        matrix.flat[0] = pick(rng, (np.nan, np.inf, -np.inf))
    arrays = {"features": matrix, "label": rng.integers(0, 3, count), "domain": rng.integers(0, 3, count)}
    if rng.random() < 0.2:
        arrays["label"] = _texts(rng)[arrays["label"]]
    for name in ("classes", "domains", "is_validation", "held_out", "split"):
        if rng.random() < 0.3 * (1 - plain):
            odd = (np.array("a"), np.array(["a", "b", "c"]), np.zeros((2, 2)), np.arange(count), _texts(rng))
            arrays[name] = pick(rng, odd)
    suffix = pick(rng, (".npz", ".npy", ".safetensors"))
    path = world.work / f"features{suffix}"
    stream = io.BytesIO()
    if suffix == ".npz":
        pick(rng, (np.savez, np.savez_compressed))(stream, **arrays)
    elif suffix == ".npy":
        np.save(stream, matrix)
    else:
        kept = {
            name: array
            for name, array in arrays.items()
            if array.dtype.kind in "fiub" and array.dtype.isnative
        }
        stream.write(
            save_safetensors(
                kept,
                metadata={"classes": pick(rng, ('["a","b","c"]', "a", "3", "[[1]]", '["\\ud800","b","c"]'))},
            )
        )
    path.write_bytes(
        stream.getvalue() if rng.random() < 0.4 + 0.4 * plain else damage(stream.getvalue(), rng)
    )

    pipe(path, rng)

    def predict() -> Any:
        rows = [sample.value for sample in find_inputs("features", [path])]
        return np.isfinite(world.loaded.predict_proba(np.stack(rows))).all() if rows else None

    return both(lambda: use_dataset(open_dataset(path)), predict)


def _texts(rng: Random) -> np.ndarray:
    """Three names, which NumPy keeps without a check: half a surrogate pair, and no character at all."""
    names = np.array(["a" + pick(rng, WORDS).replace("\0", ""), "b\udc41", "c"])
    if rng.random() < 0.2:
        names.view(np.uint32)[0] = pick(rng, (0x110000, 0x7FFFFFFF))
    return names


def model_folders(world: World, rng: Random) -> str:
    source, inputs, expected = world.models[pick(rng, ("features", "images"))]
    folder = world.work / "model"
    shutil.copytree(source, folder)
    os.mkfifo(world.work / "pipe")
    draw, whole = rng.random(), json.loads((folder / "config.json").read_text())
    if draw < 0.4:  # damage, which checksums notice
        file = folder / pick(rng, ("config.json", "config.json", "model.safetensors"))
        change = pick(rng, (damage, other_digit))
        file.write_bytes(change(file.read_bytes(), rng))
        pipe(file, rng)
    elif draw < 0.5:
        pick(rng, [path for path in folder.iterdir() if path.is_file()]).unlink()
    else:  # somebody who knows of the checksum
        config = json.loads((folder / "config.json").read_text())
        config.pop("sha256")
        config = directed(config, rng) if rng.random() < 0.25 else odd_json(config, rng)
        (folder / "config.json").write_text(json.dumps(config))
    model = load(folder, "cpu")
    found = model.predict_proba(inputs)
    described = repr(model), model._repr_html_(), model_card(describe_model(model))
    if not all(described):
        raise Finding("a model without a description")
    if draw < 0.5 and not np.array_equal(found, expected):
        raise Finding("a damaged folder predicts something else")
    loaded = json.loads((folder / "config.json").read_text())
    # Without its key `sha256`, which may be hit itself, a config.json is one that somebody edited.
    if draw < 0.5 and any(loaded.get(key) != whole[key] for key in whole if key != "sha256"):
        raise Finding("a damaged config.json was taken")
    if not np.isfinite(found).all():
        raise Finding("a prediction that is not finite")
    return "used"


def estimators(world: World, rng: Random) -> str:
    data, inputs, expected = world.estimator
    (world.work / "estimator").write_bytes(damage(data, rng))
    if not np.array_equal(EnergyAdapter.load(world.work / "estimator").predict_proba(inputs), expected):
        raise Finding("a damaged file predicts something else")
    return "used"


def weights(world: World, rng: Random) -> str:
    """A file of weights: whole, with an odd tensor, or damaged."""
    whole = create_backbone("tiny:conv", weights=None).network.state_dict()
    name = pick(rng, sorted(whole))
    changes = (
        torch.Tensor.to_sparse,
        lambda one: one.to(torch.complex64),
        lambda one: one.to(pick(rng, (torch.float16, torch.bool, torch.uint8, torch.float8_e4m3fn))),
        lambda one: torch.zeros(one.shape, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
        lambda one: one.reshape(-1)[:1].clone(),
        lambda one: pick(rng, (None, {}, "x", {"state_dict": 3})),
    )
    if rng.random() < 0.6:
        whole = {**whole, name: pick(rng, changes)(whole[name])}
    path = world.work / pick(rng, ("w.pt", "w.safetensors"))
    if path.suffix == ".pt":
        torch.save(pick(rng, (whole, {"state_dict": whole}, {"model": whole, "epoch": 3})), path)
    else:
        kept = {k: v for k, v in whole.items() if isinstance(v, torch.Tensor) and v.layout == torch.strided}
        path.touch()
        with contextlib.suppress(SafetensorError):  # it takes no half of a byte
            save_torch(kept, path)
    if rng.random() < 0.5:
        path.write_bytes(damage(path.read_bytes(), rng))
    pipe(path, rng)
    create_backbone("tiny:conv", weights=path)
    return "used"


def use_dataset(data: DomainDataset) -> None:
    """What every command does with a dataset: hash it, split it, print and write its names."""
    names = (*data.classes, *data.domain_names, *data.ids, data.name, repr(data), data.fingerprint())
    for text in names if data.kind != "text" else (*names, *data.items):
        if not isinstance(text, str) or text != text.encode(errors="replace").decode():
            raise Finding(f"{text!r} cannot be written")
    data.train_val_indices()
    doctor(data)


def value(sample: Any) -> Any:
    """What `predict` does with a sample that it found."""
    if isinstance(sample.value, Failure | str):
        return sample.value
    try:
        return decode_image(sample.value.read(), Geometry(8, 8))
    except InputError:
        return None


def both(*uses: Callable[[], Any]) -> str:
    """Use an input in several ways; "used" if one of them took it."""
    used = "refused"
    for use in uses:
        try:
            use()
            used = "used"
        except InputError:
            continue
    return used
