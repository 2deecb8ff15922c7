"""A model folder: it loads anywhere, predicts every form of input, and evaluates."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import sourceward as sw
from sourceward._util.errors import InputError
from sourceward._util.storage import tensor_hash
from sourceward.adaptation import STATUS_TEXT
from sourceward.model import Model, evaluate
from sourceward.model import model as model_module
from sourceward.model.predicting import predict_files
from tests.tiny_runs import fit_tiny, image_folder, tiny_features, tiny_images, tiny_texts


@pytest.fixture(scope="module")
def model(tiny_run):
    return sw.load(tiny_run, "cpu")


@pytest.fixture
def copied(tiny_run, tmp_path):
    return shutil.copytree(tiny_run, tmp_path / "copy")


def target(dataset):
    return dataset.of_domains("c")


def test_loads_elsewhere_without_data_and_predicts_the_same(model, copied):
    images = torch.from_numpy(target(tiny_images()).items)
    again = sw.load(copied, "cpu")
    assert np.array_equal(again.predict_proba(images), model.predict_proba(images))
    assert again.settings == model.settings
    assert again.info == model.info


def test_saved_again_it_is_the_same_folder(model, tiny_run, tmp_path):
    model.save(tmp_path / "again")
    for name in ("config.json", "README.md"):
        assert (tmp_path / "again" / name).read_text() == (tiny_run / name).read_text()


def test_a_prediction_and_its_details(model):
    images = torch.from_numpy(target(tiny_images()).items[:3])
    answers = model.predict(images)
    adapted = model.adapt(images)
    assert len(answers) == 3
    first = answers[0]
    assert first.label == model.classes[adapted.probabilities[0].argmax()]
    assert first.probability == pytest.approx(adapted.probabilities[0].max())
    assert first.source_labels.keys() == first.energy_before.keys() == first.energy_after.keys() == {"a", "b"}
    assert first.status in STATUS_TEXT
    assert all(first.energy_after[name] <= first.energy_before[name] for name in ("a", "b"))


def test_every_form_of_an_image_gives_the_same_prediction(model, tmp_path):
    root = image_folder(tmp_path / "images")
    paths = sorted(root.glob("c/*/*.png"))[:4]
    arrays = [np.asarray(Image.open(path)) for path in paths]
    forms = [
        paths,
        [str(path) for path in paths],
        [Image.open(path) for path in paths],
        arrays,
        np.stack(arrays).transpose(0, 3, 1, 2),
        torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2),
    ]
    answers = [model.predict_proba(form) for form in forms]
    for answer in answers[1:]:
        np.testing.assert_array_equal(answer, answers[0])
    assert model.predict_proba(paths[0]).shape == (1, 3)


def test_images_are_decoded_a_chunk_ahead_and_no_further(model, tmp_path, monkeypatch):
    paths = sorted(image_folder(tmp_path / "images").glob("*/*/*.png"))
    model = model.with_tta("hflip")  # one chunk after the other, as on CUDA
    expected = model.adapt(paths)
    monkeypatch.setattr("sourceward.model.model.rows_per_chunk", lambda device: 4)
    read, done, most = [], 0, 0
    read_images, adapt_images = model_module.read_images, Model.adapt_images

    def noted(items, *options):
        read.append(len(items))
        return read_images(items, *options)

    def adapted(self, images, *options):
        nonlocal done, most
        done, most = done + len(images), max(most, sum(read) - done)
        return adapt_images(self, images, *options)

    monkeypatch.setattr(model_module, "read_images", noted)
    monkeypatch.setattr(Model, "adapt_images", adapted)
    ours = model.adapt(paths)
    assert (sum(read), done) == (len(paths), len(paths))
    assert most <= 8  # this chunk and the next
    np.testing.assert_allclose(ours.probabilities, expected.probabilities, atol=1e-5)
    assert len(ours.status) == len(paths)


@pytest.mark.parametrize("tta", ["", "hflip"])
def test_an_image_that_cannot_be_read_is_named(model, tmp_path, tta):
    paths = sorted(image_folder(tmp_path / "images").glob("*/*/*.png"))
    paths[40].write_text("no image")
    with pytest.raises(InputError, match=f"but '{paths[40]}' cannot be read"):
        model.with_tta(tta).adapt(paths)


def test_a_prediction_from_features_does_not_depend_on_its_batch(model):
    """`test_batch.py` does the same for images and texts."""
    images = torch.from_numpy(tiny_images().items[:20])
    raw = model.network.raw(model.features(images)).numpy()
    alone = np.concatenate([model.predict_proba(row[None]) for row in raw])
    assert np.array_equal(alone, model.predict_proba(raw))
    assert np.array_equal(model.predict_proba(raw[::-1].copy())[::-1], model.predict_proba(raw))


def test_features_of_the_backbone_are_accepted(model):
    images = torch.from_numpy(tiny_images().items[:5])
    features = model.features(images)
    raw = model.network.raw(features)
    alone = model.with_tta("").predict_proba(images)
    np.testing.assert_allclose(model.predict_proba(raw), alone, atol=1e-4)


def test_predicting_changes_no_parameter(model):
    before = tensor_hash(model.network.state_dict())
    model.predict(torch.from_numpy(tiny_images().items))
    assert tensor_hash(model.network.state_dict()) == before


def test_zero_steps_are_no_adaptation(model):
    images = torch.from_numpy(tiny_images().items[:5])
    off = model.with_tta("hflip").adapt(images, num_steps=0)
    assert set(off.status) == {"not_adapted"}
    none = sw.create_adapter("none")(model.network, model.features(images))
    assert np.array_equal(off.probabilities, none.probabilities)
    assert np.array_equal(off.per_source, none.per_source)


def test_another_number_of_steps_whatever_was_chosen(model):
    images = torch.from_numpy(tiny_images().items[:5])
    assert model.adapt(images, num_steps=7).steps.max() <= 7
    assert model.settings_for(7).num_steps == 7
    assert model.settings_for(0) == model.settings.off()
    assert model.settings.num_steps == 2, "the model itself is as before"


def test_fewer_sources(model):
    images = torch.from_numpy(tiny_images().items[:5])
    alone = model.adapt(images, sources=["b"])
    np.testing.assert_allclose(alone.probabilities, alone.per_source[:, 1], atol=1e-6)
    with pytest.raises(InputError, match="Unknown source 'c'"):
        model.adapt(images, sources=["c"])
    with pytest.raises(InputError, match="Expected one or more `sources`"):
        model.adapt(images, sources=[])


@pytest.mark.parametrize("data", [tiny_texts, tiny_features])
def test_texts_and_features(data, tmp_path):
    dataset = data()
    trained = fit_tiny(dataset, tmp_path / "run")
    loaded = sw.load(tmp_path / "run", "cpu")
    items = target(dataset).items
    inputs = list(items) if dataset.kind == "text" else items
    expected = trained.predict_proba(inputs)
    assert np.array_equal(loaded.predict_proba(inputs), expected)
    assert loaded.kind == dataset.kind
    with torch.autocast("cpu", torch.bfloat16):  # of a program that runs other networks, too
        assert np.array_equal(loaded.predict_proba(inputs), expected)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (["a text"], "Expected an image, but 'a text' cannot be read as one: No such file or directory."),
        (np.zeros((2, 7)), "Expected features of width 128, but got 7"),
    ],
)
def test_wrong_inputs(model, inputs, message):
    with pytest.raises(InputError, match=message):
        model.predict(inputs)


HUGE = {"nan": np.nan, "inf": np.inf, "too large": 3e38, "too large for float32": 1e200}


@pytest.mark.parametrize("value", HUGE.values(), ids=HUGE)
def test_features_without_a_finite_prediction(value, tmp_path):
    """The estimator, the model and the command refuse the same rows."""
    model = fit_tiny(tiny_features(), tmp_path / "run")
    rows = tiny_features().items[:3].astype(np.float64)
    rows[1, 2] = value
    for predict in (model.predict, model.predict_proba, model.adapter.predict, model.adapter.predict_proba):
        with pytest.raises(InputError, match=r"(?i)row 1"):
            predict(rows)
    np.save(tmp_path / "x.npy", rows)
    predicted, failures = predict_files(model, [tmp_path / "x.npy"], tmp_path / "p.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert (predicted, len(failures)) == (2, 1)
    assert [line["status"] == "unreadable" for line in lines] == [False, True, False]


def test_complex_features_are_refused(tmp_path):
    model = fit_tiny(tiny_features(), tmp_path / "run")
    rows = tiny_features().items[:3] + 1j
    for predict in (model.predict, model.adapter.predict):
        with pytest.raises(InputError, match="real features"):
            predict(rows)


def test_gray_arrays_are_images(model):
    gray = np.random.default_rng(0).integers(256, size=(3, 20, 20), dtype=np.uint8)
    colours = [np.repeat(image[..., None], 3, axis=2) for image in gray]
    assert np.array_equal(model.predict_proba([*gray]), model.predict_proba(colours))


def test_images_for_a_model_of_texts_and_features(tmp_path):
    for data in (tiny_texts, tiny_features):
        loaded = fit_tiny(data(), tmp_path / data.__name__)
        with pytest.raises(InputError, match="Expected a"):
            loaded.predict(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))


def test_damaged_folders(copied, tmp_path):
    with pytest.raises(InputError, match="Expected a model folder"):
        sw.load(tmp_path / "nowhere")
    weights = copied / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="damaged"):
        sw.load(copied)
    weights.write_bytes(whole)
    config = json.loads((copied / "config.json").read_text())
    del config["sha256"]
    for change, message in (({"format_version": 99}, "newer"), ({"format_version": None}, "damaged")):
        (copied / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(InputError, match=message):
            sw.load(copied)
    config["adapter"]["classes"].append("w")
    (copied / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="does not fit"):
        sw.load(copied)


def test_unfinished_run_says_so(copied):
    (copied / "config.json").unlink()
    with pytest.raises(InputError, match="run the same `fit` again"):
        sw.load(copied)


def test_hub_round_trip_through_the_mixin(model, tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    from sourceward.model.hub import hub_class

    assert issubclass(hub_class(), hub.ModelHubMixin)
    hub_class()(model).save_pretrained(tmp_path / "hub")
    again = Model.from_pretrained(tmp_path / "hub", device="cpu")
    images = torch.from_numpy(tiny_images().items[:4])
    assert np.array_equal(again.predict_proba(images), model.predict_proba(images))
    with pytest.raises(InputError, match=r"last\.safetensors"):  # as `load` says it: there are none
        Model.from_pretrained(tmp_path / "hub", device="cpu", weights="last.safetensors")


def test_evaluation_is_what_the_predictions_say(model):
    data = tiny_images()
    result = evaluate(model, data)
    assert list(result["domains"]) == ["c"]
    scores = result["domains"]["c"]
    images, labels = torch.from_numpy(target(data).items), target(data).labels
    for key, steps in (("unadapted", 0), ("adapted", None)):
        predicted = model.adapt(images, num_steps=steps).probabilities.argmax(1)
        assert scores[key] == pytest.approx((predicted == labels).mean())
    assert scores["gain"] == pytest.approx(scores["adapted"] - scores["unadapted"])
    assert scores["gain_low"] <= scores["gain"] <= scores["gain_high"]
    assert set(evaluate(model, data, target=["a", "c"])["domains"]) == {"a", "c"}


def test_a_class_that_the_model_does_not_know(model):
    from dataclasses import replace

    with pytest.raises(InputError, match="Unknown class 'w'"):
        evaluate(model, replace(tiny_images(), classes=("w", "y", "z")))


def test_rows_that_are_not_finite_are_not_scored(tmp_path):
    data = tiny_features()
    model = fit_tiny(data, tmp_path / "run")
    data.items[data.domains == 0] = np.nan
    assert evaluate(model, data)["mean"]["samples"] == len(target(data)), "another domain is no matter"
    data.items[np.flatnonzero(data.domains == 2)[1], 3] = np.inf
    with pytest.raises(InputError, match="1 feature row holds NaN or infinity"):
        evaluate(model, data)


@pytest.mark.parametrize("data", [tiny_images, tiny_features])
def test_principal_components_travel_with_the_model(data, tmp_path):
    dataset = data()
    options = {"freeze": True} if dataset.kind == "image" else {}
    trained = fit_tiny(dataset, tmp_path / "run", settings={"train.components": 4}, **options)
    loaded = sw.load(tmp_path / "run", "cpu")
    assert loaded.network.dim == 4
    items = target(dataset).items
    inputs = torch.from_numpy(items) if dataset.kind == "image" else items
    assert np.array_equal(loaded.predict_proba(inputs), trained.predict_proba(inputs))
    right = (loaded.predict_proba(inputs).argmax(1) == target(dataset).labels).mean()
    assert evaluate(loaded, dataset)["mean"]["adapted"] == pytest.approx(right)
