import numpy as np
import pytest

from sourceward._util.errors import InputError
from sourceward.data import decode_images, open_dataset
from sourceward.data.diagnosis import doctor


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


def test_clean_images_and_source_corruptions_join_the_published_ones(published):
    folder, _ = published
    write_clean(folder)
    data = open_dataset(f"cifar10_c:{folder}", corruptions=["fog"], source_corruptions=["saturate"])
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


def put_clean(put, part, count):
    for label in ("n1", "n2"):
        for number in range(count):
            put(f"in/{part}/{label}/{part}{number}.png")


def test_imagenet_from_clean_images(put, tmp_path):
    """What the targets are made of does not train."""
    put_clean(put, "val", 10)
    data = open_dataset(f"imagenet_c:{tmp_path / 'in'}", corruptions=["contrast", "shot_noise"], size=32)
    assert data.domain_names == ("clean", "contrast", "shot_noise")
    assert data.counts().tolist() == [[10, 10], [1, 1], [1, 1]]
    assert len({image.numpy().tobytes() for image in decode_images(data, 32)}) == 24
    trained = {data.ids[row].split("/", 1)[1] for row in data.train_val_indices()[0]}
    targets = {data.ids[row].split("/", 1)[1] for row in np.flatnonzero(data.domains > 0)}
    assert not trained & targets


def test_imagenet_trains_on_train_and_asks_about_val(put, tmp_path):
    put_clean(put, "train", 10)
    put_clean(put, "val", 2)
    data = open_dataset(f"imagenet_c:{tmp_path / 'in'}", corruptions=["contrast"], size=32)
    assert data.counts().tolist() == [[10, 10], [2, 2]]
    assert all(("train" if domain == 0 else "val") in name for domain, name in zip(data.domains, data.ids))


def test_published_imagenet_c_never_trains_on_its_own_clean_images(put, tmp_path):
    put_clean(put, "val", 2)
    put("in/noise/contrast/5/n1/1.png")
    put("in/noise/contrast/5/n2/1.png")
    data = open_dataset(f"imagenet_c:{tmp_path / 'in'}", corruptions=["contrast"])
    assert data.domain_names == ("contrast",)


def test_doctor_names_the_split_of_the_reader(tmp_path):
    write_clean(tmp_path)
    (tmp_path / "test_batch.bin").write_bytes((tmp_path / "data_batch_1.bin").read_bytes())
    found = doctor(f"cifar10_c:{tmp_path}", corruptions=["contrast"], quick=True)
    assert found.split_by == "a tenth of each class of the clean images, with all their copies"
    assert f"Validate on 10 source images, {found.split_by}." in found.plan
