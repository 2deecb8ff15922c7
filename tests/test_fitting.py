import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from sourceward import EnergyAdapter
from sourceward.data import DomainDataset, open_dataset
from sourceward.errors import InputError, TrainingError
from sourceward.finetune import FINETUNE_METHODS, FineTuner, Method
from sourceward.fitting import arrange, fit
from sourceward.inputs import Resident, corrupted_features, extract_features, tensor_hash
from sourceward.model import load
from sourceward.train import ResidentFeed, Trainer
from sourceward.tuning import pretend
from tests.tiny_runs import (
    EACH,
    FINETUNE,
    TINY,
    fit_tiny,
    image_folder,
    tiny_features,
    tiny_images,
    tiny_texts,
)


def weights_of(folder):
    return tensor_hash(load_file(folder / "model.safetensors"))


def kill_at(monkeypatch, iteration, learner=Trainer):
    """The next training stops as if killed, right before that iteration."""
    step = learner.step

    def killed(self, feed):
        if self.iteration == iteration:
            raise KeyboardInterrupt
        return step(self, feed)

    monkeypatch.setattr(learner, "step", killed)


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
    assert {"sourceward", "torch"} <= config["software"].keys()
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines if "validation" in line] == [6, 12]
    assert "energy_gap" in lines[1]["loss"]
    assert not (tmp_path / "run/checkpoint.safetensors").exists()
    assert "Source domains: a, b" in (tmp_path / "run/README.md").read_text()


@pytest.mark.parametrize("data", [tiny_images, tiny_texts], ids=["images", "texts"])
def test_two_stages_leave_one_folder(data, tmp_path):
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
    assert validated == [("finetune", 6), ("finetune", 12), ("heads", 12)]
    left = {file.name for file in run.iterdir() if file.suffix == ".safetensors"}
    assert left <= {"model.safetensors", "finetuned-last.safetensors"}
    again = load(run, "cpu").predict_proba(dataset.items[:4])
    np.testing.assert_array_equal(again, model.predict_proba(dataset.items[:4]))


def test_the_second_stage_is_the_estimator_on_the_features_of_the_first(tiny_run):
    """Fit again from outside: an `EnergyAdapter` on the model's own components ends with its weights."""
    model, data = load(tiny_run, "cpu"), tiny_images().without("c")
    arranged, train, _ = arrange(data)
    raw = model.network.raw(model.features(arranged.items)).numpy()[: train[-1].stop]
    names = ("max_iter", "batch_size", "train_steps", "num_steps", "chains")
    settings = {name: TINY[name] for name in names}
    rows = slice(0, train[-1].stop)
    estimator = EnergyAdapter(**settings).fit(raw, arranged.labels[rows], arranged.domains[rows])
    ours = estimator.predict_proba(raw)
    np.testing.assert_allclose(ours, model.predict_proba(arranged.items)[rows], atol=1e-3)


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


def test_killed_in_the_second_stage_the_first_is_not_trained_again(tiny_run, tmp_path, monkeypatch):
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
def test_the_best_the_latest_as_good_or_the_last_backbone_is_handed_on(select, chosen, tmp_path, monkeypatch):
    looks = {3: 0.9, 6: 0.5, 9: 0.88, 12: 0.1}

    def validate(self, network):
        accuracy = looks[self.learner.iteration]
        each = {"accuracy": accuracy, "samples": 100}  # a standard error of 0.021
        return {"accuracy": accuracy, "per_source": {"a": each, "b": each}}

    monkeypatch.setattr("sourceward.two_stage.FineTuning.scores", validate)
    settings = {"finetune.select": select, "finetune.evaluate_every": 3}
    with monkeypatch.context() as patch:
        kill_at(patch, 8, FineTuner)  # the rule goes on where it stopped
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


def test_features_of_a_fine_tuned_backbone_are_not_kept_on_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCEWARD_CACHE", str(tmp_path / "cache"))
    fit_tiny(tiny_images(), tmp_path / "run")
    assert not (tmp_path / "cache/features").exists()


