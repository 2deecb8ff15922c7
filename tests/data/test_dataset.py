import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sourceward._util.errors import InputError
from sourceward.data.dataset import build, natural_order, zero_based


def toy(seed=0, num=60, split=None):
    random = np.random.default_rng(seed)
    return build(
        "features",
        random.normal(size=(num, 3)).astype(np.float32),
        random.choice(["x", "y", "z"], num).tolist(),
        random.choice(["a", "b", "c"], num).tolist(),
        [f"s{i}" for i in range(num)],
        split=split,
    )


def test_counts_add_up():
    data = toy()
    assert data.counts().shape == (3, 3)
    assert data.counts().sum() == len(data)


def test_select_keeps_rows_together():
    data = toy()
    picked = data.select([5, 2])
    assert picked.ids == ("s5", "s2")
    assert np.array_equal(picked.items, data.items[[5, 2]])
    assert np.array_equal(picked.labels, data.labels[[5, 2]])


def test_domains_are_renumbered_in_the_given_order():
    data = toy()
    two = data.of_domains(["c", "a"])
    assert two.domain_names == ("c", "a")
    assert len(two) == data.counts()[[0, 2]].sum()
    names = {i: two.domain_names[d] for i, d in zip(two.ids, two.domains)}
    assert all(names[i] == data.domain_names[d] for i, d in zip(data.ids, data.domains) if i in names)
    assert data.without("b").domain_names == ("a", "c")


def test_an_unknown_domain_names_the_nearest():
    with pytest.raises(InputError, match="Unknown domain 'aa'"):
        toy().without("aa")


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 99), fraction=st.floats(0.05, 0.99))
def test_split_is_stratified_complete_and_blind_to_order(seed, fraction):
    data = toy(seed)
    train, val = data.train_val_indices(fraction, seed)
    assert sorted([*train, *val]) == list(range(len(data)))
    held = data.select(val).counts()
    sizes = data.counts()
    expected = np.minimum(np.maximum(1, np.round(fraction * sizes)), np.maximum(sizes - 1, 0))
    assert np.array_equal(held, expected)
    shuffled = data.select(np.random.default_rng(seed).permutation(len(data)))
    assert set(shuffled.train_val(fraction, seed)[1].ids) == set(data.select(val).ids)


def test_split_of_sources_ignores_labels_of_the_target():
    data = toy()
    target = data.domains == 2
    permuted = data.labels.copy()
    permuted[target] = permuted[target][::-1]
    other = type(data)(**{**data.__dict__, "labels": permuted})
    assert other.without("c").train_val()[1].ids == data.without("c").train_val()[1].ids


def test_official_split_wins():
    split = ["val" if i % 3 == 0 else "train" for i in range(60)]
    _, val = toy(split=split).train_val_indices(0.5)
    assert np.array_equal(val, np.arange(0, 60, 3))


def test_fingerprint_sees_labels_and_content_but_content_hash_sees_no_labels():
    data = toy()
    relabelled = type(data)(**{**data.__dict__, "labels": data.labels[::-1].copy()})
    assert relabelled.content_hash() == data.content_hash()
    assert relabelled.fingerprint() != data.fingerprint()
    assert toy(1).content_hash() != data.content_hash()
    assert toy().fingerprint() == data.fingerprint()


def test_a_class_that_a_domain_lacks_is_reported_and_leaves_with_its_domain():
    data = build("text", ("p", "q", "r"), ["x", "y", "x"], ["a", "a", "b"], ["1", "2", "3"])
    assert [(p.kind, p.where) for p in data.problems] == [("missing_class", "b/y")]
    assert data.without("b").problems == ()


def test_names_are_ordered_by_value_when_they_are_numbers():
    assert natural_order(["90", "0", "15"]) == ("0", "15", "90")


def test_labels_outside_the_classes_are_refused():
    with pytest.raises(InputError, match="from 0 to 2 or from 1 to 3, but got 2 to 7"):
        zero_based(np.array([2, 7]), 3, "list.txt")


def test_a_fraction_outside_its_range_is_refused():
    with pytest.raises(InputError, match=r"between 0 and 1, but got 1\.5"):
        toy().train_val(1.5)


def test_a_dataset_is_shown_in_one_line():
    assert repr(toy(num=1200)) == "DomainDataset(1,200 of kind features, 3 domains, 3 classes)"
