"""The card answers the first question of whoever deploys the model."""

import re

from sourceward.estimator import ExpectedGain
from sourceward.model.card import model_card


def card(expected_gain=None) -> str:
    return model_card(
        {
            "backbone": None,
            "kind": "features",
            "sources": ["a", "b"],
            "classes": ["x", "y"],
            "adapt": {"num_steps": 5, "step": {"step_size": 50.0}},
            "expected_gain": expected_gain,
        }
    )


def test_a_promise_is_told():
    expected_gain = ExpectedGain(0.02, 0.01, 0.03, {"a": 0.02}, 0.7, 5, True)
    assert f"Will adaptation help on an unseen domain? {expected_gain}." in card(expected_gain.to_dict())


def test_no_promise_is_told_as_well():
    assert re.search(r"Will adaptation help .* Nobody asked: .* 3 sources", card())