def test_another_method_is_a_name_away(tmp_path):
    class Dull(Method):
        """Has a weight of its own, and uses all that the contract gives."""

        def __init__(self, settings, backbone, sources, classes):
            super().__init__(settings, backbone, sources, classes)
            self.extra = torch.nn.Parameter(torch.ones(sources))

        def loss(self, backbone, head, inputs, label, domain, generator):
            assert inputs.shape[0] == len(label) == len(domain) == 12
            assert domain.tolist() == [0] * 6 + [1] * 6
            noise = torch.randn(len(label), 1, generator=generator)
            return (self.extra[domain] * (head(backbone(inputs)) + noise).square().mean(1)).mean()

    if "dull" not in set(FINETUNE_METHODS):
        FINETUNE_METHODS.register("dull")(Dull)
    model = fit_tiny(tiny_images(), tmp_path / "run", settings={"finetune.method": "dull"})
    assert not any("extra" in name for name in model.network.state_dict())


def test_fine_tuning_learns(tmp_path):
    settings = {"finetune.max_iter": 60, "finetune.backbone_rate": 3e-3, "finetune.head_rate": 3e-2}
    model = fit_tiny(tiny_images(), tmp_path / "run", settings=settings)
    assert model.info["metrics"]["finetune"]["accuracy"] >= 0.8


def test_a_collapse_in_the_first_stage_names_its_settings(tmp_path):
    settings = {"finetune.backbone_rate": 1e20, "finetune.max_iter": 30}
    with pytest.raises(TrainingError, match=r"`finetune\.backbone_rate`"):
        fit_tiny(tiny_images(), tmp_path / "run", settings=settings)
    assert not (tmp_path / "run/config.json").exists()


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
    monkeypatch.setattr("sourceward.inputs.encode", lambda *_: pytest.fail("extracted again"))
    again = extract_features(data.without("c"), model.backbone, model.device)
    assert again.items.shape == (2 * 3 * EACH, 128)


def test_the_best_and_the_last_are_kept_and_of_equals_the_later(tmp_path, monkeypatch):
    scores = iter([0.5, 0.9, 0.9, 0.1])

    def validate(*_):
        value = next(scores)
        return {"adapted": value, "unadapted": value, "per_source": {}}

    monkeypatch.setattr("sourceward.runs.validate", validate)
    model = fit_tiny(tiny_features(), tmp_path / "run", settings={"evaluate_every": 3})
    assert model.info["metrics"]["iteration"] == 9
    last = load(tmp_path / "run", "cpu", weights="last.safetensors")
    assert tensor_hash(last.network.state_dict()) != tensor_hash(model.network.state_dict())


def test_streamed_images_train_and_resume_like_resident_ones_do(tmp_path, monkeypatch):
    monkeypatch.setattr("sourceward.inputs._fits", lambda *_: False)
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
    arranged, train, val = arrange(data)
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


