"""Which iterate is handed on: online rules against the looks laid out side by side."""

import numpy as np
import pytest

from sourceward._util.errors import InputError
from sourceward.training.finetune import FineTuneSettings
from sourceward.training.selection import SELECT, standard_error, takes_over


def look(iteration, accuracies, samples=50):
    each = {str(i): {"accuracy": a, "samples": samples} for i, a in enumerate(accuracies)}
    return {"accuracy": float(np.mean(accuracies)), "per_source": each, "iteration": iteration}


def chosen(looks, rule):
    kept = {}
    for scores in looks:
        if takes_over(scores, kept, rule):
            kept = scores
    return kept["iteration"]


@pytest.mark.parametrize("seed", range(20))
def test_seen_one_at_a_time_is_as_good_as_seen_together(seed):
    draws = np.random.default_rng(seed).binomial(50, 0.9, (12, 3)) / 50
    looks = [look(i, draw) for i, draw in enumerate(draws)]
    means = draws.mean(1)
    best = len(means) - 1 - int(means[::-1].argmax())
    bar = means[best] - standard_error(looks[best]["per_source"])
    assert chosen(looks, "best") == best
    assert chosen(looks, "late") == np.flatnonzero(means >= bar).max()
    assert chosen(looks, "last") == 11


def test_the_standard_error_is_the_spread_of_the_mean_over_sources():
    draws = np.random.default_rng(0).binomial([1000, 4000], [0.9, 0.6], (200_000, 2)) / [1000, 4000]
    told = standard_error({"a": {"accuracy": 0.9, "samples": 1000}, "b": {"accuracy": 0.6, "samples": 4000}})
    assert told == pytest.approx(draws.mean(1).std(), rel=0.01)


def test_another_rule_is_refused_by_name():
    with pytest.raises(InputError, match=r"Unknown finetune\.select 'lat'\. Did you mean 'late'"):
        FineTuneSettings(select="lat")
    for rule in SELECT:
        FineTuneSettings(select=rule)


def test_a_perfect_look_does_not_forbid_later_ones():
    assert chosen([look(i, [right / 200], 200) for i, right in enumerate((200, 199, 199))], "late") == 2
    assert chosen([look(i, [right / 9], 9) for i, right in enumerate((9, 8, 5))], "late") == 1
