import subprocess
import sys

import pytest

from sourceward._util.errors import InputError
from sourceward.data import decode_images, open_dataset


def test_a_dataset_stays_what_it_is(folder):
    data = open_dataset(folder)
    assert open_dataset(data) is data


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no/such/place", "No such file or folder: 'no/such/place'. Expected a folder"),
        ("pacs", "For the known dataset write pacs:/path"),
        ("pasc:/data", "Unknown dataset 'pasc'. Did you mean 'pacs'?"),
        ("pacs:", "Expected the path of pacs"),
    ],
)
def test_what_cannot_be_opened(spec, message):
    with pytest.raises(InputError) as error:
        open_dataset(spec)
    assert message in str(error.value)


def test_a_file_of_no_known_kind(put):
    with pytest.raises(InputError, match="has an unknown format"):
        open_dataset(put("notes.docx", b"x"))


def test_a_folder_takes_no_options(folder):
    with pytest.raises(InputError, match="Unknown option 'splits' for a folder: it takes none"):
        open_dataset(folder, splits="x")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"per_domain": "many"}, "`per_domain` to be a whole number or none, but got 'many'"),
        ({"per_domain": True}, "but got True"),
        ({"angles": 45}, r"`angles` to be a list \[...\] or none, but got 45"),
        ({"targets": "90"}, "`targets` to be a list"),
        ({"angles": ["x"]}, "`angles` to be a list"),
        ({"setting": 15}, "Unknown setting '15'"),
        ({"images": None}, "`images` to be text, but got None"),
    ],
)
def test_options_are_of_the_types_that_the_reader_declares(option, message, tmp_path):
    with pytest.raises(InputError, match=message):
        open_dataset(f"rotated_mnist:{tmp_path}", **option)


def test_importing_needs_no_optional_package():
    # scikit-learn itself looks for pandas and pyarrow; what counts is that nothing more comes with us.
    code = (
        "import sys, sklearn.utils.validation; before = set(sys.modules); import sourceward.data; "
        "print({'pyarrow', 'datasets', 'pandas', 'rich'} & (set(sys.modules) - before))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


@pytest.mark.parametrize(("module", "spec"), [("datasets", "hf:x"), ("pyarrow", "t.parquet")])
def test_a_missing_package_names_the_extra(module, spec, put, monkeypatch, tmp_path):
    put("t.parquet", b"x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=r"pip install sourceward\[data\]"):
        open_dataset(spec)


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
