"""Accuracy and energy against the number of steps: without z, with p(z|x), and with the oracle's z."""

from collections.abc import Sequence

import numpy as np
import torch

from sourceward._util.tables import Table
from sourceward.algorithm import adapt
from sourceward.bench.experiments.base import Case, Context, Drawing, Outcome, experiment
from sourceward.bench.experiments.scores import Scores
from sourceward.functional import oracle_latent, row_keys

STEP_COUNTS = (0, 1, 2, 5, 10, 20, 50, 100, 150, 200)
NO_Z, PRIOR, ORACLE = "no z", "p(z|x)", "ORACLE z"
BLOCK = 512


@experiment(
    "steps", "Accuracy and energy against 0 to 200 steps: no z, p(z|x), and the true class's z (oracle)."
)
def steps(context: Context) -> Outcome:
    counts = (0, 1, 3) if context.small else STEP_COUNTS
    modes = (NO_Z, PRIOR, ORACLE)
    scores: dict[str, dict[int, Scores]] = {mode: {k: Scores() for k in counts} for mode in modes}
    energy: dict[str, dict[int, list[float]]] = {mode: {k: [] for k in counts} for mode in modes}
    for mode, settings in ((NO_Z, {"head": "linear"}), (PRIOR, {})):
        for case in context.cases(**settings):
            for k in counts:
                result = case.checkpoint.adapt(case.part, num_steps=k, aggregation="mean")
                scores[mode][k].add(mode, case.where, case.seed, case.right(result.probabilities))
                energy[mode][k].append(float(result.energy_after.mean()))
                if mode == PRIOR and case.checkpoint.network.latent is not None:
                    right, value = oracle_prediction(case, k)
                    scores[ORACLE][k].add(ORACLE, case.where, case.seed, right)
                    energy[ORACLE][k].append(value)
    shown = [mode for mode in modes if scores[mode][counts[0]].right]
    accuracy = {mode: [scores[mode][k].mean(mode) for k in counts] for mode in shown}
    energies = {mode: [float(np.mean(energy[mode][k])) for k in counts] for mode in shown}
    rows = [[mode, *(f"{value:.1f}" for value in accuracy[mode])] for mode in shown]
    rows += [[f"energy, {mode}", *(f"{value:.3f}" for value in energies[mode])] for mode in shown]
    caption = (
        "Mean over targets and seeds. ORACLE z is q(z|d) of the true class: an analysis, never a result. See "
        "where accuracy stops following the energy."
    )
    return Outcome(
        [Table(["accuracy, % after steps", *map(str, counts)], rows, caption)],
        [_figure(counts, accuracy, energies, context.num_steps)],
        {"steps": list(counts), "accuracy": accuracy, "energy": energies},
    )


@torch.no_grad()
def oracle_prediction(case: Case, num_steps: int) -> tuple[np.ndarray, float]:
    """Return right predictions and the mean energy when z is that of the true class."""
    checkpoint, part, network = case.checkpoint, case.part, case.checkpoint.network
    label = torch.from_numpy(checkpoint.class_indices(part.label)).to(part.feature.device)
    posterior = network.posterior(network.centers)
    assert posterior is not None
    settings = checkpoint.settings(num_steps, aggregation="mean")
    probability, energy = [], []
    for start in range(0, len(label), BLOCK):
        rows = slice(start, start + BLOCK)
        feature = part.feature[rows]
        keys = row_keys(feature.cpu().numpy(), settings.seed).to(feature.device)
        result = adapt(network, feature, keys, settings, latent=oracle_latent(posterior, label[rows]))
        probability.append(result.probability.cpu().numpy())
        energy.append(result.chain.energy_after.mean(0).cpu().numpy())
    return case.right(np.concatenate(probability)), float(np.concatenate(energy).mean())


def _figure(counts: Sequence[int], accuracy: dict, energies: dict, mark: int) -> Drawing:
    panels = [
        {"plot": "lines", "x": counts, "lines": lines, "xlabel": "steps", "ylabel": label, "mark": mark}
        for lines, label in ((accuracy, "accuracy, %"), (energies, "mean energy"))
    ]
    caption = (
        "Left accuracy, right mean energy; the dotted line is the number of steps in use. See how long "
        "accuracy rises while the energy falls, and whether z prolongs that. Sources have equal weights, as "
        "in the paper."
    )
    return Drawing("steps", caption, (9.0, 3.6), panels)
