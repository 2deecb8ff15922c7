"""Recorded benches: the gain from the share of changed labels beside the expected one."""

import json

import pytest

from sourceward.bench.experiments.recorded import AUTO, recorded_runs, with_unlabeled_rows


def bench(folder, changed, share):
    """One run: 10 % of the labels of held-out sources change, for a gain of 3 points."""
    expected = {"adapts": True, "per_source": {"a": 0.03, "b": 0.03, "c": 0.03}, "gain": 0.03}
    methods = {"none": {"accuracy": 0.5}, AUTO: {"accuracy": 0.62, **share}}
    where = {"data": "x", "target": "d", "seed": 0, "target_rows": 1000}
    run = where | {"expected_gain": expected | changed, "methods": methods}
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps({"kind": "bench", "runs": [run]}))


def test_targets_where_more_labels_change_gain_more(tmp_path):
    bench(tmp_path / "new", {"changed": dict.fromkeys("abc", 0.1)}, {"changed": 0.4})
    bench(tmp_path / "old", {}, {})
    found = with_unlabeled_rows(recorded_runs(tmp_path))
    assert found["runs"] == 1
    assert found["expected_minus_measured"] == pytest.approx(0.09)
    assert found["estimated_minus_measured"] == pytest.approx(0, abs=1e-9)
    assert found["interval_holds"] == 1


def test_benches_without_the_share_of_changed_labels_are_left_out(tmp_path):
    bench(tmp_path / "old", {}, {})
    assert with_unlabeled_rows(recorded_runs(tmp_path)) is None
