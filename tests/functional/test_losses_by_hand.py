"""Eq. 7, eq. 10 and the guided step on numbers small enough to compute by hand."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from sourceward.functional import (
    Coefficients,
    EnergyWeights,
    Gaussian,
    Guided,
    Loss,
    Positive,
    eq7,
    eq10,
    guided_step,
    latent_bias,
)


def test_guided_step_by_hand():
    # One unit per layer, weights 1, biases 0, x = 0: dE/dx = 1/16 (see test_energy).
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    zero = torch.zeros(1, 1, dtype=torch.float64)
    weights = EnergyWeights(one, None, zero, one, zero, one[0], zero[0])
    bias, x = latent_bias(weights, None), torch.zeros_like(one)
    assert guided_step(weights, x, bias, 8.0, 1.0).item() == -0.5  # 0 - 8 / 16
    assert guided_step(weights, x, bias, 8.0, 0.01).item() == pytest.approx(-0.08)  # 0 - 8 * 0.01


def two_points() -> tuple[Positive, Tensor, Guided]:
    """One source, two points, two classes."""
    log3 = math.log(3)
    zero, one = torch.zeros(1, 2, 1).double(), torch.ones(1, 2, 1).double()
    positive = Positive(
        logits=torch.tensor([[[0.0, 0.0], [log3, 0.0]]], dtype=torch.float64),
        label=torch.tensor([[0, 0]]),
        energy=torch.tensor([[0.2, 0.4]], dtype=torch.float64),
        posterior=Gaussian(torch.tensor([[[1.0], [0.0]]]).double(), torch.tensor([[[1.0], [2.0]]]).double()),
        prior=Gaussian(zero, one),
    )
    guided = Guided(
        energy=torch.tensor([[0.1, 0.2]], dtype=torch.float64),
        logits=torch.tensor([[[0.0, log3], [0.0, log3]]], dtype=torch.float64),
        label=torch.tensor([[1, 0]]),
        posterior=Gaussian(zero + 2, one),
        prior=Gaussian(zero, one),
    )
    return positive, torch.tensor([[0.5, 0.9]], dtype=torch.float64), guided


# classify: p(y) is 1/2 and 3/4, so (ln 2 + ln 4/3) / 2 = ln(8/3) / 2.
CLASSIFY = math.log(8 / 3) / 2
# kl: N(1, 1) from N(0, 1) is 1/2; N(0, 2) from N(0, 1) is (4 - 1)/2 - ln 2. Their mean is 1 - ln(2)/2.
KL = 1 - math.log(2) / 2
# contrast: (0.2 + 0.4)/2 - (0.5 + 0.9)/2.
CONTRAST = 0.3 - 0.7
# guide: energy (0.1 + 0.2)/2; p(y) is 3/4 and 1/4, so (ln 4/3 + ln 4) / 2 = ln(16/3) / 2; KL of N(2, 1) is 2.
GUIDE_ENERGY, GUIDE_LABEL, GUIDE_KL = 0.15, math.log(16 / 3) / 2, 2.0


def as_floats(loss: Loss) -> list[float]:
    return [term.item() for term in loss]


def test_eq7_on_two_points_by_hand():
    guide = GUIDE_ENERGY + GUIDE_LABEL
    total = CLASSIFY + CONTRAST + guide
    expected = pytest.approx([total, CLASSIFY, 0.0, CONTRAST, guide], abs=1e-12)
    assert as_floats(eq7(*two_points(), Coefficients())) == expected
    assert as_floats(eq7(*two_points(), Coefficients.paper())) == expected


def test_eq10_on_two_points_by_hand():
    guide = GUIDE_ENERGY + GUIDE_LABEL
    total = CLASSIFY + 0.1 * KL + CONTRAST + guide
    found = as_floats(eq10(*two_points(), Coefficients()))
    assert found == pytest.approx([total, CLASSIFY, KL, CONTRAST, guide], abs=1e-12)

    guide = GUIDE_ENERGY + GUIDE_LABEL - GUIDE_KL
    total = CLASSIFY + KL + CONTRAST + guide
    found = as_floats(eq10(*two_points(), Coefficients.paper()))
    assert found == pytest.approx([total, CLASSIFY, KL, CONTRAST, guide], abs=1e-12)


@pytest.mark.parametrize(
    ("name", "term"),
    [
        ("classify", CLASSIFY),
        ("kl", KL),
        ("contrast", CONTRAST),
        ("guide_energy", GUIDE_ENERGY),
        ("guide_label", GUIDE_LABEL),
        ("guide_kl", -GUIDE_KL),
    ],
)
def test_each_coefficient_weighs_its_own_term(name, term):
    none = Coefficients(0, 0, 0, 0, 0, 0)
    assert eq10(*two_points(), none).total.item() == 0
    assert eq10(*two_points(), replace(none, **{name: 3.0})).total.item() == pytest.approx(3 * term)


def test_eq10_without_gaussians_is_an_error():
    positive, negative, guided = two_points()
    with pytest.raises(ValueError, match=r"of the positives for eq\. 10"):
        eq10(positive._replace(prior=None), negative, guided, Coefficients())
    with pytest.raises(ValueError, match="when `guide_kl` is not 0"):
        eq10(positive, negative, guided._replace(prior=None), Coefficients.paper())
    eq10(positive, negative, guided._replace(prior=None), Coefficients())
