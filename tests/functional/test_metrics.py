"""Metrics against torchmetrics, or a formula written another way."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_calibration_error

from sourceward.functional import (
    accuracy,
    brier_score,
    expected_calibration_error,
    negative_log_likelihood,
)
from tests.helpers import make_generator

cases = given(st.integers(1, 60), st.integers(2, 9), st.integers(0, 10_000))


def make_predictions(rows: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = make_generator(seed)
    logits = 2 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    return logits.softmax(-1), torch.randint(classes, (rows,), generator=generator)


@cases
def test_accuracy_equals_torchmetrics(rows, classes, seed):
    probability, label = make_predictions(rows, classes, seed)
    expected = multiclass_accuracy(probability, label, classes, average="micro")
    assert accuracy(probability, label).item() == pytest.approx(expected.item(), abs=1e-6)


@given(st.integers(1, 60), st.integers(2, 9), st.integers(0, 10_000), st.integers(1, 20))
def test_calibration_error_equals_torchmetrics(rows, classes, seed, bins):
    probability, label = make_predictions(rows, classes, seed)
    expected = multiclass_calibration_error(probability, label, classes, n_bins=bins, norm="l1")
    found = expected_calibration_error(probability, label, bins)
    # torchmetrics accumulates in float32.
    assert found.item() == pytest.approx(expected.item(), abs=1e-6)


@cases
def test_likelihood_and_brier_equal_a_sum_over_rows(rows, classes, seed):
    probability, label = make_predictions(rows, classes, seed)
    nll = sum(-math.log(p[y]) for p, y in zip(probability.tolist(), label.tolist())) / rows
    # |p - e_y|^2 = |p|^2 - 2 p_y + 1
    brier = sum(sum(v * v for v in p) - 2 * p[y] + 1 for p, y in zip(probability.tolist(), label.tolist()))
    assert negative_log_likelihood(probability, label).item() == pytest.approx(nll, rel=1e-12)
    assert brier_score(probability, label).item() == pytest.approx(brier / rows, rel=1e-12)


def test_hand_computed_example():
    # Two rows: sure and right (0.9), unsure and wrong (0.6).
    probability = torch.tensor([[0.9, 0.1], [0.6, 0.4]], dtype=torch.float64)
    label = torch.tensor([0, 1])
    assert accuracy(probability, label).item() == 0.5
    nll = -(math.log(0.9) + math.log(0.4)) / 2
    assert negative_log_likelihood(probability, label).item() == pytest.approx(nll)
    # (0.1^2 + 0.1^2 + 0.6^2 + 0.6^2) / 2
    assert brier_score(probability, label).item() == pytest.approx(0.37)
    # Ten bins: gaps |1 - 0.9| and |0 - 0.6|, half of the rows each.
    assert expected_calibration_error(probability, label, 10).item() == pytest.approx(0.35)
    # One bin: |0.5 - 0.75|.
    assert expected_calibration_error(probability, label, 1).item() == pytest.approx(0.25)


def test_impossible_label_has_a_finite_likelihood():
    assert torch.isfinite(negative_log_likelihood(torch.tensor([[1.0, 0.0]]), torch.tensor([1])))


@pytest.mark.parametrize("bins", [0, -1])
def test_bad_bins_are_an_error(bins):
    with pytest.raises(ValueError, match=f"Expected `bins` to be 1 or more, but got {bins}"):
        expected_calibration_error(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), bins)
