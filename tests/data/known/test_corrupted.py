import numpy as np
import pytest

from sourceward.data import corrupted_domains, load_images, open_dataset
from sourceward.data.dataset import build
from sourceward.errors import InputError


def test_published_cifar(tmp_path, monkeypatch):
    monkeypatch.setattr("sourceward.data.known.corrupted.CIFAR_TEST", 20)
    pixels = np.random.default_rng(0).integers(0, 256, (100, 32, 32, 3), dtype=np.uint8)
    np.save(tmp_path / "labels.npy", np.tile(np.arange(10), 10))
    np.save(tmp_path / "fog.npy", pixels)
    data = open_dataset(f"cifar10_c:{tmp_path}", severity=2, corruptions=["fog", "snow"])
    assert data.domain_names == ("fog",)
    assert np.array_equal(data.items[3], pixels[23].transpose(2, 0, 1))
    assert [p.where for p in data.problems] == ["snow"]


def test_clean_arrays_gain_corrupted_targets():
    pixels = np.random.default_rng(0).integers(0, 256, (8, 1, 28, 28), dtype=np.uint8)
    clean = build(
        "image",
        pixels,
        list("xyxyxyxy"),
        ["0"] * 8,
        [str(n) for n in range(8)],
        split=["train"] * 6 + ["val"] * 2,
    )
    data = corrupted_domains(clean, ["fog", "gaussian_noise"], severity=3, size=32)
    assert data.domain_names == ("clean", "fog", "gaussian_noise")
    assert data.targets == ("fog", "gaussian_noise")
    assert data.counts().sum(axis=1).tolist() == [8, 2, 2]
    again = corrupted_domains(clean, ["fog", "gaussian_noise"], severity=3, size=32)
    assert data.fingerprint() == again.fingerprint()
    assert not np.array_equal(data.items[8:10], data.items[6:8])


def test_clean_files_are_corrupted_as_they_are_read(put, tmp_path):
    for label in ("n1", "n2"):
        put(f"in/val/{label}/1.png")
    data = open_dataset(f"imagenet_c:{tmp_path / 'in'}", corruptions=["contrast", "shot_noise"], size=32)
    assert data.domain_names == ("clean", "contrast", "shot_noise")
    images = load_images(data, 32)
    assert np.array_equal(images, load_images(data, 32, cache_dir=""))
    assert len({image.numpy().tobytes() for image in images}) == 6


def test_wrong_names_and_severities():
    clean = build("image", np.zeros((1, 3, 32, 32), np.uint8), ["x"], ["0"], ["1"])
    with pytest.raises(InputError, match="Did you mean 'frost'"):
        corrupted_domains(clean, ["frots"])
    with pytest.raises(InputError, match="`severity` to be 1"):
        corrupted_domains(clean, severity=6)
