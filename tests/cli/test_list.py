import json
import re

import pytest
import typer
from typer.testing import CliRunner

from sourceward._util.errors import InputError
from sourceward.adaptation import list_adapters
from sourceward.bench.experiments import list_experiments
from sourceward.bench.protocol.methods import CONTROLS
from sourceward.cli.list import LISTS
from sourceward.cli.list import list as command
from sourceward.data import list_datasets
from sourceward.data.transforms import list_transforms
from sourceward.training.methods import list_methods
from sourceward.training.presets import list_presets

EXPECTED = {
    "datasets": lambda: [entry.name for entry in list_datasets()],
    "adapters": lambda: [*list_adapters(), *CONTROLS],
    "methods": lambda: [*list_methods(), "swad"],
    "presets": list_presets,
    "backbones": lambda: ["tiny:conv", "tiny:text"],
    "transforms": list_transforms,
    "experiments": lambda: [entry.name for entry in list_experiments()],
}


@pytest.fixture
def run():
    app = typer.Typer()
    app.command()(command)
    return lambda *arguments: CliRunner().invoke(app, arguments)


@pytest.mark.parametrize("what", sorted(LISTS))
def test_names_for_people_and_for_machines(run, what):
    narrowed = ["tiny:*"] if what == "backbones" else []
    entries = json.loads(run(what, *narrowed, "--json").stdout)
    assert [entry["name"] for entry in entries] == EXPECTED[what]()
    shown = run(what, *narrowed).stdout
    assert all(entry["name"] in shown for entry in entries)


def test_a_filter_and_a_wrong_name(run):
    assert [e["name"] for e in json.loads(run("presets", "pacs", "--json").stdout)] == [
        "pacs-resnet18",
        "pacs-resnet50",
    ]
    assert "Expected what to list: datasets, methods, adapters" in str(run().exception)
    result = run("dataset")
    assert isinstance(result.exception, InputError)
    assert "Did you mean 'datasets'" in str(result.exception)


@pytest.mark.parametrize(
    ("what", "says"), [("adapters", "Did you mean 't3a'"), ("backbones", "No backbone matches 't3aa'")]
)
def test_a_filter_that_matches_nothing(run, what, says):
    result = run(what, "t3aa")
    assert isinstance(result.exception, InputError)
    assert says in str(result.exception)
    assert not result.stdout


def test_options_of_datasets_are_shown_as_they_are_typed(run):
    assert not re.search(r"\w='", run("datasets").stdout)


def test_a_pattern_need_not_name_the_family(run):
    found = [entry["name"] for entry in json.loads(run("backbones", "resnet50*v1", "--json").stdout)]
    assert "torchvision:resnet50-v1" in found
    assert {name.partition(":")[2][:8] for name in found} == {"resnet50"}
    found = json.loads(run("backbones", "mobilenet_v[23]*", "--json").stdout)
    assert "torchvision:mobilenet_v2" in [entry["name"] for entry in found]


def test_original_resnets_are_named(run):
    from sourceward.nn.backbones import create_backbone

    entries = json.loads(run("backbones", "torchvision:resnet*-v1", "--json").stdout)
    assert [entry["name"] for entry in entries] == [f"torchvision:resnet{d}-v1" for d in (50, 101, 152)]
    assert create_backbone(entries[0]["name"], weights=None).dim == 2048


def test_adapters_show_what_they_need_from_a_deployment(run):
    entry = json.loads(run("adapters", "tent_features", "--json").stdout)[0]
    traits = {"reads": "features", "changes_weights": True, "keeps_state": True, "needs_batch": True}
    assert traits.items() <= entry.items()
    lines = run("adapters").stdout.splitlines()
    row = next(line for line in lines if line.startswith("t3a"))
    assert row.split()[:5] == ["t3a", "features", "yes", "yes", "-"]
    none = next(line for line in lines if line.startswith("none"))
    assert none.split()[1:5] == ["features", "-", "-", "-"]


def test_presets_show_where_each_value_comes_from(run):
    lines = run("presets", "office-home-resnet18").stdout.splitlines()
    sources = {line.split()[0]: " ".join(line.split()[2:]) for line in lines[2:]}
    assert sources["backbone_learning_rate"] == "paper's table"
    assert sources["train.weight_decay"] == "released code"
    assert sources["step_size"] == "paper's table"
    every = run("presets", "office").stdout
    assert "paper's table: --backbone=timm:resnet50.tv_in1k " in every
    entry = json.loads(run("presets", "cifar10-c-resnet18", "--json").stdout)[0]
    assert entry["settings"]["shifts"]["value"] == "noise"
    assert entry["settings"]["num_steps"]["source"].startswith("ours: ")
