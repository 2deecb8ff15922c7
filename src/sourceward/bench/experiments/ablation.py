"""With and without latent, with and without adaptation."""

from sourceward.bench.experiments.base import ADAPTED, OFF, Context, Outcome, experiment
from sourceward.bench.experiments.scores import Scores

VARIANTS = {"no latent": {"head": "linear"}, "latent": {}}
"""Without latent the energy is E(x), the loss is eq. 7 and the classifier is linear."""


@experiment("ablation", "With and without the latent z, with and without adaptation.")
def ablation(context: Context) -> Outcome:
    scores = Scores()
    for name, settings in VARIANTS.items():
        for case in context.cases(**settings):
            for how, steps in ((OFF, 0), (ADAPTED, context.num_steps)):
                scores.add(f"{name}, {how}", case.where, case.seed, case.right_after(num_steps=steps))
    against = {f"{name}, {ADAPTED}": f"{name}, {OFF}" for name in VARIANTS}
    caption = (
        f"Accuracy, %, at {context.num_steps} steps. Compare the gain with and without z, which preserves "
        "the class along the chain."
    )
    return Outcome(
        [scores.table("accuracy, %", against, context.published("ablation"), caption)],
        [scores.drawing("ablation", against)],
        numbers={"rows": scores.numbers(against), "num_steps": context.num_steps},
    )
