"""One contract for every registered adapter, parametrised over the registry."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sourceward import InputError, create_adapter, list_adapters
from sourceward._util.storage import tensor_hash
from sourceward.adaptation import (
    ADAPTERS,
    STATUS_TEXT,
    Unsuitable,
    adapter_traits,
)
from sourceward.adaptation.baselines.base import Baseline
from sourceward.nn import HEADS, Network
from sourceward.nn.auxiliary import DOMAIN_EMBEDDING, ROTATION, SINGLE_SAMPLE
from sourceward.nn.backbones import create_backbone
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


def make_image_network(head: str = "prototype") -> Network:
    """Make a network with a small convolutional backbone that has batch norm."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = create_backbone("tiny:conv", image_size=16)
        backbone.add_auxiliary(ROTATION, 4)
        torch.nn.init.normal_(backbone.auxiliary[ROTATION].weight, std=0.1)
        backbone.add_auxiliary(SINGLE_SAMPLE, SOURCES, CLASSES)
        backbone.auxiliary[SINGLE_SAMPLE].centers.normal_(generator=make_generator(4))
        backbone.add_auxiliary(DOMAIN_EMBEDDING, CLASSES)
    network = Network(SOURCES, CLASSES, backbone.dim, head, backbone)
    network.reset_parameters(make_generator())
    network.eval()
    with torch.no_grad():
        network.fit_scale(backbone(make_images(30)))
        feature = network.features(make_images(30))
    for source in range(SOURCES):
        network.fit_centers(source, feature, torch.arange(30) % CLASSES)
    return network.requires_grad_(False)


def make_images(rows: int = 20) -> torch.Tensor:
    return torch.rand(rows, 3, 16, 16, generator=make_generator(3)) * 2 - 1


def quick(name: str, **options):
    """Create an adapter with options that keep a test short and updates large enough to measure."""
    kind = ADAPTERS[name]
    wanted = {"batch_size": 4, "num_copies": 3, "num_steps": 2, "learning_rate": 1e-2, **options}
    if issubclass(kind, Baseline):
        options = {k: v for k, v in wanted.items() if k in kind.__dataclass_fields__}
    return create_adapter(name, **options)


def ready(adapter, head: str = "prototype", rows: int = 9):
    """Make a network that the adapter suits, and inputs for it."""
    if adapter.reads == "inputs":
        return make_image_network(head), make_images(rows)
    return make_network(head), make_rows(rows)


BASELINES = [name for name in list_adapters() if issubclass(ADAPTERS[name], Baseline)]
every = pytest.mark.parametrize("name", list_adapters())
every_baseline = pytest.mark.parametrize("name", BASELINES)
OURS = [name for name in list_adapters() if name not in BASELINES]
CASES = [(name, head, rows) for name in OURS for head in HEADS for rows in (0, 1, 20, 600)]
CASES += [(name, head, 9) for name in BASELINES for head in HEADS]
CASES += [(name, "prototype", rows) for name in BASELINES for rows in (0, 1)]


