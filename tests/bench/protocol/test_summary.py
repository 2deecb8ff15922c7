"""Means of runs of which some are missing."""

import json

import numpy as np

from sourceward.bench.protocol.methods import parse_methods
from sourceward.bench.protocol.plan import Plan
from sourceward.bench.protocol.summary import summarize


def run(target, seed, right):
    named = {"data": "d", "target": target, "seed": seed, "method": "none", "key": target, "training": {}}
    return named | {"numbers": {"predicted": [0] * right + [1] * (4 - right), "accuracy": right / 4}}


def row(*runs):
    plan = Plan(("d",), tuple(parse_methods(["none"])), seeds=(0, 1))
    labels = {("d", target): np.zeros(4, int) for target in "ab"}
    return summarize(plan, [], runs, [], labels)["table"][0]


def test_targets_without_a_common_seed_have_a_mean():
    found = row(run("a", 0, 1), run("b", 1, 4))
    assert found["mean"] == (1 / 4 + 4 / 4) / 2
    assert found["std"] is None
    json.dumps(found, allow_nan=False)


def test_a_mean_is_over_seeds_that_all_targets_have():
    found = row(run("a", 0, 1), run("a", 1, 2), run("b", 1, 4))
    assert found["mean"] == (2 / 4 + 4 / 4) / 2
