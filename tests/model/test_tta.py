"""Test-time augmentation of a model: the same copies in predictions, in files and in evaluations."""

import csv

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import sourceward as sw
from sourceward._util.errors import InputError
from sourceward.adaptation.tta import predict_copies
from sourceward.cli.main import build_app
from sourceward.data.transforms import ANGLES, list_transforms, make_copies
from sourceward.model import evaluate
from sourceward.model.evaluation import dataset_copies
from tests.tiny_runs import fit_tiny, image_folder, tiny_images, tiny_texts

TARGET = tiny_images().of_domains("c")
IMAGES = torch.from_numpy(TARGET.items)


@pytest.fixture(scope="module")
def frozen_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "frozen"
    fit_tiny(tiny_images(), out, freeze=True)
    return out


@pytest.fixture
def model(tiny_run):
    return sw.load(tiny_run, "cpu")


def test_the_prediction_is_the_mean_over_the_copies(model):
    plain, flipped = model.adapt(IMAGES), model.adapt(IMAGES.flip(-1))
    both = model.with_tta("hflip").adapt(IMAGES)
    for name in ("probabilities", "per_source"):
        mean = (getattr(plain, name) + getattr(flipped, name)) / 2
        np.testing.assert_allclose(getattr(both, name), mean, atol=1e-6)
    for name in ("energy_before", "energy_after", "features", "status"):
        assert np.array_equal(getattr(both, name), getattr(plain, name)), name
    assert not np.array_equal(both.probabilities, plain.probabilities)


def test_a_model_with_other_transforms_is_a_new_one(model):
    before = model.predict_proba(IMAGES)
    other = model.with_tta("hflip+grayscale")
    assert (model.tta, other.tta) == ("", "hflip+grayscale")
    assert other.network is model.network
    assert np.array_equal(model.predict_proba(IMAGES), before)
    assert np.array_equal(other.with_tta("").predict_proba(IMAGES), before)


def test_transforms_are_saved_with_the_model(model, tmp_path):
    other = model.with_tta("grayscale+rotate")
    other.save(tmp_path / "other")
    again = sw.load(tmp_path / "other", "cpu")
    assert again.tta == "grayscale+rotate"
    assert np.array_equal(again.predict_proba(IMAGES), other.predict_proba(IMAGES))
    card = (tmp_path / "other/README.md").read_text()
    assert "Test-time augmentation: grayscale and rotate (" in card


def test_every_rotation_weighs_as_much_as_the_image(model):
    copies = [IMAGES, *(copy.images for copy in make_copies("rotate", IMAGES))]
    assert len(copies) == 1 + len(ANGLES)
    expected = np.mean([model.predict_proba(images) for images in copies], axis=0)
    np.testing.assert_allclose(model.with_tta("rotate").predict_proba(IMAGES), expected, atol=1e-6)


def test_a_fit_keeps_the_mean_amplitudes_of_its_sources(model):
    amplitudes = model.network.amplitudes
    assert amplitudes.shape == (2, 3, *np.fft.rfft2(np.zeros(IMAGES.shape[-2:])).shape)
    shown = np.abs(np.fft.rfft2(tiny_images().of_domains("a").items[:1] / 255))
    assert abs(amplitudes[0, 0, 0, 0].item() / shown[0, 0, 0, 0] - 1) < 0.5, "mean brightness times pixels"


@pytest.mark.parametrize("frozen", [False, True], ids=["fine-tuned", "frozen"])
@pytest.mark.parametrize(
    "names", ["", "grayscale", "hflip+sketch", "fourier", "crop+fourier+rotate", "adain+hflip"]
)
def test_an_evaluation_uses_the_copies_of_a_prediction(names, frozen, model, frozen_run):
    if frozen:
        model = sw.load(frozen_run, "cpu")
        if "adain" in names:
            pytest.skip("a frozen model has no feature statistics")
    model = model.with_tta(names)
    result = model.adapt(IMAGES)
    copies = dataset_copies(model, TARGET, names)
    found = predict_copies(model.network, copies, model.settings)
    np.testing.assert_allclose(found.probabilities, result.probabilities, atol=1e-5)
    np.testing.assert_allclose(found.energy_after, result.energy_after, rtol=1e-3, atol=1e-4)
    scores = evaluate(model, tiny_images())["domains"]["c"]
    assert scores["adapted"] == pytest.approx((result.probabilities.argmax(1) == TARGET.labels).mean())
    plain = model.adapt(IMAGES, num_steps=0).probabilities.argmax(1)
    assert scores["unadapted"] == pytest.approx((plain == TARGET.labels).mean()), "without copies"


@pytest.mark.parametrize("names", list_transforms())
def test_every_transform_changes_predictions_and_no_weight(model, names):
    before = {name: value.clone() for name, value in model.network.state_dict().items()}
    plain, copies = model.predict_proba(IMAGES), model.with_tta(names).predict_proba(IMAGES)
    assert np.abs(copies - plain).max() > 0
    np.testing.assert_allclose(copies.sum(1), 1, atol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in model.network.state_dict().items())


