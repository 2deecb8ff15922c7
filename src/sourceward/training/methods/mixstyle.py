"""MixStyle (Zhou et al., ICLR 2021): feature statistics of two sources are mixed inside the backbone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sourceward._util.errors import InputError
from sourceward.training.finetune import FINETUNE_METHODS, FineTuneSettings, Method
from sourceward.training.methods.draws import beta, images, partners

ALPHA, CHANCE, EPSILON = 0.1, 0.5, 1e-6
"""The paper's."""
STRIDES = (4, 8)
"""After which reductions of the image: the first two stages of a ResNet, as in the paper."""


def mix_statistics(maps: Tensor, other: Tensor, share: Tensor) -> Tensor:
    """Maps with each channel's mean and std mixed with those of another row; statistics take no gradient.

    Args:
        maps: (batch, channels, height, width).
        other: (batch,) number of the other row.
        share: (batch,) of its own statistics that a row keeps.
    """
    var, mean = torch.var_mean(maps.detach().float(), (2, 3), keepdim=True)
    std = (var + EPSILON).sqrt()
    share = share[:, None, None, None]
    mixed_mean, mixed_std = torch.lerp(mean[other], mean, share), torch.lerp(std[other], std, share)
    return ((maps - mean) / std * mixed_std + mixed_mean).to(maps.dtype)


@FINETUNE_METHODS.register("mixstyle")
class MixStyle(Method):
    """MixStyle: after each of two early stages, with a chance of one half, the statistics of each row's maps
    are mixed with those of a row of another source."""

    def __init__(self, settings: FineTuneSettings, backbone: nn.Module, sources: int, classes: int) -> None:
        super().__init__(settings, backbone, sources, classes)
        self.sources, self.places = sources, stage_ends(backbone, STRIDES)

    def loss(
        self,
        backbone: nn.Module,
        head: nn.Module,
        inputs: Any,
        label: Tensor,
        domain: Tensor,
        generator: torch.Generator,
    ) -> Tensor:
        with self.mixing(backbone, domain, generator):
            logits = head(backbone(images(inputs, "mixstyle")))
        return cross_entropy(logits, label, label_smoothing=self.settings.label_smoothing)

    @contextmanager
    def mixing(self, backbone: nn.Module, domain: Tensor, generator: torch.Generator) -> Iterator[None]:
        """Hooks for as long as the batch takes: what is saved or evaluated knows nothing of them."""

        def hook(module: nn.Module, args: Any, maps: Tensor) -> Tensor:
            share = beta(ALPHA, len(maps), generator)
            active = torch.rand(1, generator=generator, device=maps.device) < CHANCE
            return mix_statistics(
                maps, partners(domain, self.sources, generator), torch.where(active, share, 1.0)
            )

        handles = [backbone.get_submodule(place).register_forward_hook(hook) for place in self.places]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def stage_ends(backbone: nn.Module, strides: tuple[int, ...]) -> list[str]:
    """Names of the last modules whose maps are the image's side divided by each of `strides`."""
    size = getattr(getattr(backbone, "preprocessing", None), "size", None)
    last: dict[int, str] = {}
    if size is not None:
        _watch(backbone, size, last)
    places = [last[size[0] // stride] for stride in strides if size is not None and size[0] // stride in last]
    if not places:
        raise InputError(
            "Fine-tuning by 'mixstyle' needs maps of an early stage, but this backbone has none. Use 'erm'."
        )
    return places


def _watch(backbone: nn.Module, size: tuple[int, int], last: dict[int, str]) -> None:
    """One pass over a blank image, for the height of every module's maps; the network stays as it was."""

    def watcher(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.ndim == 4 and output.shape[-1] > 1:
                last[output.shape[-2]] = name

        return hook

    handles = [m.register_forward_hook(watcher(name)) for name, m in backbone.named_modules() if name]
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
