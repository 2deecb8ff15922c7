import numpy as np
import pytest

from sourceward._util.errors import InputError
from sourceward.bench.demo import experiment as bench
from sourceward.bench.demo.digits import load_split, rotated, rotated_all, train_network
from sourceward.bench.demo.numbers import bootstrap, headline, verdicts


@pytest.fixture(scope="module")
def outcome():
    return bench.run(bench.quick_settings(num_steps=3), show=False)


def test_digits_of_targets_are_never_trained_on():
    train, test = load_split(1000, seed=0)
    assert (len(train.label), len(test.label)) == (1000, 797)
    seen = {image.tobytes() for image in train.image}
    repeated = sum(image.tobytes() in seen for image in test.image)
    assert repeated == 0


def test_rotation_cuts_nothing_off():
    train, _ = load_split(50, seed=0)
    upright, tilted = rotated(train, 0), rotated(train, 45)
    assert (tilted.sum() / upright.sum()).item() == pytest.approx(1, abs=0.01)


def test_training_repeats_itself_and_leaves_the_global_generator_alone():
    import torch

    train, _ = load_split(64, seed=0)
    inputs, label, angle = rotated_all(train, (15, 30))
    assert len(inputs) == len(label) == len(angle) == 128
    state = torch.get_rng_state()
    a, b = (train_network(inputs, label, epochs=1, seed=3) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values()))
    assert torch.equal(torch.get_rng_state(), state)


def test_the_curve_passes_through_the_table(outcome):
    for target in outcome.targets:
        for steps, answer in ((0, target.before), (3, target.after)):
            accuracy, energy = target.curve[steps]
            assert accuracy == target.right(answer).mean()
            assert energy == pytest.approx(answer.energy_after.mean())
        assert max(target.curve) == 6


def test_labels_of_targets_change_no_answer(outcome, monkeypatch):
    def relabelled(*sizes):
        train, test = load_split(*sizes)
        return train, test._replace(label=test.label[::-1])

    monkeypatch.setattr(bench, "load_split", relabelled)
    again = bench.run(outcome.settings, show=False)
    for one, other in zip(outcome.targets, again.targets):
        np.testing.assert_array_equal(one.after.probabilities, other.after.probabilities)
        for name, predicted in one.controls.items():
            np.testing.assert_array_equal(predicted, other.controls[name])


def test_the_interval_holds_the_gain_and_pairs_the_angles():
    rng = np.random.default_rng(0)
    gain = rng.choice([-1, 0, 1], p=[0.1, 0.6, 0.3], size=(1, 500))
    low, high = bootstrap(gain, seed=0)
    assert low < 100 * gain.mean() < high
    assert bootstrap(np.repeat(gain, 2, axis=0), seed=0) == [low, high]  # a copy is no new evidence


@pytest.mark.parametrize(
    ("interval", "says"),
    [([1.0, 3.0], "helps"), ([-3.0, -1.0], "hurts"), ([-1.0, 3.0], "makes no clear difference")],
)
def test_the_headline_follows_the_interval(interval, says):
    mean = {"without": 60.04, "with": 62.0, "gain": 1.96, "gain_interval": interval}
    sentence = headline(mean, 1594, 20)
    assert sentence.startswith(f"Adaptation {says}: 60.0 % becomes 62.0 %")
    assert "+2.0 points" in sentence


@pytest.mark.parametrize(
    ("ours", "says"),
    [(70.0, "5.0 points ahead of"), (60.0, "5.0 points behind"), (64.96, "adaptation is level with")],
)
def test_the_verdict_says_who_wins(ours, says):
    controls = {bench.LINEAR: 65.0, bench.HIDDEN: 64.0, bench.WHOLE: 90.0}
    mean = {"with": ours, "controls": controls, "energy_lowered": 99.0}
    sentences = verdicts(mean, {"0": {"gain": 1.0}})
    assert f"{says} the best control (logistic regression, 65.0 %)" in sentences[0]
    assert "90.0 %: retrain where you can" in sentences[1]


@pytest.mark.parametrize("wrong", [{"num_steps": -3}, {"seed": -1}])
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InputError, match="0 or more, but got -"):
        bench.DemoSettings(**wrong)
