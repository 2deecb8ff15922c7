"""The paper's experiments: `sourceward reproduce NAME --data ...`; each module registers its own."""

from sourceward.bench.experiments import (  # noqa: F401 (they register themselves)
    ablation,
    comparison,
    corruptions,
    cost,
    gaps,
    latent,
    maps,
    selection,
    sources,
    steps,
    trajectories,
    variants,
)
from sourceward.bench.experiments.base import EXPERIMENTS, Context, Experiment, Outcome, list_experiments

__all__ = ["EXPERIMENTS", "Context", "Experiment", "Outcome", "list_experiments"]
