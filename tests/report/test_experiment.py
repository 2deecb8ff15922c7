"""The sentence above an experiment: what its numbers say, and no more."""

import pytest

from sourceward.report.experiment import experiment_page, finding


def row(mean, *gains):
    keys = ("gain_low", "gain", "gain_high")
    return {"mean": mean, **(dict(zip(keys, gains)) | {"against": "off"} if gains else {})}


@pytest.mark.parametrize(
    ("gains", "says"),
    [
        (
            (0.01, 0.02, 0.03),
            "A clear gain: b, 72.0 %, +2.0 points against off (95 % interval +1.0 to +3.0",
        ),
        ((-0.01, 0.02, 0.03), "No clear difference: b"),
        ((-0.03, -0.02, -0.01), "A clear loss: b"),
        ((0.0, 0.0, 0.0), "No difference: b"),
    ],
)
def test_the_best_row_is_stated_with_its_interval(gains, says):
    rows = {"off": row(0.7), "a": row(0.6, 0, 0, 0), "b": row(0.72, *gains), "ORACLE": row(0.9, 1, 1, 1)}
    text = finding({"numbers": {"rows": rows}})
    assert text.startswith(says)
    assert text.endswith("; best of 2 rows, picked by these numbers).")


def test_a_comparison_is_of_adapters():
    """A control is no adapter, and an oracle is no result."""

    def method(label, mean, oracle=False, control=False):
        shown = row(mean, 0.01, 0.02, 0.03) | {"label": label, "method": label}
        return shown | {"oracle": oracle, "control": control}

    table = [method("none", 0.99), method("linear", 0.98, control=True)]
    table += [method("best", 0.97, oracle=True), method("t3a", 0.7)]
    assert finding({"numbers": {"table": table}}).startswith(
        "A clear gain: t3a, 70.0 %, +2.0 points against no"
    )


def test_steps_that_never_help_are_reported():
    text = {"steps": [0, 1, 5], "accuracy": {"p(z|x)": [70.0, 69.0, 70.0]}}
    assert finding({"numbers": text}) == "No number of steps does better than none: 70.0 % with p(z|x)."
    text["accuracy"]["p(z|x)"][2] = 71.0
    assert "best after 5 steps, 71.0 % against 70.0 %" in finding({"numbers": text})


def page(numbers, tmp_path):
    results = {"experiment": "ablation", "about": "What it is.", "numbers": numbers, "notes": ["A note."]}
    rest = {"tables": [], "figures": [], "settings": {}, "versions": {}, "command": "", "seeds": [0]}
    return experiment_page(results | rest, tmp_path)


def test_a_page_says_first_what_was_found(tmp_path):
    text = page({"targets": {"d/a": {"saved": 3, "lost": 5}}}, tmp_path)
    assert text.headline == "Adaptation saves 3 predictions, fewer than the 5 that it loses (one seed)."
    assert text.notes == ["What it is.", "A note."]


def test_a_page_of_other_numbers_says_what_it_is(tmp_path):
    text = page({"unknown": 3}, tmp_path)
    assert (text.headline, text.notes) == ("What it is.", ["A note."])
