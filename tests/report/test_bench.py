"""The page of a bench: what it says, and what it says only when it can."""

import json
import re

import pytest

from sourceward._util.errors import InputError
from sourceward.bench.protocol.methods import parse_methods
from sourceward.bench.protocol.plan import Plan, bench
from sourceward.bench.protocol.training import Training
from sourceward.bench.published import published
from sourceward.report.bench import bench_page, headline, notes
from sourceward.report.document import document
from sourceward.report.page import render
from sourceward.report.results import read_all, report_page
from sourceward.report.subject import choose_subject
from tests.bench.protocol.test_plan import QUICK, feature_file


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("results") / "bench"  # the parent holds these results alone
    out.mkdir()
    file = feature_file(out / "features.npz")
    methods = parse_methods(["linear", "ebtsa", "t3a", "tent"], [2, 4, 8])
    training = Training(QUICK | {"learning_rate": 0.05}, "cpu")
    results = bench(Plan((file,), methods, seeds=(0, 1), training=training), out)
    (out / "results.json").write_text(json.dumps({"command": "sourceward bench f.npz", **results}))
    return out


@pytest.fixture
def results(folder):
    return json.loads((folder / "results.json").read_text())


def test_a_page_answers_every_question(folder):
    html = render(report_page(folder))
    for title in (
        "Does it help?",
        "On which targets?",
        "How many steps?",
        "Which classes?",
        "Which classes are confused?",
        "Is the uncertainty reliable?",
        "Cost",
        "samples/s with 20 steps, peak memory",
        "Settings",
        "Run it again: sourceward bench f.npz",
        "95 % paired bootstrap interval over samples and seeds",
        "tent does not apply: tent adapts a backbone, but this model reads features.",
    ):
        assert title in html, title
    assert not re.search(r"<script|https?:|@import|<link", html)
    assert html.count("<svg") == 8
    assert html.count("<figcaption>") == 6


def test_a_mean_over_some_targets_is_not_compared_with_others(folder, results):
    rows = {row["method"]: row for row in results["table"]}
    rows["t3a"]["mean"] = rows["linear"]["mean"] = 2.0  # as if the hard target had failed
    for name in ("t3a", "linear"):
        rows[name]["targets"].popitem()
    page = bench_page(results, folder)
    compared = re.compile("Best of the other methods|A linear classifier")
    assert not any(compared.search(note) for note in page.notes)
    table = page.sections[0].tables[0]
    count = len(rows["none"]["targets"]) - 1
    texts = [row[1] for row in table.rows]
    assert sum(text.endswith(f"({count} target{'s' * (count != 1)})") for text in texts) == 2
    assert "target" not in texts[table.strong[0]]
    assert document("results", {"one": {"command": "", **results}}, []).count(f"{count} target") >= 2


@pytest.mark.parametrize(
    ("low", "gain", "high", "says"),
    [
        (0.01, 0.02, 0.03, "Adaptation (4 steps) helps"),
        (-0.01, 0.02, 0.03, "Adaptation (4 steps) makes no clear difference"),
        (-0.03, -0.02, -0.01, "Adaptation (4 steps) hurts"),
    ],
)
def test_the_headline_follows_the_interval(results, low, gain, high, says):
    subject = choose_subject(results, "ebtsa:num_steps=4")
    subject.row.update({"gain_low": low, "gain": gain, "gain_high": high})
    assert headline(subject).startswith(says)
    assert f"{100 * gain:+.1f} points, 95 % interval {100 * low:+.1f} to {100 * high:+.1f}" in headline(
        subject
    )


def test_the_headline_says_when_nothing_is_saved_or_lost(results):
    subject = choose_subject(results, "ebtsa:num_steps=4")
    for target in subject.row["targets"].values():
        target.update({"saved": 0, "lost": 0})
    assert "makes no difference: " in headline(subject)


def test_a_part_of_the_samples_is_compared_with_the_same_part_alone(results, folder):
    """`none` is of other samples too: its means, classes and confusion are not those of the part."""
    row = next(row for row in results["table"] if row["method"] == "t3a")
    row.update({"mean": 0.5, "gain": 0.125})
    for target in row["targets"].values():
        target.update({"mean": 0.5, "gain": 0.125})
    for run in results["runs"]:
        run["methods"]["t3a"]["rows"] = 9
    page = bench_page(results, folder, "t3a")
    assert "37.5\u00a0% becomes 50.0\u00a0%" in page.headline
    assert not any("linear classifier" in note for note in page.notes), "it is of all samples"
    sections = {section.title: section for section in page.sections}
    assert sections["On which targets?"].tables[0].rows[0][1] == "37.5"
    assert not {"Which classes?", "Which classes are confused?", "Is the uncertainty reliable?"} & set(
        sections
    )


def test_a_part_of_the_samples_is_ranked_with_no_one(results, folder):
    others = {row["method"]: row for row in results["table"]}
    others["t3a"]["mean"] = 0.99
    whole = bench_page(results, folder)
    assert any("Best of the other methods: t3a" in note for note in whole.notes)
    methods = [row["method"] for row in results["table"]]
    assert whole.sections[0].tables[0].strong == [methods.index("t3a")]
    for run in results["runs"]:
        run["methods"]["t3a"]["rows"] = 9
    page = bench_page(results, folder)
    assert not any("Best of the other methods" in note for note in page.notes)
    table = page.sections[0].tables[0]
    assert table.strong != whole.sections[0].tables[0].strong
    assert "of those evaluated on all rows" in table.caption


