"""What adaptation costs: training against the length of its chains, answering against the number of steps."""

import statistics
import time
from typing import Any

import numpy as np
import torch

from sourceward.bench.experiments.base import Asked, Context, Drawing, Outcome, experiment
from sourceward.bench.quoted import quoted
from sourceward.estimator import EnergyAdapter
from sourceward.report.page import Table

TRAIN, TEST, ITERATIONS, BATCH = (1, 20, 40, 60, 80, 100), (0, 10, 20, 50), 20, 128


@experiment("cost", "Seconds of training and of answering against the number of steps.")
def cost(context: Context) -> Outcome:
    asked = next(iter(context.checkpoints()))
    lengths, iterations = ((1, 4), 3) if context.small else (TRAIN, ITERATIONS)
    training = {k: training_seconds(asked, k, iterations) for k in lengths}
    answering = {k: answering_seconds(asked, k) for k in TEST}
    hours = {row.method: row.mean for row in quoted("cost") if "hours" in row.measure}
    batch = {row.method: row.mean for row in quoted("cost") if row.measure.startswith("seconds")}
    rows = [["training, heads and energies on features that are there"]]
    rows += [
        [
            f"{k} steps",
            f"{1000 * s:.1f} ms an iteration",
            f"{1e4 * s / 3600:.2f} h per 10,000",
            _published(hours, k, "h"),
        ]
        for k, s in training.items()
    ]
    groups = [0, len(rows)]
    rows.append([f"answering, a batch of {BATCH} features"])
    rows += [
        [
            f"{k} steps",
            f"{1000 * s:.1f} ms",
            f"{1000 * s / BATCH:.3f} ms a sample",
            _published(batch, k, "s", "test batch, "),
        ]
        for k, s in answering.items()
    ]
    device = str(asked.part.feature.device)
    caption = (
        f"Measured on {device}, {asked.checkpoint.network.dim} features, "
        f"{asked.checkpoint.network.sources} sources. The "
        "published column is the paper's whole network with its ResNet-18 on a V100, backbone included: "
        "compare the "
        "slope, not the level."
    )
    return Outcome(
        [Table(["", "here", "", "published, PACS, ResNet-18, V100"], rows, caption, groups=groups)],
        [_figure(training, answering)],
        {"training_seconds": training, "answering_seconds": answering, "batch": BATCH, "device": device},
    )


def training_seconds(asked: Asked, train_steps: int, iterations: int) -> float:
    """Of one iteration, the first ones left out: a longer fit less a shorter one."""
    part = asked.checkpoint.source_part
    X = asked.checkpoint.network.raw(part.feature).cpu().numpy()
    names = np.asarray(part.dataset.domain_names)[part.dataset.domains]
    given = (asked.checkpoint.estimator or EnergyAdapter()).get_params()
    given |= {"train_steps": train_steps, "verbose": False, "allow_missing": True, "num_steps": 1}

    def seconds(count: int) -> float:
        start = time.perf_counter()
        EnergyAdapter(**{**given, "max_iter": count}).fit(X, part.label, sample_domain=names)
        return time.perf_counter() - start

    short = seconds(2)
    return max(seconds(2 + iterations) - short, 1e-9) / iterations


def answering_seconds(asked: Asked, num_steps: int, repeats: int = 5) -> float:
    """Median time for one batch."""
    from sourceward.bench.checkpoints import Part

    dataset = asked.part.dataset.select(np.arange(min(BATCH, len(asked.part.label))))
    part = Part(dataset, asked.part.feature[: len(dataset)])
    asked.checkpoint.run_chain(part, num_steps=num_steps)
    times = []
    for _ in range(repeats):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        start = time.perf_counter()
        asked.checkpoint.run_chain(part, num_steps=num_steps)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _published(values: dict[str, float], steps: int, unit: str, prefix: str = "") -> str:
    value = values.get(f"{prefix}{steps} steps")
    return "-" if value is None else f"{value:g} {unit}"


def _figure(training: dict[int, float], answering: dict[int, float]) -> Drawing:
    from sourceward.report import figures

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        for axes, values, label in ((left, training, "ms an iteration"), (right, answering, "ms a batch")):
            lines = {"here": [1000 * v for v in values.values()]}
            figures.draw_lines(axes, list(values), lines, xlabel="steps", ylabel=label)
            axes.set_ylim(bottom=0)

    caption = "Left: training. Right: answering. See how both grow with the steps."
    return Drawing("cost", caption, (8.0, 3.2), draw)
