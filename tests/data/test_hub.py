import pytest

from sourceward._util.errors import InputError
from sourceward.data import decode_images, open_dataset

datasets = pytest.importorskip("datasets")


@pytest.fixture
def texts(tmp_path):
    features = datasets.Features(
        text=datasets.Value("string"),
        site=datasets.Value("string"),
        label=datasets.ClassLabel(names=["no", "yes"]),
    )
    rows = {"text": ["a", "b", "c", "d"], "site": ["n", "n", "s", "s"], "label": [0, 1, 0, 1]}
    parts = {name: datasets.Dataset.from_dict(rows, features) for name in ("train", "validation")}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "texts")
    return tmp_path / "texts"


def test_texts_with_named_classes_and_the_owners_split(texts):
    data = open_dataset(f"hf:{texts}")
    assert data.kind == "text"
    assert data.classes == ("no", "yes")
    assert data.domain_names == ("n", "s")
    assert data.split.tolist() == ["train"] * 4 + ["val"] * 4


def test_images_stay_encoded_until_read(folder, tmp_path):
    plain = open_dataset(folder)
    rows = {
        "image": [{"bytes": item.read(), "path": None} for item in plain.items],
        "domain": [plain.domain_names[d] for d in plain.domains],
        "label": plain.labels.tolist(),
    }
    features = datasets.Features(
        image=datasets.Image(),
        domain=datasets.Value("string"),
        label=datasets.ClassLabel(names=list(plain.classes)),
    )
    datasets.Dataset.from_dict(rows, features).save_to_disk(tmp_path / "images")
    data = open_dataset(f"hf:{tmp_path / 'images'}")
    assert data.classes == plain.classes
    assert data.counts().tolist() == plain.counts().tolist()
    assert decode_images(data, 8).equal(decode_images(plain, 8))
    with pytest.raises(InputError, match="holds no images"):
        open_dataset(f"hf:{tmp_path / 'images'}", image="domain")


def test_a_missing_column_and_a_missing_dataset(texts, monkeypatch):
    with pytest.raises(InputError, match="has no column 'place'"):
        open_dataset(f"hf:{texts}", domain="place")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match="cannot be loaded"):
        open_dataset("hf:./nowhere/at/all")
