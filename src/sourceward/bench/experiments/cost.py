"""The cost of adaptation: training against the length of its chains, prediction against the steps."""

import time
from dataclasses import replace

import numpy as np
import torch
from sklearn.base import clone

from sourceward._util.tables import Table
from sourceward.bench.experiments.base import Case, Context, Drawing, Outcome, experiment
from sourceward.bench.published import published
from sourceward.bench.speed.timing import timed
from sourceward.settings import TrainSettings

CHAIN_LENGTHS, STEP_COUNTS, ITERATIONS, BATCH = (1, 20, 40, 60, 80, 100), (0, 10, 20, 50), 20, 128


@experiment("cost", "Seconds of training and of prediction against the number of steps.")
def cost(context: Context) -> Outcome:
    case = next(iter(context.cases()))
    lengths, iterations = ((1, 4), 3) if context.small else (CHAIN_LENGTHS, ITERATIONS)
    training = {k: training_seconds(case, k, iterations) for k in lengths}
    prediction = {k: prediction_seconds(case, k) for k in STEP_COUNTS}
    known = {row.method: f"{row.mean:g} {row.measure[0]}" for row in published("cost")}
    rows = [
        ["training, heads and energies on stored features"],
        *(
            [
                f"{k} steps",
                f"{1000 * s:.1f} ms an iteration",
                f"{1e4 * s / 3600:.2f} h per 10,000",
                known.get(f"{k} steps", "-"),
            ]
            for k, s in training.items()
        ),
        [f"prediction, a batch of {BATCH} features"],
        *(
            [
                f"{k} steps",
                f"{1000 * s:.1f} ms",
                f"{1000 * s / BATCH:.3f} ms a sample",
                known.get(f"test batch, {k} steps", "-"),
            ]
            for k, s in prediction.items()
        ),
    ]
    device, network = str(case.part.feature.device), case.checkpoint.network
    caption = (
        f"Measured on {device}, {network.dim} features, {network.sources} sources. The published column is "
        "the paper's whole network with its ResNet-18 on a V100, backbone included: compare the slope, not "
        "the level."
    )
    header = ["", "here", "", "published, PACS, ResNet-18, V100"]
    return Outcome(
        [Table(header, rows, caption, groups=[0, 1 + len(training)])],
        [_figure(training, prediction)],
        {"training_seconds": training, "prediction_seconds": prediction, "batch": BATCH, "device": device},
    )


def training_seconds(case: Case, chain_length: int, iterations: int) -> float:
    """Return the seconds of one iteration: a longer fit less a shorter one."""
    part = case.checkpoint.source_part
    X = case.checkpoint.network.raw(part.feature).cpu().numpy()
    names = np.asarray(part.dataset.domain_names)[part.dataset.domains]
    own = case.checkpoint.model.adapter
    settings = replace(TrainSettings.of(own.train), num_steps=chain_length)

    def seconds(count: int) -> float:
        estimator = clone(own).set_params(train=settings, num_steps=1, max_iter=count, verbose=False)
        start = time.perf_counter()
        estimator.set_params(checkpoint=None).fit(X, part.label, names, allow_missing=True)
        return time.perf_counter() - start

    short = seconds(2)
    return max(seconds(2 + iterations) - short, 1e-9) / iterations


def prediction_seconds(case: Case, num_steps: int) -> float:
    """Return the median seconds for one batch."""
    part = case.part.select(np.arange(min(BATCH, len(case.part.label))))
    device = torch.device(part.feature.device)
    found = timed(lambda: case.checkpoint.adapt(part, num_steps=num_steps), device, repeats=5, seconds=60)
    return found["median_ms"] / 1000


def _figure(training: dict[int, float], prediction: dict[int, float]) -> Drawing:
    panels = [
        {
            "plot": "lines",
            "x": list(values),
            "lines": {"here": [1000 * v for v in values.values()]},
            "xlabel": "steps",
            "ylabel": label,
            "from_zero": True,
        }
        for values, label in ((training, "ms an iteration"), (prediction, "ms a batch"))
    ]
    return Drawing("cost", "Left: training. Right: prediction, against the steps.", (8.0, 3.2), panels)
