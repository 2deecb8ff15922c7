"""What the default costs: test-time augmentation and steps beside a prediction without adaptation."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sourceward.adaptation.tta import CopyResult, level_average, levels, stopped_shares
from sourceward.bench.speed.models import Bare, SpeedPlan, make_images, make_model
from sourceward.bench.speed.timing import timed
from sourceward.model import Model
from sourceward.model.captured import predict_images
from sourceward.nn.feature_statistics import FeatureStatistics, mean_statistics
from sourceward.settings import AdaptSettings
from sourceward.validation.crossfit import statistics_layers

TRANSFORMS = "hflip+crop+adain_mean"
"""What a cascade is measured with: one copy for each transform."""

FULL = "hflip+crop+adain"
"""The largest set that validation chooses from: five copies with three sources."""

POOL = 12
"""Images of a measurement at least: the cost of a cascade is a mean over samples."""


def default_prediction(device: torch.device, plan: SpeedPlan) -> list[dict[str, Any]]:
    """Time `Model` from pixels to probabilities: without adaptation, with steps, with all copies of every
    sample, and with a cascade, for several shares of samples in doubt. Ratios are to no adaptation."""
    return [
        _row(name, _model(name, device, plan), batch, device, plan)
        for name in plan.default_backbones
        for batch in plan.batches
    ]


def _model(name: str, device: torch.device, plan: SpeedPlan) -> Model:
    steps = AdaptSettings.num_steps
    model = make_model(name, Bare(name, device), plan.components, plan.image_size, steps, device)
    backbone, network = model.backbone, model.network
    assert backbone is not None
    layers = statistics_layers(backbone)
    inputs = model.preprocessing.normalize(make_images(2, plan.image_size, device))
    found = [mean_statistics(backbone, layers, [inputs * scale]) for scale in (0.5, 1.0, 2.0)]
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

    def measured(predict: Callable[[Tensor], Any]) -> float:
        """Milliseconds of a batch."""
        call = partial(lambda: [predict(images) for images in batches])
        few = {"least": 2, "seconds": 0.0} if device.type == "cpu" else {"seconds": plan.seconds}
        return timed(call, device, repeats=plan.repeats, **few)["median_ms"] / len(batches)  # type: ignore[arg-type]

    copies = predict_images(model, model.adapter_for(), pool, TRANSFORMS)
    row: dict[str, Any] = {"backbone": name, "batch": batch, "transforms": TRANSFORMS, "full_set": FULL}
    row["none_ms"] = measured(lambda images: model.adapt_images(images, 0))
    row["steps_ms"] = measured(model.with_tta("").adapt_images)
    row["full_set_ms"] = measured(model.with_tta(FULL).adapt_images)
    row["all_copies_ms"] = measured(model.with_tta(TRANSFORMS, cascade=False).adapt_images)
    row["cascade"] = []
    for shares in plan.doubt:
        model.adapter.tta_thresholds_ = thresholds_for(copies, shares)
        cost, stopped = measured(model.adapt_images), stopped_shares(copies, TRANSFORMS, model.tta_thresholds)
        row["cascade"].append({"stopped": stopped, "ms": cost, "ratio": cost / row["none_ms"]})
    for key in ("full_set", "all_copies"):
        row[f"ratio_{key}"] = row[f"{key}_ms"] / row["none_ms"]
    return row


def thresholds_for(copies: Sequence[CopyResult], shares: Sequence[float]) -> tuple[float, ...]:
    """Thresholds by which these shares of the samples are in doubt: after the image, after one transform."""
    found, left = list[float](), np.ones(len(copies[0].result), dtype=bool)
    for level, share in zip(levels(TRANSFORMS, shares), shares):
        sure = np.where(left, level_average(copies, level).probabilities.max(1), np.inf)
        found.append(float(np.sort(np.append(sure, np.inf))[round(share * len(left))]))
        left &= sure < found[-1]
    return tuple(found)
