"""One matrix and a domain column to one part per source."""

import numpy as np
import pytest

from sourceward import InputError
from sourceward.estimator.input import encode_sources, split_sources

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 1, 0, 1, 0, 1])


def encode(domain):
    return encode_sources(X, Y, domain)


@pytest.mark.parametrize(
    ("domain", "names", "numbers"),
    [
        (None, ["source"], [0, 0, 0, 0, 0, 0]),
        (["b", "a", "b", "a", "b", "c"], ["a", "b", "c"], [1, 0, 1, 0, 1, 2]),
        ([7, 7, 7, 2, 2, 2], [2, 7], [1, 1, 1, 0, 0, 0]),
        ([1.0, 1.0, 1.0, 0.0, 0.0, 0.0], [0, 1], [1, 1, 1, 0, 0, 0]),
        (np.array(["b", "a"] * 3, dtype=object), ["a", "b"], [1, 0, 1, 0, 1, 0]),
        (np.array([3, 4] * 3, dtype=np.uint8), [3, 4], [0, 1, 0, 1, 0, 1]),
        ([True, False] * 3, [False, True], [1, 0, 1, 0, 1, 0]),
    ],
)
def test_names_are_sorted_plain_values(domain, names, numbers):
    rows, label, found, source = encode(domain)
    assert found == names
    assert [type(name) for name in found] == [type(name) for name in names]
    assert source.tolist() == numbers
    assert rows is X
    assert label is Y


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.float32, object])
def test_negative_numbers_are_targets_and_left_out(dtype):
    rows, label, names, source = encode(np.array([0, -1, 2, -5, 2, 0], dtype=dtype))
    assert names == [0, 2]
    assert source.tolist() == [0, 1, 1, 0]
    assert np.array_equal(rows, X[[0, 2, 4, 5]])
    assert label.tolist() == [0, 0, 0, 1]


def test_parts_hold_the_rows_of_their_source_in_order():
    source = np.array([1, 1, 0, 0, 1, 0])
    parts = split_sources(X, Y, source, ["a", "b"], np.array([0, 1]), allow_missing=False)
    for number, (feature, label, *_) in enumerate(parts):
        assert np.array_equal(feature.numpy(), X[source == number])
        assert np.array_equal(label.numpy(), Y[source == number])


@pytest.mark.parametrize("classes", [np.array(["ant", "bee"]), np.array(["ant", "bee"], dtype=object)])
def test_a_missing_class_is_named_as_the_user_knows_it(classes):
    source = np.array([0, 0, 0, 1, 0, 1])
    with pytest.raises(
        InputError, match="Source 'zoo' has no samples of class 'ant'; its energy cannot keep"
    ):
        split_sources(X, Y, source, ["sea", "zoo"], classes, allow_missing=False)
    assert len(split_sources(X, Y, source, ["sea", "zoo"], classes, allow_missing=True)) == 2


def test_one_sample_is_too_few_even_where_classes_may_be_missing():
    source = np.array([0, 0, 0, 0, 0, 1])
    with pytest.raises(InputError, match="Source 'zoo' has one sample; an energy needs 2 or more"):
        split_sources(X, Y, source, ["sea", "zoo"], np.array([0, 1]), allow_missing=True)
