import numpy as np
import pytest

from sourceward.data import load_images, open_dataset
from sourceward.data.diagnosis import doctor
from sourceward.errors import InputError


@pytest.fixture
def published(tmp_path, monkeypatch):
    monkeypatch.setattr("sourceward.data.known.corrupted.CIFAR_TEST", 20)
    pixels = np.random.default_rng(0).integers(0, 256, (100, 32, 32, 3), dtype=np.uint8)
    np.save(tmp_path / "labels.npy", np.tile(np.arange(10), 10))
    np.save(tmp_path / "fog.npy", pixels)
    return tmp_path, pixels


def write_clean(folder):
    records = np.random.default_rng(1).integers(0, 256, (40, 3073), dtype=np.uint8)
    records[:, 0] = np.arange(40) % 10
    (folder / "data_batch_1.bin").write_bytes(records.tobytes())


def test_one_severity_of_the_published_arrays(published):
    folder, pixels = published
    data = open_dataset(f"cifar10_c:{folder}", severity=2, corruptions=["fog", "snow"])
    assert data.domain_names == data.targets == ("fog",)
    assert data.ids[3] == "fog/2/00003"
    assert np.array_equal(data.items[3], pixels[23].transpose(2, 0, 1))
    assert [p.where for p in data.problems] == ["snow"]


def test_clean_images_and_practice_join_the_published_ones(published):
    folder, _ = published
    write_clean(folder)
    data = open_dataset(f"cifar10_c:{folder}", corruptions=["fog"], practice=["saturate"])
    assert data.domain_names == ("clean", "saturate", "fog")
    assert data.counts().sum(axis=1).tolist() == [40, 40, 20]
    assert data.without(data.targets).train_val()[1].counts().sum(axis=1).tolist() == [10, 10]


def test_the_archive_beside_the_clean_images(published):
    folder, _ = published
    (folder / "CIFAR-10-C").mkdir()
    for file in folder.glob("*.npy"):
        file.rename(folder / "CIFAR-10-C" / file.name)
    write_clean(folder)
    assert open_dataset(f"cifar10_c:{folder}", corruptions=["fog"]).domain_names == ("clean", "fog")


def test_arrays_that_do_not_fit(published):
    folder, pixels = published
    np.save(folder / "fog.npy", pixels[:50])
    with pytest.raises(InputError, match="Download it again"):
        open_dataset(f"cifar10_c:{folder}", corruptions=["fog"])
    (folder / "data_batch_1.bin").write_bytes(b"x" * 3074)
    with pytest.raises(InputError, match="records of 3,073 bytes"):
        open_dataset(f"cifar10_c:{folder}")


def test_imagenet_from_clean_images(put, tmp_path):
    for label in ("n1", "n2"):
        put(f"in/val/{label}/1.png")
    data = open_dataset(f"imagenet_c:{tmp_path / 'in'}", corruptions=["contrast", "shot_noise"], size=32)
    assert data.domain_names == ("clean", "contrast", "shot_noise")
    assert data.counts().tolist() == [[1, 1]] * 3
    assert len({image.numpy().tobytes() for image in load_images(data, 32)}) == 6


def test_the_split_is_ours_and_doctor_says_so(tmp_path):
    write_clean(tmp_path)
    (tmp_path / "test_batch.bin").write_bytes((tmp_path / "data_batch_1.bin").read_bytes())
    found = doctor(f"cifar10_c:{tmp_path}", corruptions=["contrast"], quick=True)
    assert found.split_by == "a tenth of each class of the clean images, with all their copies"
    assert f"Select on 10 source images, {found.split_by}." in found.plan
