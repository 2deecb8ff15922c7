"""What failed in a grid is one line for each training method."""

from sourceward.report.grid import remarks


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
