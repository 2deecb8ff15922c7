"""Accept rules on numbers small enough to check by eye."""

import math

import pytest
import torch

from sourceward._util.errors import InputError
from sourceward.samplers import ACCEPT_RULES

BEFORE = torch.tensor([[0.5, 0.5, 0.5]])
AFTER = torch.tensor([[0.4, 0.5, 0.6]])
HALF = torch.full((1, 3), 0.5)
ZERO = torch.zeros(1, 3)


def test_always_takes_every_finite_step():
    assert ACCEPT_RULES["always"](BEFORE, AFTER, None, HALF).tolist() == [[True, True, True]]


def test_energy_not_higher_refuses_a_rise_only():
    assert ACCEPT_RULES["energy_not_higher"](BEFORE, AFTER, None, HALF).tolist() == [[True, True, False]]


def test_metropolis_compares_the_uniform_with_the_ratio():
    # One source, rows that would rise by ln 2: accepted with probability 1/2.
    before, after = torch.zeros(1, 3), torch.full((1, 3), math.log(2))
    uniform = torch.tensor([[0.49, 0.51, 1.0]])
    rule = ACCEPT_RULES["metropolis"]
    assert rule(before, after, ZERO, uniform).tolist() == [[True, False, False]]
    # A proposal twice as likely to come back as to go makes up for the rise.
    assert rule(before, after, ZERO + math.log(2.001), uniform).tolist() == [[True, True, True]]
    # ... and one half as likely leaves a probability of 1/4.
    quarter = torch.tensor([[0.24, 0.26, 0.49]])
    assert rule(before, after, ZERO - math.log(2), quarter).tolist() == [[True, False, False]]


@pytest.mark.parametrize("name", list(ACCEPT_RULES))
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_no_rule_walks_into_an_energy_that_is_not_finite(name, bad):
    accepted = ACCEPT_RULES[name](BEFORE, torch.full_like(BEFORE, bad), ZERO, HALF)
    assert accepted.dtype == torch.bool
    assert not accepted.any()


def test_metropolis_needs_a_proposal_density():
    with pytest.raises(ValueError, match="Use sampler 'textbook'"):
        ACCEPT_RULES["metropolis"](BEFORE, AFTER, None, HALF)


def test_unknown_rule_gets_the_nearest():
    with pytest.raises(InputError, match="Did you mean 'metropolis'"):
        ACCEPT_RULES["metropols"]
