"""StackedEnergy: the folded spectral norm, the independence of sources, dropout."""

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from sourceward.functional import energy, latent_bias
from sourceward.nn import ReplayBuffer, StackedEnergy
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


def tagged(*tags: float) -> Tensor:
    """One source, rows that can be distinguished: (1, batch, 1)."""
    return torch.tensor(tags, dtype=torch.float32).reshape(1, -1, 1)


def stored(buffer: ReplayBuffer, source: int, label: int) -> list[float]:
    count = min(buffer.pushed[source, label].item(), buffer.per_class)
    return sorted(buffer.rows[source, label, :count, 0].tolist())


def test_the_oldest_rows_of_a_class_go_first():
    buffer = ReplayBuffer(1, 2, 1, per_class=3)
    buffer.push(tagged(1, 2, 10), torch.tensor([[0, 0, 1]]))
    assert stored(buffer, 0, 0) == [1, 2]
    buffer.push(tagged(3, 4), torch.tensor([[0, 0]]))
    assert stored(buffer, 0, 0) == [2, 3, 4]
    buffer.push(tagged(5, 6), torch.tensor([[0, 0]]))
    assert stored(buffer, 0, 0) == [4, 5, 6]
    # The other class was never touched.
    assert stored(buffer, 0, 1) == [10]
    assert buffer.pushed.tolist() == [[6, 1]]


def test_rows_of_one_class_in_one_push_get_slots_of_their_own():
    buffer = ReplayBuffer(1, 2, 1, per_class=5)
    buffer.push(tagged(1, 10, 2, 11, 3), torch.tensor([[0, 1, 0, 1, 0]]))
    assert stored(buffer, 0, 0) == [1, 2, 3]
    assert stored(buffer, 0, 1) == [10, 11]


def test_of_more_rows_than_a_ring_holds_the_newest_stay():
    buffer = ReplayBuffer(1, 2, 1, per_class=3)
    buffer.push(tagged(1, 2, 3, 10, 4, 5, 6, 7), torch.tensor([[0, 0, 0, 1, 0, 0, 0, 0]]))
    assert stored(buffer, 0, 0) == [5, 6, 7]
    assert stored(buffer, 0, 1) == [10]
    # No two rows were written to one place, whose order would not be defined, but for the bin.
    assert buffer.rows[0, 0, 3].item() in (1, 2, 3, 4)
    buffer.push(tagged(8), torch.tensor([[0]]))
    assert stored(buffer, 0, 0) == [6, 7, 8]


def test_what_overflowed_is_never_drawn():
    buffer = ReplayBuffer(1, 1, 1, per_class=3)
    label = torch.zeros(1, 400, dtype=torch.int64)
    buffer.push(tagged(*range(1, 8)), label[:, :7])
    out = buffer.replace(tagged(*[-1.0] * 400), label, 1.0, make_generator())
    assert set(out.flatten().tolist()) == {5.0, 6.0, 7.0}


def test_sources_have_rings_of_their_own():
    buffer = ReplayBuffer(2, 2, 1, per_class=4)
    buffer.push(torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]]), torch.tensor([[0, 1], [0, 0]]))
    assert [[stored(buffer, s, c) for c in range(2)] for s in range(2)] == [[[1], [2]], [[3, 4], []]]


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=8), st.integers(1, 6)
)
def test_a_ring_holds_the_newest_rows(pushes, per_class):
    buffer = ReplayBuffer(1, 3, 1, per_class=per_class)
    history: dict[int, list[float]] = {0: [], 1: [], 2: []}
    tag = 0.0
    for labels in pushes:
        tags = [tag + row for row in range(len(labels))]
        tag += len(labels)
        for label, row in zip(labels, tags):
            history[label].append(row)
        buffer.push(tagged(*tags), torch.tensor([labels]))
    for label, rows in history.items():
        assert stored(buffer, 0, label) == rows[-per_class:]


