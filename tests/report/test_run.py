"""The page of a run and of several: from model folders and evaluations of the command line."""

import json
import re
import shutil

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from sourceward._util.errors import InputError
from sourceward._util.tables import Table
from sourceward.cli.evaluate import evaluate
from sourceward.cli.report import report
from sourceward.report.page import Page, Section, is_wide, render
from sourceward.report.results import report_page
from sourceward.report.run import headline, notes, read_run, run_page
from tests.tiny_runs import fit_tiny, four_domains, four_features, image_folder
from tests.words import old_words


def run_command(command, *arguments):
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs on features: three sources with validation, and two without; the first is evaluated."""
    root, data = tmp_path_factory.mktemp("report"), four_features()
    names = {"domains": np.array(data.domain_names), "classes": np.array(data.classes)}
    np.savez(root / "data.npz", features=data.items, label=data.labels, domain=data.domains, **names)
    out = root / "runs"
    fit_tiny(data, out / "three", target="d", settings={"num_steps": "auto", "max_iter": 5})
    fit_tiny(data, out / "two", target=("c", "d"))
    run_command(evaluate, out / "three", root / "data.npz", "--json")
    return out


def test_a_page_answers_every_question(runs):
    html = render(report_page(runs / "three"))
    for title in (
        "Expected and measured",
        "What was chosen, and why",
        "held-out source",
        "Data",
        "Which classes?",
        "Which classes are confused?",
        "balanced accuracy",
        "The most confident mistakes",
        "Trust and coverage",
        "Cost",
        "Settings",
    ):
        assert title in html, title
    assert not re.search(r"<script|https?:|@import|<link", html)
    assert not old_words(re.sub("<[^>]*>", " ", html.split("<main>")[1]))


def test_what_was_measured_stands_beside_what_was_expected(runs):
    run = read_run(runs / "three")
    measured, expected = run.rows[0].scores["adapted"], run.config["expected_gain"]["accuracy"]
    beside = f"expected on an unseen domain: {100 * expected:.1f} % ("
    assert f"Accuracy on d: {100 * measured:.1f} %; {beside}" in headline(run)


def test_a_run_that_was_not_evaluated_or_validated_has_a_page_without_empty_parts(runs):
    page = run_page(read_run(runs / "two"))
    assert page.headline == "Expected accuracy on an unseen domain: not estimated."
    assert any("sourceward evaluate" in note for note in page.notes)
    assert any("validation needs three sources, and there are 2" in note for note in page.notes)
    assert [section.title for section in page.sections] == [
        "What was chosen, and why",
        "Data",
        "Cost",
        "Settings",
    ]
    assert "<svg" not in render(page)


def test_counts_of_the_sources_are_on_the_page(runs):
    data = next(s for s in run_page(read_run(runs / "three")).sections if s.title == "Data")
    by_source, by_class = data.tables
    assert [row[0] for row in by_source.rows] == ["a", "b", "c"]
    assert sum(int(row[1]) for row in by_source.rows) == sum(int(n) for row in by_class.rows for n in row[1:])


def test_an_accuracy_outside_of_the_interval_and_below_the_largest_class_is_noted(runs):
    run = read_run(runs / "three")
    run.rows[0].scores.update({"adapted": 0.2, "majority": 0.4})
    run.config["expected_gain"].update({"accuracy_low": 0.5, "accuracy_high": 0.9})
    text = " ".join(notes(run))
    assert "d: the accuracy lies outside of the interval that was expected." in text
    assert "d: always predicting its largest class would be as accurate." in text


def test_evaluations_of_another_model_are_left_out(runs, tmp_path):
    shutil.copytree(runs / "three", tmp_path / "run")
    (file,) = (tmp_path / "run" / "evaluations").iterdir()
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model": "another"}))
    assert not read_run(tmp_path / "run").rows


def test_other_settings_do_not_make_the_headline(runs, tmp_path):
    shutil.copytree(runs / "three", tmp_path / "run")
    (file,) = (tmp_path / "run" / "evaluations").iterdir()
    other = json.loads(file.read_text())
    other["settings"]["num_steps"], other["domains"]["d"]["adapted"] = 7, 0.0
    (file.parent / "other.json").write_text(json.dumps(other))
    run = read_run(tmp_path / "run")
    assert [row.name for row in run.rows] == ["d", "d (7 steps, no TTA)"]
    assert [row.name for row in run.unseen] == ["d"]


def test_images_of_saved_and_lost_samples(tmp_path):
    data = four_domains()
    fit_tiny(data, tmp_path / "run", target="d", freeze=True)
    run_command(evaluate, tmp_path / "run", image_folder(tmp_path / "images"), "--target", "c")
    assert "data:image/png;base64," in render(report_page(tmp_path / "run"))


def test_a_folder_of_runs_is_compared(runs):
    shown = run_command(report, runs)
    assert "Of 2 runs, three is the most accurate" in shown
    page = report_page(runs)
    assert [row[0] for row in page.sections[0].tables[0].rows] == ["three", "two"]
    assert page.sections[0].tables[0].rows[1][1:] == ["-", "-", "-", "-"]
    assert (runs / "report.html").read_text() == render(page)


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "in it or in its subfolders, but found none"), ("{}", "is damaged"), ("[", "is damaged")],
)
def test_a_folder_that_is_no_run_is_refused(content, says, tmp_path):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(InputError, match=says):
        report_page(tmp_path)


def test_wide_tables_are_stacked_on_a_phone():
    table = Table(["domain", "without adaptation", "with adaptation", "difference"], [["a", "1", "2", "3"]])
    assert is_wide(table)
    html = render(Page("t", "h", [], [Section("s", tables=[table])]))
    assert '<table class="stack">' in html
    assert '<td data-label="difference">3</td>' in html
