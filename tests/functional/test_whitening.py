"""Whitening: what it measures, what it undoes, and that a sample does not depend on its neighbours."""

import pytest
import torch

from sourceward.functional import spread, whitening
from sourceward.nn import Network
from sourceward.nn import network as module
from sourceward.nn.network import VOICES


def sources(shift: float = 3.0):
    generator = torch.Generator().manual_seed(0)
    parts = []
    for sign in (-1.0, 1.0):
        label = torch.arange(200) % 2
        x = torch.randn(200, 5, generator=generator)
        x[:, 0] += 4 * label
        x[:, 1] += sign * shift
        parts.append((x, label))
    return parts


def test_spread_adds_what_separates_the_sources_to_what_a_class_shows_within_one():
    still, moved = spread(sources(0.0)), spread(sources(3.0))
    assert torch.allclose((moved - still).diagonal()[[0, 2, 3, 4]], torch.zeros(4).double(), atol=1e-6)
    assert 8.5 < moved[1, 1] - still[1, 1] < 9.5
    assert moved[0, 0] < 1.5  # what separates classes is no nuisance


def test_a_class_that_one_source_lacks_counts_where_it_is():
    parts = sources()
    (x, y), other = parts
    lacking = [(x[y == 0], y[y == 0]), other]
    assert torch.isfinite(spread(lacking)).all()
    assert spread(lacking)[1, 1] < spread(parts)[1, 1]  # one pair of centres fewer lies apart


def test_whitened_features_have_unit_spread_and_come_back():
    parts = sources()
    root, back = whitening(spread(parts), shrink=0.0)
    white = [(x.double() @ root, y) for x, y in parts]
    assert torch.allclose(spread(white), torch.eye(5).double(), atol=1e-6)
    assert torch.allclose(root @ back, torch.eye(5).double(), atol=1e-6)


def test_a_network_rescales_and_undoes_it():
    parts = sources()
    network, x = Network(2, 2, 5), torch.cat([x for x, _ in parts])
    network.fit_scale(x, spread(parts))
    assert torch.allclose(network.features(x).norm(dim=1).mean(), torch.tensor(5**0.5), rtol=1e-5)
    assert torch.allclose(network.raw(network.features(x)), x, atol=1e-4)
    assert torch.equal(network.features(x[:1]), network.features(x)[:1])


def test_a_state_brings_its_whitening_or_none():
    parts = sources()
    fitted, x = Network(2, 2, 5), parts[0][0]
    fitted.fit_scale(x, spread(parts))
    fresh = Network(2, 2, 5)
    fresh.load_state_dict(fitted.state_dict())
    assert torch.equal(fresh.features(x), fitted.features(x))
    plain = Network(2, 2, 5)
    plain.fit_scale(x)
    assert "white" not in plain.state_dict()


def test_the_discriminant_is_as_sure_as_its_samples_allow():
    parts = sources()
    network = Network(2, 2, 5, "pooled")
    x, y = torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
    network.fit_scale(x, spread(parts))
    for source, (own, label) in enumerate(parts):
        network.fit_centers(source, network.features(own), label)
    network.fit_lda(network.features(x), y)
    weight, bias = network.lda()
    logits = network.features(x) @ weight.T + bias
    assert (logits.argmax(1) == y).float().mean() > 0.95
    losses = [torch.nn.functional.cross_entropy(logits * k, y) for k in (0.5, 1.0, 2.0)]
    assert losses[1] < min(losses[0], losses[2])


@pytest.mark.parametrize(
    ("share", "voices"), [(0.3, 0), (0.5, 0), (0.75, 5), (1.0, 2 * VOICES), (float("nan"), 0)]
)
def test_the_discriminant_has_a_say_where_it_explains_more_than_half(share, voices, monkeypatch):
    monkeypatch.setattr(module, "mixing_share", lambda *answers: share)
    network = Network(2, 2, 5, "pooled")
    network.white = network.unwhite = torch.eye(5)
    network.fit_lda(torch.randn(8, 5), torch.arange(8) % 2)
    assert network.lda_weight == voices  # of these and 2 VOICES learned ones


def test_without_whitening_there_is_no_discriminant():
    network = Network(2, 2, 5, "pooled")
    network.fit_lda(torch.randn(8, 5), torch.arange(8) % 2)
    assert network.lda_weight == 0
    assert network.sharpness == 0