def make_filled(sources: int = 3, classes: int = 4, per_class: int = 6) -> ReplayBuffer:
    """Row values say source and class: 100 * source + 10 * class + slot. Class 3 stays empty."""
    buffer = ReplayBuffer(sources, classes, 2, per_class)
    for source in range(sources):
        for label in range(classes - 1):
            slots = torch.arange(per_class, dtype=torch.float32).unsqueeze(1).expand(-1, 2)
            buffer.rows[source, label, :per_class] = 100.0 * (source + 1) + 10.0 * label + slots
    buffer.pushed[:, : classes - 1] = per_class
    return buffer


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_replaced_rows_come_from_the_same_source_and_class(share):
    buffer = make_filled()
    label = torch.randint(4, (3, 300), generator=make_generator())
    feature = -torch.ones(3, 300, 2)
    out = buffer.replace(feature, label, share, make_generator(1))
    swapped = (out != feature).any(-1)
    assert not swapped[label == 3].any(), "nothing is stored for class 3"
    origin = torch.div(out[..., 0], 10, rounding_mode="floor")
    expected = 10.0 * torch.arange(1, 4).unsqueeze(1) + label
    assert torch.equal(origin[swapped], expected[swapped])
    assert torch.equal(out[..., 0], out[..., 1]), "a row is swapped as a whole"
    if share == 1.0:
        assert swapped[label != 3].all()


def test_share_is_met_within_its_standard_error():
    buffer = make_filled()
    label = torch.zeros(3, 4000, dtype=torch.int64)
    out = buffer.replace(-torch.ones(3, 4000, 2), label, 0.3, make_generator())
    found = (out[..., 0] >= 0).double().mean().item()
    assert abs(found - 0.3) < 5 * math.sqrt(0.3 * 0.7 / 12_000)


def test_every_stored_row_is_drawn_alike():
    buffer = make_filled(per_class=6)
    label = torch.zeros(3, 4000, dtype=torch.int64)
    out = buffer.replace(-torch.ones(3, 4000, 2), label, 1.0, make_generator())
    share = (out[..., 0] % 10).long().flatten().bincount(minlength=6) / 12_000
    assert (share - 1 / 6).abs().max() < 5 * math.sqrt(1 / 6 * 5 / 6 / 12_000)


def test_a_ring_that_is_not_full_gives_only_what_it_holds():
    buffer = ReplayBuffer(1, 1, 1, per_class=500)
    buffer.push(tagged(5, 6), torch.tensor([[0, 0]]))
    out = buffer.replace(tagged(*[-1.0] * 200), torch.zeros(1, 200, dtype=torch.int64), 1.0, make_generator())
    assert set(out.flatten().tolist()) == {5.0, 6.0}


def test_share_zero_and_an_empty_buffer_change_nothing():
    feature = torch.randn(3, 20, 2, generator=make_generator())
    label = torch.randint(4, (3, 20), generator=make_generator())
    assert torch.equal(make_filled().replace(feature, label, 0.0, make_generator()), feature)
    assert torch.equal(ReplayBuffer(3, 4, 2).replace(feature, label, 1.0, make_generator()), feature)


def test_replacing_is_reproducible_and_leaves_the_input_alone():
    buffer = make_filled()
    feature = -torch.ones(3, 50, 2)
    label = torch.zeros(3, 50, dtype=torch.int64)
    out = buffer.replace(feature, label, 0.5, make_generator(1))
    assert torch.equal(out, buffer.replace(feature, label, 0.5, make_generator(1)))
    assert not torch.equal(out, buffer.replace(feature, label, 0.5, make_generator(2)))
    assert (feature == -1).all()


def test_stored_rows_carry_no_graph_and_travel_with_the_state():
    buffer, other = ReplayBuffer(1, 1, 1, 3), ReplayBuffer(1, 1, 1, 3)
    buffer.push(tagged(1, 2).requires_grad_(), torch.tensor([[0, 0]]))
    assert not buffer.rows.requires_grad
    assert not list(buffer.parameters())
    other.load_state_dict(buffer.state_dict())
    assert stored(other, 0, 0) == [1, 2]
    other.push(tagged(3), torch.tensor([[0]]))
    assert stored(other, 0, 0) == [1, 2, 3]
