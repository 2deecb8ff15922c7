"""What failed in a grid is one line for each training method; means over other targets are not compared."""

from sourceward.report.grid import finding, grid_table, headline, remarks, training_table


def failed(adapter, target, reason, unsuitable=False):
    return {"method": adapter, "target": target, "reason": reason, "unsuitable": unsuitable}


MEMORY = "OutOfMemoryError: CUDA out of memory. Tried to allocate {} MiB. GPU 0 has 8 GiB."


def said(*runs, targets=None):
    table = [{"method": "none", "targets": dict.fromkeys(targets)}] if targets else []
    whole = {"name": "erm", "table": [{"method": "none", "targets": dict.fromkeys("abc")}], "failed": []}
    own = {"name": "dson", "table": table, "failed": [*runs]}
    return remarks({"methods": [whole, own], "not_applicable": {}})


def test_a_training_method_that_failed_with_every_adapter_is_one_line():
    runs = [failed(adapter, "art", MEMORY.format(len(adapter))) for adapter in ("none", "tent")]
    unsuitable = failed("ttt", "sketch", "ttt needs a rotation head. Fit again.", unsuitable=True)
    assert said(*runs, unsuitable) == [
        "ttt does not apply after dson: ttt needs a rotation head. Fit again.",
        "dson FAILED on art with none, tent: OutOfMemoryError: CUDA out of memory.",
    ]


def test_what_failed_where_is_said_of_each_adapter():
    runs = [failed("none", "art", "A."), failed("t3a", "sketch", "A."), failed("tent", "sketch", "A.")]
    assert said(*runs) == ["dson FAILED on art with none: A.", "dson FAILED on sketch with t3a, tent: A."]


def test_a_reason_keeps_what_to_do():
    assert said(failed("none", "art", "Too few rows. Use --batch-size 8.")) == [
        "dson FAILED on art with none: Too few rows. Use --batch-size 8."
    ]


def test_a_method_that_failed_is_not_called_unfinished():
    assert said(targets="ab") == ["Not finished: dson, 2 of 3 targets."]
    assert said(failed("none", "c", "A."), targets="ab") == ["dson FAILED on c with none: A."]


def of_targets(name, gain=None, **accuracy):
    """A training method without adaptation, with runs on some targets."""
    row = {"method": "none", "label": "no adaptation", "oracle": False, "std": None}
    row["mean"] = sum(accuracy.values()) / len(accuracy) if accuracy else 0
    row["targets"] = {f"d/{target}": {"mean": mean, "std": None} for target, mean in accuracy.items()}
    against = gain and {"gain": gain, "gain_low": gain / 2, "gain_high": 2 * gain}
    own = {"name": name, "table": [row] if accuracy else [], "failed": [], "cost": None, "published": []}
    return own | {"against": against, "validation": 0.9 if accuracy else None}


def grid(*methods):
    shared = {"reference": "erm", "published": {"none": []}, "plus_minus": "", "not_applicable": {}}
    return {"methods": [*methods], **shared}


def test_means_over_other_targets_are_not_compared():
    results = grid(of_targets("erm", a=0.5, b=0.5), of_targets("dson", 0.1, b=0.6, c=0.9))
    assert headline(results) == "No pair has runs on every target."
    assert [row[1] for row in grid_table(results).rows] == ["50.0 (2 targets)", "75.0 (2 targets)"]
    assert training_table(results).strong == []
    assert remarks(results) == ["Not finished: erm, 2 of 3 targets.", "Not finished: dson, 2 of 3 targets."]
    assert "dson (+10.0 over 1 target)" in finding(results)


def test_validation_over_fewer_trainings_is_marked():
    results = grid(of_targets("erm", a=0.5, b=0.5), of_targets("dson", 0.1, b=0.6), of_targets("masf"))
    validation = training_table(results).header.index("source validation")
    assert [row[validation] for row in training_table(results).rows] == ["90.0", "90.0 (1 target)", "-"]
    assert training_table(results).strong == [0]
    assert headline(results).startswith("Best of 1 pairs")
    assert "dson (+10.0 over 1 target)" in finding(results)
    assert headline(grid(of_targets("erm"))) == "No run finished."


def test_a_difference_over_all_targets_says_no_more():
    assert "dson (+10.0);" in finding(grid(of_targets("erm", a=0.5), of_targets("dson", 0.1, a=0.6)))
