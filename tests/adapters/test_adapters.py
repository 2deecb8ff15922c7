"""One contract for every registered adapter, then the statuses of the paper's."""

import numpy as np
import pytest
import torch

from sourceward import InputError, create_adapter, list_adapters
from sourceward.adapters import ADAPTERS, STATUS_TEXT, EnergyAdaptation
from sourceward.nn import HEADS, Network
from sourceward.samplers import StepSettings
from sourceward.settings import AdaptSettings
from tests.helpers import make_generator

SOURCES, CLASSES, DIM = 3, 4, 6
FIELDS = ("features", "probabilities", "per_source", "energy_before", "energy_after", "steps", "status")


def make_network(head: str = "prototype") -> Network:
    network = Network(SOURCES, CLASSES, DIM, head)
    network.reset_parameters(make_generator())
    network.centers.copy_(torch.randn(network.centers.shape, generator=make_generator(1)))
    network.shift.fill_(3.0)
    network.scale.fill_(0.5)
    return network.requires_grad_(False).eval()


def make_rows(rows: int = 20) -> torch.Tensor:
    return torch.randn(rows, DIM, generator=make_generator(2))


def settings(**options) -> AdaptSettings:
    step = {k: options.pop(k) for k in ("step_size", "noise_std", "accept") if k in options}
    return AdaptSettings(**{"num_steps": 3, **options}, step=StepSettings(**step))


every = pytest.mark.parametrize("name", list_adapters())


@every
@pytest.mark.parametrize("head", list(HEADS))
@pytest.mark.parametrize("rows", [0, 1, 20, 600])
def test_shapes_and_values(name, head, rows):
    adapted = create_adapter(name)(make_network(head), make_rows(rows))
    assert len(adapted) == rows
    assert adapted.features.shape == (rows, SOURCES, DIM)
    assert adapted.probabilities.shape == (rows, CLASSES)
    assert adapted.per_source.shape == (rows, SOURCES, CLASSES)
    for field in ("energy_before", "energy_after", "steps"):
        assert getattr(adapted, field).shape == (rows, SOURCES)
    assert adapted.status.shape == (rows,)
    assert set(adapted.status) <= set(STATUS_TEXT)
    assert adapted.trajectory is None
    np.testing.assert_allclose(adapted.probabilities.sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(adapted.per_source.sum(-1), 1, atol=1e-5)
    assert (adapted.probabilities >= 0).all()


@every
def test_flags_say_what_a_deployment_pays(name):
    adapter = create_adapter(name)
    for flag in ("changes_weights", "keeps_state", "needs_batch"):
        assert isinstance(getattr(adapter, flag), bool)
    assert ADAPTERS[name] is type(adapter)


@every
def test_the_network_and_the_rows_stay_as_they_were(name):
    network, rows = make_network(), make_rows()
    before = {k: v.clone() for k, v in network.state_dict().items()}
    create_adapter(name)(network, rows)
    assert torch.equal(rows, make_rows())
    if not create_adapter(name).changes_weights:
        assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())


@every
def test_a_stateless_adapter_answers_the_second_time_as_the_first(name):
    adapter, network = create_adapter(name), make_network()
    if adapter.keeps_state:
        pytest.skip("keeps a state by design")
    first = adapter(network, make_rows())
    adapter(network, make_rows() + 1)
    second = adapter(network, make_rows())
    for field in FIELDS:
        assert np.array_equal(getattr(first, field), getattr(second, field)), field


def test_an_unknown_adapter_gets_the_nearest():
    with pytest.raises(InputError, match=r"Unknown adapter 'ebtas'.*'ebtsa'"):
        create_adapter("ebtas")


def run(rows: torch.Tensor, network: Network | None = None, **options):
    return EnergyAdaptation(settings(**options))(network or make_network(), rows)


def same_answer(a, b, rows=slice(None)) -> bool:
    return all(np.array_equal(getattr(a, f)[rows], getattr(b, f)[rows]) for f in FIELDS if f != "status")


def test_features_come_back_in_the_units_of_the_input():
    rows = make_rows()
    still = run(rows, num_steps=0)
    np.testing.assert_allclose(still.features, (rows / 0.5 + 3)[:, None].repeat(1, SOURCES, 1), rtol=1e-6)


def test_status_without_steps():
    adapted = run(make_rows(), num_steps=0)
    assert set(adapted.status) == {"kept_gate"}
    assert not adapted.steps.any()


