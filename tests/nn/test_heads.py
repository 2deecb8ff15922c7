"""One contract for every registered head, then what is particular to each."""

import copy
import math

import pytest
import torch
from torch import Tensor

from sourceward._util.errors import InputError
from sourceward.nn import HEADS, ConcatHead, PrototypeHead
from sourceward.nn.heads import Head, LinearHead
from tests.helpers import make_generator

SOURCES, BATCH, DIM, CLASSES = 2, 5, 6, 3
every = pytest.mark.parametrize("name", list(HEADS))


def make_inputs(scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    generator = make_generator()
    feature = scale * torch.randn(SOURCES, BATCH, DIM, generator=generator)
    latent = torch.randn(SOURCES, BATCH, DIM, generator=generator)
    return feature, latent, torch.randn(SOURCES, CLASSES, DIM, generator=generator)


def make_head(name: str, sources: int = SOURCES) -> Head:
    """A head with random weights."""
    head = HEADS[name](DIM, CLASSES, sources)
    if isinstance(head, LinearHead):
        head.reset_parameters(make_generator())
    return head


@every
def test_logits_have_the_shape_of_the_contract_and_are_finite(name):
    head = make_head(name)
    for scale in (0.0, 1.0, 1e4):
        logits = head(*make_inputs(scale))
        assert logits.shape == (SOURCES, BATCH, CLASSES)
        assert torch.isfinite(logits).all()


@every
def test_gradient_flows_to_the_feature_and_every_parameter(name):
    head = make_head(name)
    feature, latent, class_latent = (t.requires_grad_() for t in make_inputs())
    head(feature, latent, class_latent).logsumexp(-1).sum().backward()
    assert (feature.grad.abs().sum(-1) > 0).all()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in head.parameters())
    # A head that uses a latent passes the gradient on to the latent network; one that does not, does not.
    reached = any(t.grad is not None and t.grad.abs().max() > 0 for t in (latent, class_latent))
    assert reached == head.uses_latent


@every
def test_rows_and_sources_are_independent(name):
    head = make_head(name)
    feature, latent, class_latent = make_inputs()
    logits = head(feature, latent, class_latent)
    changed = copy.deepcopy(feature)
    changed[1, 2] += 1
    other = head(changed, latent, class_latent)
    same = torch.ones(SOURCES, BATCH, dtype=torch.bool)
    same[1, 2] = False
    torch.testing.assert_close(other[same], logits[same], rtol=1e-6, atol=1e-6)
    assert not torch.allclose(other[1, 2], logits[1, 2])


@every
def test_it_can_learn_three_points(name):
    """The smallest task: a head, and its latents where it uses them, fit three labelled points."""
    torch.manual_seed(0)
    head = make_head(name, sources=1)
    feature = 3 * torch.eye(DIM)[:CLASSES].unsqueeze(0)
    latent, class_latent = torch.zeros_like(feature), torch.zeros(1, CLASSES, DIM, requires_grad=True)
    label = torch.arange(CLASSES)
    optimizer = torch.optim.Adam([*head.parameters(), class_latent], lr=0.05)
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(head(feature, latent, class_latent)[0], label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.5 * math.log(CLASSES)


def test_prototype_is_a_scaled_dot_product_without_parameters():
    head = PrototypeHead(DIM, CLASSES)
    feature, latent, class_latent = make_inputs()
    logits = head(feature, latent, class_latent)
    for source in range(SOURCES):
        for c in range(CLASSES):
            expected = (feature[source] * class_latent[source, c]).sum(-1) / math.sqrt(DIM)
            torch.testing.assert_close(logits[source, :, c], expected)
    assert not list(head.parameters())


def test_prototype_logit_noise_is_of_order_one():
    """Features of norm sqrt(dim) and z of std 1 give logits of std 1, whatever the width."""
    for dim in (16, 256):
        generator = make_generator()
        feature = (
            torch.nn.functional.normalize(torch.randn(1, 50, dim, generator=generator), dim=-1) * dim**0.5
        )
        class_latent = torch.randn(1, 4000, dim, generator=generator)
        logits = PrototypeHead(dim, 4000)(feature, None, class_latent)
        # 4000 independent prototypes per row: the standard error of a row's variance is sqrt(2/4000).
        assert (logits.var(-1) - 1).abs().max() < 5 * math.sqrt(2 / 4000)


@pytest.mark.parametrize(("head", "missing"), [(PrototypeHead, "class_latent"), (ConcatHead, "latent")])
def test_a_missing_latent_is_an_error(head, missing):
    with pytest.raises(ValueError, match=f"Expected `{missing}`"):
        head(DIM, CLASSES)(make_inputs()[0], None, None)


def test_unknown_head_gets_the_nearest():
    with pytest.raises(InputError, match="Did you mean 'prototype'"):
        HEADS["prototyp"]


def test_every_source_has_a_linear_classifier_of_its_own():
    head = make_head("linear")
    feature = torch.randn(BATCH, DIM, generator=make_generator()).expand(SOURCES, -1, -1)
    logits = head(feature, None, None)
    for source in range(SOURCES):
        torch.testing.assert_close(logits[source], feature[0] @ head.weight[source] + head.bias[source])
    assert not torch.allclose(logits[0], logits[1])