def test_the_subject_is_never_an_oracle(results):
    for row in results["table"]:
        row["oracle"] = row["method"].startswith("selected:")
    results["table"] = [r for r in results["table"] if r["oracle"] or r["method"] in ("none", "t3a")]
    for row in results["table"]:
        if row["oracle"]:
            row["method"] = "oracle:ebtsa"
    assert choose_subject(results).row["method"] == "t3a"


def test_targets_of_one_name_in_two_files_are_both_named(results):
    row = next(row for row in results["table"] if row["method"] == "ebtsa:num_steps=8")
    for number, where in enumerate(list(row["targets"])):
        row["targets"][f"again/{where.split('/')[1]}"] = row["targets"][where] | {"gain": 0.01 * number}
    text = notes(results, choose_subject(results, row["method"]))[0]
    assert all(f"{where} {100 * t['gain']:+.1f}" in text for where, t in row["targets"].items())


def test_without_auto_the_subject_is_five_steps(results):
    rows = [row for row in results["table"] if row["method"] in ("none", "ebtsa:num_steps=8")]
    rows += [rows[-1] | {"method": f"ebtsa:num_steps={steps}"} for steps in (10, 5)]
    assert choose_subject(results | {"table": rows}).row["method"] == "ebtsa:num_steps=5"


def test_a_selected_row_is_followed_from_run_to_run(results):
    row = next(row for row in results["table"] if row["method"] == "selected:ebtsa")
    keys = ["none", "ebtsa:num_steps=2", "ebtsa:num_steps=8"]
    row["chosen"] = {key: keys[i % 3] for i, key in enumerate(row["chosen"])}
    subject = choose_subject(results, "selected:ebtsa")
    for run in subject.runs:
        chosen = row["chosen"][f"{run['data']}/{run['target']}/{run['seed']}"]
        assert subject.numbers(run) is run["methods"][chosen]


def test_images_texts_and_ids_of_samples(results, folder, tmp_path):
    subject = choose_subject(results, "ebtsa:num_steps=8")
    key = subject.numbers(subject.runs[0])["run"]
    (tmp_path / "runs").mkdir()
    base = {"true": "x", "before": "y", "after": "x", "p_before": 0.1, "p_after": 0.9, "id": "row 7"}
    shown = [
        base | {"kind": "saved", "image": "data:image/jpeg;base64,AAAA"},
        base | {"kind": "saved", "text": "a <text>"},
        base | {"kind": "lost"},
    ]
    (tmp_path / "runs" / f"{key}.json").write_text(json.dumps({"samples": shown}))
    html = render(bench_page(results, tmp_path, "ebtsa:num_steps=8"))
    for part in (
        "Samples that were saved",
        "Samples that were lost",
        "a &lt;text&gt;",
        "row 7",
        'class="photo"',
    ):
        assert part in html, part


def test_a_page_without_cells_says_nothing_of_samples(results, tmp_path):
    assert "Samples that were" not in render(bench_page(results, tmp_path))


def test_the_expected_gain_stands_beside_the_measured_one(results, tmp_path):
    for run in results["runs"]:
        run["expected_gain"] = {"gain": 0.03, "low": 0.01, "high": 0.05}
    assert "xpected gain" not in render(bench_page(results, tmp_path)), "only of the default method"
    chosen = json.loads(json.dumps(results).replace("ebtsa:num_steps=4", "ebtsa:num_steps=auto"))
    html = render(bench_page(chosen, tmp_path))
    assert "Expected gain by leave-one-domain-out validation on the sources: +3.0 points" in html
    assert '<th scope="col">expected gain</th>' in html


def test_nothing_finished_is_a_page_too(results, tmp_path):
    results |= {
        "table": [],
        "runs": [],
        "failed": [{"method": "none", "reason": "No memory.", "target": "a"}],
    }
    html = render(bench_page(results, tmp_path))
    assert "No run finished." in html
    assert "none failed in some runs: No memory." in html


def test_bad_folders_and_adapters(folder, tmp_path):
    with pytest.raises(InputError, match=r"Expected results\.json in"):
        report_page(tmp_path)
    with pytest.raises(InputError, match="Did you mean 'ebtsa:num_steps=8'"):
        report_page(folder, "ebtsa:num_steps=9")
    (tmp_path / "results.json").write_text("{broken")
    with pytest.raises(InputError, match="is damaged"):
        report_page(tmp_path)
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(InputError, match="of an earlier version"):
        report_page(tmp_path)
    (tmp_path / "results.json").write_text('{"verdicts": []}')
    with pytest.raises(InputError, match=r"of `sourceward demo`.* Run it again\."):
        report_page(tmp_path)
    (tmp_path / "report.html").touch()
    with pytest.raises(InputError, match=r"of `sourceward demo`.* Open '.*report\.html'\."):
        report_page(tmp_path)


def test_all_results_as_one_markdown_page(folder, results):
    text = document("results", read_all(folder.parent), [row.to_dict() for row in published("comparison")])
    row = next(row for row in results["table"] if row["method"] == "ebtsa:num_steps=2")
    assert f"| {100 * row['mean']:.1f} ± {100 * row['std']:.1f} |" in text
    assert f"{100 * row['gain']:+.1f} ({100 * row['gain_low']:+.1f} to" in text
    assert "sourceward bench f.npz" in text
    assert "Published, with their own training and selection" in text
    with pytest.raises(InputError, match=r"Expected results\.json somewhere"):
        read_all(folder / "runs")
