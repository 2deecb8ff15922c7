"""Leave one domain out: what is trained, evaluated and stored, and what the numbers mean."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.torch import save_file

from sourceward._util.errors import InputError
from sourceward.bench.protocol.checkpoint import in_order
from sourceward.bench.protocol.jobs import run_job
from sourceward.bench.protocol.methods import Method, parse_methods
from sourceward.bench.protocol.plan import Plan, bench, jobs_of
from sourceward.bench.protocol.runs import key_of
from sourceward.bench.protocol.training import Training, train
from sourceward.bench.speed.throughput import measure_prediction
from sourceward.data import open_dataset
from sourceward.nn.backbones import create_backbone
from sourceward.report.context import training_peak
from tests.helpers import make_domains
from tests.tiny_runs import FINETUNE, TINY, fit_tiny, image_folder, tiny_images, tiny_texts

QUICK = {"max_iter": 5, "batch_size": 8, "train.num_steps": 2, "train.chains": 4}


def feature_file(path, sources=3, flip=None):
    X, y, domain = make_domains(sources=sources, classes=2, dim=4, rows=24)
    if flip is not None:
        y = np.where(domain == flip, 1 - y, y)
    names = np.array(list("abcd")[:sources])
    np.savez(path, features=X, label=y, domain=domain, domains=names, classes=np.array(["x", "y"]))
    return str(path)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return feature_file(tmp_path_factory.mktemp("data") / "features.npz")


def plan(file, **changes):
    base = Plan((file,), parse_methods(["linear", "ebtsa"], [0, 3, 6]), training=Training(QUICK, "cpu"))
    return replace(base, **changes)


def timeless(table):
    """Everything but how long it took."""
    return [{name: value for name, value in row.items() if name != "ms_per_sample"} for row in table]


@pytest.fixture(scope="module")
def done(file, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    return out, bench(plan(file, seeds=(0, 1)), out)


def test_every_domain_is_left_out_once_per_seed(done):
    _, results = done
    assert [(c["target"], c["seed"]) for c in results["runs"]] == [(t, s) for t in "abc" for s in (0, 1)]
    for run in results["runs"]:
        assert set(run["methods"]) == {"none", "linear", "ebtsa:num_steps=3", "ebtsa:num_steps=6"}
        none, moved = run["methods"]["none"], run["methods"]["ebtsa:num_steps=3"]
        assert none["gain"] == 0
        assert moved["gain"] == pytest.approx(moved["accuracy"] - none["accuracy"])
        assert moved["gain_low"] <= moved["gain"] <= moved["gain_high"]
        assert moved["energy_after"] <= moved["energy_before"]
        for numbers in run["methods"].values():
            confusion = np.array(numbers["confusion"])
            assert confusion.sum() == run["target_rows"]
            assert np.trace(confusion) / confusion.sum() == pytest.approx(numbers["accuracy"])
            counted = sum(c["accuracy"] * c["samples"] for c in numbers["per_class"].values())
            assert counted / run["target_rows"] == pytest.approx(numbers["accuracy"])


def test_the_table_is_the_mean_of_the_runs(done):
    _, results = done
    for row in results["table"]:
        if row["method"].startswith("selected"):
            continue
        by_seed = [
            np.mean([c["methods"][row["method"]]["accuracy"] for c in results["runs"] if c["seed"] == s])
            for s in (0, 1)
        ]
        assert row["mean"] == pytest.approx(np.mean(by_seed))
        assert row["std"] == pytest.approx(np.std(by_seed, ddof=1))
        assert row["gain_low"] <= row["gain"] <= row["gain_high"]
        costs = [c["methods"][row["method"]]["ms_per_sample"] for c in results["runs"]]
        assert row["ms_per_sample"] == pytest.approx(np.median(costs))
    assert "over 2 seeds" in results["plus_minus"]


def test_every_run_has_the_cost_of_a_prediction(done):
    for run in done[1]["runs"]:
        predict = run["cost"]["predict"]
        assert (predict["samples"], predict["num_steps"]) == (72, 20)
        assert min(predict["samples_per_second"], predict["peak_memory_mb"]) > 0


@pytest.mark.parametrize("data", [tiny_texts(), tiny_images()], ids=["text", "image"])
def test_a_prediction_is_measured_from_what_the_backbone_reads(data, tmp_path):
    model = fit_tiny(data, tmp_path, freeze=True)
    found = measure_prediction(model, 3, data)
    assert (found["samples"], found["num_steps"]) == (min(48, len(data)), 3)
    assert found["samples_per_second"] > 0


def test_a_measurement_that_fails_costs_no_run(file, tmp_path, monkeypatch):
    monkeypatch.setattr("sourceward.bench.protocol.jobs.measure_prediction", lambda *_: 1 / 0)
    results = bench(plan(file, targets=("a",), methods=parse_methods([])), tmp_path)
    assert not results["failed"]
    assert "predict" not in results["runs"][0]["cost"]


def test_the_peak_memory_of_a_training_is_that_of_its_hungriest_stage(tmp_path, monkeypatch):
    falling = iter(range(10**6, 0, -1))
    monkeypatch.setattr("sourceward._util.devices.peak_memory", lambda _: next(falling))
    settings = {**TINY, **FINETUNE, "image_size": 16}
    training = Training(settings, "cpu", backbone="tiny:conv", weights=None)
    info = train(tiny_images(), training, ("c",), 0, tmp_path).info
    assert training_peak(info) == info["cost"]["finetune"]["peak_memory_mb"]
    assert training_peak(info) > info["cost"]["heads"]["peak_memory_mb"]


def test_what_is_there_is_not_computed_again(done, file):
    out, results = done
    seen = []
    again = bench(plan(file, seeds=(0, 1)), out, on_run=seen.append)
    assert (seen, again["table"]) == ([], results["table"])
    next((out / "runs").iterdir()).write_text("{torn")
    repaired = bench(plan(file, seeds=(0, 1)), out, on_run=seen.append)
    assert timeless(repaired["table"]) == timeless(results["table"])
    assert len(seen) == 1


def test_a_new_adapter_meets_the_models_that_are_there(done, file, monkeypatch):
    out, results = done
    monkeypatch.setattr("sourceward.estimator.EnergyAdapter.fit", lambda *_: pytest.fail("trained again"))
    more = bench(plan(file, seeds=(0, 1), methods=parse_methods(["t3a"])), out)
    assert more["table"][0]["mean"] == results["table"][1]["mean"]  # no adaptation, to the bit
    assert more["table"][1]["method"] == "t3a"


def test_another_configuration_is_refused_with_the_difference(done, file):
    out, _ = done
    other = plan(file, training=Training(QUICK | {"max_iter": 6}, "cpu"))
    with pytest.raises(InputError, match=r"training\.settings\.max_iter was 5, now 6"):
        bench(other, out)
    with pytest.raises(InputError, match='selection was "source", now "last"'):
        bench(plan(file, selection="last"), out)


def test_results_of_an_earlier_kind_are_not_overwritten(file, tmp_path):
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(InputError, match="of an earlier version"):
        bench(plan(file), tmp_path)


def test_a_folder_of_fit_is_left_alone(file, tmp_path):
    """Of a run that was killed, and of a finished one."""
    for name in ("run.json", "config.json"):
        out = tmp_path / name.partition(".")[0]
        out.mkdir()
        (out / name).write_text("{}")
        with pytest.raises(InputError, match="holds a model of `sourceward fit`, or one in training"):
            bench(plan(file), out)
        assert [path.name for path in out.iterdir()] == [name]


def test_target_labels_only_count(file, tmp_path):
    """Other labels of the target change its accuracy, and nothing that was learned or chosen."""
    other = feature_file(tmp_path / "features.npz", flip=2)
    one, two = (
        bench(plan(f, targets=("c",)), tmp_path / name) for f, name in ((file, "one"), (other, "two"))
    )
    for key in ("ebtsa:num_steps=3", "none", "linear"):
        first, second = (r["runs"][0]["methods"][key] for r in (one, two))
        assert first["accuracy"] == pytest.approx(1 - second["accuracy"])
        assert first.get("energy_after") == second.get("energy_after")
        assert first.get("validation") == second.get("validation")
    chosen = [row["chosen"] for r in (one, two) for row in r["table"] if row["method"] == "selected:ebtsa"]
    assert chosen[0] == chosen[1]


def test_a_run_that_fails_leaves_the_rest(file, tmp_path, monkeypatch):
    from sourceward.adaptation import ADAPTERS

    monkeypatch.setattr(ADAPTERS["t3a"], "__call__", lambda *_: 1 / 0)
    results = bench(plan(file, methods=parse_methods(["t3a", "ebtsa:num_steps=2"])), tmp_path)
    assert [row["method"] for row in results["table"]] == ["none", "ebtsa:num_steps=2", "selected:ebtsa"]
    assert [f["target"] for f in results["failed"]] == list("abc")
    assert results["failed"][0]["reason"] == "ZeroDivisionError: division by zero"


def test_an_adapter_that_has_no_meaning_here_says_so(file, tmp_path):
    results = bench(plan(file, targets=("a",), methods=parse_methods(["tent"])), tmp_path)
    assert results["failed"][0]["unsuitable"]
    assert "features" in results["failed"][0]["reason"]


def test_validation_rows_of_the_sources_are_no_rows_of_a_control(file, tmp_path):
    data = open_dataset(file)
    checkpoint = train(data, Training(QUICK, "cpu"), ("c",), 0, tmp_path / "run")
    held = sum(len(part.label) for part in checkpoint.validation)
    assert 0 < held < len(checkpoint.source_part.label) == 48


def test_an_oracle_says_so_and_is_the_best(file, tmp_path):
    results = bench(plan(file, targets=("a",), selection="oracle"), tmp_path)
    row = next(row for row in results["table"] if row["oracle"])
    assert row["label"].startswith("ORACLE")
    rest = [r["mean"] for r in results["table"] if r["method"] == "none" or r["method"].startswith("ebtsa")]
    assert row["mean"] == max(rest)


def test_keys_follow_everything_that_numbers_depend_on(file, tmp_path):
    data = open_dataset(file)
    job = jobs_of(plan(file), file, data, tmp_path)[0]
    keys = {
        job.run_key("a", Method("none")),
        job.run_key("b", Method("none")),
        job.run_key("a", Method("t3a")),
    }
    for change in (
        {"seed": 1},
        {"fingerprint": "other"},
        {"left_out": ("a", "b")},
        {"training": Training({"max_iter": 6})},
    ):
        keys.add(replace(job, **change).run_key("a", Method("none")))
    assert len(keys) == 7
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})


def test_domains_that_are_held_out_together_share_a_training(tmp_path):
    X, y, domain = make_domains(sources=4, classes=2, dim=4, rows=12)
    file = tmp_path / "f.npz"
    np.savez(
        file,
        features=X,
        label=y,
        domain=domain,
        domains=np.array(list("abcd")),
        held_out=np.array(["a", "d"]),
    )
    (job,) = jobs_of(plan(str(file)), str(file), open_dataset(file), tmp_path)
    assert job.left_out == ("a", "d")
    assert [target for target, _ in job.evaluations] == ["a", "d"]


def test_a_stream_is_shuffled_and_put_back(file, tmp_path):
    """An adapter that keeps state sees classes mixed; its predictions come back in the order of the rows."""
    data = open_dataset(file)
    checkpoint = train(data, Training(QUICK, "cpu"), ("c",), 0, tmp_path / "run")
    part = checkpoint.part("c")
    unadapted = checkpoint.predict(Method("none"), part)
    order = np.random.default_rng(0).permutation(len(part.label))
    shuffled = type(unadapted)(*(v if v is None else v[order] for v in vars(unadapted).values()))
    assert (in_order(shuffled, order).probabilities == unadapted.probabilities).all()
    tent = checkpoint.predict(Method("tent_features", (("learning_rate", 0.0),)), part)
    assert tent.probabilities == pytest.approx(unadapted.probabilities, abs=1e-5)


def test_images_go_through_fit(tmp_path):
    folder = image_folder(tmp_path / "images")
    training = Training({**TINY, **FINETUNE, "image_size": 16}, "cpu", backbone="tiny:conv", weights=None)
    methods = parse_methods(["ebtsa:num_steps=2", "batchnorm:batch_size=8"])
    chosen = Plan((str(folder),), methods, ("c",), training=training)
    results = bench(chosen, tmp_path / "out")
    assert not results["failed"]
    assert set(results["runs"][0]["methods"]) == {"none", "ebtsa:num_steps=2", "batchnorm:batch_size=8"}
    assert results["runs"][0]["backbone"] == "tiny:conv"
    assert "data:image" not in json.dumps(results)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"targets": ("d",)}, "Unknown target 'd'"),
        ({"training": Training({"max_itre": 3})}, "Did you mean 'max_iter'"),
        (
            {"training": Training({"step_size": "abc"})},
            "Expected setting `step_size` to be float, but got 'abc'",
        ),
        ({"training": Training(backbone="tiny:conv")}, "Features need no backbone"),
        ({"selection": "sorce"}, "Unknown selection 'sorce'. Did you mean 'source'"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(file, tmp_path, changes, says):
    with pytest.raises(InputError, match=says):
        bench(plan(file, **changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tnet", "Unknown adapter 'tnet'. Did you mean 'tent'"),
        ("ebtsa:num_step=3", "Did you mean 'num_steps'"),
        ("ebtsa:num_steps=-3", "Expected `num_steps` to be 0 or more, or auto, but got -3"),
        ("none:rate=3", "takes no options"),
        ("tent:rate", "key=value"),
    ],
)
def test_bad_adapters(text, says):
    with pytest.raises(InputError, match=says):
        parse_methods([text])


def test_a_job_that_cannot_train_fails_in_all_its_runs(file, tmp_path):
    job = jobs_of(plan(file, targets=("a",)), str(tmp_path / "gone.npz"), open_dataset(file), tmp_path)[0]
    runs = run_job(job)
    assert len(runs) == 4
    assert all("No such file" in run["failed"] for run in runs)


@pytest.mark.parametrize(
    ("options", "last"),
    [
        ({}, True),
        ({"settings": {"recipe": "joint"}}, False),
        ({"preset": "pacs-resnet18"}, False),
        ({"preset": "pacs-resnet18", "settings": {"recipe": "two-stage"}}, True),
        ({"freeze": True}, False),
        ({"last": False}, False),
    ],
)
def test_the_last_weights_are_those_of_stage_one(options, last):
    layer = Training(**{"last": True, **options}).fit_layer("image")
    assert (layer.get("finetune.select") == "last") == last


def test_features_of_a_frozen_backbone_are_computed_once_before_processes_start(monkeypatch, tmp_path):
    monkeypatch.setenv("SOURCEWARD_CACHE", str(tmp_path / "cache"))
    backbone = create_backbone("tiny:conv", weights=None)
    save_file(
        {name: value.contiguous() for name, value in backbone.state_dict().items()},
        tmp_path / "w.safetensors",
    )
    data = open_dataset(image_folder(tmp_path / "images"))
    training = Training(
        {**TINY, "tta": "none", "fourier_copies": False},  # copies depend on who is left out
        "cpu",
        backbone="tiny:conv",
        weights=str(tmp_path / "w.safetensors"),
        freeze=True,
    )
    training.prepare(data)
    monkeypatch.setattr("sourceward.data.loading.prepare_samples", None)  # would be called to compute more
    checkpoint = train(data, training, ("a",), 0, tmp_path / "run")
    assert len(checkpoint.part("a").label) == 18
