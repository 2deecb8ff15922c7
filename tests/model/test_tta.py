"""Test-time augmentation of a model: the same copies in predictions, in files and in evaluations."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import sourceward as sw
from sourceward._util.errors import InputError
from sourceward.adaptation.tta import lead, predict_copies
from sourceward.cli.main import build_app
from sourceward.data.transforms import ANGLES, list_transforms, make_copies, shrink
from sourceward.model import estimate_gain, evaluate
from sourceward.model.evaluation import dataset_copies
from sourceward.validation.cascade import NEVER
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


def test_smaller_copies_are_saved_with_the_model(model, tmp_path):
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 3, 64, 64), dtype=np.uint8))
    model.backbone.preprocessing = replace(model.preprocessing, size=(64, 64))
    large, plain = model.with_tta("hflip").predict_proba(images), model.predict_proba(images)
    model.backbone.preprocessing = replace(model.preprocessing, copy_scale=0.5)
    small = model.with_tta("hflip").predict_proba(images)
    assert not np.array_equal(small, large)
    assert np.array_equal(model.predict_proba(images), plain), "the image itself keeps its size"
    alone = model.adapt_features(model.image_features(shrink(images, (32, 32)).flip(-1))).probabilities
    np.testing.assert_allclose(small, (plain + alone) / 2, atol=1e-6)
    model.with_tta("hflip").save(tmp_path / "small")
    assert np.array_equal(sw.load(tmp_path / "small", "cpu").predict_proba(images), small)
    config = json.loads((tmp_path / "small/config.json").read_text())
    del config["backbone"]["preprocessing"]["copy_scale"], config["sha256"]
    (tmp_path / "small/config.json").write_text(json.dumps(config))
    assert np.array_equal(sw.load(tmp_path / "small", "cpu").predict_proba(images), large), "of before"


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
    found = predict_copies(model.network, copies, model.settings, names)
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


TRANSFORMS = "hflip+crop+adain_mean"


@pytest.fixture
def cascaded(model):
    """With thresholds between the confidences of its images, as validation would choose them."""
    return with_thresholds(model.with_tta(TRANSFORMS), TRANSFORMS)


def between(values):
    """Half of the values are above it, and none is so near that rounding decides."""
    middle = len(values) // 2
    return float(np.sort(values)[middle - 1 : middle + 1].mean())


def with_thresholds(model, names):
    first, *_ = names.split("+")
    plain, one = (lead(model.with_tta(some).predict_proba(IMAGES)) for some in ("", first))
    model.adapter.tta_, level = names, between(plain)
    model.adapter.tta_thresholds_ = level, between(one[plain < level])
    return model


def by_levels(model, name):
    """What a cascade should give: each sample has the average of the first level that is sure enough."""
    first, *_ = model.tta.split("+")
    results = [model.with_tta(some, cascade=False).adapt(IMAGES) for some in ("", first, model.tta)]
    sure = [lead(result.probabilities) >= t for result, t in zip(results, model.tta_thresholds)]
    level = np.where(sure[0], 0, np.where(sure[1], 1, 2))
    return level, np.stack([getattr(results[place], name)[row] for row, place in enumerate(level)])


def test_confident_samples_stop_at_their_level(cascaded):
    found = cascaded.adapt(IMAGES)
    for name in ("probabilities", "per_source", "agreement", "energy_after", "features"):
        level, expected = by_levels(cascaded, name)
        assert set(level) == {0, 1, 2}
        assert np.array_equal(getattr(found, name), expected), name


def test_a_cascade_that_never_stops_is_the_average_over_all_copies_bit_for_bit(cascaded):
    full = cascaded.with_tta(TRANSFORMS, cascade=False).adapt(IMAGES)
    cascaded.adapter.tta_thresholds_ = NEVER, NEVER
    found = cascaded.adapt(IMAGES)
    for name in vars(full):
        assert np.array_equal(getattr(found, name), getattr(full, name)), name


def test_a_sample_of_a_cascade_does_not_depend_on_its_batch(cascaded):
    together = cascaded.predict_proba(IMAGES)
    alone = np.concatenate([cascaded.predict_proba(IMAGES[i : i + 1]) for i in range(len(IMAGES))])
    assert np.array_equal(alone, together)
    order = np.random.default_rng(0).permutation(len(IMAGES))
    assert np.array_equal(cascaded.predict_proba(IMAGES[order]), together[order])


@pytest.mark.parametrize("few", [0, 1000], ids=["by level", "all at once"])
def test_copies_that_are_computed_at_once_change_nothing(cascaded, few, monkeypatch):
    """On CUDA a few images get all further copies at once; here the same is forced on a CPU."""
    from sourceward.model import captured

    expected, passes, predict = cascaded.predict_proba(IMAGES), [], captured.launch_images
    monkeypatch.setattr(captured, "has_few", lambda images: len(images) <= few)
    monkeypatch.setattr(
        captured,
        "launch_images",
        lambda *given, **more: (passes.append(given[3]), predict(*given, **more))[1],
    )
    assert np.array_equal(cascaded.predict_proba(IMAGES[:12]), expected[:12])
    assert passes == (["", TRANSFORMS] if few == 1000 else ["", "hflip", "crop+adain_mean"])


def test_thresholds_belong_to_their_transforms_and_are_saved(cascaded, tmp_path):
    assert cascaded.with_tta("hflip").tta_thresholds == ()
    cascaded.save(tmp_path / "run")
    again = sw.load(tmp_path / "run", "cpu")
    assert again.tta_thresholds == cascaded.tta_thresholds
    assert np.array_equal(again.predict_proba(IMAGES), cascaded.predict_proba(IMAGES))
    first, second = cascaded.tta_thresholds
    share = f"has less than {first:.3f} of the probability of the two most probable; "
    more = f"crop and adain_mean where with hflip it still has less than {second:.3f}"
    assert share + more in (tmp_path / "run/README.md").read_text()


def test_thresholds_of_probabilities_are_not_read_as_leads(cascaded, tmp_path):
    """A model of before: with them fewer samples would get copies than validation allowed."""
    cascaded.save(tmp_path / "run")
    file = tmp_path / "run" / "config.json"
    config = json.loads(file.read_text())
    del config["sha256"]
    config["adapter"]["tta_thresholds"] = config["adapter"].pop("tta_leads")
    file.write_text(json.dumps(config))
    again = sw.load(tmp_path / "run", "cpu")
    assert again.tta_thresholds == ()
    assert np.array_equal(
        again.predict_proba(IMAGES), cascaded.with_tta(cascaded.tta, cascade=False).predict_proba(IMAGES)
    )


def test_an_evaluation_obeys_the_thresholds_and_says_how_many_stop(cascaded):
    result, scores = cascaded.adapt(IMAGES), evaluate(cascaded, tiny_images())
    assert scores["domains"]["c"]["adapted"] == pytest.approx(
        (result.probabilities.argmax(1) == TARGET.labels).mean()
    )
    level, _ = by_levels(cascaded, "probabilities")
    assert scores["mean"]["stopped"] == pytest.approx([(level == 0).mean(), (level == 1).mean()])
    assert scores["mean"]["passes"] == pytest.approx(np.array([1, 2, 4])[level].mean())
    every = cascaded.with_tta(cascaded.tta, cascade=False).predict_proba(IMAGES).argmax(1)
    assert scores["mean"]["all_copies"] == pytest.approx((every == TARGET.labels).mean())


def test_an_evaluation_states_the_gain_that_its_changed_labels_let_expect(cascaded):
    gains = {"a": 0.02, "b": 0.04, "d": 0.03}
    steps = cascaded.settings.num_steps
    cascaded.adapter.expected_gain_ = sw.ExpectedGain(
        0.03, 0.0, 0.06, gains, 0.6, steps, True, TRANSFORMS, changed=dict.fromkeys(gains, 0.1)
    )
    before, after = (cascaded.adapt(IMAGES, num_steps=n).probabilities.argmax(1) for n in (0, None))
    found = evaluate(cascaded, tiny_images())["domains"]["c"]["estimated"]
    assert found == estimate_gain(cascaded, IMAGES) == cascaded.adapter.expected_gain_.on(before, after)
    assert found["changed"] == (before != after).mean() > 0
    assert found["gain"] == pytest.approx(0.3 * found["changed"])
    assert "estimated" not in evaluate(cascaded, tiny_images(), num_steps=0)["domains"]["c"]
    assert estimate_gain(cascaded.with_tta("hflip"), IMAGES) is None


def test_an_exported_model_obeys_the_thresholds(cascaded):
    from sourceward.deploy.export_graph import OUTPUTS, ExportGraph, noise_off

    quiet = with_thresholds(noise_off(cascaded), TRANSFORMS)
    level, _ = by_levels(quiet, "probabilities")
    assert set(level) == {0, 1, 2}
    with torch.no_grad():
        found = dict(zip(OUTPUTS, ExportGraph(quiet)(IMAGES)))
    for name in ("probabilities", "per_source", "agreement", "trust"):
        np.testing.assert_allclose(found[name].numpy(), getattr(quiet.adapt(IMAGES), name), atol=1e-4)


def test_a_fit_records_the_seconds_of_its_parts(frozen_run):
    info = sw.load(frozen_run, "cpu").info
    parts = info["cost"]["parts"]
    assert {"features", "statistics of sources", "heads and energies", "validation"} <= set(parts)
    assert 0 < sum(parts.values()) <= info["metrics"]["seconds"] + 0.1