def test_files_by_command(tiny_run, model, tmp_path):
    paths = sorted(image_folder(tmp_path / "images").glob("c/*/*.png"))[:3]
    out = tmp_path / "p.csv"
    words = ["predict", str(tiny_run), *map(str, paths), "--out", str(out), "--tta", "hflip+grayscale", "-q"]
    done = CliRunner().invoke(build_app(), words)
    assert done.exit_code == 0, done.output
    with out.open() as file:
        found = [float(row["probability"]) for row in csv.DictReader(file)]
    expected = model.with_tta("hflip+grayscale").predict_proba(paths).max(1)
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_what_cannot_be_transformed_is_refused(model, frozen_run, tmp_path):
    with pytest.raises(InputError, match="Unknown transform 'hflop'"):
        model.with_tta("hflop")
    with pytest.raises(InputError, match="each transform once"):
        model.with_tta("hflip+hflip")
    with pytest.raises(InputError, match="no feature statistics"):
        sw.load(frozen_run, "cpu").with_tta("adain")
    with pytest.raises(InputError, match="Trajectories are recorded without"):
        model.with_tta("hflip").adapt(IMAGES[:1], trajectory=True)
    with pytest.raises(InputError, match="reads texts"):
        fit_tiny(tiny_texts(), tmp_path / "texts").with_tta("hflip")


def test_features_have_no_copies(model):
    feature = model.network.raw(model.features(IMAGES[:2])).numpy()
    plain, same = (model.with_tta(names).adapt(feature, trajectory=True) for names in ("", "hflip"))
    assert np.array_equal(plain.probabilities, same.probabilities)
    assert same.trajectory is not None


def test_without_adaptation_there_are_no_copies(model):
    plain = model.adapt(IMAGES, num_steps=0).probabilities
    other = model.with_tta("hflip+fourier")
    assert np.array_equal(other.adapt(IMAGES, num_steps=0).probabilities, plain)
    assert evaluate(other, tiny_images(), num_steps=0)["mean"]["gain"] == 0


@pytest.fixture
def cascaded(model):
    """With a threshold between the confidences of its images, as validation would choose one."""
    model = model.with_tta("hflip+adain")
    model.adapter.tta_ = "hflip+adain"
    model.adapter.tta_threshold_ = float(np.median(model.with_tta("").predict_proba(IMAGES).max(1)))
    return model


def test_confident_samples_keep_their_own_prediction(cascaded):
    plain, full = cascaded.with_tta(""), cascaded.with_tta("hflip+adain", cascade=False)
    plain, full, found = (one.adapt(IMAGES) for one in (plain, full, cascaded))
    stops = plain.probabilities.max(1) >= cascaded.tta_threshold
    assert 0 < stops.sum() < len(stops)
    for name in ("probabilities", "per_source", "energy_after", "features"):
        expected = np.where(
            stops.reshape(-1, *[1] * (getattr(plain, name).ndim - 1)),
            *map(lambda result, name=name: getattr(result, name), (plain, full)),
        )
        np.testing.assert_allclose(getattr(found, name), expected, atol=1e-5, rtol=1e-4)


def test_a_sample_of_a_cascade_does_not_depend_on_its_batch(cascaded):
    together = cascaded.predict_proba(IMAGES)
    alone = np.concatenate([cascaded.predict_proba(IMAGES[i : i + 1]) for i in range(len(IMAGES))])
    assert np.array_equal(alone, together)


def test_a_threshold_belongs_to_its_transforms_and_is_saved(cascaded, tmp_path):
    assert cascaded.with_tta("hflip").tta_threshold is None
    cascaded.save(tmp_path / "run")
    again = sw.load(tmp_path / "run", "cpu")
    assert again.tta_threshold == cascaded.tta_threshold
    assert np.array_equal(again.predict_proba(IMAGES), cascaded.predict_proba(IMAGES))
    below = f"where the prediction has a probability below {cascaded.tta_threshold:.3f}"
    assert below in (tmp_path / "run/README.md").read_text()


def test_an_evaluation_obeys_the_threshold_and_says_how_many_stop(cascaded):
    result, scores = cascaded.adapt(IMAGES), evaluate(cascaded, tiny_images())
    assert scores["domains"]["c"]["adapted"] == pytest.approx(
        (result.probabilities.argmax(1) == TARGET.labels).mean()
    )
    plain = cascaded.with_tta("").predict_proba(IMAGES).max(1)
    assert scores["mean"]["stopped"] == pytest.approx((plain >= cascaded.tta_threshold).mean())
    every = cascaded.with_tta(cascaded.tta, cascade=False).predict_proba(IMAGES).argmax(1)
    assert scores["mean"]["all_copies"] == pytest.approx((every == TARGET.labels).mean())


def test_an_exported_model_obeys_the_threshold(cascaded):
    from sourceward.deploy.export_graph import ExportGraph, noise_off

    cascaded = cascaded.with_tta("hflip")
    cascaded.adapter.tta_ = "hflip"
    quiet = noise_off(cascaded)
    assert quiet.tta_threshold is not None
    with torch.no_grad():
        found = ExportGraph(quiet)(IMAGES)[0].numpy()
    np.testing.assert_allclose(found, quiet.predict_proba(IMAGES), atol=1e-4)


def test_a_fit_records_the_seconds_of_its_parts(frozen_run):
    info = sw.load(frozen_run, "cpu").info
    parts = info["cost"]["parts"]
    assert {"features", "statistics of sources", "heads and energies", "validation"} <= set(parts)
    assert 0 < sum(parts.values()) <= info["metrics"]["seconds"] + 0.1
