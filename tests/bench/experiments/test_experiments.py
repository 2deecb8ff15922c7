"""Every experiment of the paper in a small setting; on real features where they lie beside the checkout."""

import json
from dataclasses import replace

import numpy as np
import pytest

from sourceward._util.errors import InputError
from sourceward.bench.experiments import EXPERIMENTS, Context, list_experiments
from sourceward.bench.experiments.base import known_as
from sourceward.bench.experiments.reproduce import reproduce
from sourceward.bench.experiments.scores import Scores, published_row
from sourceward.bench.protocol.methods import parse_methods
from sourceward.bench.protocol.training import Training
from sourceward.bench.published import published, targets_of
from sourceward.data import open_dataset
from sourceward.report.experiment import finding
from sourceward.report.figures import save_figure
from tests.helpers import make_domains
from tests.tiny_runs import TINY, image_folder, tiny_texts

QUICK = {"max_iter": 15, "batch_size": 16, "train.num_steps": 3, "train.chains": 8, "learning_rate": 0.03}
DOMAINS = {
    "gaps": "0 15 30 45 60 75 90",
    "corruptions": "clean gaussian_noise fog spatter",
}


def feature_file(path, domains="a b c", rows=30):
    names = domains.split()
    X, y, domain = make_domains(rows=rows, dim=6, classes=3, sources=len(names))
    arrays = {
        "features": X,
        "label": y,
        "domain": domain,
        "domains": np.array(names),
        "classes": np.array(["x", "y", "z"]),
    }
    if "0" in names:
        arrays["held_out"] = np.array(["0", "90"])
    np.savez(path, **arrays)
    return str(path)


def context(file, out, **changes):
    base = Context((file,), out, (0,), (), Training(QUICK, "cpu", True), 2, True)
    return replace(base, **changes)


