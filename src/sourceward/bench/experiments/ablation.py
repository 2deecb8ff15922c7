"""With and without latent, with and without adaptation."""

from sourceward.bench.experiments.base import Context, Outcome, experiment
from sourceward.bench.experiments.scores import Scores

CELLS = {"no latent": {"head": "linear"}, "latent": {}}
"""Without latent the energy is E(x), the loss is eq. 7 and the classifier is linear."""


@experiment("ablation", "With and without the latent z, with and without adaptation.")
def ablation(context: Context) -> Outcome:
    scores = Scores()
    for name, settings in CELLS.items():
        for asked in context.checkpoints(**settings):
            for how, steps in (("no adaptation", 0), ("adapted", context.num_steps)):
                answer = asked.checkpoint.run_chain(asked.part, num_steps=steps)
                said = asked.checkpoint.codes[answer.probabilities.argmax(1)]
                scores.add(f"{name}, {how}", asked.place, asked.seed, said == asked.part.label)
    against = {f"{name}, adapted": f"{name}, no adaptation" for name in CELLS}
    caption = (
        f"Accuracy, %, at {context.num_steps} steps. See whether adaptation helps more with z, which keeps "
        "the "
        "class while the sample moves."
    )
    return Outcome(
        [scores.table("accuracy, %", against, context.published("ablation"), caption)],
        [scores.drawing("ablation", against)],
        numbers={"rows": scores.numbers(against), "num_steps": context.num_steps},
    )
