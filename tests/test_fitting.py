"""From a dataset to a model folder: what it tells, what survives a kill, what is refused."""

import json
import time

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from sourceward._util.errors import InputError, TrainingError
from sourceward._util.storage import tensor_hash
from sourceward.data import open_dataset
from sourceward.data.features import extract_features
from sourceward.data.split import split_sources
from sourceward.fitting import fit
from sourceward.model import load
from sourceward.training.finetune import FineTuner
from sourceward.training.joint import Run
from sourceward.training.loop import Trainer
from tests.tiny_runs import (
    EACH,
    TINY,
    fit_tiny,
    image_folder,
    kill_at,
    tiny_features,
    tiny_images,
    tiny_texts,
    weights_of,
)

JOINT = {"recipe": "joint"}


@pytest.fixture(scope="module")
def joint_run(tmp_path_factory):
    """A model folder of images, trained with Algorithm 1."""
    out = tmp_path_factory.mktemp("runs") / "joint"
    fit_tiny(tiny_images(), out, settings=JOINT)
    return out


@pytest.fixture(params=["two-stage", "joint"])
def recipe(request, tiny_run, joint_run):
    """(settings, a finished run) of each recipe."""
    return {"recipe": request.param}, {"two-stage": tiny_run, "joint": joint_run}[request.param]


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (tiny_images, {"settings": JOINT}),
        (tiny_texts, {"settings": JOINT}),
        (tiny_features, {}),
        (tiny_images, {"freeze": True}),
    ],
    ids=["images", "texts", "features", "frozen"],
)
def test_a_folder_that_tells_everything(data, options, tmp_path):
    dataset = data()
    model = fit_tiny(dataset, tmp_path / "run", **options)
    assert model.sources == ("a", "b")
    assert model.classes == dataset.classes
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["metrics"]["last_iteration"] == TINY["max_iter"]
    assert config["data"]["sources"] == ["a", "b"]
    assert {"sourceward", "torch", "numpy", "torchvision", "timm"} <= config["software"].keys()
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines if "validation" in line] == [6, 12]
    assert "energy_gap" in lines[1]["loss"]
    assert not (tmp_path / "run/checkpoint.safetensors").exists()
    assert "Source domains: a, b" in (tmp_path / "run/README.md").read_text()


@pytest.mark.parametrize("iteration", [3, 8])
def test_killed_and_resumed_ends_with_the_same_bits(iteration, recipe, tmp_path, monkeypatch):
    settings, whole = recipe
    first = {"two-stage": FineTuner, "joint": Trainer}[settings["recipe"]]
    with monkeypatch.context() as patch:
        kill_at(patch, iteration, first)
        with pytest.raises(KeyboardInterrupt):
            fit_tiny(tiny_images(), tmp_path / "run", settings=settings)
    assert not (tmp_path / "run/config.json").exists()
    fit_tiny(tiny_images(), tmp_path / "run", settings=settings)
    assert weights_of(tmp_path / "run") == weights_of(whole)
    validations = [
        [line for line in (folder / "metrics.jsonl").read_text().splitlines() if "validation" in line]
        for folder in (tmp_path / "run", whole)
    ]
    assert validations[0] == validations[1]


def test_a_finished_run_is_loaded_and_another_configuration_refused(tiny_run, monkeypatch):
    kill_at(monkeypatch, 0)
    assert fit_tiny(tiny_images(), tiny_run).info["metrics"]["last_iteration"] == 12
    with pytest.raises(InputError, match=r"training\.settings\.max_iter was 12, now 13"):
        fit_tiny(tiny_images(), tiny_run, settings={"max_iter": 13})
    with pytest.raises(InputError, match=r"training\.seed was 0, now 1"):
        fit_tiny(tiny_images(), tiny_run, seed=1)


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match=r"holds other files \(letter.txt\)"):
        fit_tiny(tiny_images(), tmp_path)


def test_permuting_target_labels_changes_no_weight(recipe, tmp_path):
    data = tiny_images()
    target = np.flatnonzero(data.domains == 2)
    data.labels[target] = np.random.default_rng(1).permutation(data.labels[target])
    fit_tiny(data, tmp_path / "run", settings=recipe[0])
    assert weights_of(tmp_path / "run") == weights_of(recipe[1])


def test_permuting_source_labels_changes_weights(recipe, tmp_path):
    """The control of the test above."""
    data = tiny_images()
    source = np.flatnonzero(data.domains == 0)
    data.labels[source] = np.random.default_rng(1).permutation(data.labels[source])
    fit_tiny(data, tmp_path / "run", settings=recipe[0])
    assert weights_of(tmp_path / "run") != weights_of(recipe[1])


