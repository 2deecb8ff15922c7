"""Which views a trained backbone asks about."""

import numpy as np
import pytest
import torch
from torch import nn

import sourceward as sw
from sourceward._util.errors import InputError
from sourceward.data.corrupting import corrupt_cycling as corrupt_in_turn
from sourceward.data.loading import Resident
from sourceward.fitting import fit
from sourceward.model.card import views_text
from sourceward.nn.feature_statistics import feature_statistics
from sourceward.validation.imagined import imagine
from sourceward.validation.leave_one_domain_out import Trial
from tests.tiny_runs import FINETUNE, TINY, tiny_features, tiny_images
from tests.validation.test_crossfit import AUTO, four_domains

OPTIONS = {
    "backbone": "tiny:conv",
    "weights": None,
    "device": "cpu",
    "progress": False,
    "allow_missing": True,
}


STYLES = {"augmentation.fourier": 0.5}


def fit_views(out, views, data=None, **settings):
    chosen = TINY | FINETUNE | STYLES | {"views": views} | settings
    return fit(data or tiny_images(), out=out, target="c", settings=chosen, **OPTIONS)


def scripted(monkeypatch, gains):
    """Trials of 1,000 samples that gain as told, in turn; asking for more fails."""
    asked = []

    def tried(name, network, voices, label):
        asked.append((name, [len(pictures) for pictures in voices], len(label)))
        gain, right = gains[len(asked) - 1], np.zeros((2, 1000))
        right[int(gain > 0), : round(1000 * abs(gain))] = 1
        return Trial(name, right)

    monkeypatch.setattr("sourceward.validation.views.try_views", tried)
    return asked


def test_moments_are_those_of_the_sources_training_images(tmp_path):
    model = fit_views(tmp_path / "run", "none")
    assert set(model.network.feature_statistics.state_dict()) == {"network/5", "network/8"}
    data = tiny_images().of_domains(["a", "b"])
    rows = data.train_val_indices(0.1)[0]
    for source, name in enumerate(model.sources):
        own = rows[data.domains[rows] == data.domain_names.index(name)]
        images = model.backbone.preprocessing.normalize(model._pixels(torch.from_numpy(data.items[own])))
        expected = feature_statistics(nn.Sequential(*list(model.backbone.network)[:6])(images)).mean(0)
        found = model.network.feature_statistics.state_dict()["network/5"][source]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_held_out_samples_may_speak_against_views(tmp_path, monkeypatch):
    monkeypatch.setattr("sourceward.validation.views.imagine", lambda own, views: [])
    fine, mixed, bad, half = [0.0, 0.0], [0.01, -0.01], [-0.3, -0.3], [0.01, -0.03]
    asked = scripted(monkeypatch, mixed)
    model = fit_views(tmp_path / "on", "auto")
    assert [(name, voices) for name, voices, _ in asked] == [("a", [1, 1, 1, 2]), ("b", [1, 1, 1, 2])]
    assert model.views == sw.load(tmp_path / "on", "cpu").views == "flip+zoom+feature_statistics"
    assert model.info["tta_gain"]["seen"]
    assert "with the feature_statistics of every source" in (tmp_path / "on" / "README.md").read_text()
    asked = scripted(monkeypatch, half + fine + bad + mixed + fine)
    assert fit_views(tmp_path / "some", "auto").views == "flip+feature_statistics"
    assert [voices for _, voices, _ in asked[2::2]] == [[1, 1], [1, 1], [1, 2], [1, 1, 2]]  # each by itself
    scripted(monkeypatch, bad * 4)
    model = fit_views(tmp_path / "off", "auto")
    assert model.views == ""
    assert model.info["tta_gain"]["views"] == "flip+zoom+feature_statistics"
    assert "not worth it" in (tmp_path / "off" / "README.md").read_text()
    scripted(monkeypatch, bad + fine * 3)  # what is kept one by one was asked about at first
    assert fit_views(tmp_path / "together", "auto").views == ""


