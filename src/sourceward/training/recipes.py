"""Defaults of `fit` that depend on how a backbone is trained."""

from typing import Any

from sourceward.settings import AUTO, KL_WEIGHT, WHITEN, LoopSettings, TrainSettings

RECIPES = ("two-stage", "joint")

TWO_STAGE: dict[str, Any] = {
    "num_steps": AUTO,
    **{name: getattr(LoopSettings, name) for name in ("max_iter", "batch_size", "learning_rate")},
    "backbone_learning_rate": LoopSettings.backbone_learning_rate,
    "whiten": WHITEN,
    "kl_weight": KL_WEIGHT,
    "train": TrainSettings(),
}
JOINT: dict[str, Any] = {
    "num_steps": 20,
    "max_iter": 2000,
    "batch_size": 32,
    "learning_rate": 1e-3,
    "backbone_learning_rate": 5e-5,
    "whiten": False,
    "kl_weight": 0.01,
    "train": TrainSettings(feature_noise=0.5),
}
"""Where Algorithm 1 from end to end differs from training on fixed features. Steps and backbone rate are the
paper's for ResNet-18 on PACS; 32 of each source is what DomainBed draws. Features that change cannot be
whitened once and for all."""
PRETRAINED: dict[str, Any] = {
    "finetune.max_iter": 3000,
    "finetune.schedule": "constant",
    "finetune.average": 1.0,
    "finetune.select": "late",
    "augmentation.fourier": 0.5,
    "augmentation.grayscale": 0.3,
    "augmentation.sketch": 0.3,
}
"""Where fine-tuning differs for a pretrained image backbone: its weights stay near their start, so the mean
of all iterates is a better network than any of them, and Fourier mixing and sketches make it rely on shape.
Chosen by leave-one-domain-out on PACS (results/pacs/recipes.json, recipes-sketch.json)."""
