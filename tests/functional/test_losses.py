"""Eq. 7 and eq. 10 against a slow, literal reading of the paper.

The literal version below goes sample by sample. It differentiates the energy with autograd, keeps the graph,
takes the step, and backpropagates through it a second time. A stop-gradient is a frozen copy of a module.
"""

import copy
import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributions import Independent, Normal
from torch.distributions import kl_divergence as reference_kl
from torch.func import functional_call

from sourceward.functional import (
    Coefficients,
    EnergyWeights,
    Gaussian,
    Guided,
    Loss,
    Positive,
    energy,
    energy_and_grad,
    eq7,
    eq10,
    guided_step,
    kl_divergence,
    latent_bias,
)
from sourceward.nn import HEADS, LatentNet, StackedEnergy
from sourceward.nn.heads import LinearHead
from tests.helpers import make_generator, random_weights

SOURCES, BATCH, NEGATIVES, DIM, CLASSES = 2, 3, 4, 5, 3
STEP_SIZE = 3.0

both = pytest.mark.parametrize("c", [Coefficients(), Coefficients.paper()], ids=["released", "paper"])
heads = pytest.mark.parametrize("head", list(HEADS))


@dataclass
class Parts:
    """The learned parts and one batch, all in float64. `latent` is None for a head without one (eq. 7)."""

    theta: StackedEnergy
    latent: LatentNet | None
    head: nn.Module
    feature: Tensor
    label: Tensor
    centers: Tensor
    start: Tensor
    start_label: Tensor
    end: Tensor
    """Chain ends: the negatives of the contrast."""
    eps: dict[str, Tensor]
    """Draws: `class` for z_c, `positive` for z of a positive, `chain` for z of a chain."""

    def parameters(self) -> dict[str, Tensor]:
        modules = {"theta": self.theta, "latent": self.latent, "head": self.head}
        named = {
            f"{part}.{name}": p
            for part, module in modules.items()
            if module is not None
            for name, p in module.named_parameters()
        }
        return named | {"feature": self.feature}

    def gradients(self, loss: Tensor) -> dict[str, Tensor]:
        named = self.parameters()
        grads = torch.autograd.grad(loss, list(named.values()), retain_graph=True, allow_unused=True)
        return {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(named.items(), grads)}


