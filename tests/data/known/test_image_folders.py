import numpy as np
import pytest

from sourceward._util.errors import InputError
from sourceward.data import open_dataset

CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
DOMAINS = ("photo", "art_painting", "cartoon", "sketch")


@pytest.fixture
def pacs(put, tmp_path):
    for domain in DOMAINS:
        for label in CLASSES:
            for number in range(2):
                put(f"PACS/kfold/{domain}/{label}/{number}.jpg")
    return tmp_path / "PACS"


def write_lists(put, where, first_label):
    for domain in DOMAINS:
        for ending, number in (("train_kfold", 0), ("crossval_kfold", 1)):
            lines = [f"{domain}/{c}/{number}.jpg {n + first_label}" for n, c in enumerate(CLASSES)]
            put(f"{where}/{domain}_{ending}.txt", "\n".join(lines).encode())


@pytest.mark.parametrize("where", ["splits", "PACS/lists"])
def test_official_lists_are_found_and_count_from_one(pacs, put, where):
    write_lists(put, where, first_label=1)
    data = open_dataset(f"pacs:{pacs}")
    assert data.domain_names == DOMAINS
    assert data.ids[0] == "art_painting/dog/0.jpg"
    assert (data.split == "val").sum() == 28
    assert data.split_by == "by the official lists"
    assert {name.split("/")[-1] for name in data.train_val()[1].ids} == {"1.jpg"}
    assert [p.kind for p in data.problems] == ["one_based_labels"]


def test_lists_and_folders_that_disagree_are_reported(pacs, put):
    write_lists(put, "splits", first_label=0)
    lines = "photo/dog/0.jpg 6\nphoto/dog/0.jpg 6\nphoto/dog/77.jpg 0\n"
    put("splits/photo_train_kfold.txt", lines.encode())
    kinds = {p.kind for p in open_dataset(f"pacs:{pacs}").problems}
    assert kinds == {"listed_twice", "listed_but_missing", "unlisted", "label_mismatch"}


def test_given_lists_have_to_exist(pacs, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"holds no split lists: expected files <domain>_train\.txt"):
        open_dataset(f"pacs:{pacs}", splits=tmp_path / "empty")


def test_a_missing_domain_and_an_unknown_class_are_reported(put, tmp_path):
    for domain in ("Art", "Clipart", "Product"):
        put(f"oh/{domain}/Bed/1.jpg")
    problems = {p.kind: p.message for p in open_dataset(f"office_home:{tmp_path / 'oh'}").problems}
    assert "'real_world'" in problems["missing_domain"]
    assert problems["class_count"] == "Expected 65 classes, found 1."
    put("pacs/photo/zebra/1.jpg")
    with pytest.raises(InputError, match="holds the class 'zebra', expected one of: dog"):
        open_dataset(f"pacs:{tmp_path / 'pacs'}")


def test_the_wrong_folder_names_what_was_found(put, tmp_path):
    put("root/north/dog/1.jpg")
    with pytest.raises(InputError, match=r"expected folders photo, .*, found north"):
        open_dataset(f"pacs:{tmp_path / 'root'}")


def test_the_older_vlcs(put, tmp_path):
    for domain in ("CALTECH", "LABELME", "PASCAL", "SUN"):
        for part in ("train", "crossval", "test", "full"):
            for label in range(5):
                put(f"VLCS/{domain}/{part}/{label}/1.jpg")
    data = open_dataset(f"vlcs:{tmp_path / 'VLCS'}")
    assert data.domain_names == ("caltech101", "labelme", "voc2007", "sun09")
    assert data.classes == ("bird", "car", "chair", "dog", "person")
    assert data.counts().tolist() == [[3] * 5] * 4
    assert (data.split == "train").sum() == 20
    assert {p.kind for p in data.problems} == {"copy"}


def test_the_real_pacs(shared):
    data = open_dataset(f"pacs:{shared / 'data/pacs/pacs224.tar'}")
    bank = open_dataset(shared / "data/banks/pacs_resnet50_without_sketch.npz")
    assert len(data) == 9_991
    assert data.domain_names == bank.domain_names
    assert np.array_equal(data.counts(), bank.counts())
    held, expected = (d.select(d.split == "val").counts() for d in (data, bank))
    assert np.array_equal(held, expected)
