"""Tiny datasets made on the spot, and the real ones where they lie beside the checkout."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

DOMAINS, CLASSES, EACH = ("photo", "sketch"), ("cat", "dog", "owl"), 4


@pytest.fixture(scope="session")
def shared() -> Path:
    """Real data that is never part of the project."""
    folder = Path(__file__).parents[3] / "shared"
    if not folder.exists():
        pytest.skip("real data is not beside this checkout (../shared)")
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing leaves the test's own folder."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("SOURCEWARD_CACHE", str(folder))
    return folder


def make_image(seed: int = 0, size: tuple[int, int] = (12, 10), kind: str = "png") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind)
    return stream.getvalue()


@pytest.fixture
def image_bytes() -> Callable[..., bytes]:
    """image_bytes(seed, size, kind): an encoded image of noise."""
    return make_image


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., Path]:
    """put("a/b.png") writes an image below the test's folder, put("a/b.txt", b"...") any bytes."""

    def write(name: str, data: bytes | None = None, seed: int | None = None) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(make_image(hash_of(name) if seed is None else seed) if data is None else data)
        return path

    return write


def hash_of(name: str) -> int:
    return sum(ord(letter) * 31**place for place, letter in enumerate(name)) % 2**31


@pytest.fixture
def folder(put: Callable[..., Path], tmp_path: Path) -> Path:
    """<root>/<2 domains>/<3 classes>/<4 images>."""
    for domain in DOMAINS:
        for label in CLASSES:
            for number in range(EACH):
                put(f"root/{domain}/{label}/{number}.png")
    return tmp_path / "root"


@pytest.fixture
def archive(folder: Path, tmp_path: Path) -> Path:
    """The same tree in a .tar, under one more folder."""
    path = tmp_path / "root.tar"
    with tarfile.open(path, "w") as tar:
        tar.add(folder, "Top")
    return path
