"""The card states what the model reads, what it was trained on, and whether adaptation should help."""

import json

import pytest

from sourceward.model.card import expected_accuracy_text, expected_gain_text, model_card
from sourceward.nn.backbones import ImagePreprocessing
from sourceward.validation.expected_gain import ExpectedGain
from tests.words import old_words


def card(**changes) -> str:
    config = {
        "backbone": None,
        "kind": "features",
        "sources": ["a", "b"],
        "classes": ["x", "y"],
        "adapt": {"num_steps": 5, "sampler": "langevin", "step": {"step_size": 50.0}},
        "tta": "",
        "metrics": {"adapted": 0.91, "unadapted": 0.9},
        "expected_gain": None,
    }
    return model_card({**config, **changes})


def test_every_section_of_a_plain_model():
    text = card()
    for part in (
        "## Input\n\nFeature vectors.\n",
        "2: x, y.",
        "## Source domains\n\na, b.\n",
        "- Steps: 5 `langevin` steps of size 50 for each source.",
        "- Test-time augmentation: none.",
        "91.0 % with adaptation, 90.0 % without.",
        "model.predict(X)",
    ):
        assert part in text
    assert not old_words(text)


def test_a_model_without_adaptation_does_not_claim_to_adapt():
    off = {"num_steps": 0, "sampler": "langevin", "step": {"step_size": 50.0}, "aggregation": "mean"}
    assert "Adapts each test sample" in card()
    assert "Adapts each test sample" in card(adapt=off, tta="hflip")
    assert "Adapts each test sample" in card(adapt=off | {"aggregation": "energy"})
    assert "Adaptation is off: each prediction is the classifier's own." in card(adapt=off)


def test_images_and_transforms():
    text = card(kind="image", backbone={"family": "timm", "name": "resnet18"}, tta="hflip+crop+adain")
    assert "Images; the backbone is `timm:resnet18`." in text
    assert "- Test-time augmentation: hflip, crop and adain (" in text
    assert 'model.predict(["a.jpg"])' in text


@pytest.mark.parametrize(("scale", "stated"), [(0.7, True), (1.0, False)])
def test_the_size_of_smaller_copies_is_stated(scale, stated):
    prepared = json.loads(json.dumps(ImagePreprocessing(copy_scale=scale).to_dict()))
    body = {"family": "timm", "name": "resnet18", "preprocessing": prepared}
    text = card(kind="image", backbone=body, tta="hflip")
    assert ("without). Copies have 160 x 160 pixels." in text) is stated


def test_many_classes_are_cut_short():
    assert "c19 and 5 more." in card(classes=[f"c{number}" for number in range(25)])


def test_the_expected_gain_is_stated():
    expected = ExpectedGain(
        gain=0.02, low=0.01, high=0.03, per_source={"a": 0.02}, unadapted=0.7, num_steps=5, adapts=True
    )
    text = expected_gain_text(expected.to_dict())
    assert text.startswith(
        "Expected gain on an unseen domain, estimated by leave-one-domain-out validation: "
    )
    assert f"{expected}." in text
    assert text in card(expected_gain=expected.to_dict())


def test_transforms_that_the_estimate_does_not_cover_are_named():
    off = ExpectedGain(
        gain=0.0, low=0.0, high=0.0, per_source={"a": 0.0}, unadapted=0.7, num_steps=0, adapts=False
    ).to_dict()
    assert "this model uses hflip+crop, which validation did not choose." in card(
        expected_gain=off, tta="hflip+crop"
    )
    assert "The estimates are" not in card(expected_gain=off)


def test_the_first_line_is_the_expected_accuracy():
    expected = ExpectedGain(
        gain=0.0,
        low=0.0,
        high=0.0,
        per_source={"a": 0.0},
        unadapted=0.7,
        num_steps=0,
        adapts=False,
        accuracy=0.7,
        accuracy_low=0.5,
        accuracy_high=0.9,
        accuracy_per_source={"a": 0.7},
    ).to_dict()
    line = "Expected accuracy on an unseen domain: 70.0 % (90 % interval for a new domain: 50 to 90 %; "
    assert expected_accuracy_text(expected).startswith(line)
    body = card(expected_gain=expected).split("# A sourceward model\n\n")[1]
    assert body.startswith(line)
    assert card().split("# A sourceward model\n\n")[1].startswith(expected_accuracy_text(None))
    assert expected_accuracy_text(None).endswith(": not estimated.")


def test_no_estimate_is_stated_as_well():
    assert expected_gain_text(None).startswith("Not estimated: ")
    assert expected_gain_text(None) in card()


@pytest.mark.parametrize("metrics", [{}, None])
def test_a_model_without_metrics_has_no_such_section(metrics):
    assert "Accuracy" not in card(metrics=metrics)
