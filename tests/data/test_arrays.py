import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from sourceward._util.errors import InputError
from sourceward.data import open_dataset


def arrays(num=12, **changes):
    data = {
        "features": np.random.default_rng(0).normal(size=(num, 4)).astype(np.float16),
        "label": np.arange(num) % 2,
        "domain": np.arange(num) % 3,
        "domains": np.array(["a", "b", "c"]),
        "classes": np.array(["no", "yes"]),
        "is_validation": np.arange(num) % 4 == 0,
        "held_out": np.array("c"),
    }
    data |= changes
    return {key: value for key, value in data.items() if value is not None}


def save(path, **changes):
    np.savez(path, **arrays(**changes))
    return path


def test_a_bank_of_features(tmp_path):
    data = open_dataset(save(tmp_path / "bank.npz"))
    assert data.kind == "features"
    assert data.items.dtype == np.float32
    assert data.domain_names == ("a", "b", "c")
    assert data.classes == ("no", "yes")
    assert data.targets == ("c",)
    assert (data.split == "val").sum() == 3


def test_safetensors_read_the_same(tmp_path):
    source = arrays()
    names = {key: json.dumps(source.pop(key).tolist()) for key in ("domains", "classes", "held_out")}
    save_file(
        {key: torch.from_numpy(value) for key, value in source.items()}, tmp_path / "b.safetensors", names
    )
    expected = open_dataset(save(tmp_path / "b.npz"))
    data = open_dataset(tmp_path / "b.safetensors")
    assert data.fingerprint() == expected.fingerprint()
    assert data.targets == expected.targets


def test_names_instead_of_codes(tmp_path):
    path = save(
        tmp_path / "b.npz",
        label=np.array(["no", "yes"] * 6),
        domain=np.array(["s", "t"] * 6),
        domains=None,
        classes=None,
        held_out=None,
    )
    data = open_dataset(path)
    assert data.domain_names == ("s", "t")
    assert [p.kind for p in data.problems] == ["missing_class", "missing_class"]


def test_one_based_labels_are_shifted_and_reported(tmp_path):
    data = open_dataset(save(tmp_path / "b.npz", label=np.arange(12) % 2 + 1))
    assert data.labels.min() == 0
    assert "one_based_labels" in {p.kind for p in data.problems}


def test_numbers_that_are_not_finite_are_reported(tmp_path):
    features = np.ones((12, 4))
    features[5, 1] = np.nan
    data = open_dataset(save(tmp_path / "b.npz", features=features))
    assert [(p.kind, p.where) for p in data.problems] == [("nonfinite", "0000005")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label": None}, "has no 'label': expected `features`"),
        ({"features": np.ones((12, 2, 2))}, r"shape \(N, D\), but got float64 of shape \(12, 2, 2\)"),
        ({"features": np.ones((0, 64))}, r"has no rows: its shape is \(0, 64\)"),
        ({"label": np.arange(5)}, r"`label` .* to have shape \(12,\)"),
        ({"label": np.arange(12)}, "from 0 to 1 or from 1 to 2, but got 0 to 11"),
        ({"held_out": np.array("q")}, "Unknown domain 'q'"),
        ({"classes": np.array([{}], dtype=object)}, "not as Python objects"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        open_dataset(save(tmp_path / "b.npz", **changes))


def test_a_file_of_another_kind(tmp_path):
    (tmp_path / "b.npz").write_bytes(b"no arrays at all")
    with pytest.raises(InputError, match="cannot be read as an") as raised:
        open_dataset(tmp_path / "b.npz")
    assert "unsafe" not in str(raised.value)


@pytest.mark.parametrize("name", ["b.npz", "b.safetensors"])
def test_a_file_cut_in_half(tmp_path, name):
    if name.endswith("npz"):
        save(tmp_path / name)
    else:
        save_file({"features": torch.ones(100)}, tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError):
        open_dataset(tmp_path / name)


def test_a_real_bank(shared):
    data = open_dataset(shared / "data/banks/pacs_resnet50_without_sketch.npz")
    assert len(data) == 9_991
    assert data.items.shape == (9_991, 256)
    assert data.targets == ("sketch",)


@pytest.mark.parametrize(
    "names",
    [
        {"features": "X", "label": "y", "domain": "domains"},
        {"features": "embeddings", "label": "labels", "domain": "env"},
        {"features": "feature", "label": "target", "domain": "Site"},
    ],
)
def test_arrays_may_be_called_as_columns_of_a_table_are(names, tmp_path):
    plain = arrays(domains=None, held_out=None)
    expected = open_dataset(save(tmp_path / "plain.npz", domains=None, held_out=None))
    np.savez(tmp_path / "own.npz", **{names.get(key, key): value for key, value in plain.items()})
    assert open_dataset(tmp_path / "own.npz").fingerprint() == expected.fingerprint()


def test_names_of_domains_beside_codes_of_another_name(tmp_path):
    path = save(tmp_path / "b.npz", domain=None, env=np.arange(12) % 3)
    assert open_dataset(path).fingerprint() == open_dataset(save(tmp_path / "c.npz")).fingerprint()


def test_two_arrays_for_one_role_are_refused(tmp_path):
    path = save(tmp_path / "b.npz", label=None, labels=np.arange(12) % 2, y=np.arange(12) % 2)
    with pytest.raises(InputError, match="has 'labels' and 'y', and each may be the label: rename the right"):
        open_dataset(path)
    # the name that is documented leaves no doubt
    assert len(open_dataset(save(tmp_path / "c.npz", y=np.arange(12)))) == 12


def test_a_split_in_words(tmp_path):
    words = np.array(["train", "train", "val"] * 4)
    assert (open_dataset(save(tmp_path / "b.npz", is_validation=None, split=words)).split == words).all()
    data = open_dataset(save(tmp_path / "c.npz", is_validation=None, fold=np.arange(12)))
    assert data.split is None
    assert [p.kind for p in data.problems] == ["split_ignored"]
