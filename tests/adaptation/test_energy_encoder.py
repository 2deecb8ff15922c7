"""From pixels to predictions in one call: the same as features first, then adaptation."""

import numpy as np
import pytest
import torch

from sourceward.adaptation import EnergyAdaptation
from sourceward.adaptation import energy as ebtsa
from sourceward.nn import Network
from sourceward.nn.backbones import create_backbone
from sourceward.nn.encoder import ImageEncoder
from sourceward.samplers import StepSettings
from sourceward.settings import AdaptSettings
from tests.helpers import make_generator


@pytest.fixture
def network() -> Network:
    torch.manual_seed(0)
    backbone = create_backbone("tiny:conv", image_size=16)
    network = Network(2, 3, backbone.dim, backbone=backbone).eval().requires_grad_(False)
    network.reset_parameters(make_generator())
    network.centers.normal_(generator=make_generator(1))
    return network


def encoder(network: Network) -> ImageEncoder:
    return ImageEncoder(network, network.backbone.preprocessing)


def pixels(rows: int) -> torch.Tensor:
    return torch.randint(256, (rows, 3, 16, 16), dtype=torch.uint8, generator=make_generator(2))


# Without noise, which is drawn from the last bits of a feature.
ADAPTER = EnergyAdaptation(AdaptSettings(num_steps=3, step=StepSettings(noise_std=0.0)))


def test_encoded_images_are_adapted_as_their_features(network, monkeypatch):
    monkeypatch.setattr(ebtsa, "INPUTS", 2)  # three blocks
    images = pixels(5)
    ours = ADAPTER.predict(network, images, encoder(network))
    theirs = ADAPTER(network, encoder(network)(images))
    for name in ("features", "probabilities", "per_source", "energy_before", "energy_after"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), 1e-4, 1e-4)
    assert (ours.status == theirs.status).all()


@pytest.mark.parametrize("listed", [True, False])
def test_modules_in_training_mode_are_switched_to_eval_mode(network, listed):
    """However deep they are: batch norm would otherwise use and update the statistics of the batch."""
    ours, images = encoder(network), pixels(3)
    expected = ADAPTER.predict(network, images, ours)
    for part in (network.energy, network.latent.hidden, network.backbone.network[1]):
        part.train()
        found = ADAPTER.predict(network, images, ours if listed else lambda rows: ours(rows))
        assert not any(module.training for module in network.modules())
        np.testing.assert_array_equal(found.probabilities, expected.probabilities)