def draw(drawing, path):
    save_figure(drawing.panels, drawing.size, path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Models are trained once for all experiments."""
    return tmp_path_factory.mktemp("runs")


JOINT = ("selection", "variants")
"""Experiments that train a backbone."""


def joint_context(folder, out, **changes):
    own = ("learning_rate", "train.chains", "train.num_steps")
    settings = {k: v for k, v in TINY.items() if k in QUICK and k not in own}
    settings |= {"recipe": "joint", "image_size": 16, "evaluate_every": 6, "train.num_steps": 2}
    training = Training(settings, "cpu", True, backbone="tiny:conv", weights=None)
    return context(folder, out, training=training, targets=("c",), **changes)


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_every_experiment_runs_small(name, runs, tmp_path):
    out = runs / name
    if name in JOINT:
        given = joint_context(str(image_folder(tmp_path / "images")), out)
    elif name == "harm":
        pytest.skip("takes minutes of a frozen backbone; its rules are tested in tests/validation")
    else:
        file = feature_file(tmp_path / "features.npz", DOMAINS.get(name, "a b c"))
        given = context(file, out, targets=() if name in DOMAINS else ("a",))
    results = reproduce(name, given, "sourceward reproduce", draw)
    assert json.loads((out / "results.json").read_text())["experiment"] == name
    assert results["tables"][0]["rows"]
    written = json.loads((out / "results.json").read_text())
    assert finding(results) == finding(written) != ""
    for table in results["tables"]:
        for number, row in enumerate(table["rows"]):
            assert len(row) == (1 if number in table["groups"] else len(table["header"]))
    assert results["figures"] or name in ("trajectories", "unseen")
    for figure in results["figures"]:
        assert figure["caption"]
        svg = (out / figure["file"]).read_text()
        assert svg.startswith("<svg xmlns=")
        assert (out / figure["file"]).with_suffix(".png").stat().st_size > 1000


def test_an_oracle_is_never_worse_than_a_choice_by_the_sources(tmp_path):
    given = joint_context(str(image_folder(tmp_path / "images")), tmp_path / "out")
    rows = reproduce("selection", given)["numbers"]["rows"]
    for how in ("no adaptation", "adapted"):
        best = rows[f"ORACLE: best on the target, {how}"]["mean"]
        assert best >= rows[f"best on source validation, {how}"]["mean"]
        assert best >= rows[f"last iteration, {how}"]["mean"]


def test_experiments_share_models(tmp_path):
    file = feature_file(tmp_path / "features.npz")
    given = context(file, tmp_path / "a", targets=("a",), models=tmp_path / "models")
    reproduce("per-source", given)
    kept = {folder: folder.stat().st_mtime_ns for folder in (tmp_path / "models").iterdir()}
    reproduce("aggregation", replace(given, out=tmp_path / "b"))
    assert {folder: folder.stat().st_mtime_ns for folder in (tmp_path / "models").iterdir()} == kept


def test_every_experiment_of_the_paper_is_there():
    assert {e.name for e in list_experiments()} >= {
        "ablation",
        "comparison",
        "steps",
        "per-source",
        "aggregation",
        "latent",
        "cost",
        "gaps",
        "corruptions",
        "maps",
        "trajectories",
        "latent-map",
    }


def test_the_ablation_turns_latent_and_adaptation_off(tmp_path):
    file = feature_file(tmp_path / "f.npz")
    numbers = reproduce("ablation", context(file, tmp_path / "out", targets=("a",)))["numbers"]["rows"]
    assert list(numbers) == [
        f"{latent}, {how}" for latent in ("no latent", "latent") for how in ("no adaptation", "adapted")
    ]
    assert numbers["latent, adapted"]["against"] == "latent, no adaptation"


def test_z_tells_the_classes_to_a_classifier_of_its_own(tmp_path):
    """Of sources alone: domains that are copies of each other have the same z."""
    X, y, _ = make_domains(rows=30, dim=6, classes=3, sources=1)
    domain = np.repeat(["a", "b", "c"], len(X))
    np.savez(tmp_path / "f.npz", features=np.tile(X, (3, 1)), label=np.tile(y, 3), domain=domain)
    results = reproduce("latent", context(str(tmp_path / "f.npz"), tmp_path / "out", targets=("a",)))
    rows = results["numbers"]["rows"]
    assert rows["z alone, own classifier"]["mean"] > 0.8


def test_zero_steps_of_the_oracle_are_those_of_the_prior(tmp_path):
    """Without a step z has no say in a prototype head: the oracle gains by its chain alone."""
    file = feature_file(tmp_path / "f.npz")
    numbers = reproduce("steps", context(file, tmp_path / "out", targets=("a",)))["numbers"]
    assert numbers["accuracy"]["ORACLE z"][0] == numbers["accuracy"]["p(z|x)"][0]
    for energies in numbers["energy"].values():
        assert energies[-1] <= energies[0]


def test_published_numbers_stand_beside_ours_for_their_data(tmp_path):
    domains = "art_painting cartoon photo sketch"
    file = feature_file(tmp_path / "f.npz", domains)
    assert known_as(open_dataset(file)) == "pacs"
    table = reproduce("ablation", context(file, tmp_path / "out", targets=("photo",)))["tables"][0]
    rows = {row[0]: row for row in table["rows"]}
    quoted = next(row for name, row in rows.items() if name.startswith("latent, adapted, resnet18"))
    assert quoted[1:3] == ["96.0", "96.0"]
    assert "Xiao et al., ICLR 2023; mean over these targets" in quoted[0]


def test_a_published_mean_stands_beside_one_over_the_same_targets():
    (mean,) = published("aggregation", method="mean")
    assert published_row(mean, [f"pacs/{name}" for name in targets_of("pacs")]) == [
        "mean, resnet18 (Xiao et al., ICLR 2023)",
        *("-", "-", "-", "-", "84.9", ""),
    ]
    assert published_row(mean, ["pacs/photo"])[1:] == ["-", "-", ""]


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("gaps", {}, "needs domains that are angles.*has a, b, c: 0, 15"),
        ("corruptions", {}, "needs features with a domain 'clean'.*has a, b, c"),
        ("steps", {"targets": ("d",)}, "Unknown target 'd'"),
        ("latent", {"training": Training({**QUICK, "head": "linear"}, "cpu")}, "head 'linear' has none. Use"),
        ("corruptions", {"data": (tiny_texts(),), "training": Training()}, "holds texts"),
    ],
)
def test_unsuitable_data_is_refused_before_anything_is_written(tmp_path, name, changes, says):
    file = feature_file(tmp_path / "f.npz")
    with pytest.raises(InputError, match=says):
        reproduce(name, context(file, tmp_path / "out", **changes))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "wanted", "wrong"), [("gaps", "90", "15"), ("corruptions", "fog", "spatter")]
)
def test_some_targets_are_evaluated_alone(name, wanted, wrong, runs, tmp_path):
    file = feature_file(tmp_path / "features.npz", DOMAINS[name])
    given = context(file, runs / f"{name}-some", targets=(wanted,))
    rows = reproduce(name, given)["numbers"]["rows"]
    assert {target for row in rows.values() for target in row["targets"]} == {f"features/{wanted}"}
    with pytest.raises(InputError, match=f"Unknown target '{wrong}'"):
        reproduce(name, replace(given, targets=(wrong,)))


def test_images_are_corrupted_and_mapped(tmp_path):
    """Raw images: their corruptions through a frozen backbone, and a map through `fit`."""
    folder = str(image_folder(tmp_path / "images"))
    settings = {k: v for k, v in TINY.items() if k in QUICK} | {"image_size": 32}
    training = Training(settings, "cpu", backbone="tiny:conv", weights=None, freeze=True)
    given = context(folder, tmp_path / "c", training=training)
    corrupted = reproduce("corruptions", given)
    assert corrupted["tables"][0]["header"][1:3] == ["gaussian_noise", "contrast"]
    assert len(corrupted["numbers"]["rows"]) == 4  # two kinds of negatives, without and with adaptation
    results = reproduce("maps", replace(given, out=tmp_path / "m", targets=("c",)), draw=draw)
    assert [figure["file"] for figure in results["figures"]] == ["map-images-c.svg"]


def test_a_folder_keeps_one_experiment_of_one_configuration(tmp_path):
    """Figures of two would lie side by side; the same again, or more targets, is welcome."""
    given = context(feature_file(tmp_path / "f.npz"), tmp_path / "out", targets=("a",))
    reproduce("per-source", given)
    models = {file: file.stat().st_mtime_ns for file in (given.out / "models").rglob("*.safetensors")}
    before = (given.out / "results.json").read_bytes()
    other = replace(given.training, settings=QUICK | {"max_iter": 16})
    for name, changes, says in (
        ("steps", {}, 'experiment was "per-source", now "steps"'),
        ("per-source", {"training": other}, "settings.settings.max_iter was 15, now 16"),
        ("per-source", {"num_steps": 3}, "settings.num_steps was 2, now 3"),
        ("per-source", {"targets": ("b",)}, "targets was"),
        ("per-source", {"seeds": (1,)}, "seeds was"),
        ("per-source", {"data": (feature_file(tmp_path / "g.npz", rows=24),)}, "data.f was"),
    ):
        with pytest.raises(InputError, match=f"holds results of another configuration: .*{says}"):
            reproduce(name, replace(given, **changes))
    assert (given.out / "results.json").read_bytes() == before
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    with pytest.raises(InputError, match="holds a model of `sourceward fit`"):
        reproduce("per-source", replace(given, out=tmp_path / "run"))
    reproduce("per-source", given)
    reproduce("per-source", replace(given, targets=("a", "b")))
    assert {file: file.stat().st_mtime_ns for file in models} == models, "models are not trained again"


def test_steps_below_zero_are_refused_before_the_work(tmp_path):
    with pytest.raises(InputError, match="`num_steps` to be 0 or more, but got -4"):
        reproduce("steps", context(feature_file(tmp_path / "f.npz"), tmp_path / "out", num_steps=-4))
    assert not (tmp_path / "out").exists()


def test_a_comparison_of_nothing_says_why_once(tmp_path):
    folder = str(image_folder(tmp_path / "images"))
    training = Training({}, "cpu", backbone="tiny:conv", weights=str(tmp_path / "no.safetensors"))
    with pytest.raises(InputError, match="No row of the comparison could be made") as error:
        reproduce("comparison", context(folder, tmp_path / "out", targets=("c",), training=training))
    assert str(error.value).count("no.safetensors") == 1
    kept = list((tmp_path / "out").rglob("*.json"))
    assert kept, "the reasons"
    assert all(file.name.endswith(".failed.json") for file in kept), "and no results"


def test_on_real_features(shared, tmp_path):
    """Frozen features of PACS: the energies fall, and a few steps does not hurt on photos."""
    file = shared / "data" / "banks" / "pacs_mobilenetv2_frozen_without_photo.npz"
    if not file.exists():
        pytest.skip("the feature banks are not in ../shared/data")
    training = Training({"max_iter": 40, "batch_size": 64, "train.chains": 8}, "cpu", True)
    results = reproduce("per-source", context(str(file), tmp_path, training=training, num_steps=5))
    sources = results["numbers"]["sources"]
    assert len(sources) == 3
    for numbers in sources.values():
        assert numbers["energy_after"] < numbers["energy_before"]


def test_scores_are_means_of_targets_and_seeds():
    scores = Scores()
    for row, shares in (("a", (0.5, 1.0)), ("b", (0.75, 1.0))):
        for place, share in zip(("d/x", "d/y"), shares):
            for seed in (0, 1):
                scores.add(row, place, seed, np.arange(100) < 100 * share - 10 * seed)
    numbers = scores.numbers({"b": "a"})
    assert numbers["a"]["mean"] == pytest.approx(0.70)
    assert numbers["a"]["std"] == pytest.approx(0.1 / np.sqrt(2))
    assert numbers["b"]["gain"] == pytest.approx(0.125)
    assert numbers["b"]["gain_low"] <= 0.125 <= numbers["b"]["gain_high"]
    table = scores.table("x", {"b": "a"})
    assert table.header == ["x", "x", "y", "mean", "difference"]
    assert table.rows[0] == ["a", "45.0 ± 7.1", "95.0 ± 7.1", "70.0 ± 7.1", ""]


def test_only_the_model_in_use_keeps_its_inputs(tmp_path):
    settings = {**TINY, "image_size": 16}
    training = Training(settings, "cpu", True, "tiny:conv", None, True)
    own = context(str(image_folder(tmp_path / "images")), tmp_path / "out", training=training)
    (method,) = (one for one in parse_methods(["batchnorm"]) if one.name == "batchnorm")
    kept = []
    for case in own.cases():
        case.checkpoint.predict(method, case.part)
        kept.append([len(model._prepared) for model in own.loaded.values()])
    assert kept == [[1], [0, 1], [0, 0, 1]]
