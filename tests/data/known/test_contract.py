"""Every known dataset, in miniature and in its authors' layout. A new one joins by joining the registry."""

import gzip
import json
import struct
import subprocess
import sys

import numpy as np
import pytest

from sourceward._util.errors import InputError
from sourceward.data import DATASETS, decode_images, list_datasets, open_dataset


def folders(put, domains, classes):
    for domain in domains:
        for label in classes:
            for number in range(2):
                put(f"root/{domain}/{label}/{number}.png")


def pacs(put):
    from sourceward.data.known.image_folders import PACS_CLASSES

    folders(put, ("photo", "art_painting", "cartoon", "sketch"), PACS_CLASSES)


def office_home(put):
    folders(put, ("Art", "Clipart", "Product", "Real World"), ("Bed", "Fan"))


def domainnet(put):
    domains = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
    folders(put, domains, ("axe", "bee"))
    for domain in domains:
        put(f"root/{domain}_train.txt", f"{domain}/axe/0.png 0\n{domain}/bee/0.png 1\n".encode())
        put(f"root/{domain}_test.txt", f"{domain}/axe/1.png 0\n{domain}/bee/1.png 1\n".encode())


def vlcs(put):
    folders(put, ("Caltech101", "LabelMe", "VOC2007", "SUN09"), ("bird", "car", "chair", "dog", "person"))


def terra_incognita(put):
    folders(put, [f"location_{n}" for n in (38, 43, 46, 100)], ("bird", "cat"))


def idx(array):
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def rotated(put):
    labels = (np.arange(12_000) % 10).astype(np.uint8)
    images = np.random.default_rng(0).integers(0, 256, (12_000, 6, 6), dtype=np.uint8)
    put("root/MNIST/raw/train-images-idx3-ubyte", idx(images))
    put("root/MNIST/raw/train-labels-idx1-ubyte.gz", gzip.compress(idx(labels), 1))


def corrupted_idx(put):
    for part, count in (("train", 60), ("t10k", 30)):
        labels = (np.arange(count) % 10).astype(np.uint8)
        put(f"root/{part}-images-idx3-ubyte.gz", gzip.compress(idx(np.zeros((count, 8, 8), np.uint8)), 1))
        put(f"root/{part}-labels-idx1-ubyte", idx(labels))


def pheme(put):
    for event in ("charliehebdo", "ferguson", "germanwings-crash", "ottawashooting", "sydneysiege"):
        for folder in ("rumours", "non-rumours"):
            for number in range(2):
                thread = f"root/{event}-all-rnr-threads/{folder}/{number}"
                tweet = json.dumps({"text": f"{event} {number}"}).encode()
                put(f"{thread}/source-tweets/{number}.json", tweet)
                put(f"{thread}/source-tweets/._{number}.json", b"\0")
                put(f"{thread}/reactions/9.json", tweet)


def cifar10_c(put):
    random = np.random.default_rng(0)
    for name in ("data_batch_1.bin", "test_batch.bin"):
        records = random.integers(0, 256, (20, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(20) % 10
        put(f"root/cifar-10-batches-bin/{name}", records.tobytes())


def imagenet_c(put):
    from sourceward.data.corruptions import TEST_CORRUPTIONS

    for name in ("train", *(f"noise/{name}/5" for name in TEST_CORRUPTIONS)):
        for label in ("n01440764", "n01443537"):
            put(f"root/{name}/{label}/1.png")


MAKERS = {
    "pacs": pacs,
    "office_home": office_home,
    "domainnet": domainnet,
    "vlcs": vlcs,
    "terra_incognita": terra_incognita,
    "rotated_mnist": rotated,
    "rotated_fashion_mnist": rotated,
    "pheme": pheme,
    "cifar10_c": cifar10_c,
    "imagenet_c": imagenet_c,
    "corrupted_mnist": corrupted_idx,
    "corrupted_fashion_mnist": corrupted_idx,
}
SMALLER = {f"corrupted_{name}mnist": {"clean": 60, "per_domain": 30} for name in ("", "fashion_")}


@pytest.mark.parametrize("name", list(DATASETS))
def test_entry_has_description_location_and_layout(name):
    entry = DATASETS[name]
    assert entry.name == name
    assert min(len(entry.about), len(entry.where), len(entry.layout)) > 30
    assert entry in list_datasets()


@pytest.mark.parametrize("name", list(DATASETS))
def test_miniature_opens(name, put, tmp_path):
    MAKERS[name](put)
    data = open_dataset(f"{name}:{tmp_path / 'root'}", **SMALLER.get(name, {}))
    assert len(data.domain_names) > 1
    assert data.counts().all()
    assert len(set(data.ids)) == len(data)
    assert not {p.kind for p in data.problems} - {"class_count"}
    assert set(data.targets) < set(data.domain_names)
    again = open_dataset(f"{name}:{tmp_path / 'root'}", **SMALLER.get(name, {}))
    assert again.fingerprint() == data.fingerprint()
    if data.kind == "image":
        assert decode_images(data.select([0, len(data) - 1]), 8).shape == (2, 3, 8, 8)


@pytest.mark.parametrize("name", list(DATASETS))
def test_an_empty_folder_is_refused(name, tmp_path):
    with pytest.raises(InputError):
        open_dataset(f"{name}:{tmp_path}")


@pytest.mark.parametrize("name", list(DATASETS))
def test_a_path_that_is_not_there_shows_the_layout(name):
    with pytest.raises(InputError, match=f"Expected the path of {name}, laid out like <root>"):
        open_dataset(f"{name}:/nowhere/at/all")


def test_clean_digits_and_their_corrupted_test_images(put, tmp_path):
    corrupted_idx(put)
    options = {"corruptions": ["contrast", "fog"], "clean": 40, "per_domain": 20}
    data = open_dataset(f"corrupted_fashion_mnist:{tmp_path / 'root'}", **options)
    assert data.domain_names == ("clean", "contrast", "fog")
    assert data.counts().sum(axis=1).tolist() == [40, 20, 20]
    assert data.targets == ("contrast", "fog")
    assert data.items.shape[1:] == (3, 32, 32)
    own = {name.removeprefix("contrast/") for name in data.of_domains(["contrast"]).ids}
    assert all(name.startswith("test/") for name in own)
    with pytest.raises(InputError, match="1 to 30 test images"):
        open_dataset(f"corrupted_mnist:{tmp_path / 'root'}", clean=40, per_domain=31)


def test_datasets_are_listed_without_torch():
    script = "import sys; from sourceward.data import list_datasets as f; f(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "False\n"
