"""Predictions on a CUDA device by captured graphs: the same as without, after any change of the model."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import sourceward as sw
from sourceward._util import graphs
from sourceward.adaptation.tta import CopyResult, lead, level_average, stop_early
from sourceward.model.captured import copy_encoder
from sourceward.nn import folded
from sourceward.nn.folded import last_folded
from sourceward.nn.kept import KEY
from sourceward.validation.cascade import NEVER
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


def test_no_images_are_no_rows(model):
    none = torch.zeros(0, 3, *model.preprocessing.size, dtype=torch.uint8)
    assert model.adapt_images(none).probabilities.shape == (0, len(model.classes))


def test_moving_the_model_drops_its_graphs_and_what_its_modules_keep(model):
    model.adapt_features(model.image_features(pixels(model)))
    assert last_folded(model.network) is not None
    assert KEY in vars(model.network)
    model.to("cpu")
    assert last_folded(model.network) is None
    assert not any(KEY in vars(part) for part in model.network.modules())


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


TTA = "hflip+crop+adain_mean"


def levels_of(model, images, device):
    """Predictions on all copies by eager passes, thresholds that leave half of the images in doubt twice, and
    which images rounding might send to another level."""
    model = model.to(device).with_tta(TTA)
    encode, adapter = copy_encoder(model, TTA), model.adapter_for()
    with torch.no_grad():
        rows = model.network.rescale(encode(images.to(device))).unflatten(0, (len(encode.weights), -1))
    results = [adapter(model.network, feature) for feature in rows]
    copies = [CopyResult(*one) for one in zip(results, encode.weights, encode.names)]
    plain, one = (lead(level_average(copies, some).probabilities) for some in (("",), ("", "hflip")))
    first = float(np.median(plain)) if len(images) > 1 else NEVER
    second = float(np.median(one[plain < first])) if len(images) > 1 else NEVER
    model.adapter.tta_, model.adapter.tta_thresholds_ = TTA, (first, second)
    near = [np.abs(sure - t) < 0.02 for sure, t in zip((plain, one), model.tta_thresholds)]
    return model, copies, np.any(near, 0)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("rows", [1, 12, 70, 150])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_a_cascade_is_that_of_eager_passes_over_all_copies(model, rows, device, scale):
    """One image comes with its copies; a few get all further copies at once; many come level by level and, on
    CUDA, block by block."""
    size = {1.0: (16, 16), 0.5: (64, 64)}[scale]
    model.backbone.preprocessing = replace(model.preprocessing, size=size, copy_scale=scale)
    images = pixels(model, rows)
    model, copies, near = levels_of(model, images, device)
    expected = stop_early(copies, TTA, model.tta_thresholds)
    for _ in range(2):  # the second time known graphs are replayed
        found = model.adapt_images(images)
        for name in ("probabilities", "per_source", "energy_after"):
            ours, theirs = getattr(found, name)[~near], getattr(expected, name)[~near]
            np.testing.assert_allclose(ours, theirs, 1e-2, 1e-2, err_msg=name)
    assert not near.all()
