"""From pixels to votes in one call: the same answers as in two, wherever it runs."""

import copy
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch

import sourceward as sw
from sourceward._util import graphs
from sourceward.adaptation import EnergyAdaptation
from sourceward.adaptation import energy as ebtsa
from sourceward.nn import folded
from sourceward.nn.encoder import ImageEncoder
from sourceward.nn.folded import folded_before
from sourceward.nn.projection import Projected

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a CUDA device")


@pytest.fixture
def model(tiny_run):
    return sw.load(tiny_run, device="cpu")


def pixels(model, rows=5):
    height, width = model.backbone.preprocessing.size
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (rows, 3, height, width), dtype=torch.uint8, generator=generator)


def encoder(model):
    return ImageEncoder(model.network, model.backbone.preprocessing)


def same(ours, theirs, tolerance):
    for name in ("features", "probabilities", "per_source", "energy_before", "energy_after"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), tolerance, tolerance)
    assert (ours.status == theirs.status).all()


def test_it_gives_the_features_of_the_model(model):
    images = pixels(model)
    with torch.no_grad():
        assert torch.equal(encoder(model)(images), model.image_features(images))


def test_it_knows_when_the_backbone_has_moved(model):
    ours = encoder(model)
    assert ours.valid()
    next(model.network.backbone.parameters()).data.mul_(2)  # in the same place
    assert ours.valid()
    parameter = next(model.network.backbone.parameters())
    parameter.data = parameter.data.clone()
    assert not ours.valid()


def replace_a_parameter(backbone):
    layer = next(module for module in backbone.modules() if isinstance(module, torch.nn.Conv2d))
    layer.weight = torch.nn.Parameter(2 * layer.weight)


def replace_a_buffer(backbone):
    layer = next(module for module in backbone.modules() if isinstance(module, torch.nn.BatchNorm2d))
    layer.running_mean = layer.running_mean + 1


def replace_a_part(backbone):
    backbone.network[0] = copy.deepcopy(backbone.network[0])


@pytest.mark.parametrize("change", [replace_a_parameter, replace_a_buffer, replace_a_part])
def test_it_knows_when_something_was_replaced(model, change):
    ours = encoder(model)
    change(model.backbone)
    assert not ours.valid()
    assert encoder(model).valid()


def test_it_knows_when_the_projection_was_replaced(model):
    model.network.backbone = Projected(model.backbone, torch.eye(model.network.dim))
    ours = encoder(model)
    assert ours.valid()
    model.network.backbone.projection = 2 * model.network.backbone.projection
    assert not ours.valid()


def test_a_model_makes_another_for_another_preprocessing(model):
    first = model._encoder()
    model.backbone.preprocessing = replace(model.backbone.preprocessing, mean=(0.1, 0.2, 0.3))
    images = pixels(model)
    assert model._encoder() is not first
    with torch.no_grad():
        assert torch.equal(model._encoder()(images), model.image_features(images))


def test_an_adapter_answers_for_inputs_of_an_encoder(model, monkeypatch):
    monkeypatch.setattr(ebtsa, "INPUTS", 2)  # three blocks
    images = pixels(model)
    ours = EnergyAdaptation(model.settings).answer(model.network, images, encoder(model))
    same(
        ours, model.adapt_features(model.image_features(images)), 5e-3
    )  # last bits of a feature draw its noise
    same(model.with_tta("").adapt_images(images), ours, 5e-3)  # whatever its tuning chose


def test_a_model_keeps_its_encoder_until_the_backbone_moves(model):
    first = model._encoder()
    folded(model.network).graphs["one"] = "of the old backbone"
    assert model._encoder() is first
    parameter = next(model.network.backbone.parameters())
    parameter.data = parameter.data.clone()
    assert model._encoder() is not first
    assert not folded(model.network).graphs


class FakeGraph:
    graph = type("", (), {"pool": staticmethod(lambda: "a pool")})
    pools: ClassVar[list] = []

    def __init__(self, function, *inputs, device, pool):
        self.pools.append(pool)
        self.function = function
        if len(inputs[0]) == 3:
            raise RuntimeError("it waits for the device")

    def __call__(self, *inputs):
        return "replayed", self.function(*inputs)


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(graphs, "Graph", FakeGraph)
    monkeypatch.setattr(FakeGraph, "pools", [])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)


def test_graphs_share_memory_and_are_few(fake, monkeypatch):
    monkeypatch.setattr(graphs, "KEPT", 2)
    known = {}
    for rows in (1, 2, 1, 4):
        kind, value = graphs.replay(known, rows, torch.sum, torch.ones(rows))
        assert (kind, value) == ("replayed", rows)
        assert len(known) <= 2
    assert FakeGraph.pools == [None, "a pool", None]


def test_what_cannot_be_recorded_is_called(fake):
    known = {}
    with pytest.warns(UserWarning, match="it waits for the device"):
        assert graphs.replay(known, 0, torch.sum, torch.ones(3)) == 3
    assert graphs.replay(known, 0, torch.sum, torch.ones(3)) == 3


@needs_cuda
@pytest.mark.parametrize("rows", [1, 5, 130])
def test_captured_and_eager_agree_on_cuda(model, rows):
    images, model = pixels(model, rows), model.to("cuda")
    eager = model.adapt_features(model.image_features(images))
    for _ in range(2):
        same(model.adapt_images(images), eager, 1e-2)
    assert any(isinstance(graph, graphs.Graph) for graph in folded(model.network).graphs.values())


def test_a_model_that_moves_lets_go_of_its_graphs(model):
    model.adapt_features(model.image_features(pixels(model)))
    model._encoder()
    assert folded_before(model.network) is not None
    model.to("cpu")
    assert folded_before(model.network) is None
    assert "_known_encoder" not in vars(model)


@needs_cuda
def test_a_graph_that_is_no_longer_good_is_not_believed(model):
    images, model = pixels(model, 5), model.to("cuda")

    def backbone_in_place():
        next(model.network.backbone.parameters()).data.mul_(1.5)

    def centers():
        model.network.centers.mul_(-1)

    def training():
        model.network.train()

    model.adapt_images(images)
    for change in (backbone_in_place, lambda: replace_a_parameter(model.network.backbone), centers, training):
        change()
        ours = model.adapt_images(images)
        same(ours, model.adapt_features(model.image_features(images)), 1e-2)
        assert not model.network.training


@pytest.mark.parametrize("known", [True, False])
def test_whatever_is_in_training_mode_is_put_to_rest(model, known):
    """However deep it lies: batch norm would answer by its batch, and learn from it."""
    ours, network, images = encoder(model), model.network, pixels(model, 3)
    adapter = EnergyAdaptation(model.settings)
    expected = adapter.answer(network, images, ours)
    for part in (network.energy, network.latent.hidden, network.backbone.network[1]):
        part.train()
        answer = adapter.answer(network, images, ours if known else lambda rows: ours(rows))
        assert not any(module.training for module in network.modules())
        np.testing.assert_array_equal(answer.probabilities, expected.probabilities)
