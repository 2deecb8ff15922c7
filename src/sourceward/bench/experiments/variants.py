"""What each choice of the paper's training is worth: one setting changed at a time."""

from typing import Any

from sourceward._util.errors import InputError
from sourceward.bench.experiments.base import OFF, Context, Outcome, check_targets, experiment
from sourceward.bench.experiments.scores import Scores

BASE = "as given"
VARIANTS: dict[str, dict[str, Any]] = {
    BASE: {},
    "learning rates of heads x 10": {"learning_rate": 1e-3, "energy_learning_rate": 1e-3},
    "learning rate of the backbone x 5": {"backbone_learning_rate": 5e-5},
    "one update for all sources": {"update_per_source": False},
    "batch norm trained": {"freeze_batchnorm": False},
    "moving average of weights": {"train.average": 0.98},
    "KL weight 0.01": {"kl_weight": 0.01},
    "noise on features": {"train.feature_noise": 0.5},
    "32 chains, prior alone, 4 steps supervised": {
        "train.chains": 32,
        "train.chain_latent": "prior",
        "train.supervised_steps": 4,
    },
    "prototypes trained by adapted samples, too": {"train.guide_prototypes": True},
    "our augmentation": {
        "augmentation.fourier": 0.5,
        "augmentation.grayscale": 0.3,
        "augmentation.sketch": 0.3,
    },
}


def check(context: Context) -> None:
    """Refuse features: the variants are of a trained backbone."""
    for name, dataset in context.datasets():
        if dataset.kind == "features" or context.training.freeze:
            raise InputError(f"Experiment 'variants' trains a backbone, but '{name}' has none to train.")
    check_targets(context)


@experiment(
    "variants",
    "Joint training with one setting changed at a time: rates, batch norm, averaging, KL, chains.",
    "images, with a preset",
    check,
)
def variants(context: Context) -> Outcome:
    scores = Scores()
    against = {}
    rows = {
        "mean": {"num_steps": context.num_steps, "aggregation": "mean"},
        "energy": {"num_steps": context.num_steps, "aggregation": "energy"},
    }
    for name, settings in list(VARIANTS.items())[: 2 if context.small else None]:
        for case in context.cases(**settings):
            scores.add(f"{name}, {OFF}", case.where, case.seed, case.right_after(num_steps=0))
            for how, options in rows.items():
                row = f"{name}, {context.num_steps} steps, {how}"
                scores.add(row, case.where, case.seed, case.right_after(**options))
                against[row] = f"{name}, {OFF}"
        if name != BASE:
            against[f"{name}, {OFF}"] = f"{BASE}, {OFF}"
    caption = (
        "Accuracy, %. Differences: of a variant without adaptation to the first row, of an adapted row to "
        "the same model without adaptation."
    )
    return Outcome(
        [scores.table("accuracy, %", against, caption=caption)],
        [scores.drawing("variants", against)],
        numbers={"rows": scores.numbers(against), "num_steps": context.num_steps},
    )
