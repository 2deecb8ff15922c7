"""Fine-tuning, and what heads and energies are then fitted to."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from sourceward import EnergyAdapter
from sourceward._util.errors import InputError, TrainingError
from sourceward.data.loading import encode, load_sources
from sourceward.model import load
from sourceward.training import finetune
from sourceward.training.finetune import FINETUNE_METHODS, FineTuner, Method
from sourceward.training.loop import Training
from tests.tiny_runs import (
    TINY,
    fit_tiny,
    kill_at,
    tiny_images,
    tiny_texts,
    weights_of,
)


@pytest.mark.parametrize("data", [tiny_images, tiny_texts], ids=["images", "texts"])
def test_the_folder_of_a_fine_tuned_model(data, tmp_path):
    dataset, run = data(), tmp_path / "run"
    model = fit_tiny(dataset, run)
    assert (model.sources, model.classes) == (("a", "b"), dataset.classes)
    config = json.loads((run / "config.json").read_text())
    metrics, cost = config["metrics"], config["cost"]
    assert (metrics["last_iteration"], metrics["finetune"]["last_iteration"]) == (12, 12)
    assert 0 <= metrics["finetune"]["accuracy"] <= 1
    assert cost["finetune"]["images_per_second"] > 0
    assert all(cost[stage]["peak_memory_mb"] > 0 for stage in ("finetune", "heads"))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    validated = [(line["stage"], line["iteration"]) for line in lines if "validation" in line]
    assert validated == [("finetune", 6), ("finetune", 12)]
    left = {file.name for file in run.iterdir() if file.suffix == ".safetensors"}
    assert left <= {"model.safetensors", "finetuned-last.safetensors"}
    again = load(run, "cpu").predict_proba(dataset.items[:4])
    np.testing.assert_array_equal(again, model.predict_proba(dataset.items[:4]))


def test_heads_and_energies_are_those_of_an_estimator_on_its_features(tiny_run):
    """Fitted again from outside, an `EnergyAdapter` has the model's heads and energies, bit for bit."""
    model = load(tiny_run, "cpu")
    sources = tiny_images().without("c")
    data = load_sources(sources, model.backbone, torch.device("cpu"), 0.1)
    rows = slice(0, data.train[-1].stop)
    raw = encode(model.backbone, data.samples, slice(0, len(data.dataset))).numpy()[rows]
    settings = {name: TINY[name] for name in ("max_iter", "batch_size", "num_steps")}
    estimator = EnergyAdapter(**settings, train={"num_steps": 2, "chains": 4})
    estimator.fit(raw, data.dataset.labels[rows], data.dataset.domains[rows])
    own = model.network.state_dict()
    for name, value in estimator.network_.state_dict().items():
        assert torch.equal(value, own[name]), name


def test_killed_while_heads_train_the_backbone_is_not_trained_again(tiny_run, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        kill_at(patch, 8)
        with pytest.raises(KeyboardInterrupt):
            fit_tiny(tiny_images(), tmp_path / "run")
    assert (tmp_path / "run/finetuned.safetensors").exists()
    with pytest.raises(InputError, match=r"another configuration: training\.seed"):
        fit_tiny(tiny_images(), tmp_path / "run", seed=1)
    monkeypatch.setattr(FineTuner, "step", lambda *_: pytest.fail("trained again"))
    fit_tiny(tiny_images(), tmp_path / "run")
    assert weights_of(tmp_path / "run") == weights_of(tiny_run)


@pytest.mark.parametrize(("select", "chosen"), [("best", 3), ("late", 9), ("last", 12)])
def test_the_backbone_that_the_rule_selects_is_used(select, chosen, tmp_path, monkeypatch):
    accuracies = {3: 0.9, 6: 0.5, 9: 0.88, 12: 0.1}

    def scripted(learner, *args, **options):
        def validate(network):
            accuracy = accuracies[learner.iteration]
            each = {"accuracy": accuracy, "samples": 100}  # a standard error of 0.021
            return {"accuracy": accuracy, "per_source": {"a": each, "b": each}}

        return Training(learner, *args, **{**options, "validate": validate})

    monkeypatch.setattr(finetune, "Training", scripted)
    settings = {"finetune.select": select, "finetune.evaluate_every": 3}
    with monkeypatch.context() as patch:
        kill_at(patch, 8, FineTuner)  # the rule goes on from the checkpoint
        with pytest.raises(KeyboardInterrupt):
            fit_tiny(tiny_images(), tmp_path / "run", settings=settings)
    model = fit_tiny(tiny_images(), tmp_path / "run", settings=settings)
    assert model.info["metrics"]["finetune"]["iteration"] == chosen
    assert (tmp_path / "run/finetuned-last.safetensors").exists() == (select != "last")
    if select != "last":
        last = load_file(tmp_path / "run/finetuned-last.safetensors")
        ours = load_file(tmp_path / "run/model.safetensors")
        name = next(name for name in last if name.endswith("0.weight"))
        assert not torch.equal(last[name], ours[name])


def test_features_of_a_fine_tuned_backbone_are_not_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCEWARD_CACHE", str(tmp_path / "cache"))
    fit_tiny(tiny_images(), tmp_path / "run")
    assert not (tmp_path / "cache/features").exists()


def test_another_method_is_a_name_away(tmp_path):
    class Dull(Method):
        """Has a weight of its own, and uses all that the contract gives."""

        def __init__(self, settings, backbone, sources, classes):
            super().__init__(settings, backbone, sources, classes)
            self.extra = torch.nn.Parameter(torch.ones(sources))

        def loss(self, backbone, head, batch, generator):
            assert batch.inputs.shape[0] == len(batch.label) == 12
            assert batch.domain.tolist() == [0] * 6 + [1] * 6
            noise = torch.randn(len(batch.label), 1, generator=generator)
            return (self.extra[batch.domain] * (head(backbone(batch.inputs)) + noise).square().mean(1)).mean()

    if "dull" not in set(FINETUNE_METHODS):
        FINETUNE_METHODS.register("dull")(Dull)
    model = fit_tiny(tiny_images(), tmp_path / "run", settings={"finetune.method": "dull"})
    assert not any("extra" in name for name in model.network.state_dict())


def test_fine_tuning_learns(tmp_path):
    settings = {
        "finetune.max_iter": 60,
        "finetune.backbone_learning_rate": 3e-3,
        "finetune.head_learning_rate": 3e-2,
    }
    model = fit_tiny(tiny_images(), tmp_path / "run", settings=settings)
    assert model.info["metrics"]["finetune"]["accuracy"] >= 0.8


def test_a_collapse_names_the_settings_of_fine_tuning(tmp_path):
    settings = {"finetune.backbone_learning_rate": 1e20, "finetune.max_iter": 30}
    with pytest.raises(TrainingError, match=r"`finetune\.backbone_learning_rate`"):
        fit_tiny(tiny_images(), tmp_path / "run", settings=settings)
    assert not (tmp_path / "run/config.json").exists()
