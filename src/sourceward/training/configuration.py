"""Everything that `fit` can be told, flat and by name, so that a preset, a file and `--set` say the same."""

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from typing import Any

from sourceward._util.devices import choose_device
from sourceward._util.errors import InputError
from sourceward._util.values import differing, parse_assignments, read_config, typed
from sourceward.data.augment import Augmentation
from sourceward.data.transforms import transform_names
from sourceward.estimator import EnergyAdapter
from sourceward.functional import Coefficients
from sourceward.nn.heads import HEADS
from sourceward.samplers import StepSettings
from sourceward.settings import AdaptSettings, LoopSettings, TrainSettings
from sourceward.training.finetune import FineTuneSettings
from sourceward.training.presets import OF_BACKBONE
from sourceward.validation.leave_one_domain_out import LENGTHS

_ESTIMATOR = {name: p.default for name, p in inspect.signature(EnergyAdapter).parameters.items()}

RECIPES = ("two-stage", "joint")
SHIFTS = ("corruptions", "noise")
AUTO, NONE = "auto", "none"

TWO_STAGE: dict[str, Any] = {
    **{name: _ESTIMATOR[name] for name in ("max_iter", "batch_size", "learning_rate")},
    "backbone_rate": LoopSettings.backbone_rate,
    **{name: _ESTIMATOR[name] for name in ("whiten", "kl", "feature_noise")},
}
JOINT: dict[str, Any] = {
    "max_iter": 2000,
    "batch_size": 32,
    "learning_rate": 1e-3,
    "backbone_rate": 5e-5,
    "whiten": False,
    "kl": 0.01,
    "feature_noise": 0.5,
}
"""Where training the backbone with Algorithm 1 differs from training on features. The rate is the paper's for
ResNet-18 on PACS; 32 of each source is what DomainBed draws and what a small machine can hold. Features that
change cannot be whitened once and for all."""
PRETRAINED: dict[str, Any] = {
    "finetune.max_iter": 3000,
    "finetune.schedule": "constant",
    "finetune.average": 1.0,
    "finetune.select": "late",
    "augmentation.fourier": 0.5,
    "augmentation.grayscale": 0.3,
    "augmentation.sketch": 0.3,
}
"""Where `two-stage` differs for an image backbone that has learned before. Its weights never go far, so that
the mean of all iterates is a better network than any of them; styles are mixed and images redrawn, so that
shapes must do. Pretend targets of PACS say so (results/pacs/recipes.json, recipes-sketch.json); the number of
iterations is a matter of patience: the more, the better."""
BY_RECIPE: Any = None
"""A default that is one of `TWO_STAGE` or of `JOINT`."""

NESTED = {"augmentation": Augmentation, "finetune": FineTuneSettings}

_USED = (
    "recipe",
    *NESTED,
    "shifts",
    "views",
    "crossfit",
    "components",
    "image_size",
    "crop_fraction",
    "max_length",
    "validation_fraction",
    "heads_device",
)
"""Settings beside those of the estimator that a two-stage fit looks at."""

_COUNTS = ("evaluate_every", "checkpoint_every", "components", "distilled_steps", "image_size", "max_length")


