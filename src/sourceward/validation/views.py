"""Views that a trained backbone asks about: which it is ready for, and whether to.

A backbone that saw mixed styles is nearly blind to what else training changes at random, and what it still
sees averages out; where the sources differ by a turn, so may the next domain. Where pretend targets that it
never saw can be asked (`crossfit`), they decide; else held-out samples of the sources do, as they are and as
domains that are imagined. What is gained on the latter is promised.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from sourceward.data.loading import Samples, Shown, encode
from sourceward.data.transforms import ADAIN, TURN, transform_names
from sourceward.model import Model
from sourceward.model.views import view_features
from sourceward.nn import Network
from sourceward.nn.backbones import Backbone, ImagePreprocessing
from sourceward.nn.feature_statistics import FeatureStatistics, early_maps, mean_statistics
from sourceward.settings import AdaptSettings
from sourceward.training.configuration import AUTO, NONE, FitSettings
from sourceward.training.styles import STYLE_ROWS
from sourceward.training.task import Prepared
from sourceward.validation.imagined import Domain, imagine
from sourceward.validation.leave_one_domain_out import (
    CAP,
    VIEWS_WORTH,
    ExpectedGain,
    Trial,
    expected_gain,
    try_views,
)
from sourceward.validation.turns import differ_by_turn


def statistics_layers(backbone: nn.Module) -> list[str]:
    """Modules of a backbone whose maps have feature_statistics; none where it reads no images or has no early maps."""
    looks = getattr(backbone, "preprocessing", None)
    if not isinstance(backbone, Backbone) or not isinstance(looks, ImagePreprocessing):
        return []
    return [f"network.{name}" for name in early_maps(backbone.network, looks.size, len(looks.mean))]


def source_statistics(backbone: nn.Module, samples: Samples, train: list[slice]) -> FeatureStatistics | None:
    """Of each source's images, from as many of the training rows as tell its style."""
    places = statistics_layers(backbone)
    if not places:
        return None
    few = [slice(rows.start, min(rows.stop, rows.start + STYLE_ROWS)) for rows in train]
    seen = [mean_statistics(backbone, places, samples.batches(rows)) for rows in few]
    return FeatureStatistics({place: torch.stack([of[place] for of in seen]) for place in places})


def candidate(
    settings: FitSettings,
    backbone: nn.Module,
    feature_statistics: FeatureStatistics | None,
    prepared: Prepared,
) -> str:
    """Views to ask about: those that are set, or what training and sources made the backbone ready for."""
    if settings.views != AUTO:
        return "" if settings.views == NONE else settings.views
    if not isinstance(backbone, Backbone) or backbone.kind != "image":
        return ""
    if differ_by_turn(prepared):
        return TURN
    known = settings.augmentation
    if not known.fourier > 0:
        return ""
    ready = {"flip": known.hflip > 0, "zoom": known.scale[0] < 1, ADAIN: feature_statistics is not None}
    return "+".join(name for name in ready if ready[name])


@torch.no_grad()
def trial(name: str, network: Network, samples: Shown, rows: slice, label: Tensor, views: str) -> Trial:
    """Ask about the samples alone, and about views of them, too."""
    plain = encode(network.features, samples, rows)
    return try_views(name, network, [[plain], *view_features(views, network, samples, rows)], label)


def settle_by_validation(
    model: Model, prepared: Prepared, known: Tensor, names: str, imagines: bool = True
) -> tuple[str, dict[str, Any] | None]:
    """The views that the finished model asks about, and what its sources' held-out samples say of them.

    Args:
        model: with its backbone.
        prepared: samples of the sources.
        known: the model's number of each class of the data.
        names: what it is ready for.
        imagines: whether domains may be imagined; they may not where the heads practised on the same.
    """
    label = known.to(prepared.labels.device)[prepared.labels]
    few = map(prepared.first, prepared.val)
    own = [(name, prepared.samples, rows) for name, rows in zip(model.sources, few) if rows.stop > rows.start]
    if not own:
        return "", None
    strange = imagine(own, names) if imagines else []

    def tried(domains: Sequence[Domain], views: str) -> list[Trial]:
        return [
            trial(name, model.network, samples, rows, label[rows], views) for name, samples, rows in domains
        ]

    @cache
    def ask(views: str) -> tuple[ExpectedGain, ExpectedGain]:
        home, away = tried(own, views), tried(strange, views)
        at_home, abroad = _gains(home), _gains(away or home)
        gains = abroad.gain > 0 if away else at_home.high >= 0
        worth = (at_home.gain + abroad.gain) / 2  # the next sample may be from here or from elsewhere
        told = _gains(away, math.inf) if away else at_home
        return replace(told, adapts=gains and worth >= -VIEWS_WORTH), at_home

    told, home = ask(names)
    if not told.adapts and len(transform_names(names)) > 1:
        kept = "+".join(name for name in transform_names(names) if ask(name)[0].adapts)
        if kept:
            names, (told, home) = kept, ask(kept)
    return names if told.adapts else "", named(told, names) | ({"home": home.per_source} if strange else {})


def _gains(trials: list[Trial], cap: float = CAP) -> ExpectedGain:
    return replace(expected_gain(trials, 1, AdaptSettings().off(), cap), seen=True)


def named(told: ExpectedGain, names: str) -> dict[str, Any]:
    """A expected_gain about views, as the model folder keeps it."""
    return told.to_dict() | {"views": names}