def test_a_trained_backbone_moves_and_a_frozen_one_does_not(recipe, tmp_path):
    def backbone(folder):
        state = load_file(folder / "model.safetensors")
        return tensor_hash({k: v for k, v in state.items() if k.startswith("backbone.")})

    hashes = set()
    for number in (12, 1):
        fit_tiny(tiny_images(), tmp_path / f"{number}", freeze=True, settings={"max_iter": number})
        hashes.add(backbone(tmp_path / f"{number}"))
    assert len(hashes) == 1
    assert backbone(recipe[1]) not in hashes


def test_batch_norm_statistics_stay(recipe):
    state = load_file(recipe[1] / "model.safetensors")
    means = [v for k, v in state.items() if k.endswith("running_mean")]
    assert means
    assert all((mean == 0).all() for mean in means)


def test_features_are_extracted_once(tmp_path, monkeypatch):
    data = tiny_images()
    fit_tiny(data, tmp_path / "one", freeze=True)
    model = load(tmp_path / "one", "cpu")
    monkeypatch.setattr("sourceward.data.loading.encode", lambda *_: pytest.fail("extracted again"))
    again = extract_features(data.without("c"), model.backbone, model.device)
    assert again.items.shape == (2 * 3 * EACH, 128)


def test_the_best_and_the_last_are_kept_and_of_equals_the_later(tmp_path, monkeypatch):
    scores = iter([0.5, 0.9, 0.9, 0.1])

    def validate(*_):
        value = next(scores)
        return {"adapted": value, "unadapted": value, "per_source": {}}

    monkeypatch.setattr("sourceward.training.joint.validate", validate)
    model = fit_tiny(tiny_features(), tmp_path / "run", settings={"evaluate_every": 3})
    assert model.info["metrics"]["iteration"] == 9
    last = load(tmp_path / "run", "cpu", weights="last.safetensors")
    assert tensor_hash(last.network.state_dict()) != tensor_hash(model.network.state_dict())


def test_streamed_images_train_and_resume_like_resident_ones_do(tmp_path, monkeypatch):
    monkeypatch.setattr("sourceward.data.loading._fits", lambda *_: False)
    monkeypatch.setattr("sourceward.data.stream.available_cores", lambda: 0)  # decode right here
    data = open_dataset(image_folder(tmp_path / "images"))
    fit_tiny(data, tmp_path / "whole")
    with monkeypatch.context() as patch:
        kill_at(patch, 8, FineTuner)
        with pytest.raises(KeyboardInterrupt):
            fit_tiny(data, tmp_path / "torn")
    fit_tiny(data, tmp_path / "torn")
    assert weights_of(tmp_path / "torn") == weights_of(tmp_path / "whole")


def test_arranged_rows_train_or_validate_source_by_source():
    data = tiny_images()
    arranged, train, val = split_sources(data)
    assert sorted(arranged.ids) == sorted(data.ids)
    for parts in (train, val):
        for source, rows in enumerate(parts):
            assert set(arranged.domains[rows].tolist()) == {source}
    assert val[-1].stop == len(data)


def test_a_collapse_stops_with_the_reason_and_the_next_try_may_differ(tmp_path):
    with pytest.raises(TrainingError, match="Lower `learning_rate`"):
        fit_tiny(tiny_features(), tmp_path / "run", settings={"learning_rate": 1e20, "max_iter": 30})
    assert not (tmp_path / "run/config.json").exists()
    (tmp_path / "run/checkpoint.safetensors").unlink()
    fit_tiny(tiny_features(), tmp_path / "run")


@pytest.mark.parametrize("fits", [True, False])
def test_batches_are_drawn_as_they_were_however_much_memory_is_left(tmp_path, monkeypatch, fits):
    """Images that are streamed come in another order than those that live in memory."""
    root = str(image_folder(tmp_path / "images"))
    monkeypatch.setattr("sourceward.data.loading._fits", lambda *_: fits)
    fit_tiny(root, tmp_path / "whole")
    with monkeypatch.context() as patch:
        kill_at(patch, 8, FineTuner)
        with pytest.raises(KeyboardInterrupt):
            fit_tiny(root, tmp_path / "run")
    monkeypatch.setattr("sourceward.data.loading._fits", lambda *_: not fits)
    fit_tiny(root, tmp_path / "run")
    assert weights_of(tmp_path / "run") == weights_of(tmp_path / "whole")


