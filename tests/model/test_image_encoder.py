"""Predictions on a CUDA device by captured graphs: the same as without, after any change of the model."""

import numpy as np
import pytest
import torch

import sourceward as sw
from sourceward._util import graphs
from sourceward.nn import folded
from sourceward.nn.folded import last_folded
from tests.nn.test_encoder import replace_a_parameter


@pytest.fixture
def model(tiny_run):
    return sw.load(tiny_run, device="cpu").with_tta("")


def pixels(model, rows=5):
    height, width = model.backbone.preprocessing.size
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (rows, 3, height, width), dtype=torch.uint8, generator=generator)


def same(ours, theirs, tolerance):
    for name in ("features", "probabilities", "per_source", "energy_before", "energy_after"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), tolerance, tolerance)
    assert (ours.status == theirs.status).all()


def test_images_are_adapted_as_their_features(model):
    images = pixels(model)
    same(model.adapt_images(images), model.adapt_features(model.image_features(images)), 5e-3)


def test_moving_the_model_drops_its_graphs(model):
    model.adapt_features(model.image_features(pixels(model)))
    assert last_folded(model.network) is not None
    model.to("cpu")
    assert last_folded(model.network) is None


@pytest.mark.cuda
@pytest.mark.parametrize("rows", [1, 5, 130])
def test_captured_and_eager_agree(model, rows):
    images, model = pixels(model, rows), model.to("cuda")
    eager = model.adapt_features(model.image_features(images))
    for _ in range(2):
        same(model.adapt_images(images), eager, 1e-2)
    assert any(isinstance(graph, graphs.Graph) for graph in folded(model.network).graphs.values())


@pytest.mark.cuda
def test_a_graph_is_not_replayed_after_a_change(model):
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
