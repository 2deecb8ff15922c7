"""Tent against its definition: entropy of predictions, gradient of scale and shift, Adam, online."""

import numpy as np
import pytest
import torch

from sourceward import InputError, create_adapter
from sourceward.adaptation.baselines.trainable import norm_layers
from tests.adaptation.test_adapters import make_image_network, make_images, make_network, make_rows


def by_hand(network, rows, rate, size):
    """Tent on features in plain NumPy, with the gradient of the entropy written out.

    One source and a prototype head: logits = (s x + t) . w / sqrt(d). For entropy H of p = softmax(l),
    dH/dl_c = -p_c (log p_c + H).
    """
    weight = network.posterior(network.centers).mean[0].double().numpy() / np.sqrt(network.dim)
    x = rows.double().numpy()
    scale, shift = np.ones(network.dim), np.zeros(network.dim)
    first = {k: np.zeros(network.dim) for k in "st"}
    second = {k: np.zeros(network.dim) for k in "st"}
    predictions = []
    for step, start in enumerate(range(0, len(x), size), 1):
        batch = x[start : start + size]
        logits = (batch * scale + shift) @ weight.T
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        predictions.append(p)
        h = -(p * np.log(p)).sum(1, keepdims=True)
        slope = (-p * (np.log(p) + h)) @ weight / len(batch)
        gradient = {"s": (slope * batch).sum(0), "t": slope.sum(0)}
        for k in "st":
            first[k] = 0.9 * first[k] + 0.1 * gradient[k]
            second[k] = 0.999 * second[k] + 0.001 * gradient[k] ** 2
            move = first[k] / (1 - 0.9**step) / (np.sqrt(second[k] / (1 - 0.999**step)) + 1e-8)
            if k == "s":
                scale = scale - rate * move
            else:
                shift = shift - rate * move
    return np.concatenate(predictions)


@pytest.mark.parametrize("size", [1, 16])
def test_predictions_of_a_stream_by_hand(size):
    network = make_network()
    network.centers.copy_(network.centers[:1].expand_as(network.centers))  # all sources predict alike
    rows = make_rows(40)
    adapted = create_adapter("tent_features", learning_rate=0.05, batch_size=size)(network, rows)
    np.testing.assert_allclose(adapted.probabilities, by_hand(network, rows, 0.05, size), atol=2e-4)


def test_more_updates_lower_the_entropy_further():
    network, rows = make_network(), make_rows(200)

    def mean_entropy(**options):
        p = create_adapter("tent_features", learning_rate=0.02, batch_size=20, **options)(
            network, rows
        ).probabilities
        return -(p * np.log(p)).sum(1).mean()

    assert mean_entropy(num_updates=5) < mean_entropy(num_updates=1) < mean_entropy(num_updates=0)


def test_tent_on_z_trains_the_latent_network_alone():
    network, rows = make_network(), make_rows(8)
    adapter = create_adapter("tent_latent", learning_rate=0.01, batch_size=4)
    model = adapter.trainable(network)
    assert {id(p) for p in model.parameters} == {id(p) for p in model.network.latent.parameters()}
    adapted, none = adapter(network, rows), create_adapter("none")(network, rows)
    np.testing.assert_allclose(adapted.probabilities[:4], none.probabilities[:4], atol=1e-6)
    assert np.abs(adapted.probabilities[4:] - none.probabilities[4:]).max() > 1e-3
    np.testing.assert_allclose(adapted.features, none.features, rtol=1e-6)  # samples are unchanged


def test_only_scales_and_shifts_of_norm_layers_are_trained():
    network = make_image_network()
    model = norm_layers(network)
    names = {id(p): n for n, p in model.network.named_parameters()}
    trained = {names[id(p)] for p in model.parameters}
    assert trained == {f"backbone.network.{i}.{p}" for i in (1, 4, 7) for p in ("weight", "bias")}
    assert {n for n, p in model.network.named_parameters() if p.requires_grad} == trained


def test_gradient_on_a_backbone_equals_a_hand_written_one():
    """The same network written out with train-mode batch norm and one linear layer."""
    network, images = make_image_network("linear"), make_images(6)
    adapter = create_adapter("tent", learning_rate=1e-3, batch_size=6)
    model = adapter.trainable(network)
    feature = model.encode(images)
    loss = adapter.make_loss(model)(images, feature, model.logits(feature))
    gradients = torch.autograd.grad(loss, model.parameters)

    body = network.backbone.network
    parameters = [p.clone().requires_grad_(True) for i in (1, 4, 7) for p in (body[i].weight, body[i].bias)]
    x = images
    for layer, (weight, bias) in zip((0, 3, 6), zip(parameters[::2], parameters[1::2])):
        x = torch.nn.functional.conv2d(x, body[layer].weight, stride=2, padding=1)
        mean, var = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), keepdim=True, correction=0)
        x = (x - mean) / (var + 1e-5).sqrt() * weight[:, None, None] + bias[:, None, None]
        x = x.relu()
    x = (torch.nn.functional.adaptive_avg_pool2d(x, 2).flatten(1) - network.shift) * network.scale
    p = (x @ network.head.weight + network.head.bias).softmax(-1).mean(0)  # over the sources
    expected = torch.autograd.grad(-(p * p.log()).sum(1).mean(), parameters)
    for ours, theirs in zip(gradients, expected):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-3)


def test_one_value_per_channel_is_refused():
    network = make_image_network()
    with pytest.raises(InputError, match="statistics of one value"):
        create_adapter("tent")(network, torch.zeros(1, 3, 4, 4))  # maps of 1 x 1 at the third layer
