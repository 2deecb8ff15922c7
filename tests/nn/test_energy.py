"""StackedEnergy: the folded spectral norm, the independence of sources, dropout."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from sourceward.functional import energy, latent_bias
from sourceward.nn import StackedEnergy
from tests.helpers import make_generator

latents = pytest.mark.parametrize("latent", [True, False])


def make_energy(sources: int = 3, dim: int = 6, seed: int = 0, **options) -> StackedEnergy:
    module = StackedEnergy(sources, dim, **({"hidden": 7, "narrow": 5} | options))
    module.reset_parameters(make_generator(seed))
    return module


def values(module: StackedEnergy, feature: Tensor, z: Tensor | None) -> Tensor:
    weights = module.weights()
    return energy(weights, feature, latent_bias(weights, z))


def sample(
    module: StackedEnergy, batch: int = 9, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    shape = (2, len(module.matrices[0]), batch, module.dim)
    return tuple(3 * torch.randn(shape, generator=make_generator(1), dtype=dtype))


def joined(module: StackedEnergy) -> list[Tensor]:
    """The three matrices whose norm is folded in; Wx and Wz are two halves of one."""
    w = module.weights()
    first = w.feature if w.latent is None else torch.cat([w.feature, w.latent], -1)
    return [first, w.narrow, w.out.unsqueeze(1)]


@latents
def test_folded_weights_have_spectral_norm_one(latent):
    module = make_energy(latent=latent).double()
    for _ in range(500):
        module.power_iteration()
    for matrix in joined(module):
        largest = torch.linalg.svdvals(matrix)[:, 0]
        torch.testing.assert_close(largest, torch.ones_like(largest), rtol=0, atol=1e-6)


def test_a_fresh_module_is_close_to_norm_one_already():
    weights = make_energy(dim=64, hidden=None, narrow=128).weights()
    for matrix in (
        torch.cat([weights.feature, weights.latent], -1),
        weights.narrow,
        weights.out.unsqueeze(1),
    ):
        largest = torch.linalg.svdvals(matrix)[:, 0]
        # The Rayleigh quotient never exceeds the norm, so what is folded in is never below one.
        assert (largest >= 1 - 1e-5).all()
        assert (largest < 1.1).all()


def test_power_iteration_follows_a_weight_that_grew():
    module = make_energy().double()
    with torch.no_grad():
        module.matrices[0][1, 2, 3] += 50.0
    before = torch.linalg.svdvals(joined(module)[0])[1, 0]
    for _ in range(100):
        module.power_iteration()
    after = torch.linalg.svdvals(joined(module)[0])[1, 0]
    assert before > 5
    assert after.item() == pytest.approx(1)


def test_gradient_flows_through_the_norm():
    """Scaling a matrix changes nothing, so the gradient along the matrix itself is zero."""
    module = make_energy().double()
    module.zero_grad()
    values(module, *sample(module, dtype=torch.float64)).sum().backward()
    for matrix in module.matrices:
        assert matrix.grad.abs().max() > 0
        along = (matrix.grad * matrix).sum((1, 2))
        torch.testing.assert_close(along, torch.zeros_like(along), rtol=0, atol=1e-12)


def test_without_spectral_norm_the_matrices_are_used_as_they_are():
    module = make_energy(spectral_norm=False)
    assert all(torch.equal(a, b) for a, b in zip(joined(module), module.matrices))


@latents
def test_one_source_equals_an_ordinary_network(latent):
    module = make_energy(latent=latent).double()
    for _ in range(500):
        module.power_iteration()
    feature, z = sample(module, dtype=torch.float64)
    stacked = values(module, feature, z)
    for source in range(3):
        layers = []
        for matrix, bias in zip(module.matrices, module.biases):
            layer = nn.Linear(matrix.shape[2], matrix.shape[1]).double()
            norm = torch.linalg.matrix_norm(matrix[source], 2)
            layer.load_state_dict({"weight": matrix[source] / norm, "bias": bias[source]})
            layers += [layer, nn.SiLU()]
        ordinary = nn.Sequential(*layers[:-1], nn.Sigmoid())
        inputs = torch.cat([feature[source], z[source]], -1) if latent else feature[source]
        torch.testing.assert_close(stacked[source], ordinary(inputs)[:, 0], rtol=0, atol=1e-8)


def test_sources_are_independent():
    module = make_energy()
    feature, z = sample(module)
    changed = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter[1] += 0.3
    changed.power_iteration()
    module.power_iteration()
    before, after = values(module, feature, z), values(changed, feature, z)
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    assert (after[1] != before[1]).all()


def test_gradient_of_one_source_stays_with_it():
    module = make_energy()
    values(module, *sample(module))[1].sum().backward()
    for parameter in module.parameters():
        assert (parameter.grad[[0, 2]] == 0).all()
        assert parameter.grad[1].abs().max() > 0


def test_sources_start_different():
    feature, z = sample(make_energy(), batch=1)
    same = feature[:1].expand_as(feature), z[:1].expand_as(z)
    assert len(values(make_energy(), *same).unique()) == 3


@latents
def test_energy_is_between_zero_and_one(latent):
    module = make_energy(latent=latent)
    feature, z = sample(module)
    for scale in (0.0, 0.3, 1.0):  # up to about three times the norm of a scaled feature
        value = values(module, scale * feature, z)
        assert value.shape == (3, 9)
        assert ((value > 0) & (value < 1)).all()


def test_spectral_norm_bounds_how_fast_the_energy_changes():
    """|dE| <= 1/4 * 1.1^2 * |dx|: a sigmoid's slope, two swishes', and three matrices of norm one."""
    module = make_energy().double()
    for _ in range(500):
        module.power_iteration()
    feature, z = sample(module, batch=200, dtype=torch.float64)
    adapted = feature + torch.randn(feature.shape, generator=make_generator(5), dtype=torch.float64)
    change = (values(module, feature, z) - values(module, adapted, z)).abs()
    assert (change <= 0.25 * 1.1**2 * (adapted - feature).norm(dim=-1)).all()


def test_masks_are_reproducible_and_unbiased():
    module = make_energy(dropout=0.2)
    batch = 20_000
    masks = module.masks(batch, make_generator(3))
    assert masks.hidden.shape == (3, batch, 7)
    assert masks.narrow.shape == (3, batch, 5)
    again = module.masks(batch, make_generator(3))
    assert all(torch.equal(a, b) for a, b in zip(masks, again))
    assert not torch.equal(masks.hidden, module.masks(batch, make_generator(4)).hidden)
    for mask in masks:
        assert mask.unique().tolist() == [0.0, pytest.approx(1.25)]
        # Each element is 0 or 1/0.8: mean 1, variance 0.2 / 0.8.
        standard_error = math.sqrt(0.25 / batch)
        assert (mask.mean(1) - 1).abs().max() < 5 * standard_error


def test_no_dropout_means_no_masks():
    assert make_energy(dropout=0.0).masks(4, None) is None


def test_reset_is_reproducible_by_generator():
    a, b, c = make_energy(seed=0), make_energy(seed=0), make_energy(seed=1)
    assert all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values()))
    assert not torch.equal(a.matrices[0], c.matrices[0])


def test_saved_state_gives_the_same_energies():
    module, other = make_energy(seed=0), make_energy(seed=1)
    module.power_iteration()
    other.load_state_dict(module.state_dict())
    assert torch.equal(values(other, *sample(module)), values(module, *sample(module)))


def test_paper_sizes():
    """2D -> D -> 128 -> 1 with latent, D -> D -> 128 -> 1 without."""
    dim = 32
    for latent, inner in [(True, 2 * dim), (False, dim)]:
        count = sum(p.numel() for p in StackedEnergy(1, dim, latent=latent).parameters())
        assert count == (inner + 1) * dim + (dim + 1) * 128 + 129
