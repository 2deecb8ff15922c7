"""The vote of several classifiers, in two forms that agree."""

import torch

from sourceward.functional.voting import log_vote, vote
from tests.helpers import make_generator


def test_both_forms_are_the_mean_of_probabilities():
    logits = torch.randn(3, 2, 5, 4, generator=make_generator(), dtype=torch.float64)
    mean = logits.softmax(-1).mean((0, 1))
    torch.testing.assert_close(log_vote(logits).exp(), mean)
    by_source = vote(logits.permute(1, 2, 0, 3), torch.full((3, 1), 1 / 3, dtype=torch.float64))
    torch.testing.assert_close(by_source.mean(0), mean)


def test_a_voter_counts_as_much_as_its_share():
    logits = torch.randn(5, 2, 4, generator=make_generator())
    share = torch.tensor([[0.25], [0.75]])
    first, second = logits.softmax(-1).unbind(1)
    torch.testing.assert_close(vote(logits, share), 0.25 * first + 0.75 * second)


def test_the_log_survives_where_the_probability_does_not():
    logits = torch.tensor([0.0, 500.0]).expand(2, 1, 1, 2)
    assert log_vote(logits)[0, 0] == -500
