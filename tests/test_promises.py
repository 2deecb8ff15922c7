"""What design and README state about features: numbers as in the design document."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sourceward import AdaptationResult, EnergyAdapter, InputError, create_adapter
from sourceward.adaptation import EnergyAdaptation
from sourceward.data.feeds import ResidentFeed
from sourceward.estimator.input import held_out
from sourceward.functional import energy, latent_bias
from sourceward.nn import Network, folded
from sourceward.nn.network import CLASSIFIER_WEIGHT
from sourceward.samplers import SAMPLERS, StepSettings
from sourceward.settings import AdaptSettings
from sourceward.training.trainer import Trainer
from tests.helpers import QUICK, make_domains, make_generator

X, Y, SOURCE = make_domains()
TARGET = make_domains(rows=60, sources=1, seed=1)[0] + 2.0
"""Rows of a domain that no estimator was fitted on."""


def fitted(**params) -> EnergyAdapter:
    return EnergyAdapter(**{**QUICK, **params}).fit(X, Y, sample_domain=SOURCE)


def bits(est: EnergyAdapter) -> str:
    digest = hashlib.sha256()
    for name, tensor in est.network_.state_dict().items():
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def est() -> EnergyAdapter:
    """It has a distilled, for those who ask for it."""
    return fitted(sampler="distilled").set_params(sampler="langevin")


@pytest.mark.parametrize("head", ["pooled", "prototype", "concat", "linear"])
def test_promise_2_zero_steps_equal_no_adaptation(head):
    est = fitted(head=head, num_steps=0, noise_std=0.5)
    network = est.network_
    with torch.no_grad():
        feature = network.features(torch.from_numpy(TARGET.astype(np.float32)))
        # By hand, on as many rows as the adapter computes together: 60 padded to 64.
        rows = torch.cat([feature, torch.zeros(4, feature.shape[1])]).expand(network.sources, -1, -1)
        fold = folded(network)
        by_hand = _votes(network, rows)
        z = None if fold.latent is None else fold.latent(rows).mean
        in_rows = fold.classify(rows, z).mean(0)[:60].numpy()
    zero, none = est.adapt(TARGET), create_adapter("none")(network, feature)
    assert np.array_equal(zero.probabilities, in_rows)
    np.testing.assert_allclose(in_rows, by_hand, rtol=1e-5)
    for name in AdaptationResult.__dataclass_fields__:
        assert np.array_equal(getattr(zero, name), getattr(none, name)), name
    assert np.array_equal(zero.energy_before, zero.energy_after)
    np.testing.assert_allclose(zero.features, TARGET[:, None].repeat(3, 1), atol=1e-5)
    assert not np.array_equal(est.set_params(num_steps=4).adapt(TARGET).probabilities, in_rows)


def _votes(network, rows) -> np.ndarray:
    """Each source's own prototypes and those of all together, then the lda."""
    z, own = None if network.latent is None else network.prior(rows).mean, network.posterior(network.centers)
    votes = network.head(rows, z, None if own is None else own.mean).softmax(-1)
    if network.head.pooled:
        together = network.posterior(network.centers.mean(0).expand_as(network.centers)).mean
        votes = (votes + network.head(rows, z, together).softmax(-1)) / 2
        weight, bias = network.lda()
        learned, voices = 2 * CLASSIFIER_WEIGHT, int(network.lda_weight)
        said = (rows @ weight.T + bias).softmax(-1)
        votes = (learned * votes + voices * said) / (learned + voices)
    return votes.mean(0)[:60].numpy()


ways = st.sampled_from(
    [
        {},
        {"noise_std": 0.3},
        {"num_draws": 3},
        {"sampler": "nesterov", "aggregation": "closest"},
        {"sampler": "mala", "step_size": 0.05, "aggregation": "cosine"},
    ]
)


@given(way=ways, order=st.permutations(range(60)), cuts=st.lists(st.integers(1, 59), max_size=6))
def test_promise_3_a_prediction_does_not_depend_on_its_neighbours(est, way, order, cuts):
    params = est.get_params()
    est.set_params(**way)
    whole = est.predict_proba(TARGET)
    parts = np.split(np.array(order), sorted(set(cuts)))
    again = np.empty_like(whole)
    for part in parts:
        again[part] = est.predict_proba(TARGET[part])
    est.set_params(**params)
    np.testing.assert_allclose(again, whole, atol=1e-6)
    assert np.array_equal(again.argmax(1), whole.argmax(1))


