"""What the default costs: test-time augmentation and steps beside a prediction without adaptation."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sourceward.adaptation.tta import in_doubt
from sourceward.bench.speed.models import Bare, SpeedPlan, make_images, make_model
from sourceward.bench.speed.timing import timed
from sourceward.model import Model
from sourceward.nn.feature_statistics import FeatureStatistics, mean_statistics
from sourceward.settings import AdaptSettings
from sourceward.validation.crossfit import statistics_layers

TRANSFORMS = "hflip+crop+adain"
"""What validation chooses for a fine-tuned backbone most often: six copies with three sources."""

POOL = 12
"""Images of a measurement at least: the cost of a cascade is a mean over samples."""


def default_prediction(device: torch.device, plan: SpeedPlan) -> list[dict[str, Any]]:
    """Time `Model` from pixels to probabilities: without adaptation, with steps, with all copies in one pass,
    and with copies of the samples in doubt, for several shares of those. Ratios are to no adaptation."""
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
    batches = [part for part in pool.split(batch) if len(part) == batch]
    pool = torch.cat(batches)

    def measured(predict: Callable[[Tensor], Any]) -> float:
        """Milliseconds of a batch."""
        call = partial(lambda: [predict(images) for images in batches])
        few = {"least": 2, "seconds": 0.0} if device.type == "cpu" else {"seconds": plan.seconds}
        return timed(call, device, repeats=plan.repeats, **few)["median_ms"] / len(batches)  # type: ignore[arg-type]

    plain = model.with_tta("").adapt_images(pool)
    sure = torch.from_numpy(plain.probabilities.max(1))
    row: dict[str, Any] = {"backbone": name, "batch": batch, "transforms": TRANSFORMS}
    row["none_ms"] = measured(lambda images: model.adapt_images(images, 0))
    row["steps_ms"] = measured(model.with_tta("").adapt_images)
    row["all_copies_ms"] = measured(model.with_tta(TRANSFORMS, cascade=False).adapt_images)
    row["cascade"] = []
    for share in plan.doubt:
        threshold = float(torch.quantile(sure, share))
        model.adapter.tta_threshold_ = threshold
        cost = measured(model.adapt_images)
        doubt = float(in_doubt(plain, threshold).mean())
        row["cascade"].append({"in_doubt": doubt, "ms": cost, "ratio": cost / row["none_ms"]})
    row["ratio_all_copies"] = row["all_copies_ms"] / row["none_ms"]
    return row
