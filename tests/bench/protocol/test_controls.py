"""Single-sample generalization: its variational loss by hand, a classifier for each sample, and learning."""

import numpy as np
import pytest
import torch

from sourceward._util.errors import InputError
from sourceward.bench.protocol.controls import (
    SingleSample,
    WeightGenerator,
    classify,
    filled_centers,
    held_out_loss,
)
from tests.helpers import make_domains, make_generator


def make_generate(dim: int = 3) -> WeightGenerator:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return WeightGenerator(dim).double()


def test_the_loss_by_hand():
    generate, rng = make_generate(), np.random.default_rng(0)
    x, label = torch.tensor(rng.normal(size=(4, 3))), torch.tensor([0, 1, 1, 0])
    source, target = (torch.tensor(rng.normal(size=(2, 3))) for _ in range(2))
    loss = held_out_loss(generate, x, label, source, target, 0.3, make_generator(1))

    with torch.no_grad():
        q = [generate(source[c], target[c]) for c in range(2)]
    eps = torch.randn(2, 3, generator=make_generator(1), dtype=torch.float64)
    weights = np.stack([(g.mean + g.std * eps[c]).numpy() for c, g in enumerate(q)])
    total = 0.0
    for i in range(4):
        logits = weights @ x[i].numpy() / np.sqrt(3)
        total += np.log(np.exp(logits).sum()) - logits[label[i]]
        for c in range(2):
            with torch.no_grad():
                p = generate(source[c], x[i])
            ours, theirs = (torch.distributions.Normal(g.mean, g.std) for g in (q[c], p))
            total += 0.3 * torch.distributions.kl_divergence(ours, theirs).sum().item()
    assert loss.item() == pytest.approx(total / 4, rel=1e-10)


def test_each_sample_has_a_classifier_of_its_own():
    generate, rng = make_generate(), np.random.default_rng(0)
    x, source = torch.tensor(rng.normal(size=(5, 3))), torch.tensor(rng.normal(size=(2, 3)))
    with torch.no_grad():
        together = classify(generate, x, source)
        for row, expected in zip(x, together):
            weights = torch.stack([generate(center, row).mean for center in source])
            torch.testing.assert_close((weights @ row / 3**0.5).softmax(-1), expected)
            torch.testing.assert_close(classify(generate, row[None], source)[0], expected)


def test_centres_of_a_missing_class_are_those_of_the_others():
    one = (torch.tensor([[1.0], [3.0]]), torch.tensor([0, 1]))
    two = (torch.tensor([[5.0]]), torch.tensor([0]))
    assert filled_centers([one, two], 2).flatten().tolist() == [1.0, 3.0, 5.0, 3.0]


def test_it_learns_and_repeats():
    X, y, domain = make_domains(rows=80)
    held = domain == 2
    quick = SingleSample(max_iter=150, batch_size=32, learning_rate=0.02)
    p = quick.fit(X[~held], y[~held], domain[~held])(X[held])
    assert (p.argmax(1) == y[held]).mean() > 0.8
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-5)
    assert np.array_equal(p, quick.fit(X[~held], y[~held], domain[~held])(X[held]))
    with pytest.raises(InputError, match="2 or more sources, but got 1"):
        quick.fit(X[held], y[held], domain[held])
