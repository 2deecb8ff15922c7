"""Class centres against a loop; what the covariance measures; whitened features have unit covariance."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from sourceward.functional import class_centers, whitening, within_and_between_covariance
from tests.helpers import make_generator, two_shifted_sources


@given(st.integers(1, 4), st.integers(1, 12), st.integers(1, 5), st.integers(1, 6), st.integers(0, 10_000))
def test_centers_equal_a_loop(sources, batch, dim, classes, seed):
    generator = make_generator(seed)
    feature = torch.randn(sources, batch, dim, generator=generator, dtype=torch.float64)
    label = torch.randint(classes, (sources, batch), generator=generator)
    centers, count = class_centers(feature, label, classes)
    assert centers.shape == (sources, classes, dim)
    assert count.sum() == sources * batch
    for source in range(sources):
        for c in range(classes):
            rows = feature[source][label[source] == c]
            assert count[source, c] == len(rows)
            expected = rows.mean(0) if len(rows) else torch.zeros(dim, dtype=torch.float64)
            torch.testing.assert_close(centers[source, c], expected, rtol=1e-12, atol=1e-12)


def test_gradient_reaches_the_features_of_a_class_evenly():
    feature = torch.randn(1, 3, 2, generator=make_generator(), requires_grad=True)
    centers, _ = class_centers(feature, torch.tensor([[0, 0, 1]]), 2)
    (grad,) = torch.autograd.grad(centers[0, 0].sum(), feature)
    assert grad[0].tolist() == [[0.5, 0.5], [0.5, 0.5], [0.0, 0.0]]


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
