import io
import json
import shutil
from types import SimpleNamespace

import pytest
import typer
from rich.console import Console
from sklearn.metrics import balanced_accuracy_score, confusion_matrix, f1_score
from typer.testing import CliRunner

import sourceward as sw
from sourceward._util.errors import InputError
from sourceward.cli.evaluate import compared, estimate_for, evaluate, render, verdict
from sourceward.validation.expected_gain import ExpectedGain
from tests.tiny_runs import NAMED, image_folder, text_table


@pytest.fixture
def run():
    app = typer.Typer()
    app.command()(evaluate)
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_both_ways_each_source_and_an_interval(run, tiny_run, tmp_path):
    root = image_folder(tmp_path / "images")
    found = json.loads(run(tiny_run, root, "--json", "--device", "cpu").stdout)
    assert list(found["domains"]) == ["c"]
    scores = found["domains"]["c"]
    assert scores["per_source"].keys() == {"a", "b"}
    assert scores["gain_low"] <= scores["gain"] <= scores["gain_high"]
    console = Console(width=120, record=True, file=io.StringIO())
    render(found, console)
    assert "gain (95 % interval)" in console.export_text()
    unadapted = json.loads(run(tiny_run, root, "--num-steps", "0", "--json").stdout)
    assert unadapted["mean"]["gain"] == 0


def test_scores_of_classes_are_those_of_scikit_learn(run, tiny_run, tmp_path):
    root = image_folder(tmp_path / "images")
    found = json.loads(run(tiny_run, root, "--target", "a", "--json").stdout)
    scores, data = found["domains"]["a"], sw.open_dataset(root).of_domains("a")
    predicted = sw.load(tiny_run, "cpu").predict_proba([item.path for item in data.items]).argmax(1)
    for name, measure in (("balanced_accuracy", balanced_accuracy_score), ("macro_f1", macro)):
        assert scores[name]["adapted"] == pytest.approx(measure(data.labels, predicted))
    assert scores["confusion"]["adapted"] == confusion_matrix(data.labels, predicted).tolist()
    assert scores["majority"] == pytest.approx(1 / 3)
    assert found["classes"] == ["x", "y", "z"]
    shown = run(tiny_run, root, "--target", "a").stdout
    assert "largest class" in shown
    assert "rows: true class" in shown


def macro(label, predicted):
    return f1_score(label, predicted, average="macro")


def test_an_evaluation_is_kept_in_the_run_and_is_no_part_of_the_model(run, tiny_run, tmp_path):
    root, own = image_folder(tmp_path / "images"), tmp_path / "run"
    shutil.copytree(tiny_run, own, ignore=shutil.ignore_patterns("evaluations"))
    assert not run(own, root, "--no-save").exception
    assert not (own / "evaluations").exists()
    printed = run(own, root, "--json").stdout
    run(own, root)
    (file,) = (own / "evaluations").iterdir()
    kept = json.loads(file.read_text())
    assert kept["data"] == "images", "a name, not a path of this machine"
    assert kept["domains"]["c"]["adapted"] == json.loads(printed)["domains"]["c"]["adapted"]
    assert all(e["image"].startswith("data:image/") for e in kept["domains"]["c"]["examples"])
    assert "data:image" not in printed
    run(own, root, "--num-steps", "0")
    assert len(list((own / "evaluations").iterdir())) == 2
    sw.load(own, "cpu").save(tmp_path / "copy")
    assert not (tmp_path / "copy" / "evaluations").exists()


def test_a_folder_that_cannot_be_written_is_evaluated_all_the_same(run, tiny_run, tmp_path):
    root, own = image_folder(tmp_path / "images"), tmp_path / "run"
    shutil.copytree(tiny_run, own, ignore=shutil.ignore_patterns("evaluations"))
    (own / "evaluations").write_text("a file")
    result = run(own, root)
    assert result.exit_code == 0
    assert "The evaluation was not kept" in result.output


def test_an_estimate_for_other_transforms_is_not_set_beside_what_was_measured():
    gain = ExpectedGain(0.02, 0.0, 0.04, {"a": 0.02}, 0.7, 5, True, tta="fourier")
    for tta, expected in (("fourier", gain), ("hflip", None), ("", None)):
        assert (
            estimate_for(SimpleNamespace(tta=tta, adapter=SimpleNamespace(expected_gain_=gain))) is expected
        )
    assert estimate_for(SimpleNamespace(tta="", adapter=SimpleNamespace(expected_gain_=None))) is None


