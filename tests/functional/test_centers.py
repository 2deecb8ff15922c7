"""Class centres against a loop over sources and classes."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from sourceward.functional import class_centers
from tests.helpers import make_generator


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
