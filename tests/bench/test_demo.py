from dataclasses import replace

import numpy as np
import pytest

from sourceward._util.errors import InputError
from sourceward.bench import demo as bench


@pytest.fixture(scope="module")
def angle():
    return bench.deployments(0, per_domain=60)[0]


@pytest.fixture(scope="module")
def model(angle, tmp_path_factory):
    return bench.decide(angle, tmp_path_factory.mktemp("runs"), 0, bench.QUICK, show=False)


def test_every_domain_has_digits_of_its_own():
    for deployment in bench.deployments(0):
        data = deployment.data
        assert len(data) == 1797
        assert len(data.domain_names) == 5
        assert deployment.target == data.domain_names[-1]
        assert not data.missing_classes()
    upright = bench.deployments(0)[1].data.items
    assert len({image.tobytes() for image in upright}) == len(upright)


def test_rotation_cuts_nothing_off():
    angle, writers = (deployment.data for deployment in bench.deployments(0))
    assert angle.items.sum() / writers.items.sum() == pytest.approx(1, abs=0.01)


def test_another_seed_rotates_other_digits():
    one, other = (bench.deployments(seed)[0].data.fingerprint() for seed in (0, 1))
    assert one != other


def test_default_and_no_adaptation_are_the_predictions_of_the_model(angle, model):
    numbers, cards = bench.measure(angle, model, bench.QUICK, 0)
    target = angle.data.of_domains(angle.target)
    right = model.predict_proba(target.items).argmax(1) == target.labels
    assert numbers["measured"][bench.DEFAULT]["accuracy"] == right.mean()
    none = numbers["measured"][bench.NONE]
    assert (none["gain"], none["saved"], none["lost"]) == (0, 0, 0)
    for own in numbers["measured"].values():
        assert own["gain"] == pytest.approx((own["saved"] - own["lost"]) / len(right))
        assert own["gain_low"] <= own["gain"] <= own["gain_high"]
    assert numbers["expected"] == model.info["expected_gain"]
    assert len(cards) <= 2 * bench.CARDS


def test_labels_of_the_target_change_no_prediction(angle, model):
    data = angle.data
    flipped = np.where(data.domains == len(data.domain_names) - 1, 9 - data.labels, data.labels)

    other = replace(angle, data=replace(data, labels=flipped))
    a, b = (bench._on_features(d.data, d.target, model, bench.QUICK, 0) for d in (angle, other))
    for name, predicted in a.items():
        np.testing.assert_array_equal(predicted, b[name])


def test_a_negative_seed_is_refused():
    with pytest.raises(InputError, match="Expected `--seed` to be 0 or more, but got -1"):
        bench.deployments(-1)
