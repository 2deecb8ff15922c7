"""LatentNet: shapes, the floor of its standard deviation, its size."""

import pytest
import torch
from torch.nn.functional import softplus

from sourceward.nn import LatentNet, PrototypeHead, StackedEnergy
from tests.helpers import make_generator


def test_it_maps_any_leading_axes_to_a_gaussian_of_the_same_width():
    net = LatentNet(6, hidden=4)
    for shape in [(6,), (5, 6), (3, 5, 6)]:
        mean, std = net(torch.randn(shape, generator=make_generator()))
        assert mean.shape == std.shape == shape
        assert torch.isfinite(mean).all()


def test_std_is_at_least_a_tenth_and_follows_the_formula():
    net = LatentNet(6)
    feature = 100 * torch.randn(50, 6, generator=make_generator())
    _, std = net(feature)
    assert (std >= 0.1).all()
    hidden = net.hidden(feature)
    torch.testing.assert_close(std, 0.1 + 0.9 * softplus(net.std(hidden * torch.sigmoid(hidden))))


def test_gradient_reaches_every_parameter():
    net = LatentNet(6)
    gaussian = net(torch.randn(5, 6, generator=make_generator()))
    gaussian.sample(make_generator()).square().sum().backward()
    assert all(p.grad.abs().max() > 0 for p in net.parameters())


def test_size_matches_the_paper_parameter_count():
    """Three sources on ResNet-18: 13.73M in the paper, of which the backbone has 11,176,512."""
    parts = [LatentNet(512), StackedEnergy(3, 512), PrototypeHead(512, 7)]
    added = sum(p.numel() for part in parts for p in part.parameters())
    assert (11_176_512 + added) / 1e6 == pytest.approx(13.73, abs=0.01)