def test_imagined_domains_make_the_promise_and_may_speak_against_views(tmp_path, monkeypatch):
    home, gain, loss = [-0.008, 0.0], [0.004] * 7 + [0.052], [-0.012] * 7 + [0.1]
    asked = scripted(monkeypatch, home + gain)
    model = fit_views(tmp_path / "on", "auto")
    names = [name for name, _, _ in asked]
    assert names[:3] == ["a", "b", "a with speckle noise"]
    assert len(names) == 10
    told, card = model.info["tta_gain"], (tmp_path / "on" / "README.md").read_text()
    assert told["gain"] == pytest.approx(0.01)  # not capped
    assert set(told["per_source"]) == set(names[2:])
    assert told["home"] == pytest.approx({"a": -0.008, "b": 0.0})
    assert "+1.0 points expected" in card
    assert "imagined domains: a with speckle noise +0.4 to b with saturate +5.2" in card
    assert "held-out samples as they are: a -0.8, b +0.0." in card
    scripted(monkeypatch, (home + loss) * 4)
    assert fit_views(tmp_path / "off", "auto").views == "", "one easy domain must not speak for the others"
    scripted(monkeypatch, [0.0, 0.0, *[-0.001] * 8] * 4)
    assert fit_views(tmp_path / "loss", "auto").views == "", "what is promised must be a gain"
    scripted(monkeypatch, [-0.03, -0.03, *gain] * 4)
    assert fit_views(tmp_path / "home", "auto").views == "", "nor strange ones for those at home"
    scripted(monkeypatch, [-0.015, -0.015] + [0.1] * 8)
    assert fit_views(tmp_path / "far", "auto").views, "home must not speak for a large gain elsewhere"


def test_a_lone_source_that_practised_on_corruptions_imagines_none(tmp_path):
    data = tiny_images().of_domains(["a", "c"])
    model = fit_views(tmp_path / "run", "auto", data=data)
    assert set(model.info["tta_gain"]["per_source"]) == {"a"}
    told = model.info["tta_gain"] | {"adapts": True}
    assert "points on what the backbone knows" in views_text(told), "no expected_gain about unseen domains"


def test_corrupted_samples_are_the_same_whenever_they_are_shown():
    images = torch.randint(256, (600, 3, 32, 32), dtype=torch.uint8)
    samples = Resident(images, lambda rows: rows)
    domains = imagine([("a", samples, slice(2, 600))], "flip")
    assert [name for name, _, _ in domains] == [
        "a with speckle noise",
        "a with gaussian blur",
        "a with spatter",
        "a with saturate",
    ]
    for _, strange, rows in domains:
        assert rows == slice(2, 502)  # so many are enough
        once, again = (torch.cat([*strange.batches(slice(2, 42))]) for _ in range(2))
        assert torch.equal(once, again)
        assert not torch.equal(once, images[2:42])
    at_once = corrupt_in_turn(images[2:42], "saturate", 3, torch.Generator())
    assert torch.equal(once, at_once), "severities go on from batch to batch"
    small = Resident(images[..., :16], lambda rows: rows)
    assert imagine([("a", small, slice(0, 7))], "flip") == []


def test_a_corruption_that_is_a_source_is_not_imagined():
    samples = Resident(torch.zeros(9, 3, 32, 32, dtype=torch.uint8), lambda rows: rows)
    own = [("clean", samples, slice(0, 4)), ("speckle_noise", samples, slice(4, 9))]
    names = [name for name, _, _ in imagine(own, "flip")]
    assert "speckle_noise with spatter" in names
    assert not any("with speckle" in name for name in names)


def test_what_training_did_not_do_is_not_asked_about(tmp_path):
    off = {"augmentation.hflip": 0, "augmentation.scale": [1, 1]}
    assert fit_views(tmp_path / "amplitudes", "auto", **off).info["tta_gain"]["views"] == "adain"
    model = fit_views(tmp_path / "shapes", "auto", **{"augmentation.fourier": 0})
    assert model.views == ""
    assert "tta_gain" not in model.info


