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


def stage_ends(backbone: nn.Module, strides: tuple[int, ...]) -> list[str]:
    """Return the names of the last modules whose maps have each of `strides`."""
    size = getattr(getattr(backbone, "preprocessing", None), "size", None)
    last = {} if size is None else _last_modules(backbone, size)
    stages = [last[size[0] // stride] for stride in strides if size is not None and size[0] // stride in last]
    if not stages:
        raise InputError(
            "Fine-tuning by 'mixstyle' needs feature maps of an early stage, but this backbone has none. "
            "Use 'erm'."
        )
    return stages


def _last_modules(backbone: nn.Module, size: tuple[int, int]) -> dict[int, str]:
    """Return the last module for each height of maps, from one pass over a blank image."""
    last: dict[int, str] = {}

    def recorder(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.ndim == 4 and output.shape[-1] > 1:
                last[output.shape[-2]] = name

        return hook

    handles = [m.register_forward_hook(recorder(name)) for name, m in backbone.named_modules() if name]
    modes = {module: module.training for module in backbone.modules()}
    device = next(backbone.parameters()).device
    backbone.eval()
    try:
        with torch.no_grad():
            backbone(torch.zeros(1, 3, *size, device=device))
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes.items():
            module.training = mode
    return last
