"""Published numbers stand beside ours, and a shortfall is said."""

from sourceward.bench.quoted import PACS
from sourceward.report.beside import absent, cost, published, shortfalls, source_weights
from sourceward.report.document import _theirs


def results(backbone="torchvision:resnet50-v1", mean=0.8495, targets=PACS):
    places = {f"pacs/{name}": {"mean": mean} for name in targets}
    row = {"adapter": "none", "label": "no adaptation", "mean": mean, "targets": places}
    adapters = {"none": {"ms_per_sample": 4.0}}
    finetune = {"images_per_second": 300.0}
    cell = {
        "fit_seconds": 60,
        "fit_peak_memory_mb": 500,
        "cost": {"finetune": finetune},
        "adapters": adapters,
    }
    return {
        "table": [row],
        "classes": {"pacs": []},
        "settings": {"backbone": backbone},
        "cells": [cell],
        "versions": {"machine": "linux"},
        "failed": [{"adapter": "ttt", "reason": "No rotation head.", "unsuitable": True}],
    }


def test_a_shortfall_is_said():
    assert list(shortfalls(results())) == [
        "no adaptation: 1.1 points BELOW the paper, no adaptation (86.05)."
    ]
    assert "0.9 points above" in next(shortfalls(results(mean=0.8695)))


def test_a_mean_over_other_targets_is_no_comparison():
    """No adaptation was published as a mean over four targets; 20 steps for each of them."""
    some = results(targets=("photo", "sketch"))
    assert list(shortfalls(some)) == []
    some["table"].append(some["table"][0] | {"adapter": "ebtsa:num_steps=20", "label": "ours"})
    for_each = next(row for row in published(some) if row.per_target)
    mean_alone = next(row for row in published(some) if not row.per_target)
    places = ["pacs/photo", "pacs/sketch"]
    told = _theirs(for_each, places)
    assert (told[0][-26:], told[1:4]) == (", mean over these targets*", ["97.7", "80.4", "89.03"])
    assert _theirs(mean_alone, places)[1:4] == ["-", "-", "-"]
    assert list(shortfalls(some)) == ["ours: 4.1 points BELOW the paper, 20 steps (89.03 on these targets)."]


def test_another_backbone_is_named():
    assert {row.backbone for row in published(results("torchvision:mobilenet_v2"))} == {
        "resnet18",
        "resnet50",
    }
    assert list(shortfalls(results("torchvision:mobilenet_v2"))) == [
        "no adaptation: 1.6 points above the paper, no adaptation with resnet18 (83.33).",
        "no adaptation: 1.1 points BELOW the paper, no adaptation with resnet50 (86.05).",
    ]
    assert {row.backbone for row in published(results())} == {"resnet50"}


def test_other_data_has_nothing_beside():
    assert published(results(targets=("0", "90"))) == []


def test_cost_and_what_does_not_apply():
    said = cost(results())
    assert "300 samples/s" in said
    assert "250 samples/s without" in said
    assert "500 MB" in said
    assert absent(results()) == ["ttt does not apply: No rotation head."]


def test_the_peak_of_training_is_that_of_its_hungriest_stage():
    """The second stage starts the meter anew: what a file tells of the whole may be the second's alone."""
    found = results()
    found["cells"][0]["cost"] = {
        "finetune": {"peak_memory_mb": 5477.1},
        "heads": {"peak_memory_mb": 500},
        "predict": {"num_steps": 20, "samples_per_second": 812.3, "peak_memory_mb": 9000.0},
    }
    said = cost(found)
    assert "; peak memory 5,477 MB; " in said
    assert said.endswith(
        "prediction 250 samples/s without, 812 samples/s with 20 steps, peak memory 9,000 MB."
    )


def test_trust_is_told_by_signal():
    found = results()
    signals = {"confidence": {"auroc": 0.9}, "energy before": {"auroc": 0.6}, "energy after": {"auroc": 0.1}}
    found["cells"][0]["adapters"]["none"] |= {"source_weights": signals, "calibration_error": 0.02}
    assert source_weights(found) == (
        "Right answers told from wrong ones (AUROC): without adaptation confidence 0.90 and energy 0.60, "
        "calibration error 2.0 points."
    )
    assert source_weights(results()) == ""
