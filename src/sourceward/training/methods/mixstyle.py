"""MixStyle (Zhou et al., ICLR 2021): mix feature statistics of two sources inside the backbone.

Loss: cross-entropy. After two early stages, x becomes s_mix (x - m) / s + m_mix, where m and s are the means
and standard deviations of its channels, and m_mix and s_mix their mixtures with those of another sample.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Generator, Tensor, nn

from sourceward._util.errors import InputError
from sourceward.nn.feature_statistics import early_maps
from sourceward.training.finetune import FINETUNE_METHODS, FineTuneSettings, Rows
from sourceward.training.methods.image_method import ImageMethod
from sourceward.training.methods.random_draws import beta, other_source_rows
from sourceward.training.needs import Needs

ALPHA, PROBABILITY, EPSILON = 0.1, 0.5, 1e-6
"""The paper's: of Beta(alpha, alpha), of mixing in a stage, and inside the square root."""
STRIDES = (4, 8)
"""Strides of the stages to mix after: the first two of a ResNet. The released code
(KaiyangZhou/mixstyle-release) mixes after three stages on PACS and after these two on Office-Home."""


def mix_statistics(maps: Tensor, other: Tensor, share: Tensor) -> Tensor:
    """Return maps whose channel means and stds are mixed with another row's; statistics take no gradient.

    Args:
        maps: (batch, channels, height, width).
        other: (batch,) index of the other row.
        share: (batch,) weight of a row's own statistics.
    """
    var, mean = torch.var_mean(maps.detach().float(), (2, 3), keepdim=True)
    std = (var + EPSILON).sqrt()
    share = share[:, None, None, None]
    mixed_mean, mixed_std = torch.lerp(mean[other], mean, share), torch.lerp(std[other], std, share)
    return ((maps - mean) / std * mixed_std + mixed_mean).to(maps.dtype)


@FINETUNE_METHODS.register("mixstyle")
class MixStyle(ImageMethod):
    """MixStyle: with probability 0.5 in each of two early stages, feature statistics of sources are mixed."""

    needs = Needs(images=True, backbone="feature maps of an early stage")

    def __init__(self, settings: FineTuneSettings, backbone: nn.Module, sources: int, classes: int) -> None:
        super().__init__(settings, backbone, sources, classes)
        self.sources, self.stages = sources, stage_ends(backbone, STRIDES)

    def image_loss(self, backbone: Any, head: nn.Module, batch: Rows, generator: Generator) -> Tensor:
        with self.mixing(backbone, batch.domain, generator):
            logits = head(backbone(batch.inputs))
        return self.cross_entropy(logits, batch.label)

    @contextmanager
    def mixing(self, backbone: nn.Module, domain: Tensor, generator: Generator) -> Iterator[None]:
        """Mix statistics while this lasts; the hooks are removed, so that no saved backbone has them."""

        def hook(module: nn.Module, args: Any, maps: Tensor) -> Tensor:
            share = beta(ALPHA, len(maps), generator)
            active = torch.rand(1, generator=generator, device=maps.device) < PROBABILITY
            other = other_source_rows(domain, self.sources, generator)
            return mix_statistics(maps, other, torch.where(active, share, 1.0))

        handles = [backbone.get_submodule(stage).register_forward_hook(hook) for stage in self.stages]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def stage_ends(backbone: Any, strides: tuple[int, ...]) -> list[str]:
    """Return the names of the modules that end the stages of `strides`, whose maps are wider than a pixel."""
    size = getattr(getattr(backbone, "preprocessing", None), "size", None)
    wide = [stride for stride in strides if size is not None and min(size) // stride > 1]
    stages = _early_maps(backbone, size, wide) if size is not None else []
    if not stages:
        raise InputError(
            "Fine-tuning by 'mixstyle' needs feature maps of an early stage, but this backbone has none. "
            "Use 'erm'."
        )
    return stages


def _early_maps(backbone: Any, size: tuple[int, int], strides: list[int]) -> list[str]:
    training, channels = backbone.training, len(backbone.preprocessing.mean)
    backbone.eval()
    names = early_maps(backbone.network, size, channels, strides)
    backbone.train(training)
    return [f"network.{name}" for name in names]
