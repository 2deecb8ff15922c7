"""TEA: the classifier's energy, Langevin dynamics on it, contrastive divergence."""

import numpy as np
import torch

from sourceward import create_adapter
from sourceward.adaptation.baselines.classifier import classifier_energy, ensemble_logits
from sourceward.adaptation.baselines.tea import langevin_samples
from tests.adaptation.test_adapters import make_network, make_rows
from tests.helpers import make_generator


def test_langevin_without_noise_is_gradient_descent():
    x = langevin_samples(lambda x: (x**2).sum(-1), torch.tensor([[1.0, -2.0]]), 3, 0.1, 0.0)
    torch.testing.assert_close(x, torch.tensor([[1.0, -2.0]]) * 0.8**3)


def test_langevin_reaches_the_gaussian_of_its_energy():
    """E = x^2 / 2: x <- (1 - h) x + s eps has variance s^2 / (1 - (1 - h)^2)."""
    h, s, count = 0.1, 0.3, 4000
    x = langevin_samples(lambda x: 0.5 * (x**2).sum(-1), torch.zeros(count, 1), 80, h, s, make_generator())
    expected = s**2 / (1 - (1 - h) ** 2)
    error = expected * np.sqrt(2 / count)
    assert abs(x.var().item() - expected) < 4 * error


def test_steps_without_noise_lower_the_classifier_energy():
    network, start = make_network(), make_rows(30)

    def energy(x):
        return classifier_energy(ensemble_logits(network, x))

    assert (energy(langevin_samples(energy, start, 10, 0.1, 0.0)) < energy(start)).all()


def test_contrastive_divergence_of_the_first_batch_by_hand():
    """With no steps and no restarts the negatives are the buffer's noise: E(batch) - E(noise)."""
    network, rows = make_network("linear"), make_rows(6)
    adapter = create_adapter("tea_features", num_steps=0, restart=0.0, buffer_size=1)
    model = adapter.trainable(network)
    feature = model.encode(rows)
    loss = adapter.make_loss(model)(rows, feature, model.logits(feature))
    noise = torch.randn(1, network.dim, generator=make_generator(adapter.seed))
    weight, bias = network.head.weight.numpy(), network.head.bias.numpy()

    def energy(x):
        return -np.log(np.exp(x.numpy() @ weight + bias).sum(-1)).mean()  # over sources and samples

    np.testing.assert_allclose(loss.item(), energy(rows) - energy(noise), rtol=1e-5)


def test_updates_lower_the_energy_of_the_stream():
    network, rows = make_network(), make_rows(64)
    adapter = create_adapter("tea_features", learning_rate=0.02, num_updates=10, num_steps=5, step_size=0.1)
    after = adapter(network, rows)
    none = create_adapter("none")(network, rows)

    def energy(adapted):
        feature = (torch.from_numpy(adapted.features[:, 0]) - network.shift) * network.scale
        return classifier_energy(ensemble_logits(network, feature)).mean().item()

    assert energy(after) < energy(none)