@pytest.mark.parametrize(("name", "head", "rows"), CASES)
def test_shapes_and_values(name, head, rows):
    adapter = quick(name)
    if name == "tent_latent" and head == "linear":
        with pytest.raises(Unsuitable, match="no latent"):
            adapter(make_network(head), make_rows(1))
        return
    network, inputs = ready(adapter, head, rows)
    adapted = adapter(network, inputs)
    assert len(adapted) == rows
    assert adapted.features.shape == (rows, SOURCES, network.dim)
    assert adapted.probabilities.shape == (rows, CLASSES)
    assert adapted.per_source.shape == (rows, SOURCES, CLASSES)
    for field in ("energy_before", "energy_after", "steps"):
        assert getattr(adapted, field).shape == (rows, SOURCES)
    assert np.isfinite(adapted.energy_after).all()
    assert adapted.status.shape == (rows,)
    assert set(adapted.status) <= set(STATUS_TEXT)
    assert adapted.trajectory is None
    np.testing.assert_allclose(adapted.probabilities.sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(adapted.per_source.sum(-1), 1, atol=1e-5)
    assert (adapted.probabilities >= 0).all()


@every
def test_traits_are_declared(name):
    traits = adapter_traits(name)
    for flag in ("changes_weights", "keeps_state", "needs_batch"):
        assert isinstance(getattr(traits, flag), bool)
        assert getattr(ADAPTERS[name], flag) is getattr(quick(name), flag)
    assert traits.reads in ("features", "inputs")
    assert ADAPTERS[name] is type(quick(name))


@every
def test_adapting_changes_neither_the_network_nor_the_inputs(name):
    adapter = quick(name)
    network, inputs = ready(adapter)
    before = tensor_hash(network.state_dict())
    kept = inputs.clone()
    adapter(network, inputs)
    assert tensor_hash(network.state_dict()) == before
    assert torch.equal(inputs, kept)
    assert not any(p.requires_grad or p.grad is not None for p in network.parameters())
    assert not any(module.training for module in network.modules())


@every
def test_no_state_survives_a_call(name):
    """The same inputs get the same result after another call in between."""
    adapter = quick(name)
    network, inputs = ready(adapter)
    first = adapter(network, inputs)
    adapter(network, inputs + 1)
    second = adapter(network, inputs)
    for field in FIELDS:
        assert np.array_equal(getattr(first, field), getattr(second, field)), field


@every
def test_traits_describe_the_behaviour(name, monkeypatch):
    """Predictions depend on earlier rows exactly where state is kept, on their batch where one is needed."""
    # Twelve rows of an untrained network are of too few classes for the stream, which would keep no state.
    monkeypatch.setattr("sourceward.adaptation.stream.BALANCE", 0.0)
    adapter = quick(name)
    network, inputs = ready(adapter, rows=12)
    whole = adapter(network, inputs).probabilities
    if adapter.keeps_state or adapter.needs_batch:
        others = adapter(network, torch.cat([-2 * inputs[:8], inputs[8:]])).probabilities
        # Batches have 4 rows: rows 8 to 11 are a batch of their own.
        assert np.allclose(whole[8:], others[8:], atol=1e-7) != adapter.keeps_state
    if adapter.needs_batch:
        neighbours = adapter(network, torch.cat([inputs[:1], -2 * inputs[1:4]])).probabilities
        if not adapter.keeps_state:
            assert not np.allclose(whole[:1], neighbours[:1], atol=1e-7)
    if not adapter.keeps_state and not adapter.needs_batch:
        alone = [adapter(network, row[None]).probabilities for row in inputs]
        np.testing.assert_allclose(np.concatenate(alone), whole, atol=1e-6)


@every_baseline
def test_a_stream_may_be_split_anywhere(name):
    adapter = quick(name)
    network, inputs = ready(adapter, rows=10)
    whole = adapter(network, inputs).probabilities
    pieces = adapter(network, iter([inputs[:3], inputs[3:9], inputs[9:]])).probabilities
    np.testing.assert_allclose(whole, pieces, atol=1e-6)


@pytest.mark.parametrize("head", ["pooled", "concat"])
@pytest.mark.parametrize("name", [name for name in BASELINES if hasattr(ADAPTERS[name], "learning_rate")])
def test_without_an_update_a_baseline_equals_no_adaptation(name, head):
    adapter = quick(name, learning_rate=0.0)
    network, inputs = ready(adapter, head)
    features = inputs if adapter.reads == "features" else network.features(inputs)
    expected = create_adapter("none")(network, features)
    if adapter.reads == "inputs" and name not in ("memo", "ttt"):  # the others use batch statistics
        expected = create_adapter("batchnorm", batch_size=4)(network, inputs)
    adapted = adapter(network, inputs)
    np.testing.assert_allclose(adapted.probabilities, expected.probabilities, atol=1e-5)
    np.testing.assert_allclose(adapted.per_source, expected.per_source, atol=1e-5)
    no_updates = replace(adapter, learning_rate=1.0, num_updates=0)(network, inputs)
    np.testing.assert_allclose(no_updates.probabilities, expected.probabilities, atol=1e-5)
    assert set(no_updates.status) == {"not_adapted"}


@pytest.mark.parametrize("name", [name for name in BASELINES if adapter_traits(name).reads == "inputs"])
def test_methods_that_adapt_a_backbone_refuse_a_model_of_features(name):
    with pytest.raises(Unsuitable, match="reads features"):
        quick(name)(make_network(), make_rows())


def test_options_are_refused_by_name_and_by_value():
    with pytest.raises(InputError, match=r"Unknown option of adapter 'tent', 'batchsize'.*'batch_size'"):
        create_adapter("tent", batchsize=3)
    with pytest.raises(InputError, match="`batch_size` to be 1 or more, but got 0"):
        create_adapter("tent", batch_size=0)
    with pytest.raises(InputError, match="`learning_rate` to be 0 or more, but got nan"):
        create_adapter("tent_features", learning_rate=float("nan"))


def test_rows_that_are_not_finite_get_the_unadapted_prediction():
    network, rows = make_network(), 100 * make_rows()
    adapted = create_adapter("tent_features", learning_rate=1e37, batch_size=4)(network, rows)
    none = create_adapter("none")(network, rows)
    lost = adapted.status == "nonfinite"
    assert lost.any()
    np.testing.assert_allclose(adapted.probabilities[lost], none.probabilities[lost], atol=1e-6)
    np.testing.assert_allclose(adapted.features[lost], none.features[lost], rtol=1e-5)
    assert np.isfinite(adapted.per_source).all()


def test_an_unknown_adapter_gets_the_nearest():
    with pytest.raises(InputError, match=r"Unknown adapter 'ebtas'.*'ebtsa'"):
        create_adapter("ebtas")


def test_every_status_has_a_sentence():
    for name, text in STATUS_TEXT.items():
        assert text.endswith("."), name
