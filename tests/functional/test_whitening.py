"""Whitening: what the covariance measures, and that whitened features have unit covariance."""

import torch

from sourceward.functional import whitening, within_and_between_covariance
from tests.helpers import two_shifted_sources


def test_it_adds_the_shift_between_sources_to_the_variance_within_a_class():
    alike, shifted = (within_and_between_covariance(two_shifted_sources(shift)) for shift in (0.0, 3.0))
    assert torch.allclose((shifted - alike).diagonal()[[0, 2, 3, 4]], torch.zeros(4).double(), atol=1e-6)
    assert 8.5 < shifted[1, 1] - alike[1, 1] < 9.5
    assert shifted[0, 0] < 1.5  # the direction that separates the classes is not included


def test_a_class_missing_in_one_source_counts_in_the_others():
    parts = two_shifted_sources()
    (x, y), other = parts
    lacking = [(x[y == 0], y[y == 0]), other]
    covariance = within_and_between_covariance(lacking)
    assert torch.isfinite(covariance).all()
    assert covariance[1, 1] < within_and_between_covariance(parts)[1, 1]  # one pair of centres fewer


def test_whitened_features_have_unit_covariance_and_can_be_restored():
    parts = two_shifted_sources()
    root, back = whitening(within_and_between_covariance(parts), shrink=0.0)
    white = [(x.double() @ root, y) for x, y in parts]
    assert torch.allclose(within_and_between_covariance(white), torch.eye(5).double(), atol=1e-6)
    assert torch.allclose(root @ back, torch.eye(5).double(), atol=1e-6)
