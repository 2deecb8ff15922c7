"""What failed in a grid is one line for each training method."""

from sourceward.report.grid import remarks


def failed(adapter, target, reason, unsuitable=False):
    return {"method": adapter, "target": target, "reason": reason, "unsuitable": unsuitable}


def test_a_training_method_that_failed_with_every_adapter_is_one_line():
    memory = "OutOfMemoryError: CUDA out of memory. Process {} has 21.71 GiB memory in use."
    runs = [failed(adapter, "art", memory.format(id(adapter))) for adapter in ("none", "t3a")]
    runs += [failed("ttt", "sketch", "ttt needs a rotation head. Fit again.", unsuitable=True)]
    results = {"methods": [{"name": "dson", "table": [], "failed": runs}], "not_applicable": {}}
    assert remarks(results) == [
        "ttt does not apply after dson: ttt needs a rotation head. Fit again.",
        "dson FAILED on art with none, t3a: OutOfMemoryError: CUDA out of memory.",
    ]
