"""What the default costs: test-time augmentation and steps beside a prediction without adaptation."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sourceward.adaptation.tta import CopyResult, lead, level_average, levels, stopped_shares
from sourceward.bench.speed.models import Bare, SpeedPlan, make_images, make_model
from sourceward.bench.speed.timing import timed_in_turn
from sourceward.model import Model
from sourceward.model.captured import predict_images
from sourceward.nn.feature_statistics import FeatureStatistics, mean_statistics
from sourceward.settings import AdaptSettings
from sourceward.validation.crossfit import statistics_layers

TRANSFORMS = "hflip+crop+adain_mean"
"""What a cascade is measured with: one copy for each transform."""

FULL = "hflip+crop+adain"
"""The largest set that validation chooses from: five copies with three sources."""

ROUNDS = 5
"""On a CPU, rounds in which everything is timed once."""

POOL = 12
"""Images of a measurement at least: the cost of a cascade is a mean over samples."""


def default_prediction(device: torch.device, plan: SpeedPlan) -> list[dict[str, Any]]:
    """Time `Model` from pixels to probabilities: without adaptation, with steps, with all copies of every
    sample, and with a cascade, for several shares of samples in doubt. Ratios are to no adaptation."""
    return [
        _row(name, _model(name, scale, device, plan), batch, device, plan)
        for name in plan.default_backbones
        for scale in plan.copy_scales
        for batch in plan.batches
    ]


def _model(name: str, scale: float, device: torch.device, plan: SpeedPlan) -> Model:
    """A model whose copies have this share of the side of an image."""
    steps = AdaptSettings.num_steps
    model = make_model(name, Bare(name, device), plan.components, plan.image_size, steps, device)
    backbone, network = model.backbone, model.network
    assert backbone is not None
    backbone.preprocessing = replace(model.preprocessing, copy_scale=scale)
    layers = statistics_layers(backbone)
    inputs = model.preprocessing.normalize(make_images(2, plan.image_size, device))
    found = [mean_statistics(backbone, layers, [inputs * factor]) for factor in (0.5, 1.0, 2.0)]
    statistics = {layer: torch.stack([of[layer] for of in found]) for layer in layers}
    network.feature_statistics = FeatureStatistics(statistics).to(device)
    model.adapter.tta_ = TRANSFORMS
    return model.with_tta(TRANSFORMS)


def _row(name: str, model: Model, batch: int, device: torch.device, plan: SpeedPlan) -> dict[str, Any]:
    pool = make_images(max(batch, POOL), plan.image_size, device)
    brightness = torch.linspace(0.05, 1, len(pool), device=device)[torch.randperm(len(pool), device=device)]
    pool = (pool.float() * brightness.view(-1, 1, 1, 1)).byte()  # so that confidences differ
    batches = [part for part in pool.split(batch) if len(part) == batch]
    pool = torch.cat(batches)

    copies = predict_images(model, model.adapter_for(), pool, TRANSFORMS)
    doubt = [thresholds_for(copies, shares) for shares in plan.doubt]

    def cascade(thresholds: tuple[float, ...], images: Tensor) -> Any:
        model.adapter.tta_thresholds_ = thresholds
        return model.adapt_images(images)

    predict: dict[str, Callable[[Tensor], Any]] = {
        "none": lambda images: model.adapt_images(images, 0),
        "steps": model.with_tta("").adapt_images,
        "full_set": model.with_tta(FULL).adapt_images,
        "all_copies": model.with_tta(TRANSFORMS, cascade=False).adapt_images,
        **{str(number): partial(cascade, thresholds) for number, thresholds in enumerate(doubt)},
    }
    calls = {
        name: partial(lambda one: [one(images) for images in batches], one) for name, one in predict.items()
    }
    found = timed_in_turn(calls, device, min(ROUNDS, plan.repeats) if device.type == "cpu" else plan.repeats)
    row: dict[str, Any] = {"backbone": name, "batch": batch, "transforms": TRANSFORMS, "full_set": FULL}
    row["copy_size"] = model.preprocessing.copy_size
    for key in ("none", "steps", "full_set", "all_copies"):
        row[f"{key}_ms"], row[f"ratio_{key}"] = found[key][0] / len(batches), found[key][1]
    row["cascade"] = []
    for number, model.adapter.tta_thresholds_ in enumerate(doubt):
        stopped, (cost, ratio) = stopped_shares(copies, TRANSFORMS, model.tta_thresholds), found[str(number)]
        row["cascade"].append({"stopped": stopped, "ms": cost / len(batches), "ratio": ratio})
    return row


def thresholds_for(copies: Sequence[CopyResult], shares: Sequence[float]) -> tuple[float, ...]:
    """Thresholds by which these shares of the samples are in doubt: after the image, after one transform."""
    found, left = list[float](), np.ones(len(copies[0].result), dtype=bool)
    for level, share in zip(levels(TRANSFORMS, shares), shares):
        sure = np.where(left, lead(level_average(copies, level).probabilities), np.inf)
        found.append(float(np.sort(np.append(sure, np.inf))[round(share * len(left))]))
        left &= sure < found[-1]
    return tuple(found)
