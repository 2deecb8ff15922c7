"""Published numbers stand beside ours, and shortfalls are stated."""

from sourceward.bench.published import rows_for, targets_of
from sourceward.report.context import cost, inapplicable, shortfalls, uncertainty
from sourceward.report.document import document

PACS = targets_of("pacs")


def results(backbone="torchvision:resnet50-v1", mean=0.8495, targets=PACS):
    places = {f"pacs/{name}": {"mean": mean} for name in targets}
    row = {"method": "none", "label": "no adaptation", "mean": mean, "targets": places}
    finetune = {"images_per_second": 300.0, "peak_memory_mb": 500}
    run = {"fit_seconds": 60, "cost": {"finetune": finetune}, "methods": {"none": {"ms_per_sample": 4.0}}}
    found = {
        "table": [row],
        "classes": {"pacs": []},
        "settings": {"backbone": backbone},
        "runs": [run],
        "versions": {"machine": "linux"},
        "failed": [{"method": "ttt", "reason": "No rotation head.", "unsuitable": True}],
        "kind": "bench",
        "command": "",
        "plus_minus": "",
    }
    return found | {"published": rows_for(found)}


def test_a_shortfall_is_said():
    assert list(shortfalls(results())) == [
        "no adaptation: 1.1 points BELOW the paper, no adaptation (86.05)."
    ]
    assert "0.9 points above" in next(shortfalls(results(mean=0.8695)))


def test_a_mean_over_other_targets_is_no_comparison():
    """No adaptation was published as a mean over four targets; 20 steps for each of them."""
    some = results(targets=("photo", "sketch"))
    assert list(shortfalls(some)) == []
    some["table"].append(some["table"][0] | {"method": "ebtsa:num_steps=20", "label": "ours"})
    assert list(shortfalls(some)) == ["ours: 4.1 points BELOW the paper, 20 steps (89.03 on these targets)."]
    for row in some["table"]:
        row |= {"gain": 0, "gain_low": 0, "gain_high": 0, "std": None}
        for target in row["targets"].values():
            target["gain"] = 0
    text = document("results", {"results/x": some})
    assert (
        "| *published: the paper, 20 steps, resnet50, mean over these targets* | 97.7 | 80.4 | 89.03 |"
        in text
    )
    assert "| *published: the paper, no adaptation, resnet50* | - | - | - |" in text


def test_another_backbone_is_named():
    other = results("torchvision:mobilenet_v2")
    assert {row["backbone"] for row in other["published"]} == {"resnet18", "resnet50"}
    assert list(shortfalls(other)) == [
        "no adaptation: 1.6 points above the paper, no adaptation with resnet18 (83.33).",
        "no adaptation: 1.1 points BELOW the paper, no adaptation with resnet50 (86.05).",
    ]
    assert {row["backbone"] for row in results()["published"]} == {"resnet50"}


def test_other_data_has_nothing_beside():
    assert results(targets=("0", "90"))["published"] == []


def test_cost_and_what_does_not_apply():
    text = cost(results())
    assert "300 samples/s" in text
    assert "250 samples/s without" in text
    assert "500 MB" in text
    assert inapplicable(results()) == ["ttt does not apply: No rotation head."]


def test_the_peak_of_training_is_that_of_its_hungriest_stage():
    """Every stage has its own peak."""
    found = results()
    found["runs"][0]["cost"] = {
        "finetune": {"peak_memory_mb": 5477.1},
        "heads": {"peak_memory_mb": 500},
        "predict": {"num_steps": 20, "samples_per_second": 812.3, "peak_memory_mb": 9000.0},
    }
    text = cost(found)
    assert "; peak memory 5,477 MB; " in text
    assert text.endswith(
        "prediction 250 samples/s without, 812 samples/s with 20 steps, peak memory 9,000 MB."
    )


def test_uncertainty_is_reported_by_signal():
    found = results()
    signals = {"confidence": {"auroc": 0.9}, "energy before": {"auroc": 0.6}, "energy after": {"auroc": 0.1}}
    found["runs"][0]["methods"]["none"] |= {"uncertainty": signals, "calibration_error": 0.02}
    assert uncertainty(found) == (
        "Right against wrong predictions (AUROC): without adaptation confidence 0.90 and energy 0.60, "
        "calibration error 2.0 points."
    )
    assert uncertainty(results()) == ""