def make_parts(head: str, seed: int = 0) -> Parts:
    generator = make_generator(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    torch.manual_seed(seed)
    classifier = HEADS[head](DIM, CLASSES, SOURCES).double()
    if isinstance(classifier, LinearHead):
        classifier.reset_parameters(generator)
    theta = StackedEnergy(SOURCES, DIM, hidden=6, narrow=4, latent=classifier.uses_latent).double()
    label = torch.randint(CLASSES, (SOURCES, BATCH), generator=generator)
    start = normal(SOURCES, NEGATIVES, DIM)
    return Parts(
        theta,
        LatentNet(DIM).double() if classifier.uses_latent else None,
        classifier,
        normal(SOURCES, BATCH, DIM).requires_grad_(),
        label,
        normal(SOURCES, CLASSES, DIM),
        start,
        torch.randint(CLASSES, (SOURCES, NEGATIVES), generator=generator),
        start + 0.3 * normal(SOURCES, NEGATIVES, DIM),
        {
            "class": normal(SOURCES, CLASSES, DIM),
            "positive": normal(SOURCES, BATCH, DIM),
            "chain": normal(SOURCES, NEGATIVES, DIM),
        },
    )


def middle_clip(p: Parts) -> float:
    """A clip that binds for half of the elements, so that both branches are tested."""
    weights = p.theta.weights().detach()
    z = None if p.latent is None else draw(p.latent(p.start), p.eps["chain"]).detach()
    size = energy_and_grad(weights, p.start, latent_bias(weights, z))[1].abs().flatten().sort().values
    return (size[len(size) // 2 - 1] + size[len(size) // 2]).item() / 2


def draw(gaussian: Gaussian, eps: Tensor) -> Tensor:
    return gaussian.mean + gaussian.std * eps


# The library's way: stacked, closed form, one backward.


def fast(p: Parts, c: Coefficients, clip: float, guide_weights: EnergyWeights | None = None) -> Loss:
    weights = p.theta.weights()
    frozen = weights.detach()
    prior = posterior = class_posterior = class_latent = z_positive = z_energy = z = None
    if p.latent is not None:
        prior = p.latent(p.feature)
        class_posterior = p.latent(p.centers)
        posterior = class_posterior.gather(p.label)
        class_latent = draw(class_posterior, p.eps["class"])
        z_positive = draw(posterior, p.eps["positive"])
        z_energy = draw(prior, p.eps["positive"]).detach()
        z = draw(p.latent(p.start), p.eps["chain"]).detach()

    bias = latent_bias(weights, z)
    step_weights = weights if guide_weights is None else guide_weights
    adapted = guided_step(step_weights, p.start, latent_bias(step_weights, z), STEP_SIZE, clip)
    head = {name: w.detach() for name, w in p.head.named_parameters()}
    frozen_class_latent = None if class_latent is None else class_latent.detach()
    guided = Guided(
        energy(frozen, adapted, bias.detach()),
        functional_call(p.head, head, (adapted, z, frozen_class_latent)),
        p.start_label,
    )
    if p.latent is not None:
        latent = {name: w.detach() for name, w in p.latent.named_parameters()}
        guided = guided._replace(
            posterior=class_posterior.gather(p.start_label).detach(),
            prior=functional_call(p.latent, latent, (adapted,)),
        )
    positive = Positive(
        p.head(p.feature, z_positive, class_latent),
        p.label,
        energy(weights, p.feature.detach(), latent_bias(weights, z_energy)),
        posterior,
        prior,
    )
    negative = energy(weights, p.end, bias)
    return (eq7 if p.latent is None else eq10)(positive, negative, guided, c)


# The paper's way: one sample after the other, double backward.


def literal_energy(theta: StackedEnergy, source: int, x: Tensor, z: Tensor | None) -> Tensor:
    h = x if z is None else torch.cat([x, z])
    for layer, (matrix, bias) in enumerate(zip(theta.matrices, theta.biases)):
        left, right = getattr(theta, f"left{layer}")[source], getattr(theta, f"right{layer}")[source]
        sigma = left @ matrix[source] @ right
        h = (matrix[source] / sigma) @ h + bias[source]
        if layer < 2:
            h = h * torch.sigmoid(h)
    return torch.sigmoid(h[0])


def literal_kl(q: Gaussian, p: Gaussian) -> Tensor:
    return reference_kl(Independent(Normal(*q), 1), Independent(Normal(*p), 1))


def literal_logits(
    head: nn.Module, source: int, x: Tensor, z: Tensor | None, classes: Tensor | None
) -> Tensor:
    if isinstance(head, LinearHead):  # a classifier of its own for each source
        return x @ head.weight[source] + head.bias[source, 0]
    z = None if z is None else z.reshape(1, 1, -1)
    return head(x.reshape(1, 1, -1), z, None if classes is None else classes.unsqueeze(0))[0, 0]


def frozen_copy(module: nn.Module) -> nn.Module:
    return copy.deepcopy(module).requires_grad_(False)


def literal(p: Parts, c: Coefficients, clip: float) -> dict[str, Tensor]:
    sg_theta, sg_head = frozen_copy(p.theta), frozen_copy(p.head)
    sg_latent = None if p.latent is None else frozen_copy(p.latent)
    classify, kl, contrast, guide = [], [], [], []
    for i in range(SOURCES):
        class_z = sg_class_z = None
        if p.latent is not None:
            # One z_c for each class centre: the weights of the prototype head.
            class_z = draw(p.latent(p.centers[i]), p.eps["class"][i])
            sg_class_z = draw(sg_latent(p.centers[i]), p.eps["class"][i])

        for b in range(BATCH):
            x, y = p.feature[i, b], p.label[i, b]
            z = constant_z = None
            if p.latent is not None:
                q = p.latent(p.centers[i, y])
                z = draw(q, p.eps["positive"][i, b])
                constant_z = draw(sg_latent(x), p.eps["positive"][i, b]).detach()
                kl.append(literal_kl(q, p.latent(x)) / (SOURCES * BATCH))
            log_p = literal_logits(p.head, i, x, z, class_z).log_softmax(-1)[y]
            classify.append(-log_p / (SOURCES * BATCH))
            contrast.append(literal_energy(p.theta, i, x.detach(), constant_z) / (SOURCES * BATCH))

        for b in range(NEGATIVES):
            y, z = p.start_label[i, b], None
            if p.latent is not None:
                z = draw(sg_latent(p.start[i, b]), p.eps["chain"][i, b])
            contrast.append(-literal_energy(p.theta, i, p.end[i, b], z) / (SOURCES * NEGATIVES))

            # x is a function of theta: the step's own gradient keeps its graph.
            x = p.start[i, b].clone().requires_grad_()
            (grad,) = torch.autograd.grad(literal_energy(p.theta, i, x, z), x, create_graph=True)
            x = x.detach() - STEP_SIZE * grad.clamp(-clip, clip)
            line = c.guide_energy * literal_energy(sg_theta, i, x, z)
            line = line - c.guide_label * literal_logits(sg_head, i, x, z, sg_class_z).log_softmax(-1)[y]
            if p.latent is not None:
                line = line - c.guide_kl * literal_kl(sg_latent(p.centers[i, y]), sg_latent(x))
            guide.append(line / (SOURCES * NEGATIVES))
    lines = {"classify": sum(classify), "contrast": sum(contrast), "guide": sum(guide)}
    lines["kl"] = sum(kl) if kl else torch.zeros((), dtype=torch.float64)
    total = c.classify * lines["classify"] + c.kl * lines["kl"] + c.contrast * lines["contrast"]
    return lines | {"total": total + lines["guide"]}


@both
@heads
@pytest.mark.parametrize("seed", [0, 1])
def test_values_and_gradients_equal_the_literal_reading(head, c, seed):
    p = make_parts(head, seed)
    clip = middle_clip(p)
    found, expected = fast(p, c, clip), literal(p, c, clip)
    for name, value in expected.items():
        torch.testing.assert_close(getattr(found, name), value, rtol=1e-10, atol=1e-12)

    found_grads, expected_grads = p.gradients(found.total), p.gradients(expected["total"])
    assert len(expected_grads) == len(p.parameters())
    for name, grad in expected_grads.items():
        assert grad.abs().max() > 0, f"{name} is not reached: the comparison would be empty"
        torch.testing.assert_close(
            found_grads[name], grad, rtol=1e-9, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}"
        )


@both
@heads
def test_guide_gradient_alone_equals_double_backward(head, c):
    p = make_parts(head)
    clip = middle_clip(p)
    found = p.gradients(fast(p, c, clip).guide)
    for name, grad in p.gradients(literal(p, c, clip)["guide"]).items():
        torch.testing.assert_close(found[name], grad, rtol=1e-9, atol=1e-12)


@both
@heads
def test_guide_reaches_theta_through_the_sample_and_nothing_else(head, c):
    p = make_parts(head)
    clip = middle_clip(p)
    grads = p.gradients(fast(p, c, clip).guide)
    for name, grad in grads.items():
        if not name.startswith("theta"):
            assert (grad == 0).all(), name
    # The last bias shifts the score of every x alike, but E(1 - E) depends on it: all of theta is reached.
    assert all(grads[n].abs().max() > 0 for n in grads if n.startswith("theta"))

    # With the weights of the step held constant x is a constant, and nothing is left to learn from.
    constant = fast(p, c, clip, guide_weights=p.theta.weights().detach()).guide
    assert not constant.requires_grad
    torch.testing.assert_close(constant, fast(p, c, clip).guide.detach())


def test_clipped_elements_carry_no_gradient():
    weights = EnergyWeights(*(w.requires_grad_() for w in random_weights(1, 4)))
    feature = torch.randn(1, 3, 4, generator=make_generator(), dtype=torch.float64)
    bias = latent_bias(weights, torch.zeros_like(feature))
    grad = energy_and_grad(weights, feature, bias)[1]
    tiny = 0.5 * grad.abs().min().item()
    adapted = guided_step(weights, feature, bias, 2.0, tiny)
    torch.testing.assert_close(adapted, feature - 2.0 * tiny * grad.sign())
    grads = torch.autograd.grad(adapted.square().sum(), weights, allow_unused=True)
    assert all(g is None or (g == 0).all() for g in grads)


def make_gaussian(*shape: int, seed: int) -> Gaussian:
    generator = make_generator(seed)
    mean = torch.randn(shape, generator=generator, dtype=torch.float64)
    return Gaussian(mean, 0.1 + 2 * torch.rand(shape, generator=generator, dtype=torch.float64))


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 9), st.integers(0, 10_000))
def test_kl_equals_torch_distributions(sources, batch, dim, seed):
    q = make_gaussian(sources, batch, dim, seed=seed)
    p = make_gaussian(sources, batch, dim, seed=seed + 1)
    expected = reference_kl(Independent(Normal(*q), 1), Independent(Normal(*p), 1))
    assert expected.shape == (sources, batch)
    torch.testing.assert_close(kl_divergence(q, p), expected, rtol=1e-12, atol=1e-12)


