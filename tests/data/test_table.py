import csv

import pytest

from sourceward._util.errors import InputError
from sourceward.data import open_dataset

ROWS = [
    ("site", "label", "text", "uid"),
    ("north", "1", "all well", "a"),
    ("north", "2", "smoke, fire", "b"),
    ("south", "1", "calm", "c"),
    ("south", "2", "alarm\nnow", "d"),
]


def write(path, rows, delimiter=","):
    with open(path, "w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, delimiter=delimiter).writerows(rows)
    return path


@pytest.fixture
def table(tmp_path):
    return write(tmp_path / "t.csv", ROWS)


def test_columns_are_found(table):
    data = open_dataset(table)
    assert data.kind == "text"
    assert data.items == ("all well", "smoke, fire", "calm", "alarm\nnow")
    assert data.domain_names == ("north", "south")
    assert data.classes == ("1", "2")
    assert data.labels.tolist() == [0, 1, 0, 1]
    assert data.ids == ("a", "b", "c", "d")


def test_tab_separated_and_parquet_read_the_same(table, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    columns = {name: list(cells) for name, *cells in zip(*ROWS)}
    parquet.write_table(arrow.table(columns), tmp_path / "t.parquet")
    tabs = write(tmp_path / "t.tsv", ROWS, delimiter="\t")
    expected = open_dataset(table).fingerprint()
    assert open_dataset(tabs).fingerprint() == expected
    renamed = tabs.rename(tmp_path / "tabs.csv")
    assert open_dataset(renamed, delimiter=r"\t").fingerprint() == expected  # as one types it in a shell
    assert open_dataset(tmp_path / "t.parquet").fingerprint() == expected


def test_columns_are_named_by_the_caller(tmp_path):
    path = write(tmp_path / "t.csv", [("where", "what", "says"), *(row[:3] for row in ROWS[1:])])
    data = open_dataset(path, domain="where", label="what", text="says")
    assert data.domain_names == ("north", "south")


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (
            [("label", "text"), ("1", "x")],
            {},
            "has no domain column: expected one named domain, .* found label, text",
        ),
        ([("domain", "text"), ("1", "x")], {}, "has no label column"),
        ([("domain", "label"), ("1", "x")], {}, "neither a text nor a path column"),
        ([("domain", "label", "text", "path"), ("1", "x", "t", "p")], {}, "has both a text column"),
        (ROWS, {"domain": "siet"}, "has no column 'siet'. Its columns: site"),
        ([("domain", "label", "text")], {}, "has no rows"),
        ([("domain", "label", "text"), ("a", "b")], {}, "Row 2 .* has 2 cells, but the header has 3"),
        (ROWS, {"colour": "x"}, "Unknown option 'colour' for a .csv file: it takes domain, label"),
    ],
)
def test_a_table_that_does_not_fit(tmp_path, rows, options, message):
    with pytest.raises(InputError, match=message):
        open_dataset(write(tmp_path / "t.csv", rows), **options)


def test_empty_cells_are_reported_by_row(tmp_path):
    """The header is row 1, as in a spreadsheet and in what `predict` writes."""
    data = open_dataset(write(tmp_path / "t.csv", [*ROWS, ("south", "", "lost", "e")]))
    assert len(data) == 4
    assert [p.message for p in data.problems] == ["Row 6 has no label."]


def test_images_by_path(tmp_path, put):
    for name in ("1.png", "2.png"):
        put(f"pictures/{name}")
    put("pictures/empty.png", b"")
    paths = ["pictures/1.png", "pictures/2.png", "pictures/empty.png", "pictures/none.png"]
    rows = [("domain", "label", "path", "split")]
    rows += [("ab"[n % 2], "xy"[n % 2], path, ("train", "dev")[n % 2]) for n, path in enumerate(paths)]
    data = open_dataset(write(tmp_path / "t.csv", rows))
    assert data.kind == "image"
    assert data.ids == ("pictures/1.png", "pictures/2.png")
    assert data.split.tolist() == ["train", "val"]
    kinds = [p.kind for p in data.problems if p.kind != "missing_class"]
    assert kinds == ["empty_file", "missing_file"]


def test_paths_that_lead_nowhere(tmp_path):
    path = write(tmp_path / "t.csv", [("domain", "label", "path"), ("a", "x", "nope.png")])
    with pytest.raises(InputError, match="None of the 1 images"):
        open_dataset(path)


def test_a_split_column_with_other_words_is_not_used(tmp_path):
    rows = [(*row, word) for row, word in zip(ROWS, ("split", "train", "val", "test", "test"))]
    path = write(tmp_path / "t.csv", rows)
    data = open_dataset(path)
    assert data.split is None
    assert [p.kind for p in data.problems] == ["split_ignored"]
    with pytest.raises(InputError, match="holds 'test'; expected train and val only"):
        open_dataset(path, split="split")


def test_a_binary_file_called_csv(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(InputError, match="Save it as UTF-8 CSV"):
        open_dataset(path)