def test_promise_3_single_rows_and_blocks_have_the_same_bits():
    """Bit for bit, beyond the blocks that rows are computed in: 1,100 rows of 64 features."""
    rows, label, source = make_domains(rows=40, dim=64)
    est = EnergyAdapter(**QUICK, noise_std=0.1).fit(rows, label, sample_domain=source)
    many = np.random.default_rng(0).normal(size=(1100, 64)).astype(np.float32) * 2
    whole = est.predict_proba(many)
    for size in (1, 2, 17, 33, 100, 513):
        assert np.array_equal(est.predict_proba(many[:size]), whole[:size]), size
    for row in (700, 1099):
        assert np.array_equal(est.predict_proba(many[[row]]), whole[[row]]), row


@pytest.mark.parametrize(
    ("dim", "hidden", "rows", "threads"),
    [(50, 50, 240, 2), (544, 544, 92, 5), (64, 50, 33, 1), (7, 64, 70, 2)],
)
def test_promise_3_however_many_threads_there_are(dim, hidden, rows, threads):
    """Threads share numbers among them: what is left over of a share must not be another number."""
    network = Network(3, 4, dim, hidden=hidden).requires_grad_(False).eval()
    network.reset_parameters(make_generator(1))
    network.centers.normal_(generator=make_generator(2))
    feature = torch.randn(rows, dim, generator=make_generator(3))
    adapter = EnergyAdaptation(AdaptSettings(3, num_draws=1, step=StepSettings(50.0, noise_std=0.02)))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole = adapter(network, feature)
        ones = [adapter(network, feature[row : row + 1]) for row in range(rows)]
    finally:
        torch.set_num_threads(before)
    assert (whole.steps > 0).mean() > 0.5
    for name in ("features", "probabilities", "energy_before", "energy_after"):
        alone = np.concatenate([getattr(one, name) for one in ones])
        assert np.array_equal(alone, getattr(whole, name)), name


@pytest.mark.parametrize("sampler", list(SAMPLERS))
def test_promise_4_predicting_changes_no_parameter(est, sampler):
    before, params = bits(est), est.get_params()
    est.set_params(sampler=sampler, num_draws=2)
    est.adapt(TARGET, trajectory=True)
    est.predict(X)
    est.score(X, Y)
    est.set_params(**params)
    assert bits(est) == before


def test_promise_5_target_labels_never_influence_training(tmp_path):
    rows, source = np.vstack([X, TARGET]), np.concatenate([SOURCE, np.full(60, -1)])
    rng = np.random.default_rng(0)
    hashes = set()
    for run in range(3):
        label = np.concatenate([Y, rng.integers(0, 5, size=60)])  # classes that no source has, too
        # Integers also where a table made them floats or objects.
        domain = source.astype([np.int64, np.float64, object][run])
        EnergyAdapter(**QUICK).fit(rows, label, sample_domain=domain).save(tmp_path / "est")
        hashes.add(hashlib.sha256((tmp_path / "est").read_bytes()).hexdigest())
    fitted().save(tmp_path / "est")
    hashes.add(hashlib.sha256((tmp_path / "est").read_bytes()).hexdigest())
    assert len(hashes) == 1
    EnergyAdapter(**QUICK).fit(X, np.roll(Y, 1), sample_domain=SOURCE).save(tmp_path / "est")
    assert hashlib.sha256((tmp_path / "est").read_bytes()).hexdigest() not in hashes


class Killed(Exception):
    pass


@pytest.fixture(scope="module")
def uninterrupted() -> str:
    return bits(fitted(max_iter=120))


@pytest.mark.parametrize("when", [1, 49, 50, 51, 119])
def test_promise_6_stopped_anywhere_it_ends_with_the_same_bits(tmp_path, monkeypatch, uninterrupted, when):
    params = {"max_iter": 120, "checkpoint": tmp_path / "checkpoint"}

    step = Trainer.step

    def stop(self, feed):
        if self.iteration == when:
            raise Killed
        return step(self, feed)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", stop)
        with pytest.raises(Killed):
            fitted(**params)
    assert bits(fitted(**params)) == uninterrupted
    # Finished: nothing is left to train, and what is only for test time may differ.
    assert bits(fitted(**params, num_steps=1, verbose=False)) == uninterrupted


SCRIPT = """
from sourceward import EnergyAdapter
from sourceward.data.feeds import ResidentFeed
from tests.helpers import QUICK, make_domains
import torch, sys
torch.set_num_threads(1)
X, y, source = make_domains()
EnergyAdapter(**{**QUICK, "max_iter": 100_000}, checkpoint=sys.argv[1]).fit(X, y, sample_domain=source)
"""