def test_expected_and_measured_stand_side_by_side():
    gain = ExpectedGain(
        0.02, 0.0, 0.04, {"a": 0.02}, 0.7, 5, True, accuracy=0.72, accuracy_low=0.6, accuracy_high=0.84
    )
    here = {"gain": 0.024, "low": -0.01, "high": 0.058, "changed": 0.1}
    domains = {
        "new": {"trained_on": False, "estimated": here},
        "old": {"trained_on": True, "estimated": here},
    }
    text = compared(gain, {"mean": {"adapted": 0.65, "gain": 0.01}, "domains": domains})
    assert "from the share of labels that change: gain new +2.4 (-1.0 to +5.8). Measured" in text
    text = compared(gain, {"mean": {"adapted": 0.65, "gain": 0.01}, "domains": {}})
    assert "Expected: accuracy 72.0 % (90 % interval for a new domain: 60 to 84 %" in text
    assert "Measured: accuracy 65.0 %, gain +1.0." in text


def test_named_transforms_are_used_without_a_step_and_the_models_own_are_not(
    run, tiny_run, tmp_path, monkeypatch
):
    """`--num-steps 0` switches adaptation off, and the model's own test-time augmentation is part of it."""
    evaluated = []
    monkeypatch.setattr(
        "sourceward.model.evaluate", lambda model, *_, **options: evaluated.append(model) or {}
    )
    root = image_folder(tmp_path / "images")
    sw.load(tiny_run, "cpu").with_tta("grayscale").save(tmp_path / "own")
    for options in (["--tta", "hflip", "--num-steps", "0"], ["--num-steps", "0"], ["--tta", "none"], []):
        run(tmp_path / "own", root, "--json", *options)
    assert [model.tta for model in evaluated] == ["hflip", "", "", "grayscale"]
    assert [model.settings == model.settings.off() for model in evaluated] == [True, True, False, False]


def test_the_kind_of_the_data_is_checked_before_its_classes(run, tiny_run, tmp_path):
    table = text_table(tmp_path / "texts.csv")
    result = run(tiny_run, table, *[word for name in NAMED for word in ("--option", name)])
    assert isinstance(result.exception, InputError)
    assert str(result.exception) == "This model reads images, but the data holds texts."


def test_domains_that_were_trained_on_are_marked_and_not_in_the_mean(run, tiny_run, tmp_path):
    root = image_folder(tmp_path / "images")
    found = json.loads(run(tiny_run, root, "--target", "a", "--target", "c", "--json").stdout)
    assert [(name, scores["trained_on"]) for name, scores in found["domains"].items()] == [
        ("a", True),
        ("c", False),
    ]
    unseen = found["domains"]["c"]
    assert all(found["mean"][key] == unseen[key] for key in ("samples", "adapted", "gain", "gain_low"))
    shown = run(tiny_run, root, "--target", "a", "--target", "c").stdout
    assert "a (trained on)" in shown
    assert "mean of the unseen" in shown
    shown = run(tiny_run, root, "--target", "a", "--target", "b").stdout
    assert "mean of the unseen" not in shown
    assert "The model was trained on these domains" in shown


@pytest.mark.parametrize(
    ("low", "high", "word"), [(0.01, 0.02, "helps"), (-0.02, -0.01, "hurts"), (-0.01, 0.01, "No clear")]
)
def test_a_sentence_to_decide_by(low, high, word):
    assert word in verdict({"gain_low": low, "gain_high": high})


def test_no_prediction_changes_only_if_adaptation_is_off(run, tiny_run, tmp_path):
    same = {"gain_low": 0.0, "gain_high": 0.0}
    assert "no prediction changes" not in verdict(same), "a wrong prediction may have become another one"
    assert verdict(same).startswith("No difference")
    root = image_folder(tmp_path / "images")
    assert "no prediction changes" in run(tiny_run, root, "--num-steps", "0").stdout
    assert "no prediction changes" not in run(tiny_run, root).stdout
    assert "no prediction changes" not in run(tiny_run, root, "--num-steps", "0", "--tta", "hflip").stdout


def test_what_hurts_is_left_out():
    worse = {"gain_low": -0.02, "gain_high": -0.01}
    assert verdict(worse).endswith("Predict with --num-steps 0.")
    assert verdict(worse, tta="fourier").endswith("Predict with --num-steps 0 --tta none.")
