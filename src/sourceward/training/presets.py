"""The paper's hyper-parameters for every dataset and backbone it reports, each value with its source."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sourceward._util.registry import Registry

TABLE = "paper's table"
TEXT = "paper's text"
CODE = "released code"
OURS = "ours"
"""Where a value can come from; what follows a colon is why."""


class Value(NamedTuple):
    """A setting, and who says so."""

    value: Any
    source: str


@dataclass(frozen=True)
class Preset:
    """Settings of `fit` for one dataset and backbone of the paper.

    Args:
        about: one line.
        dataset: a name in `DATASETS`.
        backbone: a spec of `create_backbone`.
        backbone_source: who chose it.
        values: what differs from the defaults of `fit`, and where it comes from.
    """

    about: str
    dataset: str
    backbone: str
    backbone_source: str
    values: Mapping[str, Value]

    @property
    def settings(self) -> dict[str, Any]:
        return {name: value for name, (value, _) in self.values.items()}

    def layer(self, trains_backbone: bool) -> dict[str, Any]:
        """The settings that a fit looks at: with no backbone to train, none of its training.

        >>> "backbone_rate" in PRESETS["pacs-resnet18"].layer(False)
        False
        """
        idle = () if trains_backbone else OF_BACKBONE
        return {name: value for name, value in self.settings.items() if name.partition(".")[0] not in idle}


OF_BACKBONE = (
    "recipe",
    "finetune",
    "augmentation",
    "backbone_rate",
    "freeze_batchnorm",
    "crossfit",
    "heads_device",
)
"""Settings that have a part only where a backbone is trained."""

PRESETS: Registry[Preset] = Registry("preset")

UNITS = f"{OURS}: features have norm sqrt(dim) here, where PACS's 50 serves every backbone"
AS_PACS = f"{OURS}: as on PACS, the paper does not say"

HEADS: Mapping[str, Value] = {
    "head": Value("prototype", CODE),
    "max_iter": Value(10_000, TEXT),
    "batch_size": Value(128, f"{TEXT}: of each source"),
    "learning_rate": Value(1e-4, f"{TABLE}: latent network and classifier"),
    "energy_learning_rate": Value(1e-4, TABLE),
    "weight_decay": Value(5e-4, CODE),
    "num_draws": Value(10, TEXT),
    "num_steps": Value(20, TABLE),
    "train_steps": Value(20, TABLE),
    "kl": Value(0.1, CODE),
    "chains": Value(None, f"{TEXT}: one from every sample of the batch"),
    "feature_noise": Value(0.0, f"{TEXT}: it has none"),
    "step_size": Value(50.0, UNITS),
    "train_step_size": Value(50.0, UNITS),
}
"""Of the latent network, the classifier and the energies."""

PAPER: Mapping[str, Value] = {
    "recipe": Value("joint", f"{TEXT}: Algorithm 1"),
    **HEADS,
    "schedule": Value("step", f"{CODE}: x 0.1 at 60 %"),
}


def _add(
    name: str, about: str, dataset: str, backbone: Value, common: Mapping[str, Value], **values: Value
) -> None:
    PRESETS.register(name)(Preset(about, dataset, *backbone, {**common, **values}))


for model, title, rate in (("resnet18", "ResNet-18", 5e-5), ("resnet50", "ResNet-50", 1e-5)):
    _add(
        f"pacs-{model}",
        f"PACS, leave one domain out, {title}",
        "pacs",
        Value(f"timm:{model}", TABLE),
        PAPER,
        backbone_rate=Value(rate, TABLE),
        step_size=Value(50.0, TABLE),
        train_step_size=Value(50.0, TABLE),
    )

for model, title in (("resnet18", "ResNet-18"), ("resnet50", "ResNet-50")):
    _add(
        f"office-home-{model}",
        f"Office-Home, leave one domain out, {title}",
        "office_home",
        Value(f"timm:{model}", TABLE),
        PAPER,
        backbone_rate=Value(1e-5, TABLE),
        num_draws=Value(5, TEXT),
        step_size=Value(50.0, f"{UNITS}; 100 in the {TABLE}"),
        train_step_size=Value(50.0, f"{UNITS}; 100 in the {TABLE}"),
    )

for data, title, mirrored in (
    ("mnist", "Rotated MNIST", "a mirrored 2 is no digit"),
    ("fashion-mnist", "Rotated Fashion-MNIST", "a mirror image turns the other way"),
):
    _add(
        f"rotated-{data}-resnet18",
        f"{title}, sources 15 to 75 degrees, ResNet-18",
        f"rotated-{data}".replace("-", "_"),
        Value("timm:resnet18", TABLE),
        PAPER,
        backbone_rate=Value(5e-5, TABLE),
        step_size=Value(50.0, TABLE),
        train_step_size=Value(50.0, TABLE),
        **{
            "augmentation.hflip": Value(0.0, f"{OURS}: {mirrored}"),
            "augmentation.hue": Value(0.0, f"{OURS}: the images are gray"),
        },
    )

_add(
    "pheme-distilbert",
    "PHEME, leave one event out, DistilBERT",
    "pheme",
    Value("hf:distilbert-base-uncased", TABLE),
    PAPER,
    backbone_rate=Value(3e-5, TABLE),
    step_size=Value(50.0, f"{UNITS}; 40 in the {TABLE}, 20 in its text"),
    train_step_size=Value(50.0, f"{UNITS}; 40 in the {TABLE}, 20 in its text"),
)
_add(
    "domainnet-resnet50",
    "DomainNet, leave one domain out, ResNet-50",
    "domainnet",
    Value("timm:resnet50", TEXT),
    PAPER,
    **{
        name: Value(value, f"{TEXT}: the protocol of PACS")
        for name, value in PRESETS["pacs-resnet50"].settings.items()
        if name in ("backbone_rate", "num_steps", "train_steps", "step_size", "train_step_size")
    },
)

UNSAID = {
    "num_steps": Value(20, AS_PACS),
    "train_steps": Value(20, AS_PACS),
    "step_size": Value(50.0, AS_PACS),
    "train_step_size": Value(50.0, AS_PACS),
}
"""What the paper's table has for other datasets only."""

