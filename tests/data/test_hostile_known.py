"""Files of known datasets that lie: each is one `InputError`, and none makes the reader wait."""

import gzip
import os
import struct

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from sourceward import InputError, open_dataset
from sourceward.data.dataset import natural_order
from sourceward.data.decode import decode_images, open_image
from sourceward.data.diagnosis import doctor
from tests.tiny_runs import image_folder

IMAGES, LABELS = np.zeros((50, 28, 28), np.uint8), np.arange(50, dtype=np.uint8) % 10


def idx(array: np.ndarray) -> bytes:
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()


ODD_IDX = {
    "labels above 9": (idx(IMAGES), idx(LABELS + 200)),
    "a matrix of labels": (idx(IMAGES), idx(LABELS[:, None])),
    "a broken .gz": (gzip.compress(idx(IMAGES))[:20] + b"garbage" * 10, idx(LABELS)),
    "no pixels": (idx(np.zeros((50, 0, 28), np.uint8)), idx(LABELS)),
    "a vector of images": (idx(LABELS), idx(LABELS)),
    "nothing": (b"", b""),
}


@pytest.mark.parametrize(("images", "labels"), ODD_IDX.values(), ids=ODD_IDX)
def test_idx_files(tmp_path, images, labels):
    (tmp_path / "train-images-idx3-ubyte").write_bytes(images)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(labels)
    with pytest.raises(InputError):
        open_dataset(f"rotated_mnist:{tmp_path}", per_domain=10)


def test_a_small_gz_of_many_images(tmp_path, monkeypatch):
    many = np.zeros((5000, 28, 28), np.uint8)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(many)))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(5000, np.uint8)))
    monkeypatch.setenv("SOURCEWARD_MAX_EXPANDED_BYTES", "1000000")
    with pytest.raises(InputError, match="SOURCEWARD_MAX_EXPANDED_BYTES"):
        open_dataset(f"rotated_mnist:{tmp_path}", per_domain=10)


@pytest.mark.parametrize("name", ["labels.npy", "data_batch_1.bin"])
def test_pipes_among_the_files_of_cifar(tmp_path, name):
    np.save(tmp_path / "gaussian_noise.npy", np.zeros((100, 32, 32, 3), np.uint8))
    np.save(tmp_path / "labels.npy", np.arange(100) % 10)
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match="a pipe"):
        open_dataset(f"cifar10_c:{tmp_path}", severity=1)


@pytest.mark.parametrize(
    "labels", [np.array(3), np.array(["a"] * 100), np.arange(100) % 10 + 0.5, np.zeros((100, 2), int)]
)
def test_labels_of_cifar_that_are_none(tmp_path, labels):
    np.save(tmp_path / "gaussian_noise.npy", np.zeros((100, 32, 32, 3), np.uint8))
    np.save(tmp_path / "labels.npy", labels)
    with pytest.raises(InputError):
        open_dataset(f"cifar10_c:{tmp_path}", severity=1)


@pytest.mark.parametrize("label", ["²", "9" * 5000, "9" * 30, "--5", "-"])
def test_split_lists_with_odd_labels(tmp_path, label):
    for domain in ("art_painting", "cartoon", "photo", "sketch"):
        (tmp_path / domain / "dog").mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / domain / "dog" / "1.png")
    (tmp_path / "photo_train_kfold.txt").write_text(f"photo/dog/1.png {label}\n")
    assert len(open_dataset(f"pacs:{tmp_path}")) == 4  # the line names no image that is there


@pytest.mark.parametrize("spec", ["x" * 300, "pacs:" + "x" * 300, "~nosuchuser/x", "pacs:~nosuchuser/x"])
def test_specs_that_cannot_be(spec):
    with pytest.raises(InputError, match="No such file or folder"):
        open_dataset(spec)


def test_names_that_read_as_nan_have_one_order():
    """A set has another order in every process; NaN compares with nothing."""
    names = ["nan", "2", "10", "NaN", "-1"]
    assert natural_order(names) == natural_order(names[::-1]) == ("-1", "2", "10", "NaN", "nan")


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"


def test_no_image_starts_another_program(tmp_path, monkeypatch):
    """PostScript under the name of a .png is refused, wherever images are opened."""
    from sourceward.model.examples import show

    started = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *given, **more: started.append(given))
    root = image_folder(tmp_path / "images")
    (root / "a" / "x" / "0.png").write_bytes(EPS)
    data = open_dataset(root)
    assert [found.where for found in doctor(data).broken] == ["a/x/0.png"]
    for refused in (lambda: show(data, 0), lambda: open_image(EPS), lambda: decode_images(data, 16)):
        with pytest.raises(InputError, match="cannot identify image file"):
            refused()
    assert not started


def damaged_caches(whole: bytes):
    def of(array):
        import io

        stream = io.BytesIO()
        np.save(stream, array)
        return stream.getvalue()

    return {
        "cut": whole[:200],
        "empty": b"",
        "no rows": of(np.zeros(0, "<u8")),
        "a matrix": of(np.zeros((2, 2), "<u8")),
        "a word": of(np.array("x")),
        "small images": of(np.zeros((54, 1, 2, 2), np.float32)),
        "few images": of(np.zeros((3, 3, 16, 16), np.uint8)),
    }


@pytest.mark.parametrize("kind", ["images", "keys"])
def test_a_damaged_cache_is_decoded_again(tmp_path, kind):
    data = open_dataset(image_folder(tmp_path / "images"))
    expected = decode_images(data, 16, cache_dir=tmp_path).clone()
    (file,) = tmp_path.rglob(f"*.{kind}.npy")
    whole = file.read_bytes()
    for damage in damaged_caches(whole).values():
        file.write_bytes(damage)
        for rows in (np.arange(len(data)), np.arange(10)):
            assert (decode_images(data.select(rows), 16, cache_dir=tmp_path) == expected[rows]).all()
        file.write_bytes(whole)
