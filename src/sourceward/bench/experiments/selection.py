"""What choosing a checkpoint by target accuracy is worth, with and without adaptation."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from sourceward._util.errors import InputError
from sourceward._util.reading import read_regular
from sourceward.bench.experiments.base import ADAPTED, OFF, Case, Context, Outcome, check_targets, experiment
from sourceward.bench.experiments.scores import Scores
from sourceward.model import load
from sourceward.training.run_folder import KEPT

LAST, SOURCE, ORACLE = "last iteration", "best on source validation", "ORACLE: best on the target"
VALIDATED = {OFF: "unadapted", ADAPTED: "adapted"}


def check(context: Context) -> None:
    """Refuse a training that keeps one checkpoint alone."""
    for name, dataset in context.datasets():
        settings = context.training.fit_settings(dataset.kind)
        if dataset.kind == "features" or context.training.freeze or settings.recipe != "joint":
            raise InputError(
                f"Experiment 'selection' compares checkpoints of the recipe 'joint', but '{name}' is not "
                "trained by it. Use images or texts with --preset, or --set recipe=joint."
            )
    check_targets(context)


@experiment(
    "selection",
    "Checkpoints chosen by source validation, by the last iteration, and by the target (oracle).",
    "images or texts, with a preset or recipe=joint",
    check,
)
def selection(context: Context) -> Outcome:
    scores = Scores()
    for case in context.cases(keep_checkpoints=True):
        validated = _validation(case)
        right = _right(case, context.num_steps)
        for how in (OFF, ADAPTED):
            last = max(right)
            source = max(right, key=lambda iteration: validated[iteration][VALIDATED[how]])
            oracle = max(right, key=lambda iteration: right[iteration][how].mean())
            for name, iteration in ((LAST, last), (SOURCE, source), (ORACLE, oracle)):
                scores.add(f"{name}, {how}", case.where, case.seed, right[iteration][how])
    against = {f"{ORACLE}, {how}": f"{SOURCE}, {how}" for how in (OFF, ADAPTED)}
    against |= {f"{name}, {ADAPTED}": f"{name}, {OFF}" for name in (LAST, SOURCE)}
    against[f"{ORACLE}, {ADAPTED}"] = f"{SOURCE}, {OFF}"
    caption = (
        f"Accuracy, %, at {context.num_steps} steps. ORACLE looks at the labels of the target: an upper "
        f"bound, never a result. Its last row is compared with {SOURCE}, {OFF}: what a table shows in which "
        "the adapted model alone was chosen by the target."
    )
    return Outcome(
        [scores.table("accuracy, %", against, caption=caption)],
        [scores.drawing("selection", against)],
        numbers={"rows": scores.numbers(against), "num_steps": context.num_steps},
    )


def _folder(case: Case) -> Path:
    assert case.checkpoint.folder is not None
    return case.checkpoint.folder


def _validation(case: Case) -> dict[int, dict[str, float]]:
    """Scores on source validation by iteration."""
    lines = map(json.loads, read_regular(_folder(case) / "metrics.jsonl").splitlines())
    return {line["iteration"]: line["validation"] for line in lines if "validation" in line}


def _right(case: Case, num_steps: int) -> dict[int, dict[str, np.ndarray]]:
    """Right predictions on the target of every kept checkpoint, without and with adaptation."""
    found = {}
    for file in sorted((_folder(case) / KEPT).glob("*.safetensors")):
        model = load(_folder(case), case.checkpoint.model.device, weights=f"{KEPT}/{file.name}")
        kept = replace(case.checkpoint, model=model)
        one = case._replace(checkpoint=kept, part=kept.part(case.target))
        found[int(file.stem)] = {
            how: one.right_after(num_steps=steps) for how, steps in ((OFF, 0), (ADAPTED, num_steps))
        }
    return found
