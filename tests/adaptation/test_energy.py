"""The energy adapter: units, statuses and trajectories."""

import numpy as np
import pytest
import torch

from sourceward.adaptation import EnergyAdaptation, energy
from sourceward.nn import Network
from sourceward.samplers import StepSettings
from sourceward.settings import AdaptSettings
from tests.adaptation.test_adapters import DIM, FIELDS, SOURCES, make_network, make_rows


def settings(**options) -> AdaptSettings:
    """Weights by energy are off, as they are in the prediction that non-finite rows fall back to."""
    step = {k: options.pop(k) for k in ("step_size", "noise_std") if k in options}
    return AdaptSettings(**{"num_steps": 3, "aggregation": "mean", **options}, step=StepSettings(**step))


def run(rows: torch.Tensor, network: Network | None = None, **options):
    return EnergyAdaptation(settings(**options))(network or make_network(), rows)


def same_result(a, b, rows=slice(None)) -> bool:
    return all(np.array_equal(getattr(a, f)[rows], getattr(b, f)[rows]) for f in FIELDS if f != "status")


def test_features_come_back_in_the_units_of_the_input():
    rows = make_rows()
    plain = run(rows, num_steps=0)
    np.testing.assert_allclose(plain.features, (rows / 0.5 + 3)[:, None].repeat(1, SOURCES, 1), rtol=1e-6)


def test_status_without_steps():
    adapted = run(make_rows(), num_steps=0)
    assert set(adapted.status) == {"not_adapted"}
    assert not adapted.steps.any()


def test_status_of_adapted_rows():
    adapted = run(make_rows(), noise_std=0.0)
    assert set(adapted.status) == {"adapted"}
    assert (adapted.steps == 3).all()
    assert (adapted.energy_after < adapted.energy_before).all()


def bowl(network: Network) -> Network:
    """Give the network an energy with a narrow minimum at 0: large steps overshoot and raise it."""
    with torch.no_grad():
        own = network.energy
        own.spectral_norm = False
        for matrix, bias in zip(own.matrices, own.biases):
            matrix.zero_()
            bias.zero_()
        # swish(a) + swish(-a) = a tanh(a / 2): even, 0 at 0, rising.
        eye = torch.eye(DIM)[: DIM // 2]
        own.matrices[0][:, :, :DIM] = torch.cat([eye, -eye])
        own.matrices[1][:, 0] = 1.0
        own.matrices[2].fill_(0.0)
        own.matrices[2][:, 0, 0] = 1.0
    return network


def test_status_of_rows_whose_energy_could_not_be_lowered():
    rows, network = make_rows(), bowl(make_network("linear"))
    large = {"step_size": 1e4, "noise_std": 0.0}
    kept, plain = run(rows, network, **large), run(rows, network, num_steps=0)
    assert set(kept.status) == {"energy_not_lower"}
    assert not kept.steps.any()
    assert same_result(kept, plain)
    taken = run(rows, network, sampler="langevin_unchecked", num_steps=1, **{**large, "step_size": 500.0})
    assert set(taken.status) == {"adapted"}
    assert (taken.energy_after > taken.energy_before).all()


def test_status_depends_on_the_sources_in_use():
    network, rows = make_network("linear"), make_rows()
    with torch.no_grad():
        network.energy.matrices[2][0] = 0.0  # sigma of source 0 is 0, its energy NaN
    alone = EnergyAdaptation(settings(), sources=(0,))(network, rows)
    assert set(alone.status) == {"energy_not_lower"}
    assert set(EnergyAdaptation(settings(), sources=(0, 1))(network, rows).status) == {"adapted"}


@pytest.mark.parametrize("draws", [0, 2])
def test_status_of_chains_that_diverge(draws):
    network, rows = make_network("concat"), make_rows()
    with torch.no_grad():
        network.head.hidden.weight.mul_(1e32)
    diverging = {"num_draws": draws, "sampler": "langevin_unchecked", "step_size": 1e9}
    adapter = EnergyAdaptation(settings(**diverging), record=True)
    adapted, plain = adapter(network, rows), run(rows, network, num_steps=0, num_draws=draws)
    lost = adapted.status == "nonfinite"
    assert lost.any()
    assert same_result(adapted, plain, lost)
    assert np.isfinite(adapted.probabilities).all()
    assert adapted.trajectory.shape == (20, 4, SOURCES, DIM)
    assert np.isfinite(adapted.trajectory[lost]).all()
    stable = EnergyAdaptation(settings(num_draws=draws), record=True)
    assert not same_result(stable(network, rows), plain)


def test_a_nonfinite_row_does_not_affect_the_others():
    network, rows = make_network("linear"), make_rows()
    with torch.no_grad():
        network.head.weight.mul_(1e3)
    rows[4] = 1e37  # logits overflow, with and without steps
    adapted = run(rows, network)
    assert not np.isfinite(adapted.probabilities[4]).any()
    others = np.delete(np.arange(20), 4)
    assert np.array_equal(adapted.probabilities[others], run(rows[others], network).probabilities)


def test_trajectories_are_recorded_on_request():
    adapted = EnergyAdaptation(settings(), record=True)(make_network(), make_rows())
    assert adapted.trajectory.shape == (20, 4, SOURCES, DIM)
    np.testing.assert_allclose(adapted.trajectory[:, -1], adapted.features, rtol=1e-6)
    start = (make_rows() / 0.5 + 3)[:, None].repeat(1, SOURCES, 1)
    np.testing.assert_allclose(adapted.trajectory[:, 0], start, rtol=1e-6)


@pytest.mark.parametrize("rows", [1, 20])
def test_a_result_keeps_no_memory_but_its_own(rows):
    """On CUDA the table of all results is in pinned memory, which a part of it would keep."""
    adapted = EnergyAdaptation(settings(), record=True)(make_network(), make_rows()[:rows])
    for name in (*FIELDS, "trajectory"):
        value = getattr(adapted, name)
        whole = value if value.base is None else value.base
        assert isinstance(whole, np.ndarray), name
        assert whole.nbytes == value.nbytes, name


def test_many_rows_are_computed_and_kept_a_block_at_a_time(monkeypatch):
    network, rows, waiting = make_network(), make_rows(), []
    expected, launch = run(rows, network), EnergyAdaptation.launch
    monkeypatch.setattr(energy, "BLOCK", 8)

    def launched(*given):
        waiting.append(launch(*given))
        return waiting[-1]

    monkeypatch.setattr(EnergyAdaptation, "launch", launched)
    assert same_result(run(rows, network), expected)
    assert [len(one.blocks) for one in waiting] == [1, 1, 1]