def test_status_of_rows_that_moved():
    adapted = run(make_rows(), noise_std=0.0)
    assert set(adapted.status) == {"moved"}
    assert (adapted.steps == 3).all()
    assert (adapted.energy_after < adapted.energy_before).all()


def bowl(network: Network) -> Network:
    """An energy with a narrow valley at 0: large steps land higher up, on either side."""
    with torch.no_grad():
        energy = network.energy
        energy.spectral_norm = False
        for matrix, bias in zip(energy.matrices, energy.biases):
            matrix.zero_()
            bias.zero_()
        # swish(a) + swish(-a) = a tanh(a / 2): even, 0 at 0, rising.
        eye = torch.eye(DIM)[: DIM // 2]
        energy.matrices[0][:, :, :DIM] = torch.cat([eye, -eye])
        energy.matrices[1][:, 0] = 1.0
        energy.matrices[2].fill_(0.0)
        energy.matrices[2][:, 0, 0] = 1.0
    return network


def test_status_of_rows_whose_energy_could_not_be_lowered():
    rows, network = make_rows(), bowl(make_network("linear"))
    large = {"step_size": 1e4, "noise_std": 0.0}
    kept, still = run(rows, network, **large), run(rows, network, num_steps=0)
    assert set(kept.status) == {"kept_energy_not_lower"}
    assert not kept.steps.any()
    assert same_answer(kept, still)
    # The same steps taken anyway go up: moved, and said so.
    taken = run(rows, network, accept="always", num_steps=1, **{**large, "step_size": 500.0})
    assert set(taken.status) == {"moved"}
    assert (taken.energy_after > taken.energy_before).all()


def test_status_counts_the_sources_that_vote():
    network, rows = make_network("linear"), make_rows()
    with torch.no_grad():
        network.energy.matrices[2][0] = 0.0  # source 0 is flat: sigma is 0, its energy NaN
    alone = EnergyAdaptation(settings(), sources=(0,))(network, rows)
    assert set(alone.status) == {"kept_energy_not_lower"}
    assert set(EnergyAdaptation(settings(), sources=(0, 1))(network, rows).status) == {"moved"}


@pytest.mark.parametrize("draws", [0, 2])
def test_status_of_chains_that_left_the_finite_numbers(draws):
    network, rows = make_network("concat"), make_rows()
    with torch.no_grad():
        network.head.hidden.weight.mul_(1e4)
    wild = {"num_draws": draws, "accept": "always", "step_size": 1e38}
    adapter = EnergyAdaptation(settings(**wild), record=True)
    adapted, still = adapter(network, rows), run(rows, network, num_steps=0, num_draws=draws)
    lost = adapted.status == "nonfinite"
    assert lost.any()
    assert same_answer(adapted, still, lost)
    assert np.isfinite(adapted.probabilities).all()
    assert adapted.trajectory.shape == (20, 4, SOURCES, DIM)
    assert np.isfinite(adapted.trajectory[lost]).all()
    # A row that stays finite keeps its own answer beside one that does not.
    calm = EnergyAdaptation(settings(num_draws=draws), record=True)
    assert not same_answer(calm(network, rows), still)


def test_a_lost_row_leaves_its_neighbours_alone():
    network, rows = make_network("linear"), make_rows()
    with torch.no_grad():
        network.head.out.weight.mul_(1e3)
    rows[4] = 1e37  # logits overflow; nothing a step could do
    adapted = run(rows, network)
    assert not np.isfinite(adapted.probabilities[4]).any()
    others = np.delete(np.arange(20), 4)
    assert np.array_equal(adapted.probabilities[others], run(rows[others], network).probabilities)


def test_trajectories_when_asked_for():
    adapted = EnergyAdaptation(settings(), record=True)(make_network(), make_rows())
    assert adapted.trajectory.shape == (20, 4, SOURCES, DIM)
    np.testing.assert_allclose(adapted.trajectory[:, -1], adapted.features, rtol=1e-6)
    start = (make_rows() / 0.5 + 3)[:, None].repeat(1, SOURCES, 1)
    np.testing.assert_allclose(adapted.trajectory[:, 0], start, rtol=1e-6)


def test_every_status_says_what_to_do():
    for name, text in STATUS_TEXT.items():
        assert text.endswith("."), name
