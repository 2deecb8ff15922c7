"""From a dataset to a model folder: its files, its resumption, and what its weights depend on."""

import json

import numpy as np
import pytest
from safetensors.torch import load_file

from sourceward._util.errors import InputError, TrainingError
from sourceward._util.storage import tensor_hash
from sourceward.data import open_dataset
from sourceward.data.dataset import split_sources
from sourceward.data.features import extract_features
from sourceward.model import load
from sourceward.training.finetune import FineTuner
from sourceward.training.trainer import Trainer
from tests.tiny_runs import (
    EACH,
    TINY,
    fit_tiny,
    image_folder,
    kill_after,
    kill_at,
    tiny_features,
    tiny_images,
    tiny_texts,
    weights_of,
)

JOINT = {"recipe": "joint"}


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
def test_the_files_of_a_folder(data, options, tmp_path):
    dataset = data()
    model = fit_tiny(dataset, tmp_path / "run", **options)
    assert model.sources == ("a", "b")
    assert model.classes == dataset.classes
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["metrics"]["last_iteration"] == TINY["max_iter"]
    assert config["data"]["sources"] == ["a", "b"]
    assert {"sourceward", "torch", "numpy", "torchvision", "timm"} <= config["software"].keys()
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    joint = "settings" in options
    assert [line["iteration"] for line in lines if "validation" in line] == ([6, 12] if joint else [])
    assert [line["iteration"] for line in lines if "loss" in line and "energy_gap" in line["loss"]] == [12]
    left = {file.name for file in (tmp_path / "run").glob("*.safetensors")}
    assert left <= {"model.safetensors", "last.safetensors"}
    assert "## Source domains\n\na, b." in (tmp_path / "run/README.md").read_text()


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


def test_permuting_target_labels_changes_nothing(recipe, tmp_path):
    data = tiny_images()
    target = np.flatnonzero(data.domains == 2)
    data.labels[target] = np.random.default_rng(1).permutation(data.labels[target])
    fit_tiny(data, tmp_path / "run", settings=recipe[0])
    assert weights_of(tmp_path / "run") == weights_of(recipe[1])
    configs = [json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "run", recipe[1])]
    for config in configs:
        del config["cost"], config["metrics"]["seconds"], config["sha256"]  # which covers the others
    assert configs[0] == configs[1]


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
    monkeypatch.setattr("sourceward.data.features.encode", lambda *_: pytest.fail("extracted again"))
    again = extract_features(data.without("c"), model.backbone, model.device)
    assert again.items.shape == (2 * 3 * EACH, 128)


def test_streamed_images_train_and_resume_like_resident_ones_do(tmp_path, monkeypatch):
    monkeypatch.setattr("sourceward.data.loading.fits_in_memory", lambda *_: False)
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
    fit_tiny(tiny_features(), tmp_path / "run")


@pytest.mark.parametrize("fits", [True, False])
def test_batches_are_drawn_as_they_were_however_much_memory_is_left(tmp_path, monkeypatch, fits):
    """Images that are streamed come in another order than those that live in memory."""
    root = str(image_folder(tmp_path / "images"))
    monkeypatch.setattr("sourceward.data.loading.fits_in_memory", lambda *_: fits)
    fit_tiny(root, tmp_path / "whole")
    with monkeypatch.context() as patch:
        kill_at(patch, 8, FineTuner)
        with pytest.raises(KeyboardInterrupt):
            fit_tiny(root, tmp_path / "run")
    monkeypatch.setattr("sourceward.data.loading.fits_in_memory", lambda *_: not fits)
    fit_tiny(root, tmp_path / "run")
    assert weights_of(tmp_path / "run") == weights_of(tmp_path / "whole")


def test_killed_while_heads_train_features_go_on_from_the_checkpoint(tmp_path, monkeypatch):
    long = {"max_iter": 65}  # a checkpoint at 50
    fit_tiny(tiny_features(), tmp_path / "whole", settings=long)
    with monkeypatch.context() as patch:
        kill_at(patch, 62)
        with pytest.raises(KeyboardInterrupt):
            fit_tiny(tiny_features(), tmp_path / "run", settings=long)
    with pytest.raises(InputError, match=r"another configuration: training\.seed was 0, now 1"):
        fit_tiny(tiny_features(), tmp_path / "run", settings=long, seed=1)
    with pytest.raises(
        InputError, match=r"another configuration: files or labels of the data have changed\. "
    ):
        fit_tiny(tiny_features(seed=1), tmp_path / "run", settings=long)
    kill_after(monkeypatch, 15, Trainer)
    fit_tiny(tiny_features(), tmp_path / "run", settings=long)
    assert weights_of(tmp_path / "run") == weights_of(tmp_path / "whole")


def test_full_disk_is_one_sentence_and_leaves_no_model(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sourceward.model.file.save_tensors", full)
    with pytest.raises(InputError, match="No space left on device"):
        fit_tiny(tiny_features(), tmp_path / "run")
    assert not (tmp_path / "run/config.json").exists()
    assert not list((tmp_path / "run").glob(".*"))