def test_kl_is_zero_only_at_itself_and_not_symmetric():
    q, p = make_gaussian(3, 4, seed=0), make_gaussian(3, 4, seed=1)
    assert (kl_divergence(q, q) == 0).all()
    assert (kl_divergence(q, p) > 0).all()
    assert not torch.allclose(kl_divergence(q, p), kl_divergence(p, q))


def test_sample_moments_are_within_monte_carlo_error():
    n, mean, std = 200_000, 1.5, 0.4
    gaussian = Gaussian(torch.full((n,), mean).double(), torch.full((n,), std).double())
    draw = gaussian.sample(make_generator())
    assert abs(draw.mean().item() - mean) < 5 * std / math.sqrt(n)
    assert abs(draw.var().item() - std**2) < 5 * std**2 * math.sqrt(2 / n)


def test_sample_is_reproducible_and_reparametrised():
    mean, std = (t.requires_grad_() for t in make_gaussian(2, 3, seed=0))
    gaussian = Gaussian(mean, std)
    draw = gaussian.sample(make_generator(7))
    assert torch.equal(draw, gaussian.sample(make_generator(7)))
    assert not torch.equal(draw, gaussian.sample(make_generator(8)))
    to_mean, to_std = torch.autograd.grad(draw.sum(), (mean, std))
    assert torch.equal(to_mean, torch.ones_like(mean))
    torch.testing.assert_close(to_std, ((draw - mean) / std).detach())


def test_gather_picks_the_class_of_each_row():
    classes = make_gaussian(2, 3, 4, seed=0)
    label = torch.tensor([[0, 2, 2, 1, 0], [1, 1, 0, 2, 2]])
    picked = classes.gather(label)
    assert picked.mean.shape == picked.std.shape == (2, 5, 4)
    for source in range(2):
        for row in range(5):
            assert torch.equal(picked.mean[source, row], classes.mean[source, label[source, row]])
            assert torch.equal(picked.std[source, row], classes.std[source, label[source, row]])


def test_detach_stops_the_gradient():
    mean, std = (t.requires_grad_() for t in make_gaussian(2, 3, seed=0))
    assert not any(t.requires_grad for t in Gaussian(mean, std).detach())
