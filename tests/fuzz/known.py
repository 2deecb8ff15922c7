"""Cases of files of known datasets: idx, .npy, split lists and tweets."""

import io
import json
import os
import struct
from typing import Any

import numpy as np

from sourceward import open_dataset
from sourceward._util.errors import InputError
from tests.fuzz.kinds import Finding, Random, World, use_dataset
from tests.fuzz.mutate import VALUES, WORDS, damage, pick


def known(world: World, rng: Random) -> str:
    """Files of known datasets: idx, .npy, split lists and tweets."""
    folder, kind = world.work, pick(rng, ("mnist", "cifar", "lists", "tweets"))
    odd = rng.random() < 0.7
    if kind == "mnist":
        shapes = {"images-idx3": (20, 28, 28), "labels-idx1": (20,)}
        for name, shape in shapes.items():
            array = rng.integers(0, 10, shape, dtype=np.uint8)
            data = struct.pack(">HBB", 0, 8, len(shape)) + struct.pack(f">{len(shape)}I", *shape)
            data += array.tobytes()
            (folder / f"train-{name}-ubyte").write_bytes(damage(data, rng) if odd else data)
        return _opened(f"rotated_mnist:{folder}", per_domain=5)
    if kind == "cifar":
        labels = pick(rng, (np.arange(9) % 10, np.arange(9) * 0.5, np.array(3), np.array(["a"] * 9)))
        for name, array in (("labels", labels), ("fog", np.zeros((9, 32, 32, 3), np.uint8))):
            stream = io.BytesIO()
            np.save(stream, array)
            data = stream.getvalue()
            (folder / f"{name}.npy").write_bytes(damage(data, rng) if odd else data)
        if rng.random() < 0.2:
            place = folder / pick(rng, ("data_batch_1.bin", "labels.npy", "fog.npy"))
            place.unlink(missing_ok=True)
            os.mkfifo(place)
        return _opened(f"cifar10_c:{folder}", severity=1)
    if kind == "tweets":
        for number in range(8):
            place = folder / "ab"[number % 2] / pick(rng, ("rumours", "non-rumours")) / str(number)
            (place / "source-tweets").mkdir(parents=True)
            text = json.dumps({pick(rng, ("text", "full_text", "x")): pick(rng, (*WORDS, *VALUES))}).encode()
            text = pick(rng, (text, text, damage(text, rng), b"[" * 10**5))
            (place / "source-tweets" / f"{number}.json").write_bytes(text)
        return _opened(f"pheme:{folder}", events="all")
    for domain in ("photo", "sketch"):
        (folder / domain / "dog").mkdir(parents=True)
        (folder / domain / "dog" / "1.png").write_bytes(b"x")
    words = [f"photo/dog/1.png {pick(rng, (*WORDS, '²', '-', '9' * 30))}" for _ in range(3)]
    (folder / "photo_train_kfold.txt").write_bytes("\n".join(words).encode("utf-8", "replace"))
    return _opened(f"pacs:{folder}")


def _opened(spec: str, **options: Any) -> str:
    try:
        data = open_dataset(spec, **options)
        use_dataset(data)
        return "used" if len(data) else "refused"
    except InputError as error:
        if "\n" in str(error):
            raise Finding(f"an error of several lines: {error}") from None
        return "refused"
