"""An exported file predicts as the model does, for any number of rows, without noise."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

import sourceward as sw
from sourceward._util.errors import InputError
from sourceward.adaptation.tta import lead
from sourceward.deploy import export as exporting
from sourceward.deploy.export import ExportedFile, export
from sourceward.deploy.export_graph import OUTPUTS, ExportGraph, noise_off
from sourceward.deploy.export_samples import graph_inputs, stored_samples
from sourceward.estimator import EnergyAdapter
from sourceward.functional import AGGREGATIONS
from sourceward.model import Model
from sourceward.nn.heads import HEADS
from tests.nn.backbones.tiny import hf_folder
from tests.tiny_runs import fit_tiny, tiny_features, tiny_texts


@pytest.fixture(scope="module")
def features() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(9, 6)).astype(np.float32)


def fitted(**settings) -> Model:
    rng = np.random.default_rng(1)
    y, source = np.arange(60) % 3, np.arange(60) // 20
    X = rng.normal(size=(60, 6)) + 2 * y[:, None] + source[:, None]
    given = {"num_steps": 3, "max_iter": 20, "random_state": 0, **settings}
    return Model(EnergyAdapter(**given).fit(X, y, source))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Path, dict]:
    model, path = fitted(), tmp_path_factory.mktemp("onnx") / "new" / "model.onnx"
    return model, path, export(model, path)


def test_onnx_answers_as_the_model_does(exported, features):
    model, path, _ = exported
    session = onnxruntime.InferenceSession(path)
    expected = noise_off(model).adapt(features)
    for rows in (1, 4, 9):
        found = dict(zip(OUTPUTS, session.run(None, {"features": features[:rows]})))
        for name in OUTPUTS:
            np.testing.assert_allclose(found[name], getattr(expected, name)[:rows], atol=1e-5)


def test_what_lies_beside_the_file(exported):
    model, path, info = exported
    assert sorted(file.name for file in path.parent.iterdir()) == [
        "model.md",
        "model.onnx",
        "model.preprocess.json",
    ]
    assert json.loads((path.parent / "model.preprocess.json").read_text()) == info
    assert info["inputs"]["features"]["shape"] == ["batch", 6]
    assert info["noise"]["in_model"] == model.settings.step.noise_std > info["noise"]["in_graph"] == 0
    assert 0 < info["noise"]["difference"]["largest_probability_difference"] < 0.1
    assert "Noise is off in this file" in (path.parent / "model.md").read_text()
    properties = onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map
    assert json.loads(properties["sourceward"])["classes"] == list(model.classes)


def test_exporting_leaves_the_model_as_it_is(exported, features):
    model, _, _ = exported
    assert (model.predict_proba(features) == fitted().predict_proba(features)).all()


@pytest.mark.parametrize("cascade", [False, True], ids=["all copies", "cascade"])
@pytest.mark.parametrize("tta", ["hflip+adain_mean+crop+fourier+adain", "grayscale+rotate+sketch"])
def test_images_with_test_time_augmentation(tiny_run: Path, tmp_path: Path, tta: str, cascade: bool):
    model = sw.load(tiny_run, "cpu").with_tta(tta)
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 16, 16), dtype=np.uint8)
    if cascade:
        sure = lead(noise_off(model.with_tta("")).predict_proba(images))
        model.adapter.tta_, model.adapter.tta_thresholds_ = tta, (float(np.quantile(sure, 0.7)), 0.0)
    info = model.export(tmp_path / "images.onnx")
    assert max(info["check"]["largest_difference"].values()) < 1e-4
    found = onnxruntime.InferenceSession(tmp_path / "images.onnx").run(None, {"images": images})
    expected = noise_off(model).adapt(images)
    for name, value in zip(OUTPUTS, found):
        np.testing.assert_allclose(value, getattr(expected, name), atol=1e-4)


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_images_with_smaller_copies(tiny_run: Path, tmp_path: Path, suffix: str):
    model, path = sw.load(tiny_run, "cpu").with_tta("hflip+crop+adain_mean"), tmp_path / f"images{suffix}"
    model.backbone.preprocessing = replace(model.preprocessing, size=(64, 64), copy_scale=0.5)
    model.export(path)
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (5, 3, 64, 64), dtype=np.uint8))
    found, expected = ExportedFile(path)((images,)), noise_off(model).adapt(images)
    for name, value in zip(OUTPUTS, found):
        np.testing.assert_allclose(value, getattr(expected, name), atol=1e-4)


def test_texts_of_any_length_as_pt2(tmp_path: Path):
    model = fit_tiny(tiny_texts(), tmp_path / "run", freeze=True)
    sw.export(model, tmp_path / "texts.pt2")
    program = torch.export.load(tmp_path / "texts.pt2").module()
    texts = ["one", "a text of some more words, and a sign", "two words", "x y z", "last"]
    tokens = model.backbone.prepare(texts)
    found = program(tokens["input_ids"], tokens["attention_mask"])[0]
    np.testing.assert_allclose(found, noise_off(model).predict_proba(texts), atol=1e-5)


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_texts_of_a_transformer(tmp_path: Path, suffix: str):
    """Token ids in; texts that are longer and shorter than those of the check."""
    body, path = hf_folder(tmp_path / "body", "bert"), tmp_path / f"texts{suffix}"
    model = fit_tiny(tiny_texts(), tmp_path / "run", freeze=True, backbone=str(body), weights="default")
    info = model.export(path)
    assert list(info["inputs"]) == ["input_ids", "attention_mask"]
    assert (tmp_path / "tokenizer" / "tokenizer.json").exists()
    texts = ["a", "the rumour was false . " * 9, "police"]
    tokens = model.backbone.prepare(texts)
    found = ExportedFile(path)((tokens["input_ids"], tokens["attention_mask"]))[0]
    np.testing.assert_allclose(found, noise_off(model).predict_proba(texts), atol=1e-4)


SETTINGS = [
    *({"aggregation": name} for name in AGGREGATIONS),
    *({"head": name, "whiten": False} for name in HEADS),
    *({"sampler": name} for name in ("langevin_unchecked", "nesterov", "distilled")),
    {"num_draws": 3},
    {"num_steps": 0},
    {"train": {"components": 4}},
    {"step_size": 5000.0},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_graph_predicts_as_the_model_does(settings, features):
    model = noise_off(fitted(**settings))
    expected = model.adapt(features)
    found = dict(zip(OUTPUTS, ExportGraph(model)(*graph_inputs(model, features))))
    for name in OUTPUTS:
        np.testing.assert_allclose(found[name].numpy(), getattr(expected, name), atol=1e-5)


def test_a_step_that_raises_the_energy_is_not_taken(features):
    far = {"step_size": 20_000.0, "num_steps": 10, "max_iter": 100}
    for sampler, rises in (("langevin", False), ("langevin_unchecked", True)):
        graph = ExportGraph(noise_off(fitted(**far, sampler=sampler)))
        _, _, before, after, *_ = graph(torch.from_numpy(3 * features))
        assert bool((after > before).any()) == rises


def test_a_file_that_differs_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exporting, "TOLERANCE", -1.0)
    with pytest.raises(InputError, match="it differs in probabilities by"):
        export(fitted(num_steps=0), tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


def test_refused(tmp_path: Path, features):
    with pytest.raises(InputError, match=r"ends in \.onnx or \.pt2"):
        export(fitted(), tmp_path / "model.bin")
    with pytest.raises(InputError, match="whose accept rule is random"):
        export(fitted(sampler="mala"), tmp_path / "model.pt2")
    with pytest.raises(InputError, match="7 samples or more for the check, but got 2"):
        export(fitted(), tmp_path / "model.pt2", samples=features[:2])


def test_stored_samples_resemble_the_sources(tmp_path: Path):
    model = fit_tiny(tiny_features(), tmp_path)
    found = stored_samples(noise_off(model))
    items = tiny_features().items
    assert found.min() > items.min() - 3
    assert found.max() < items.max() + 3
