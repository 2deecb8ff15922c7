"""Accuracy and energy against the number of steps: without z, with p(z|x), and with the oracle's z."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from sourceward.algorithm import adapt
from sourceward.bench.experiments.base import Asked, Context, Drawing, Outcome, experiment
from sourceward.bench.experiments.scores import Scores
from sourceward.functional import oracle_latent, row_keys
from sourceward.report.page import Table

STEPS = (0, 1, 2, 5, 10, 20, 50, 100, 150, 200)
NO_Z, PRIOR, ORACLE = "no z", "p(z|x)", "ORACLE z"
BLOCK = 512


@experiment(
    "steps", "Accuracy and energy against 0 to 200 steps: no z, p(z|x), and the true class's z (oracle)."
)
def steps(context: Context) -> Outcome:
    numbers = (0, 1, 3) if context.small else STEPS
    scores: dict[str, dict[int, Scores]] = {
        mode: {k: Scores() for k in numbers} for mode in (NO_Z, PRIOR, ORACLE)
    }
    energy: dict[str, dict[int, list[float]]] = {m: {k: [] for k in numbers} for m in scores}
    for mode, settings in ((NO_Z, {"head": "linear"}), (PRIOR, {})):
        for asked in context.checkpoints(**settings):
            latent = asked.checkpoint.network.latent is not None
            for k in numbers:
                answer = asked.checkpoint.run_chain(asked.part, num_steps=k, aggregation="mean")
                said = asked.checkpoint.codes[answer.probabilities.argmax(1)]
                scores[mode][k].add(mode, asked.place, asked.seed, said == asked.part.label)
                energy[mode][k].append(float(answer.energy_after.mean()))
                if mode == PRIOR and latent:
                    right, value = oracle_answer(asked, k)
                    scores[ORACLE][k].add(ORACLE, asked.place, asked.seed, right)
                    energy[ORACLE][k].append(value)
    modes = [mode for mode in scores if scores[mode][numbers[0]].right]
    accuracy = {mode: [scores[mode][k].mean(mode) for k in numbers] for mode in modes}
    energies = {mode: [float(np.mean(energy[mode][k])) for k in numbers] for mode in modes}
    rows = [[mode, *(f"{value:.1f}" for value in accuracy[mode])] for mode in modes]
    rows += [[f"energy, {mode}", *(f"{value:.3f}" for value in energies[mode])] for mode in modes]
    caption = (
        "Mean over targets and seeds. ORACLE z is q(z|d) of the true class: an analysis, never a result. "
        "See where "
        "accuracy stops following the energy down."
    )
    return Outcome(
        [Table(["accuracy, % after steps", *map(str, numbers)], rows, caption)],
        [_figure(numbers, accuracy, energies, context.num_steps)],
        {"steps": list(numbers), "accuracy": accuracy, "energy": energies},
    )


@torch.no_grad()
def oracle_answer(asked: Asked, num_steps: int) -> tuple[np.ndarray, float]:
    """Right answers and mean energy when z is that of the true class."""
    checkpoint, part = asked.checkpoint, asked.part
    network = checkpoint.network
    label = torch.from_numpy(checkpoint.numbers(part.label)).to(part.feature.device)
    posterior = network.posterior(network.centers)
    assert posterior is not None
    settings = replace(checkpoint.settings, num_steps=num_steps, aggregation="mean")
    said, energy = [], []
    for start in range(0, len(label), BLOCK):
        rows = slice(start, start + BLOCK)
        feature = part.feature[rows]
        keys = row_keys(feature.cpu().numpy(), settings.seed).to(feature.device)
        answer = adapt(network, feature, keys, settings, latent=oracle_latent(posterior, label[rows]))
        said.append(answer.probability.argmax(1).cpu().numpy())
        energy.append(answer.chain.energy_after.mean(0).cpu().numpy())
    right = checkpoint.codes[np.concatenate(said)] == part.label
    return right, float(np.concatenate(energy).mean())


def _figure(numbers: Any, accuracy: dict, energies: dict, mark: int) -> Drawing:
    from sourceward.report import figures

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        figures.draw_lines(left, numbers, accuracy, xlabel="steps", ylabel="accuracy, %", mark=mark)
        figures.draw_lines(right, numbers, energies, xlabel="steps", ylabel="mean energy", mark=mark)

    caption = (
        "Left accuracy, right mean energy; the dotted line is the number of steps in use. See how long "
        "accuracy rises while the energy falls, and whether z prolongs that. Every source has one vote, as "
        "in the paper."
    )
    return Drawing("steps", caption, (9.0, 3.6), draw)
