import pytest

from sourceward.report import demo


def numbers(accuracy, gain, low, high):
    return {"accuracy": accuracy, "gain": gain, "gain_low": low, "gain_high": high}


def deployment(adapts, default, forced):
    expected = {
        "adapts": adapts,
        "gain": 0.1 if adapts else 0.0,
        "low": 0.05,
        "high": 0.15,
        "num_steps": 0,
        "tta": "rotate" if adapts else "",
        "accuracy": 0.8,
        "accuracy_low": 0.7,
        "accuracy_high": 0.9,
        "tried": {"5 steps": {"a": 0.01, "b": -0.03}},
    }
    none = numbers(0.7, 0, 0, 0)
    measured = {demo.DEFAULT: default, demo.NONE: none, demo.FORCED: forced}
    return {"target": "x", "expected": expected, "measured": measured}


GAIN, LOSS, NOTHING = (
    numbers(0.8, 0.1, 0.06, 0.14),
    numbers(0.6, -0.1, -0.14, -0.06),
    numbers(0.7, 0, -0.02, 0.02),
)


@pytest.mark.parametrize(
    ("adapts", "default", "forced", "right"),
    [
        (True, GAIN, GAIN, True),
        (True, NOTHING, NOTHING, False),
        (True, LOSS, LOSS, False),
        (False, NOTHING, LOSS, True),
        (False, NOTHING, NOTHING, True),
        (False, NOTHING, GAIN, False),
    ],
)
def test_a_decision_is_right_where_the_target_says_so(adapts, default, forced, right):
    own = deployment(adapts, default, forced)
    assert demo.is_right(own) == right
    assert ("which was right" in demo.verdict(own)) == right
    assert demo.headline([own, own]).startswith(f"{2 * right} of 2 decisions were right")


def test_the_expectation_states_accuracy_gain_and_what_was_tried():
    on, off = (demo.expected_sentence(deployment(adapts, GAIN, GAIN)["expected"]) for adapts in (True, False))
    assert on.startswith(
        "Expected accuracy 80.0 % (70 to 90), +10.0 (+5.0 to +15.0) points of it by adaptation"
    )
    assert "Adaptation is off" in off
    assert "5 steps -1.0 points" in off


def test_tables_hold_expectation_and_truth():
    own = [deployment(True, GAIN, GAIN), deployment(False, NOTHING, LOSS)]
    rows = {row[0]: row[1:] for row in demo.summary_table(own).rows[:4]}
    assert rows["adaptation"] == ["rotate", "off"]
    assert rows["expected gain, points"] == ["+10.0 (+5.0 to +15.0)", "none"]
    table = demo.method_table(own)
    assert table.rows[0] == [demo.DEFAULT, "80.0", "70.0", "75.0"]
    assert table.strong == [0]
