"""Training methods under test-time methods: what is trained, compared and refused."""

import json
from dataclasses import replace

import numpy as np
import pytest

from sourceward._util.errors import InputError
from sourceward.bench.protocol.grid import bench_methods, check_methods, layer_of, training_methods
from sourceward.bench.protocol.methods import parse_methods
from sourceward.bench.protocol.plan import Plan
from sourceward.bench.protocol.training import Training
from sourceward.bench.published import published_beside
from sourceward.report.document import document
from sourceward.report.grid import finding, grid_page, grid_table, training_table
from sourceward.report.page import render
from sourceward.training.configuration import settings_for
from sourceward.training.methods import list_methods
from tests.bench.protocol.test_plan import feature_file
from tests.tiny_runs import FINETUNE, TINY, four_domains, image_folder, tiny_texts

NAMES = ["erm", "swad", "single_sample"]
ADAPTERS = ["none", "ebtsa", "t3a", "tta", "generated_classifier"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(image_folder(tmp_path_factory.mktemp("data") / "images"))


def plan(folder, **changes):
    settings = {**TINY, **FINETUNE, "image_size": 16, "crossfit": 0.0}
    training = Training(settings, "cpu", backbone="tiny:conv", weights=None)
    base = Plan((folder,), parse_methods(ADAPTERS, [2]), targets=("b", "c"), training=training)
    return replace(base, **changes)


@pytest.fixture(scope="module")
def done(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("grid")
    return out, bench_methods(plan(folder), NAMES, out)


def test_every_pair_is_evaluated_or_does_not_apply(done):
    _, results = done
    assert [own["name"] for own in results["methods"]] == NAMES
    for own in results["methods"]:
        keys = {row["method"] for row in own["table"]}
        expected = {"none", "ebtsa:num_steps=2", "t3a", "tta", "selected:ebtsa"}
        assert keys == expected | ({"generated_classifier"} if own["name"] == "single_sample" else set())
        if own["name"] != "single_sample":
            assert {(run["method"], run["unsuitable"]) for run in own["failed"]} == {
                ("generated_classifier", True)
            }
    json.dumps(results)


def test_methods_train_different_weights_from_the_same_rows(done):
    out, results = done
    runs = {}
    for name in NAMES:
        found = [json.loads(file.read_text()) for file in (out / "methods" / name / "runs").glob("*.json")]
        runs[name] = {run["target"]: run for run in found if run["method"] == "none"}
        assert {run["training"]["rows"] for run in runs[name].values()} == {36}
    for own in results["methods"][1:]:
        change = []
        for target in "bc":
            sides = [np.array(runs[name][target]["numbers"]["predicted"]) for name in (own["name"], "erm")]
            label = np.repeat([0, 1, 2], 6)  # files are read in the order of their names
            change.append((sides[0] == label).mean() - (sides[1] == label).mean())
        assert own["against"]["gain"] == pytest.approx(np.mean(change))
        assert own["against"]["gain_low"] <= own["against"]["gain"] <= own["against"]["gain_high"]
    assert results["methods"][0]["against"] is None
    assert results["reference"] == "erm"


def test_source_validation_is_the_mean_over_trainings(done):
    out, results = done
    for own in results["methods"]:
        files = (out / "methods" / own["name"] / "runs").glob("*.json")
        found = [
            run for run in map(json.loads, (file.read_text() for file in files)) if run["method"] == "none"
        ]
        assert own["validation"] == pytest.approx(np.mean([run["numbers"]["validation"] for run in found]))
    table = training_table(results)
    shown = [row[table.header.index("source validation")] for row in table.rows]
    assert shown == [f"{100 * own['validation']:.1f}" for own in results["methods"]]


def test_training_cost_is_relative_to_erm(done):
    cost = {own["name"]: own["cost"] for own in done[1]["methods"]}
    assert cost["erm"]["ratio"] == 1
    assert cost["single_sample"]["ratio"] > 1
    for own in cost.values():
        assert own["ratio"] == pytest.approx(own["iteration_ms"] / cost["erm"]["iteration_ms"])


def test_a_second_command_computes_what_is_missing(done, folder):
    out, before = done
    new = []
    after = bench_methods(plan(folder), ["erm", "mixup"], out, on_run=new.append)
    assert {run["trained_by"] for run in new if "failed" not in run} == {"mixup"}
    first, again = before["methods"][0]["table"], after["methods"][0]["table"]
    assert [row["mean"] for row in first] == [row["mean"] for row in again]


def test_inputs_of_a_part_are_prepared_once_for_all_adapters(folder, tmp_path, monkeypatch):
    from sourceward.bench.protocol import checkpoint

    sizes, original = [], checkpoint.prepare_samples

    def counted(dataset, *args, **kwargs):
        sizes.append(len(dataset))
        return original(dataset, *args, **kwargs)

    monkeypatch.setattr(checkpoint, "prepare_samples", counted)
    adapters = parse_methods(["tta", "batchnorm", "tent"])
    bench_methods(plan(folder, methods=adapters, targets=("b",)), ["erm"], tmp_path)
    assert sizes[0] == 18  # the target, and the validation rows of each of two sources
    assert len(sizes) == 3


def test_images_are_decoded_before_several_processes_need_them(folder, monkeypatch, tmp_path):
    from sourceward.data import decode, open_dataset
    from sourceward.data.loading import image_geometry
    from sourceward.nn.backbones import create_backbone

    monkeypatch.setenv("SOURCEWARD_CACHE", str(tmp_path))
    training, data = plan(folder).training, open_dataset(folder)
    training.prepare(data)
    monkeypatch.setattr(decode, "_decode_all", None)  # nothing is left to decode
    shape = image_geometry(create_backbone("tiny:conv", weights=None, image_size=16).preprocessing)
    sources = data.without(["b"])
    assert decode.decode_images(sources, shape).shape == (len(sources), 3, 16, 16)


def test_swad_averages_and_the_others_do_not():
    def finetune(name, **own):
        layers = {**layer_of(name), **own}
        return settings_for(True, layers, pretrained=True).finetune

    swad, erm = finetune("swad"), finetune("erm")
    assert (swad.method, swad.average, swad.schedule, swad.select) == ("erm", 1.0, "constant", "late")
    assert (erm.average, erm.schedule, erm.select) == (0.0, "cosine", "best")
    assert swad.max_iter == erm.max_iter
    assert finetune("erm", **{"finetune.average": 0.9}).average == 0.9
    assert finetune("dson").freeze_batchnorm is False


def test_names_are_checked():
    assert training_methods("erm, swad,erm") == ["erm", "swad"]
    with pytest.raises(InputError, match=r"Unknown training method 'mixtsyle'. Did you mean 'mixstyle'"):
        training_methods("mixtsyle")
    with pytest.raises(InputError, match="names no training method"):
        training_methods(",")


@pytest.mark.parametrize(
    ("change", "names", "reason"),
    [
        ({"data": (tiny_texts(),)}, ["erm", "cutmix"], "'cutmix' needs images, but the data holds texts"),
        ({"training": Training(freeze=True)}, ["erm"], "leave --freeze out"),
        ({"training": Training({"finetune.method": "erm"})}, ["erm"], "leave --set finetune.method out"),
        ({"training": Training({"recipe": "joint"})}, ["erm"], "leave --set recipe out"),
        (
            {"training": Training({"finetune.freeze_batchnorm": True}, backbone="tiny:conv", weights=None)},
            ["erm", "dson"],
            "'dson' needs `finetune.freeze_batchnorm=false`",
        ),
        ({"training": Training(backbone="timm:test_vit", weights=None)}, ["erm", "mixstyle"], "feature maps"),
        ({"training": Training(backbone="timm:test_vit", weights=None)}, ["dson"], "needs batch norm"),
        ({"training": Training(backbone="timm:nothing")}, ["all"], "Unknown timm model 'nothing'"),
        ({"training": Training(preset="pacs-resnet18")}, ["erm"], "leave the preset out"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_any_work(folder, tmp_path, change, names, reason):
    with pytest.raises(InputError, match=reason):
        bench_methods(plan(folder, **change), names, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_too_few_sources_and_features_are_refused(folder, tmp_path):
    from shutil import copytree, rmtree

    few = copytree(folder, tmp_path / "two")
    rmtree(few / "a")
    with pytest.raises(InputError, match="'masf' needs 2 or more source domains, but got 1"):
        bench_methods(plan(str(few)), ["erm", "masf"], tmp_path / "out")
    file = feature_file(tmp_path / "features.npz")
    with pytest.raises(InputError, match="the data holds features"):
        bench_methods(plan(file, targets=(), training=Training()), ["erm"], tmp_path / "out")


def test_targets_that_the_data_does_not_hold_out_are_refused(tmp_path):
    data = replace(four_domains(), targets=("b",))
    for names in (["erm"], ["mixstyle", "dson"]):
        with pytest.raises(InputError, match=r"No data holds out any of \['a'\]"):
            bench_methods(plan("", data=(data,), targets=("a",)), names, tmp_path / names[0])


def test_all_are_those_that_apply(folder):
    names, unsuitable = check_methods(plan(folder), ["all"])
    assert names == [*list_methods(), "swad"]
    assert not unsuitable
    names, unsuitable = check_methods(plan(folder, data=(tiny_texts(),), targets=()), ["all"])
    assert {"erm", "domain_embedding", "entropy", "masf", "single_sample", "swad"} <= set(names)
    assert all("needs images" in unsuitable[name] for name in ("cutmix", "mixstyle", "dson", "l2a_ot"))


def test_the_folder_of_another_bench_is_refused(folder, tmp_path):
    (tmp_path / "bench.json").write_text("{}")
    with pytest.raises(InputError, match="a bench without --methods"):
        bench_methods(plan(folder), NAMES, tmp_path)


def test_published_numbers_stand_beside():
    pacs = ["photo", "art_painting", "cartoon", "sketch"]
    assert [(row["backbone"], row["mean_here"]) for row in published_beside("masf", pacs)] == [
        ("resnet18", 81.04),
        ("resnet50", 82.67),
    ]
    assert published_beside("mixup", pacs) == published_beside("masf", ["a", "b"]) == []


def test_the_grid_is_a_page_and_markdown(done):
    results = {"command": "sourceward bench images --methods erm,swad", **done[1]}
    results["published"] = {"t3a": [{"backbone": "resnet18", "mean_here": 81.4}]}
    table = grid_table(results)
    assert [row[0] for row in table.rows] == [*NAMES, "published, resnet18"]
    assert table.rows[-1][table.header.index("t3a")] == "81.4"
    column = table.header.index("generated_classifier")
    assert [row[column] for row in table.rows[:2]] == ["-", "-"]
    results["methods"][1]["published"] = [{"backbone": "resnet50", "mean_here": 88.1}]
    trained = training_table(results)
    assert [row[-1] for row in trained.rows] == ["-", "88.1", "-"]
    assert trained.rows[0][trained.header.index("cost of an iteration")] == "1.0 x"
    html = render(grid_page(results))
    assert "generated_classifier applies only after single_sample: This adapter needs" in html
    assert "Best of" in html
    markdown = document("results", {"results/grid": results | {"note": "Measured at night."}})
    assert "Measured at night." in markdown
    assert "| accuracy, % | no adaptation |" in markdown
    assert "| training method | b | c | mean | against erm |" in markdown
    against = [None, {"gain": 0.02, "gain_low": 0.01, "gain_high": 0.03}]
    against.append({"gain": -0.02, "gain_low": -0.05, "gain_high": 0.01})
    results["methods"] = [own | {"against": one} for own, one in zip(results["methods"], against)]
    assert finding(results).endswith("than the interval: swad (+2.0); behind: none; of 2 methods.")
    results["methods"] = [own | {"table": [], "failed": []} for own in results["methods"]]
    assert "No run finished" in grid_page(results).headline