@dataclass(frozen=True)
class FitSettings:
    """Settings of a fit. What `EnergyAdapter` also has, it has with the same meaning and, but for the recipe
    `joint` (see `JOINT`), with the same default.

    Args:
        recipe: how a backbone is trained: `two-stage` fine-tunes it as a classifier and fits an
            `EnergyAdapter` to its features; `joint` trains everything together (Algorithm 1).
        finetune: stage 1 of `two-stage`; what is not in it is of stage 2. `fit` starts from `PRETRAINED`
            where it is given settings by name and the backbone has learned before.
        backbone_rate: learning rate of the backbone in `joint`.
        schedule: `cosine`, `step` (x 0.1 at 60 %) or `constant`.
        freeze_batchnorm: hold the backbone's batch norm statistics.
        train_step_size: step size of the training chains.
        replay_share: share of chain starts that come from the replay buffer.
        posterior_chain: also run chains whose latent is the posterior of the sample's class.
        shifts: what a lone source practises on: `corruptions` of its images (four that no benchmark tests
            on; noise where the data is no images), or `noise` on its features.
        styles: where an image backbone is not trained, heads and energies also see every image half way to
            the style of another source, see `data.views`.
        views: looks at an image to ask about at test time beside it, joined by + (see `data.views`); `none`;
            `auto`: `style` where the backbone is not trained and pretend targets gain by it; where it is
            trained in two stages, `turn` where the sources differ by a turn, else, where training mixes
            styles, `feature_statistics`, and `flip` and `zoom` where it flips and crops; without those by which the
            sources' held-out samples lose, as they are and as imagined domains, half each; with `crossfit`,
            none where pretend targets gain too little.
        crossfit: fine-tune the backbone once more without each source, so that what is promised of adaptation
            was measured on domains that it had not seen.
        augmentation: of training images.
        components: principal components to keep of features that no backbone is trained for; all when None.
        image_size: side in pixels; that of the weights when None.
        crop_fraction: share of the shorter side that is kept of each image; that of the weights when None.
        max_length: of texts, in tokens; that of the model when None.
        validation_fraction: share of each class of each source to select on, where the data has no lists.
        evaluate_every: iterations between looks at source validation; a tenth of the training when None.
        checkpoint_every: iterations between checkpoints.
        heads_device: where stage 2 of `two-stage` runs; the fit's own device when None. It is bound by
            launches: many fits beside each other on one GPU are faster on a CPU core each.
    """

    recipe: str = "two-stage"
    finetune: FineTuneSettings = field(default_factory=FineTuneSettings)
    num_steps: int | str = _ESTIMATOR["num_steps"]
    step_size: float = _ESTIMATOR["step_size"]
    noise_std: float = _ESTIMATOR["noise_std"]
    sampler: str = _ESTIMATOR["sampler"]
    accept: str = _ESTIMATOR["accept"]
    aggregation: str = _ESTIMATOR["aggregation"]
    num_draws: int = _ESTIMATOR["num_draws"]
    stop: float | None = _ESTIMATOR["stop"]
    blend: float = _ESTIMATOR["blend"]
    top: int | None = _ESTIMATOR["top"]
    latent: str = _ESTIMATOR["latent"]
    distilled_steps: int = _ESTIMATOR["distilled_steps"]
    head: str = _ESTIMATOR["head"]
    max_iter: int = BY_RECIPE
    batch_size: int = BY_RECIPE
    learning_rate: float = BY_RECIPE
    energy_learning_rate: float = _ESTIMATOR["energy_learning_rate"]
    backbone_rate: float = BY_RECIPE
    weight_decay: float = _ESTIMATOR["weight_decay"]
    schedule: str = LoopSettings.schedule
    average: float = _ESTIMATOR["average"]
    freeze_batchnorm: bool = True
    train_steps: int = _ESTIMATOR["train_steps"]
    train_step_size: float = StepSettings.step_size
    chains: int | None = _ESTIMATOR["chains"]
    kl: float = BY_RECIPE
    guide: float = _ESTIMATOR["guide"]
    pooled: float = _ESTIMATOR["pooled"]
    whiten: bool = BY_RECIPE
    feature_noise: float = BY_RECIPE
    objective: str = _ESTIMATOR["objective"]
    replay_share: float = TrainSettings.replay_share
    posterior_chain: bool = _ESTIMATOR["posterior_chain"]
    shifts: str = "corruptions"
    styles: bool = True
    views: str = AUTO
    crossfit: bool = False
    augmentation: Augmentation = field(default_factory=Augmentation)
    components: int | None = 256
    image_size: int | None = None
    crop_fraction: float | None = None
    max_length: int | None = None
    validation_fraction: float = 0.1
    evaluate_every: int | None = None
    checkpoint_every: int = 200
    heads_device: str | None = None

    def __post_init__(self) -> None:
        if self.recipe not in RECIPES:
            raise InputError(f"Expected `recipe` to be 'two-stage' or 'joint', but got {self.recipe!r}.")
        for name, value in (JOINT if self.recipe == "joint" else TWO_STAGE).items():
            if getattr(self, name) is BY_RECIPE:
                object.__setattr__(self, name, value)
        self.adapt().check()
        self.loop(), self.train()
        HEADS[self.head]
        if self.heads_device is not None:
            choose_device(self.heads_device)
        if self.shifts not in SHIFTS:
            raise InputError(f"Expected `shifts` to be 'corruptions' or 'noise', but got {self.shifts!r}.")
        if self.recipe == "joint" and self.aggregation == "learned":
            raise InputError(
                "`aggregation=learned` is learned from pretend targets, and the recipe 'joint' has none: "
                "leave `recipe=two-stage`, or choose another aggregation."
            )
        if self.views not in (AUTO, NONE):
            transform_names(self.views)
        if not 0 < self.validation_fraction < 1:
            raise InputError(
                f"Expected `validation_fraction` to be between 0 and 1, but got {self.validation_fraction}."
            )
        for name in _COUNTS:
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InputError(f"Expected `{name}` to be 1 or more, but got {getattr(self, name)}.")

    def adapt(self) -> AdaptSettings:
        """Test time, before anything is tuned."""
        step = StepSettings(self.step_size, self.noise_std, accept=self.accept)
        steps: Any = LENGTHS[0] if self.num_steps == "auto" else self.num_steps
        settings = AdaptSettings(
            steps,
            step,
            self.sampler,
            self.aggregation,
            self.num_draws,
            stop=self.stop,
            blend=self.blend,
            top=self.top,
            latent=self.latent,
        )
        return settings if steps else settings.off()

    def corrupts(self, kind: str, sources: int) -> bool:
        """Whether chains start at corrupted copies of the samples."""
        return self.shifts == "corruptions" and kind == "image" and sources == 1

    def estimator(self) -> dict[str, Any]:
        """What an `EnergyAdapter` is told."""
        return {name: getattr(self, name) for name in _ESTIMATOR if name in self.__dataclass_fields__}

    def train(self, processes: int = 1) -> TrainSettings:
        return TrainSettings(
            self.train_steps,
            StepSettings(self.train_step_size),
            Coefficients(kl=self.kl, guide_energy=self.guide, guide_label=self.guide),
            chains=None if self.chains is None else max(1, self.chains // processes),
            replay_share=self.replay_share,
            posterior_chain=self.posterior_chain,
            pooled=self.pooled,
            feature_noise=self.feature_noise,
            objective=self.objective,
        )

    def loop(self) -> LoopSettings:
        return LoopSettings(
            self.max_iter,
            self.batch_size,
            self.learning_rate,
            self.energy_learning_rate,
            self.backbone_rate,
            self.weight_decay,
            self.schedule,
            self.average,
            self.freeze_batchnorm,
        )

    def refuse_unused(self, trains_backbone: bool) -> None:
        """A setting that nothing will look at was set for a reason: say where it belongs."""
        joint = trains_backbone and self.recipe == "joint"
        for name in differing(self, FitSettings()):
            key = name.partition(".")[0]
            if key == "heads_device" and (joint or not trains_backbone):
                raise InputError(f"`{name}` belongs to the recipe 'two-stage': leave it out, use --device.")
            if not trains_backbone and key in OF_BACKBONE and key != "crossfit":
                raise InputError(
                    f"`{name}` has a part where a backbone is trained, and here none is: leave it out."
                )
            if trains_backbone and key == "amplitudes":
                raise InputError("`styles` has a part where a backbone is not trained: pass --freeze.")
            if joint and key == "finetune":
                own = name.partition(".")[2]
                there = f"set `{own}`, or " if own in self.__dataclass_fields__ else ""
                raise InputError(
                    f"`{name}` has no part in the recipe 'joint': {there}choose `recipe=two-stage`."
                )
            if trains_backbone and not joint and key not in _ESTIMATOR and key not in _USED:
                there = f"set `finetune.{key}`, or " if key in FineTuneSettings.__dataclass_fields__ else ""
                raise InputError(
                    f"`{key}` has no part in the recipe 'two-stage': {there}choose `recipe=joint`."
                )

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


def has_learned(kind: str, backbone: Any, weights: Any) -> bool:
    """Whether a backbone is for images and has learned before; of a module that is handed in, nobody knows.

    >>> has_learned("image", "timm:resnet18", "default"), has_learned("image", "timm:resnet18", None)
    (True, False)
    """
    named = backbone is None or isinstance(backbone, str | PathLike)
    return kind == "image" and named and weights is not None and not str(backbone).startswith("tiny:")


def _pretrained(layers: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    """`PRETRAINED`; a schedule or an average of your own goes with the defaults of `finetune`."""
    given = {name for layer in layers for name in layer or {}}
    for layer in layers:
        inner = (layer or {}).get("finetune")
        given |= {f"finetune.{name}" for name in inner} if isinstance(inner, Mapping) else set()
    own = given & {"finetune.schedule", "finetune.average"}
    return {name: value for name, value in PRETRAINED.items() if not (own and name.startswith("finetune."))}


def settings_for(
    trains_backbone: bool, *layers: Mapping[str, Any] | None, learned: bool = False
) -> FitSettings:
    """The defaults of the way of training, then each layer over the ones before it.

    Args:
        trains_backbone: or heads and energies only.
        layers: settings by name.
        learned: the backbone has learned before, see `PRETRAINED`.
    """
    recipe = FitSettings.recipe
    for layer in layers:
        recipe = (layer or {}).get("recipe", recipe)
    settings = FitSettings(recipe=recipe) if trains_backbone and recipe in RECIPES else FitSettings()
    before = [_pretrained(layers)] if learned and trains_backbone and recipe == "two-stage" else []
    for layer in [*before, *layers]:
        settings = settings.changed(layer or {})
    settings.refuse_unused(trains_backbone)
    return settings


__all__ = [
    "JOINT",
    "PRETRAINED",
    "TWO_STAGE",
    "FitSettings",
    "has_learned",
    "parse_assignments",
    "read_config",
    "settings_for",
]
