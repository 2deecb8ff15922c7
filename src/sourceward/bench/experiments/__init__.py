"""The paper's experiments: `sourceward reproduce NAME --data ...`; each module registers its own."""

from sourceward.bench.experiments import (
    ablation,
    comparison,
    corruptions,
    cost,
    gaps,
    harm,
    latent,
    maps,
    selection,
    sources,
    steps,
    trajectories,
    unseen,
    variants,
)
from sourceward.bench.experiments.base import EXPERIMENTS, Context, Experiment, Outcome, list_experiments
