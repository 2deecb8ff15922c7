"""Accept rules on numbers small enough to check by hand."""

import math

import pytest
import torch

from sourceward.samplers.base import always, energy_not_higher, metropolis

BEFORE = torch.tensor([[0.5, 0.5, 0.5]])
AFTER = torch.tensor([[0.4, 0.5, 0.6]])
HALF = torch.full((1, 3), 0.5)
ZERO = torch.zeros(1, 3)


def test_always_accepts_every_finite_energy():
    assert always(BEFORE, AFTER).tolist() == [[True, True, True]]


def test_energy_not_higher_refuses_only_a_rise():
    assert energy_not_higher(BEFORE, AFTER).tolist() == [[True, True, False]]


def test_metropolis_compares_the_uniform_with_the_ratio():
    # One source, rows whose energy would rise by ln 2: accepted with probability 1/2.
    before, after = torch.zeros(1, 3), torch.full((1, 3), math.log(2))
    uniform = torch.tensor([[0.49, 0.51, 1.0]])
    assert metropolis(before, after, ZERO, uniform).tolist() == [[True, False, False]]
    # A backward proposal twice as likely as the forward one makes up for the rise.
    assert metropolis(before, after, ZERO + math.log(2.001), uniform).tolist() == [[True, True, True]]
    # One half as likely leaves a probability of 1/4.
    quarter = torch.tensor([[0.24, 0.26, 0.49]])
    assert metropolis(before, after, ZERO - math.log(2), quarter).tolist() == [[True, False, False]]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "rule", [always, energy_not_higher, lambda *energies: metropolis(*energies, ZERO, HALF)]
)
def test_no_rule_accepts_an_energy_that_is_not_finite(rule, bad):
    accepted = rule(BEFORE, torch.full_like(BEFORE, bad))
    assert accepted.dtype == torch.bool
    assert not accepted.any()
