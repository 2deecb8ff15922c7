"""The sections of `bench speed`: which are run, and running them."""

import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from sourceward._util.errors import InputError, unknown_name
from sourceward.bench.speed import data, default, growth, prediction, training
from sourceward.bench.speed.models import SpeedPlan

DEFAULT: dict[str, Callable[[torch.device, SpeedPlan], Any]] = {
    "default": default.default_prediction,
    "files": data.predict_from_files,
    "growth": growth.growth_by_size,
    "busy_fit": data.fit_beside_a_busy_process,
    "frozen_fit": data.frozen_fit,
}
PREDICTION: dict[str, Callable[[torch.device, SpeedPlan], Any]] = {
    "chain": prediction.chain_beside_backbone,
    "axes": prediction.axes,
    "predict": prediction.whole_prediction,
    "memory": prediction.memory,
    "agreement": training.agreement,
}
TRAINING: dict[str, Callable[[torch.device, SpeedPlan], Any]] = {
    "feature_training": training.feature_training,
    "image_training": training.image_training,
    "compiled_training": partial(training.image_training, compiled=True),
}
SECTIONS = DEFAULT | PREDICTION | TRAINING
GROUPS = {"costs": tuple(DEFAULT), "prediction": tuple(PREDICTION), "training": tuple(TRAINING)}


def chosen(only: str, device: torch.device, image_size: int) -> tuple[str, ...]:
    """Return the sections named by `only`, names of sections or groups by comma; all when empty.

    Those that would take hours on a CPU are left out there.

    >>> chosen("memory,training", torch.device("cuda"), 224)
    ('memory', 'feature_training', 'image_training', 'compiled_training')
    """
    wanted: list[str] = []
    for name in only.split(",") if only else GROUPS:
        if name not in SECTIONS and name not in GROUPS:
            raise unknown_name("section", name, [*GROUPS, *SECTIONS])
        wanted += GROUPS.get(name, (name,))
    hours = set()
    if device.type != "cuda":
        hours = {"compiled_training"} if image_size < 224 else {"image_training", "compiled_training"}
    found = tuple(name for name in SECTIONS if name in wanted and name not in hours)
    if not found:
        raise InputError(f"Expected `--device cuda` for `--only {only}`: on a CPU it takes hours.")
    return found


def bench_speed(
    device: torch.device,
    plan: SpeedPlan,
    on_section: Callable[[str, dict[str, Any]], None] | None = None,
    only: str = "",
) -> dict[str, Any]:
    """Run sections; returns the numbers of each. One that fails has its error instead; the others go on.

    Args:
        device: where to run.
        plan: what to measure.
        on_section: called with the name of each finished section and all results so far.
        only: see `chosen`.
    """
    torch.manual_seed(plan.seed)
    results: dict[str, Any] = {}
    for name in chosen(only, device, plan.image_size):
        begin = time.perf_counter()
        try:
            results[name] = SECTIONS[name](device, plan)
        except Exception:
            results[name] = {"error": traceback.format_exc()}
        if device.type == "cuda":
            torch.cuda.empty_cache()
        results.setdefault("seconds", {})[name] = round(time.perf_counter() - begin, 1)
        if on_section is not None:
            on_section(name, results)
    return results