def test_promise_6_sigkill(tmp_path):
    """A real kill: the checkpoint that is left is whole, and going on from it is going on."""
    checkpoint, root = tmp_path / "checkpoint", Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, checkpoint], env=environment, cwd=tmp_path)
    try:
        deadline = time.monotonic() + 90
        while not checkpoint.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    stopped = []

    def stop(self, feed):
        stopped.append(self)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", stop)
        with pytest.raises(Killed):
            fitted(max_iter=100_000, checkpoint=checkpoint)
        with pytest.raises(Killed):
            fitted(max_iter=100_000)
    resumed, fresh = stopped
    assert resumed.iteration > 0
    assert resumed.iteration % 50 == 0
    # Three iterations on from the checkpoint, against as many from the start.
    feed = feed_of(X, Y, SOURCE)
    while fresh.iteration < resumed.iteration + 3:
        fresh.step(feed)
    for _ in range(3):
        resumed.step(feed)
    for name, tensor in fresh.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


def feed_of(rows: np.ndarray, label: np.ndarray, source: np.ndarray) -> ResidentFeed:
    parts = [source == number for number in np.unique(source)]
    inputs = [torch.from_numpy(rows[part].astype(np.float32)) for part in parts]
    labels = [torch.from_numpy(label[part]) for part in parts]
    kept = [~held_out(part) for part in labels]  # the others are for calibration
    inputs, labels = ([x[keep] for x, keep in zip(xs, kept)] for xs in (inputs, labels))
    return ResidentFeed(inputs, labels, QUICK["batch_size"])


@pytest.mark.parametrize(
    "other",
    [
        {"max_iter": 31},
        {"random_state": 1},
        {"kl_weight": 0.5},
        {"head": "linear"},
        {"learning_rate": 0.02},
    ],
)
def test_promise_6_a_checkpoint_of_other_settings_is_refused(tmp_path, other):
    fitted(checkpoint=tmp_path / "checkpoint")
    with pytest.raises(InputError, match=r"belongs to other data or settings. Remove it to start anew"):
        fitted(checkpoint=tmp_path / "checkpoint", **other)


def test_promise_6_a_checkpoint_of_other_data_is_refused(tmp_path):
    est = fitted(checkpoint=tmp_path / "checkpoint")
    for rows, label, source in [
        (X + 1e-3, Y, SOURCE),
        (X, np.roll(Y, 1), SOURCE),
        (X, Y, np.roll(SOURCE, 1)),
    ]:
        with pytest.raises(InputError, match="belongs to other data or settings"):
            est.fit(rows, label, sample_domain=source)
    with pytest.raises(InputError, match="belongs to other data or settings"):
        est.fit(X, Y, sample_domain=SOURCE, X_shifted=X, y_shifted=Y)


CHECKED = [name for name in SAMPLERS if name not in ("langevin_unchecked", "mala")]
"""Samplers that take no step which raises the energy; Metropolis takes some of them by chance."""


@pytest.mark.parametrize("sampler", CHECKED)
def test_promise_8_energy_never_rises_along_an_accepted_chain(est, sampler):
    """Energies are computed again from the points of the chain, not taken from what it reports."""
    params = est.get_params()
    est.set_params(num_steps=15, sampler=sampler, noise_std=0.05, step_size=20)
    adapted = est.adapt(TARGET, trajectory=True)
    est.set_params(**params)
    network = est.network_
    with torch.no_grad():
        feature = network.features(torch.from_numpy(TARGET.astype(np.float32)))
        latent = network.prior(feature.expand(3, -1, -1)).mean
        points = network.features(torch.from_numpy(adapted.trajectory)).permute(1, 2, 0, 3)
        weights = network.energy.weights()
        energies = torch.stack([energy(weights, x, latent_bias(weights, latent)) for x in points])
    # Back to the units of the input and here again costs a few bits.
    assert (energies[1:] - energies[:-1]).max() < 1e-5
    assert (energies[-1] < energies[0] - 1e-4).float().mean() > 0.5, "the chain has to go somewhere"
    np.testing.assert_allclose(energies[0].T, adapted.energy_before, atol=1e-5)
    np.testing.assert_allclose(energies[-1].T, adapted.energy_after, atol=1e-5)
    np.testing.assert_allclose(adapted.trajectory[:, -1], adapted.features, atol=1e-5)
    assert (adapted.energy_after <= adapted.energy_before).all()
