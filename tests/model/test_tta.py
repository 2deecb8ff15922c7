"""A model that asks about views of an image, too: in predictions, in files, in evaluations."""

import csv

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import sourceward as sw
from sourceward._util.errors import InputError
from sourceward.adaptation.tta import with_tta
from sourceward.cli.main import build_app
from sourceward.data.transforms import TURNS, VIEWS, look
from sourceward.model import evaluate
from sourceward.model.card import model_card
from sourceward.model.evaluation import asked_features
from tests.tiny_runs import fit_tiny, image_folder, tiny_images, tiny_texts


@pytest.fixture
def model(tiny_run):
    return sw.load(tiny_run, "cpu").with_tta("")


def images():
    return torch.from_numpy(tiny_images().of_domains("c").items)


def test_the_answer_is_the_mean_over_the_views(model):
    plain, mirrored = model.adapt(images()), model.adapt(images().flip(-1))
    both = model.with_tta("flip").adapt(images())
    np.testing.assert_allclose(
        both.probabilities, (plain.probabilities + mirrored.probabilities) / 2, atol=1e-6
    )
    np.testing.assert_allclose(both.per_source, (plain.per_source + mirrored.per_source) / 2, atol=1e-6)
    assert np.array_equal(both.energy_after, plain.energy_after)
    assert not np.array_equal(both.probabilities, plain.probabilities)
    again = model.with_tta("").adapt(images())
    assert np.array_equal(again.probabilities, plain.probabilities)


def test_every_turn_counts_as_much_as_the_image(model):
    pictures = [images(), *look(images(), VIEWS["turn"])]
    expected = np.mean([model.predict_proba(picture) for picture in pictures], axis=0)
    assert len(pictures) == 1 + len(TURNS)
    np.testing.assert_allclose(model.with_tta("turn").predict_proba(images()), expected, atol=1e-6)


def test_an_answer_does_not_depend_on_its_batch(model):
    model.with_tta("flip+gray")
    whole = model.predict_proba(images()[:5])
    alone = np.concatenate([model.predict_proba(image[None]) for image in images()[:5]])
    np.testing.assert_allclose(whole, alone, atol=2e-3)  # last bits of a backbone are keys of the noise


def test_a_fit_keeps_the_styles_of_its_sources(model, tiny_run):
    data, styles = tiny_images(), model.network.amplitudes
    assert styles.shape == (2, 3, *np.fft.rfft2(np.zeros(images().shape[-2:])).shape)
    shown = np.abs(np.fft.rfft2(data.of_domains("a").items[:1] / 255))
    assert abs(styles[0, 0, 0, 0].item() / shown[0, 0, 0, 0] - 1) < 0.5, (
        "the mean brightness, times the pixels"
    )
    plain = model.predict_proba(images())
    styled = model.with_tta("style").predict_proba(images())
    assert np.abs(styled - plain).max() > 1e-3
    again = sw.load(tiny_run, "cpu").with_tta("style").predict_proba(images())
    np.testing.assert_array_equal(styled, again)


@pytest.mark.parametrize("names", ["gray", "flip+sketch", "style", "feature_statistics+flip"])
def test_an_evaluation_asks_about_the_pictures_that_a_prediction_asks_about(model, names):
    data = tiny_images().of_domains("c")
    pictures = [one for view in asked_features(model.with_tta(names), data) for one in view]
    asked = with_tta(names, model.network, model.features, images(), look)
    for feature, seen in zip(pictures, [one for view in asked for one in view], strict=True):
        np.testing.assert_array_equal(feature, seen)


def test_evaluation_counts_views_as_adaptation(model):
    data = tiny_images()
    before = evaluate(model, data)["domains"]["c"]["unadapted"]
    scores = evaluate(model.with_tta("flip+style"), data)["domains"]["c"]
    predicted = model.adapt(images()).probabilities.argmax(1)
    assert scores["unadapted"] == before
    assert scores["adapted"] == pytest.approx((predicted == data.of_domains("c").labels).mean(), abs=0.02)


def test_files_by_command(tiny_run, model, tmp_path):
    paths = sorted(image_folder(tmp_path / "images").glob("c/*/*.png"))[:3]
    out = tmp_path / "p.csv"
    arguments = ["predict", str(tiny_run), *map(str, paths), "--out", str(out), "--views", "flip,gray", "-q"]
    done = CliRunner().invoke(build_app(), arguments)
    assert done.exit_code == 0, done.output
    with out.open() as file:
        said = [float(row["probability"]) for row in csv.DictReader(file)]
    expected = model.with_tta("flip+gray").predict_proba(paths).max(1)
    np.testing.assert_allclose(said, expected, atol=1e-3)


def test_what_has_no_views_is_refused(model, tmp_path):
    with pytest.raises(InputError, match="Unknown view 'flop'"):
        model.with_tta("flop")
    model.network.amplitudes = None  # as in a folder of an earlier version
    with pytest.raises(InputError, match="no styles"):
        model.with_tta("style")
    with pytest.raises(InputError, match="trajectory"):
        model.with_tta("flip").adapt(images()[:1], trajectory=True)
    with pytest.raises(InputError, match="reads texts"):
        fit_tiny(tiny_texts(), tmp_path / "texts").with_tta("flip")


def test_views_do_nothing_to_features(model):
    feature = model.network.raw(model.features(images()[:2])).numpy()
    plain, asked = (model.with_tta(names).adapt(feature, trajectory=True) for names in ("", "flip"))
    assert np.array_equal(plain.probabilities, asked.probabilities)
    assert asked.trajectory is not None


def test_without_adaptation_there_are_no_views(model):
    plain = model.adapt(images(), num_steps=0).probabilities
    assert np.array_equal(model.with_tta("flip+style").adapt(images(), num_steps=0).probabilities, plain)
    scores = evaluate(model, tiny_images(), num_steps=0)["mean"]
    assert scores["gain"] == 0


def test_the_card_tells_views_that_were_chosen_by_hand(model, tmp_path):
    assert "as you chose" not in model_card(model.config())
    model.with_tta("gray+turn").save(tmp_path / "other")
    card = (tmp_path / "other" / "README.md").read_text()
    assert "as you chose: each image in gray and turned by 15 and 30 degrees either way." in card