def test_damaged_checkpoint(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        kill_at(patch, 8)
        with pytest.raises(KeyboardInterrupt):
            fit_tiny(tiny_features(), tmp_path / "run")
    checkpoint = tmp_path / "run/checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[: checkpoint.stat().st_size // 2])
    with pytest.raises(InputError, match="damaged"):
        fit_tiny(tiny_features(), tmp_path / "run")


def test_seconds_count_features_and_tuning_too(tmp_path, monkeypatch):
    def slow(work):
        return lambda *arguments: (time.sleep(0.2), work(*arguments))[1]

    monkeypatch.setattr("sourceward.training.task.extract_features", slow(extract_features))
    monkeypatch.setattr(Run, "_tuned", slow(Run._tuned))
    info = fit_tiny(tiny_images(), tmp_path / "run", freeze=True).info
    assert info["metrics"]["seconds"] >= 0.4 + sum(cost["seconds"] for cost in info["cost"].values()) - 0.02


def test_full_disk_is_one_sentence_and_leaves_no_model(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sourceward.model.model.save_tensors", full)
    with pytest.raises(InputError, match="No space left on device"):
        fit_tiny(tiny_features(), tmp_path / "run")
    assert not (tmp_path / "run/config.json").exists()
    assert not list((tmp_path / "run").glob(".*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"backbone": "tiny:text"},
            "for the text backbone tiny:text, but the data holds image",
        ),
        ({"backbone": "timm:resnet81"}, "Did you mean"),
        ({"device": "cuda"}, "no CUDA device is here"),
        ({"target": "d"}, "Unknown domain 'd'"),
        ({"target": ("a", "b", "c")}, "no source domain"),
        ({"target": ("b", "c"), "settings": {"image_size": 16}}, "too small to corrupt"),
        ({"target": ("b", "c"), "settings": JOINT}, "practises on noise only: set `shifts=noise`"),
        ({"settings": {"shifts": "nose"}}, "`shifts` to be 'corruptions' or 'noise'"),
        ({"preset": "pacs-resnet"}, "Unknown preset 'pacs-resnet'. Did you mean"),
        ({"settings": {"max_itr": 3}}, "Unknown setting 'max_itr'. Did you mean 'max_iter'"),
        ({"settings": {"num_steps": -3}}, "Use 0 to predict without adaptation"),
        ({"settings": {"max_iter": "many"}}, "Expected setting `max_iter` to be int, but got 'many'"),
        ({"settings": {"recipe": "three"}}, "`recipe` to be 'two-stage' or 'joint'"),
        ({"settings": {"backbone_rate": 1e-4}}, r"set `finetune\.backbone_rate`"),
        ({"settings": {"replay_share": 0.1}}, "`replay_share` has no part in the recipe 'two-stage': choose"),
        ({"settings": {"finetune.method": "emr"}}, "Did you mean 'erm'"),
        ({"settings": {"finetune.max_iter": 0}}, "`finetune.max_iter` to be 1 or more"),
        ({"settings": {"finetune.average": 1.5}}, "`finetune.average` to be in"),
        ({"settings": {"heads_device": "moon"}}, "moon"),
        ({"settings": {"image_size": -5}}, "`image_size` to be 1 or more, but got -5"),
        ({"settings": {"image_size": 0}}, "`image_size` to be 1 or more, but got 0"),
        ({"settings": {"max_length": 0}}, "`max_length` to be 1 or more, but got 0"),
        ({"seed": -1}, "`seed` to be 0 or more"),
        ({"seed": 2**32}, "`seed` to be 0 or more and below"),
        ({"settings": {"heads_device": "cpu", "recipe": "joint"}}, "`heads_device` belongs to"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for CUDA where there is none")
def test_bad_input_is_refused_before_anything_is_written(options, message, tmp_path):
    wanted = {"target": "c", "backbone": "tiny:conv", "weights": None, "device": "cpu", **options}
    with pytest.raises(InputError, match=message):
        fit(tiny_images(), out=tmp_path / "run", **wanted)
    assert not (tmp_path / "run").exists()


def test_a_domain_with_one_class_and_a_broken_image(tmp_path):
    root = image_folder(tmp_path / "images")
    (root / "a/x/0.png").write_bytes(b"")
    with pytest.raises(InputError, match="cannot be read"):
        fit_tiny(root, tmp_path / "run", backbone="tiny:conv", weights=None)
    (root / "a/x/0.png").write_bytes((root / "a/x/1.png").read_bytes()[:60])
    with pytest.raises(InputError, match="truncated"):
        fit_tiny(root, tmp_path / "run", backbone="tiny:conv", weights=None)
    for label in ("y", "z"):
        for file in (root / "a" / label).iterdir():
            file.unlink()
    with pytest.raises(InputError, match="Domain 'a' has no images of class 'y'"):
        fit_tiny(root, tmp_path / "run")