for data, title, model, network, rate in (
    ("cifar10_c", "CIFAR-10-C", "resnet18", "ResNet-18", 5e-5),
    ("imagenet_c", "ImageNet-C", "resnet50", "ResNet-50", 1e-5),
):
    _add(
        f"{data.replace('_', '-')}-{model}",
        f"{title}, clean images as the one source, noise as negatives, {network}",
        data,
        Value(f"timm:{model}", f"{OURS}: the paper does not say"),
        {**PAPER, **UNSAID},
        backbone_rate=Value(rate, AS_PACS),
        shifts=Value("noise", f"{TEXT}: the first of its two kinds of negatives"),
    )
    _add(
        f"{data.replace('_', '-')}-{model}-corruptions",
        f"{title}, clean images as the one source, extra corruptions as negatives, {network}",
        data,
        Value(f"timm:{model}", f"{OURS}: the paper does not say"),
        {**HEADS, **UNSAID},
        whiten=Value(False, f"{TEXT}: it has none"),
        recipe=Value("two-stage", f"{OURS}: `joint` has noise alone for one source to practise on"),
        shifts=Value("corruptions", f"{TEXT}: the second of its two kinds of negatives"),
        **{
            "finetune.max_iter": Value(10_000, TEXT),
            "finetune.batch_size": Value(128, TEXT),
            "finetune.backbone_rate": Value(rate, AS_PACS),
            "finetune.head_rate": Value(1e-4, TABLE),
            "finetune.weight_decay": Value(5e-4, CODE),
            "finetune.schedule": Value("step", f"{CODE}: x 0.1 at 60 %"),
        },
    )


def list_presets() -> list[str]:
    """Names that `fit` knows."""
    return list(PRESETS)
