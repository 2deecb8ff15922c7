"""How long the backbone passes of a fit take on this machine, and what they leave in the cache."""

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from sourceward._util.devices import choose_device
from sourceward.data import DomainDataset, cache_folder
from sourceward.data.loading import encode, prepare_samples, rows_per_pass
from sourceward.fitting.checks import (
    FROZEN_TTA,
    make_backbone,
    training_rows,
    tta_candidates,
)
from sourceward.nn.backbones import Backbone, ImagePreprocessing
from sourceward.training.configuration import FitSettings, settings_for
from sourceward.validation.crossfit import TTA_ROWS

TIMED = 8
"""Samples that are read and encoded to measure the speed; a batch on a GPU."""

BACKWARD = 3
"""A training pass in prediction passes: the gradient takes about two more."""


@dataclass(frozen=True)
class Estimate:
    """Cost of reading and encoding samples, before the training of heads and energies."""

    backbone: str
    device: str
    passes: int
    """Samples and copies that go through a frozen backbone."""
    seconds: float
    """Of these passes, reading included."""
    cache_bytes: int
    """Decoded images and features."""
    finetune_seconds: float | None = None
    """Of fine-tuning instead, cross-fits included; a rough figure."""

    def __str__(self) -> str:
        return (
            f"{self.passes:,} passes of {self.backbone} on {self.device}, about {duration(self.seconds)}; "
            f"{self.cache_bytes / 1e6:,.0f} MB in the cache ({cache_folder()})"
        )

    def lines(self) -> list[str]:
        """Sentences for `doctor`."""
        found = [f"With --freeze: {self}. Heads and energies come on top."]
        if self.finetune_seconds is not None:
            found.append(f"Without --freeze: roughly {duration(self.finetune_seconds)} of fine-tuning.")
        return found

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def duration(seconds: float) -> str:
    """Return seconds in words.

    >>> duration(42), duration(600), duration(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def frozen_passes(sources: DomainDataset, settings: FitSettings) -> int:
    """Samples and Fourier copies that `fit --freeze` encodes: all, those to train on, those of validation."""
    rows, images = [len(own) for own in training_rows(sources, settings)], sources.kind == "image"
    passes, others = len(sources), len(rows) - 1
    if images and settings.fourier_copies and others:
        passes += sum(rows)
    if tta_candidates(settings, sources, FROZEN_TTA, False):
        passes += others * sum(min(own, TTA_ROWS) for own in rows)
    return passes


def estimate(
    sources: DomainDataset, backbone: Backbone, settings: FitSettings, device: torch.device
) -> Estimate:
    """Time a few samples and extrapolate.

    Args:
        sources: images or texts.
        backbone: that encodes them.
        settings: of a fit with a frozen backbone.
        device: where it runs.
    """
    count = min(len(sources), max(TIMED, rows_per_pass(device)))
    rows, body = np.linspace(0, len(sources) - 1, count).astype(int), backbone.to(device).eval()
    _timed(sources.select(rows[:1]), body, device)  # warms up
    seconds = _timed(sources.select(rows), body, device) / count
    passes, pixels = frozen_passes(sources, settings), 0
    if isinstance(backbone.preprocessing, ImagePreprocessing):
        pixels = 3 * int(np.prod(backbone.preprocessing.size))
    held = len(sources) * pixels + passes * 4 * backbone.dim
    return Estimate(backbone.spec, device.type, passes, round(passes * seconds, 3), held)


def estimate_fit(sources: DomainDataset, spec: Any, device: str = "auto") -> Estimate:
    """The estimate of `doctor`: a frozen backbone with random weights, which are as fast, and fine-tuning."""
    frozen = settings_for(False, None, None, pretrained=False)
    backbone = make_backbone(sources, spec, None, frozen, False, 0)
    assert backbone is not None
    found = estimate(sources, backbone, frozen, choose_device(device))
    tuned = settings_for(True, None, None, pretrained=sources.kind == "image").finetune
    count, share = len(sources.domain_names), FitSettings.crossfit
    trained = tuned.max_iter * tuned.batch_size * (count + (share * count * (count - 1) if count >= 3 else 0))
    seconds = BACKWARD * trained * found.seconds / found.passes
    return Estimate(**{**found.to_dict(), "finetune_seconds": round(seconds, 3)})


def _timed(few: DomainDataset, backbone: Backbone, device: torch.device) -> float:
    begin = time.perf_counter()
    encode(backbone, prepare_samples(few, backbone, device, show=False), slice(0, len(few))).cpu()
    return time.perf_counter() - begin
