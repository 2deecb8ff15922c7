import subprocess
import sys

import pytest

from sourceward._util.errors import InputError
from sourceward.data import open_dataset


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
