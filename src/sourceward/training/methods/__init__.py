"""Published ways to fine-tune the backbone, by name in `FINETUNE_METHODS`.

Weight averaging needs no method: `finetune.average` is the decay of a moving average of all weights, and
`finetune.average=0` switches it off.
"""

from typing import Any

from sourceward.training.finetune import FINETUNE_METHODS
from sourceward.training.methods.adversarial_noise import AdversarialNoise
from sourceward.training.methods.augmix import AugMix
from sourceward.training.methods.domain_embedding import DomainEmbedding
from sourceward.training.methods.dson import DSON
from sourceward.training.methods.entropy import EntropyRegularization
from sourceward.training.methods.l2a_ot import L2AOT
from sourceward.training.methods.masf import MASF
from sourceward.training.methods.mixing import CutMix, Mixup
from sourceward.training.methods.mixstyle import MixStyle
from sourceward.training.methods.rotation import Rotation
from sourceward.training.methods.single_sample import SingleSample

__all__ = [
    "DSON",
    "L2AOT",
    "MASF",
    "AdversarialNoise",
    "AugMix",
    "CutMix",
    "DomainEmbedding",
    "EntropyRegularization",
    "MixStyle",
    "Mixup",
    "Rotation",
    "SingleSample",
    "list_methods",
    "methods_table",
]


def list_methods() -> list[str]:
    """Return the names that `finetune.method` and `bench --methods` take."""
    return list(FINETUNE_METHODS)


def methods_table() -> list[dict[str, Any]]:
    """Return a row for each training method: name, what it needs and trains, its adapter, a line about it."""
    rows = []
    for name in FINETUNE_METHODS:
        needs, about = FINETUNE_METHODS[name].needs, (FINETUNE_METHODS[name].__doc__ or "").strip()
        row = {"name": name, "images": needs.images, "sources": needs.sources, "backbone": needs.backbone}
        row |= {"settings": dict(needs.settings), "trains": needs.networks, "adapter": needs.adapter}
        rows.append(row | {"about": about.split("\n")[0]})
    return rows