def test_damaged_checkpoint(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        kill_at(patch, 8)
        with pytest.raises(KeyboardInterrupt):
            fit_tiny(tiny_features(), tmp_path / "run")
    checkpoint = tmp_path / "run/checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[: checkpoint.stat().st_size // 2])
    with pytest.raises(InputError, match="damaged"):
        fit_tiny(tiny_features(), tmp_path / "run")


def test_full_disk_is_one_sentence_and_leaves_no_model(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sourceward.model.save_tensors", full)
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
        ({"settings": {"finetune.max_iter": 0}}, "`max_iter` to be 1 or more"),
        ({"settings": {"finetune.average": 1.5}}, "`average` to be in"),
        ({"settings": {"heads_device": "moon"}}, "moon"),
        ({"settings": {"heads_device": "cpu", "recipe": "joint"}}, "`heads_device` belongs to"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for CUDA where there is none")
def test_bad_input_is_refused_before_anything_is_written(options, message, tmp_path):
    wanted = {"target": "c", "backbone": "tiny:conv", "weights": None, "device": "cpu", **options}
    with pytest.raises(InputError, match=message):
        fit(tiny_images(), out=tmp_path / "run", **wanted)
    assert not (tmp_path / "run").exists()


LONE = {"image_size": 32, "components": 16}


@pytest.mark.parametrize("options", [{}, {"freeze": True}], ids=["two-stage", "frozen"])
def test_a_lone_source_practises_on_corrupted_copies(options, tmp_path, monkeypatch):
    seen = []
    draw = ResidentFeed.__call__
    monkeypatch.setattr(ResidentFeed, "__call__", lambda self, g: seen.append(self.shifted) or draw(self, g))
    model = fit_tiny(tiny_images(), tmp_path / "run", target=("b", "c"), settings=LONE, **options)
    assert model.sources == ("a",)
    feature, label = seen[-1]
    count = 4 * arrange(tiny_images().of_domains("a"))[1][-1].stop
    assert feature.shape == (count, 16)
    assert label.shape == (count,)
    noisy = fit_tiny(
        tiny_images(), tmp_path / "noisy", target=("b", "c"), settings={**LONE, "shifts": "noise"}, **options
    )
    assert seen[-1] is None
    assert tensor_hash(noisy.network.energy.state_dict()) != tensor_hash(model.network.energy.state_dict())


@pytest.mark.parametrize("data", [tiny_texts, tiny_features], ids=["texts", "features"])
def test_a_lone_source_without_images_practises_on_noise(data, tmp_path):
    model = fit_tiny(data(), tmp_path / "run", target=("b", "c"))
    assert model.sources == ("a",)
    assert np.isfinite(model.predict_proba(data().items[:3])).all()


def test_corrupted_copies_keep_their_order(tmp_path):
    """With a backbone that only averages pixels, a copy lies nearer to its own image than to another."""
    flat = np.repeat(np.arange(20, 240, 20, dtype=np.uint8), 3 * 32 * 32).reshape(-1, 3, 32, 32)
    samples = Resident(torch.from_numpy(flat), lambda rows: rows.float())
    feature = corrupted_features(lambda x: x.mean((2, 3)), samples, slice(0, 11))
    assert feature.shape == (44, 3)
    noise, blur = feature[:11].mean(1), feature[11:22].mean(1)
    np.testing.assert_allclose(blur, flat[:, 0, 0, 0], atol=1)
    assert (noise.diff() > 0).all()


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


AUTO = {**TINY, "num_steps": "auto"}


def four_domains() -> DomainDataset:
    """Three sources and a target."""
    return replace(tiny_images(), domains=np.arange(54) % 4, domain_names=("a", "b", "c", "d"))


@pytest.mark.parametrize("options", [{"freeze": True}, {}, {"settings": {"crossfit": True}}])
def test_the_sources_say_whether_adaptation_will_help(options, tmp_path):
    options = {"backbone": "tiny:conv", "weights": None, "allow_missing": True, **options}
    settings = AUTO | FINETUNE | options.pop("settings", {})
    options["settings"] = settings
    model = fit(four_domains(), out=tmp_path / "run", target="d", progress=False, **options)
    told = model.info["promise"]
    assert set(told["per_source"]) == {"a", "b", "c"}
    assert told["seen"] == (not options.get("freeze") and not settings.get("crossfit", False))
    assert model.settings.num_steps == told["num_steps"]
    assert told["adapts"] or model.settings.aggregation == "mean"
    assert "Will adaptation help" in (tmp_path / "run" / "README.md").read_text()
    assert not (tmp_path / "run" / "crossfit").exists()
    assert load(tmp_path / "run").settings == model.settings


def test_a_killed_cross_fit_goes_on_to_the_same_promise(tmp_path, monkeypatch):
    options = {"backbone": "tiny:conv", "weights": None, "allow_missing": True, "progress": False}
    options["settings"] = AUTO | FINETUNE | {"crossfit": True}
    whole = fit(four_domains(), out=tmp_path / "whole", target="d", **options)
    calls = []

    def killed(*args):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return pretend(*args)

    with monkeypatch.context() as patch:
        patch.setattr("sourceward.crossfit.pretend", killed)
        with pytest.raises(KeyboardInterrupt):
            fit(four_domains(), out=tmp_path / "run", target="d", **options)
    again = fit(four_domains(), out=tmp_path / "run", target="d", **options)
    assert again.info["promise"] == whole.info["promise"]