def test_views_that_are_named_are_asked_about(tmp_path):
    model = fit_views(tmp_path / "run", "gray+feature_statistics")
    assert model.views == "gray+feature_statistics"
    images = torch.from_numpy(tiny_images().items[:5])
    alone = model.adapt(images, num_steps=0).probabilities
    assert np.abs(model.adapt(images).probabilities - alone).max() > 0
    moved, pixels = [], model._pixels(images)
    for source in range(2):
        with model.network.toward(source):
            moved.append(model._adapt_images(pixels, None, None).probabilities)
    expected = (model.with_tta("").adapt(images).probabilities + np.mean(moved, axis=0)) / 2
    np.testing.assert_allclose(model.with_tta("adain").adapt(images).probabilities, expected, atol=1e-6)


def test_pretend_targets_decide_where_there_are_any(tmp_path, monkeypatch):
    asked = scripted(monkeypatch, [0.02, 0.01, 0.015, -0.01, 0.0, 0.01])
    settings = AUTO | FINETUNE | STYLES | {"crossfit": True}
    options = OPTIONS | {"settings": settings, "target": "d", "allow_missing": True}
    model = fit(four_domains(), out=tmp_path / "on", **options)
    assert [name for name, _, _ in asked] == ["a", "b", "c"]
    assert all(voices == [1, 1, 1, 2] for _, voices, _ in asked)  # of two sources each
    assert model.views == "flip+zoom+feature_statistics"
    assert model.info["tta_gain"]["gain"] == pytest.approx(0.015)
    assert not model.info["tta_gain"]["seen"]
    assert fit(four_domains(), out=tmp_path / "off", **options).views == ""


def test_a_pretend_target_has_no_style_of_its_own(tmp_path, monkeypatch):
    asked = scripted(monkeypatch, [0.02] * 3)
    settings = AUTO | FINETUNE | {"crossfit": True, "views": "style"}
    fit(four_domains(), out=tmp_path / "run", target="d", settings=settings, **OPTIONS)
    assert [voices for _, voices, _ in asked] == [[1, 2]] * 3  # toward the two sources that are left


@pytest.mark.parametrize(
    ("data", "options", "word"),
    [
        (tiny_images, {"freeze": True, "settings": {"views": "adain"}}, "two stages"),
        (tiny_images, {"settings": {"views": "adain", "recipe": "joint"}}, "recipe 'joint'|two stages"),
        (tiny_images, {"settings": {"views": "flop"}}, "flip"),
        (
            tiny_images,
            {"backbone": "timm:vit_tiny_patch16_224", "settings": {"views": "adain"}},
            "no early maps",
        ),
        (tiny_features, {"backbone": None, "settings": {"views": "flip"}}, "looks at an image"),
    ],
)
def test_views_that_cannot_be_asked_about_are_refused_before_the_work(data, options, word, tmp_path):
    with pytest.raises(InputError, match=word):
        fit(data(), out=tmp_path / "run", target="c", **OPTIONS | options)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="Views on a GPU need one")
def test_views_are_fitted_and_asked_about_on_cuda(tmp_path):
    settings = TINY | FINETUNE | STYLES | {"num_steps": 0}
    options = OPTIONS | {"device": "cuda", "settings": settings, "target": "c"}
    model = fit(tiny_images(), out=tmp_path / "run", **options)
    assert model.info["tta_gain"]["views"] == "flip+zoom+feature_statistics"
    images, names = torch.from_numpy(tiny_images().items[:5]), "flip+zoom+style+feature_statistics"
    there = model.with_tta(names).predict_proba(images)
    here = sw.load(tmp_path / "run", "cpu").with_tta(names).predict_proba(images)
    np.testing.assert_allclose(there, here, atol=0.05)  # bfloat16
    alone = np.concatenate([model.predict_proba(image[None]) for image in images])
    np.testing.assert_allclose(there, alone, atol=0.02)
