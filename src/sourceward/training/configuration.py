"""`FitSettings`: everything that `fit` can be given, by name, in presets, files and `--set` alike."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from typing import Any

from sourceward._util.devices import choose_device
from sourceward._util.errors import InputError
from sourceward._util.values import differing, parse_assignments, read_config, typed
from sourceward.data.augment import Augmentation
from sourceward.data.transforms import parse_transforms
from sourceward.nn.heads import HEADS
from sourceward.samplers import StepSettings
from sourceward.settings import AUTO, HEAD, AdaptSettings, LoopSettings, TrainSettings, check_kl_weight
from sourceward.training.finetune import FineTuneSettings
from sourceward.training.presets import FROZEN, JOINT, OF_BACKBONE, PRETRAINED, RECIPES, TWO_STAGE

SHIFTS = ("corruptions", "noise")
NONE = "none"

BY_RECIPE: Any = None
"""A default that depends on the recipe: `TWO_STAGE` or `JOINT`."""

NESTED = {"augmentation": Augmentation, "finetune": FineTuneSettings, "train": TrainSettings}

ESTIMATOR = (
    "num_steps",
    "step_size",
    "noise_std",
    "sampler",
    "aggregation",
    "num_draws",
    "head",
    "whiten",
    "max_iter",
    "batch_size",
    "learning_rate",
    "energy_learning_rate",
    "kl_weight",
    "train",
)
"""Settings that `EnergyAdapter` takes under the same names."""

JOINT_ONLY = (
    "backbone_learning_rate",
    "energy_schedule",
    "update_per_source",
    "freeze_batchnorm",
    "evaluate_every",
    "checkpoint_every",
    "keep_checkpoints",
)


@dataclass(frozen=True)
class FitSettings:
    """Settings of a fit. Those of `EnergyAdapter` have the same meaning and, but for the recipe `joint` (see
    `JOINT`), the same default.

    Args:
        recipe: how a backbone is trained: `two-stage` fine-tunes it as a classifier and fits an
            `EnergyAdapter` to its features; `joint` trains everything together (Algorithm 1).
        finetune: settings of fine-tuning; `PRETRAINED` where the backbone is pretrained.
        train: settings of training heads and energies.
        augmentation: of training images.
        tta: transforms of test-time augmentation, joined by +; `none`; or `auto`: chosen by
            leave-one-domain-out validation.
        kept_gain: a sample that is predicted with confidence gets no copies, or those of one transform; the
            confidence is chosen such that held-out sources keep this share of the gain of `tta=auto`, and so
            is the number of copies. 0 makes all copies of every sample.
        copy_scale: least share of the image's side that its copies have; they are smaller by whole strides
            of 32 pixels. None: that of the backbone's preprocessing, which is 1. Where the backbone reads
            images of one size alone, they are as large as the image. See `FROZEN`.
        crossfit: leave-one-domain-out validation of a trained backbone fine-tunes it once more without each
            source, for this share of the iterations; 0 does without, and nothing is estimated.
        fourier_copies: with a frozen image backbone, train heads and energies also on a copy of every image
            with Fourier amplitudes mixed toward another source.
        shifts: negatives of a single source: `corruptions` of its images (four that no benchmark tests on;
            noise for other data), or `noise` on its features.
        backbone_learning_rate, energy_schedule, freeze_batchnorm, evaluate_every, checkpoint_every: of the
            recipe `joint`.
        update_per_source: update the weights once for each source in every iteration (Algorithm 1), not once
            for all together (recipe `joint`).
        keep_checkpoints: keep the weights of every validation in RUN/checkpoints (recipe `joint`).
        image_size: side in pixels; that of the weights when None.
        crop_fraction: share of the shorter side that is kept of each image; that of the weights when None.
        max_length: of texts, in tokens; that of the model when None.
        validation_fraction: share of each class of each source to validate on, where the data has no split.
        heads_device: where heads and energies are trained; the fit's own device when None.
    """

    recipe: str = "two-stage"
    finetune: FineTuneSettings = field(default_factory=FineTuneSettings)
    num_steps: int | str = BY_RECIPE
    step_size: float = StepSettings.step_size
    noise_std: float = StepSettings.noise_std
    sampler: str = AdaptSettings.sampler
    aggregation: str = AdaptSettings.aggregation
    num_draws: int = AdaptSettings.num_draws
    head: str = HEAD
    whiten: bool = BY_RECIPE
    max_iter: int = BY_RECIPE
    batch_size: int = BY_RECIPE
    learning_rate: float = BY_RECIPE
    energy_learning_rate: float = LoopSettings.energy_learning_rate
    kl_weight: float | str = BY_RECIPE
    train: TrainSettings = BY_RECIPE
    augmentation: Augmentation = field(default_factory=Augmentation)
    tta: str = AUTO
    kept_gain: float = 0.95
    copy_scale: float | None = None
    crossfit: float = 0.2
    fourier_copies: bool = True
    shifts: str = "corruptions"
    backbone_learning_rate: float = BY_RECIPE
    energy_schedule: str | None = None
    update_per_source: bool = False
    freeze_batchnorm: bool = True
    evaluate_every: int | None = None
    checkpoint_every: int = 200
    keep_checkpoints: bool = False
    image_size: int | None = None
    crop_fraction: float | None = None
    max_length: int | None = None
    validation_fraction: float = 0.1
    heads_device: str | None = None

    def __post_init__(self) -> None:
        if self.recipe not in RECIPES:
            raise InputError(f"Expected `recipe` to be 'two-stage' or 'joint', but got {self.recipe!r}.")
        for name, value in (JOINT if self.recipe == "joint" else TWO_STAGE).items():
            if getattr(self, name) is BY_RECIPE:
                object.__setattr__(self, name, value)
        self.adapt(), self.loop(), HEADS[self.head]
        check_kl_weight(self.kl_weight)
        if self.heads_device is not None:
            choose_device(self.heads_device)
        if self.shifts not in SHIFTS:
            raise InputError(f"Expected `shifts` to be 'corruptions' or 'noise', but got {self.shifts!r}.")
        if self.recipe == "joint" and (self.aggregation == "learned" or self.num_steps == AUTO):
            raise InputError(
                "The recipe 'joint' has no leave-one-domain-out validation: set `num_steps` to a number and "
                "`aggregation` to another than 'learned', or leave `recipe=two-stage`."
            )
        if self.update_per_source and HEADS[self.head].pooled:
            raise InputError(
                f"`update_per_source` sees one source at a time, and head '{self.head}' pools all: set "
                "`head=prototype`."
            )
        if self.tta not in (AUTO, NONE):
            parse_transforms(self.tta)
        if not 0 < self.validation_fraction < 1:
            raise InputError(
                f"Expected `validation_fraction` to be between 0 and 1, but got {self.validation_fraction}."
            )
        for name in ("crossfit", "kept_gain"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"Expected `{name}` to be from 0 to 1, but got {getattr(self, name)}.")
        if self.copy_scale is not None and not 0 < self.copy_scale <= 1:
            raise InputError(f"Expected `copy_scale` to be above 0 and at most 1, but got {self.copy_scale}.")
        for name in ("evaluate_every", "checkpoint_every", "image_size", "max_length"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InputError(f"Expected `{name}` to be 1 or more, but got {getattr(self, name)}.")

    def adapt(self) -> AdaptSettings:
        """Test time, before validation has chosen."""
        step = StepSettings(self.step_size, self.noise_std)
        steps: Any = AdaptSettings.num_steps if self.num_steps == AUTO else self.num_steps
        settings = AdaptSettings(steps, step, self.sampler, self.aggregation, self.num_draws)
        return settings if steps else settings.off()

    def corrupts(self, kind: str, sources: int) -> bool:
        """Whether corrupted copies of the samples serve as negatives."""
        return self.shifts == "corruptions" and kind == "image" and sources == 1

    def estimator(self) -> dict[str, Any]:
        """Settings of an `EnergyAdapter`."""
        return {name: getattr(self, name) for name in ESTIMATOR}

    def train_settings(self, processes: int = 1) -> TrainSettings:
        """Settings of training for one of several processes."""
        chains = self.train.chains
        return replace(self.train, chains=None if chains is None else max(1, chains // processes))

    def loop(self) -> LoopSettings:
        return LoopSettings(
            self.max_iter,
            self.batch_size,
            self.learning_rate,
            self.energy_learning_rate,
            self.backbone_learning_rate,
            self.train.weight_decay,
            self.train.optimizer,
            self.train.schedule,
            self.energy_schedule,
            self.train.average,
            self.freeze_batchnorm,
        )

    def refuse_unused(self, trains_backbone: bool) -> None:
        """Refuse a setting that has no effect, and say where it belongs."""
        joint = trains_backbone and self.recipe == "joint"
        if self.recipe != FitSettings.recipe and not trains_backbone:
            raise InputError("`recipe` has no effect on a frozen backbone or on features: leave it out.")
        base = FitSettings(recipe=self.recipe)
        for name in differing(self, base):
            key, _, own = name.partition(".")
            if key == "heads_device" and (joint or not trains_backbone):
                raise InputError(f"`{name}` belongs to the recipe 'two-stage': leave it out, use --device.")
            if not trains_backbone and key in (*OF_BACKBONE, *JOINT_ONLY):
                raise InputError(f"`{name}` has no effect on a frozen backbone or on features: leave it out.")
            if trains_backbone and key == "fourier_copies":
                raise InputError("`fourier_copies` needs a frozen backbone: pass --freeze, or leave it out.")
            if joint and key in ("finetune", "crossfit") and own != "compile":
                other = f"set `{own}`, or " if own in self.__dataclass_fields__ else ""
                raise InputError(
                    f"`{name}` has no effect with `recipe=joint`: {other}use `recipe=two-stage`."
                )
            if not joint and key in JOINT_ONLY:
                other = f"set `finetune.{key}`, or " if key in FineTuneSettings.__dataclass_fields__ else ""
                raise InputError(f"`{key}` has no effect with `recipe=two-stage`: {other}use `recipe=joint`.")

    def to_dict(self) -> dict[str, Any]:
        return json.loads(json.dumps(asdict(self)))

    def changed(self, values: Mapping[str, Any]) -> "FitSettings":
        """With other values by name, all others as they are; `augmentation.hue` and the like reach inside.

        >>> FitSettings().changed({"max_iter": "5", "augmentation.hue": 0.1}).augmentation.hue
        0.1
        """
        plain = {k: v for k, v in values.items() if k.partition(".")[0] not in NESTED}
        nested = {}
        for name, kind in NESTED.items():
            inner = values.get(name) or {}
            if not isinstance(inner, Mapping):
                raise InputError(f"Expected settings in `{name}`, such as {name}.X=1, but got {inner!r}.")
            inner = dict(inner)
            inner |= {k.partition(".")[2]: v for k, v in values.items() if k.startswith(f"{name}.")}
            nested[name] = replace(getattr(self, name), **typed(kind, inner))
        return replace(self, **typed(FitSettings, plain), **nested)


def is_pretrained(kind: str, backbone: Any, weights: Any) -> bool:
    """Whether a backbone is for images and pretrained; a module that is passed in counts as not pretrained.

    >>> is_pretrained("image", "timm:resnet18", "default"), is_pretrained("image", "timm:resnet18", None)
    (True, False)
    """
    named = backbone is None or isinstance(backbone, str | PathLike)
    return kind == "image" and named and weights is not None and not str(backbone).startswith("tiny:")


def _pretrained(layers: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    """`PRETRAINED`, without its fine-tuning part where a schedule or an average is given."""
    given = {name for layer in layers for name in layer or {}}
    for layer in layers:
        inner = (layer or {}).get("finetune")
        given |= {f"finetune.{name}" for name in inner} if isinstance(inner, Mapping) else set()
    own = given & {"finetune.schedule", "finetune.average"}
    return {name: value for name, value in PRETRAINED.items() if not (own and name.startswith("finetune."))}


def settings_for(
    trains_backbone: bool, *layers: Mapping[str, Any] | None, pretrained: bool = False
) -> FitSettings:
    """The defaults of the recipe, then each layer over the ones before it.

    Args:
        trains_backbone: or heads and energies only.
        layers: settings by name.
        pretrained: the backbone is pretrained, see `PRETRAINED`.
    """
    recipe = FitSettings.recipe
    for layer in layers:
        recipe = (layer or {}).get("recipe", recipe)
    settings = FitSettings(recipe=recipe) if recipe in RECIPES else FitSettings()
    before = [_pretrained(layers)] if pretrained and trains_backbone and recipe == "two-stage" else []
    before += [] if trains_backbone else [FROZEN]
    for layer in [*before, *layers]:
        settings = settings.changed(layer or {})
    settings.refuse_unused(trains_backbone)
    return settings


__all__ = [
    "JOINT",
    "PRETRAINED",
    "FitSettings",
    "is_pretrained",
    "parse_assignments",
    "read_config",
    "settings_for",
]
