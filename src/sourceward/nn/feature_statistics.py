"""`FeatureStatistics`: mean and spread of every channel of a backbone's early maps, which tell an image's style.

While the backbone looks at an image, its own feature_statistics give way to those of a source: adaptive instance
normalisation (Huang & Belongie, ICCV 2017) as a walk toward the sources (test-time style shifting, Park et
al., ICML 2023). Each image is moved by itself.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

STRIDES = (4, 8)
"""Pixels of the image for one of an early map: textures and strokes, not yet objects."""


class FeatureStatistics(nn.Module):
    """What each source's early maps are like.

    Args:
        of: (sources, 2, channels) by the name of a module inside the backbone: means and spreads.
    """

    def __init__(self, of: Mapping[str, Tensor]) -> None:
        super().__init__()
        for place, feature_statistics in of.items():
            self.register_buffer(place.replace(".", "/"), feature_statistics)

    @classmethod
    def like(cls, state: Mapping[str, Tensor], prefix: str) -> "FeatureStatistics":
        """As many and as large as those in a state dict."""
        own = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        return cls({place: torch.zeros_like(value) for place, value in own.items()})

    @contextmanager
    def toward(self, network: nn.Module, source: int) -> Iterator[None]:
        """While this lasts, `network` sees every image with the feature_statistics of a source."""
        with _hooked(
            (network.get_submodule(place.replace("/", ".")), _taking_over(feature_statistics[source]))
            for place, feature_statistics in self.named_buffers()
        ):
            yield


def feature_statistics(maps: Tensor) -> Tensor:
    """Mean and spread of each channel: (batch, channels, height, width) to (batch, 2, channels).

    >>> feature_statistics(torch.tensor([[[[1.0, 3.0]]]]))
    tensor([[[2.],
             [1.]]])
    """
    flat = maps.float().flatten(2)
    return torch.stack([flat.mean(2), flat.std(2, correction=0)], 1)


def adain(maps: Tensor, statistics: Tensor) -> Tensor:
    """The maps with other feature_statistics (2, channels).

    >>> adain(torch.tensor([[[[1.0, 3.0]]]]), torch.tensor([[0.0], [5.0]]))
    tensor([[[[-5.,  5.]]]])
    """
    own = feature_statistics(maps)[..., None, None]
    mean, spread = statistics[..., None, None].to(own)
    tiny = torch.finfo(torch.float16).eps  # a flat map stays flat
    return (mean + (maps.float() - own[:, 0]) * (spread / own[:, 1].clamp_min(tiny))).to(maps.dtype)


@torch.no_grad()
def mean_statistics(network: nn.Module, places: Sequence[str], batches: Iterable[Any]) -> dict[str, Tensor]:
    """Mean feature_statistics (2, channels) at each place, over what the network is shown."""
    seen: dict[str, list[Tensor]] = {place: [] for place in places}

    def keep(place: str) -> Callable[..., None]:
        return lambda _module, _inputs, maps: seen[place].append(feature_statistics(maps))

    with _hooked((network.get_submodule(place), keep(place)) for place in places):
        for batch in batches:
            network(batch)
    return {place: torch.cat(values).mean(0) for place, values in seen.items()}


@torch.no_grad()
def early_maps(network: nn.Module, size: tuple[int, int], channels: int = 3) -> tuple[str, ...]:
    """The modules at the end of each of `STRIDES`, by name; none where a network has no such maps.

    >>> early_maps(nn.Sequential(nn.AvgPool2d(4), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()), (32, 32))
    ('1', '2')
    """
    calls: dict[str, tuple[int, int]] = {}  # strides that a module meets and leaves, in the order of leaving

    def stride(maps: Any) -> int:
        if not isinstance(maps, Tensor) or maps.ndim != 4:
            return 0
        tried = (2**power for power in range(8))
        return next(
            (s for s in tried if all(a in (b // s, -(-b // s)) for a, b in zip(maps.shape[2:], size))), 0
        )

    def note(name: str) -> Callable[..., None]:
        return lambda _module, inputs, maps: calls.update(
            {name: (stride(inputs[0]) if inputs else 0, stride(maps))}
        )

    parameter = next(network.parameters(), None)
    blank = torch.zeros(1, channels, *size, device=None if parameter is None else parameter.device)
    with _hooked((module, note(name)) for name, module in network.named_modules() if name):
        network(blank)

    def goes_on(name: str, at: int) -> bool:
        """Whether it lies within a module that leads from this stride to the next."""
        within = (calls.get(name[:dot]) for dot, letter in enumerate(name) if letter == ".")
        return (at, 2 * at) in within

    ends = {out: name for name, (_, out) in calls.items() if out in STRIDES and not goes_on(name, out)}
    return tuple(ends[at] for at in STRIDES if at in ends)


def _taking_over(feature_statistics: Tensor) -> Callable[..., Tensor]:
    return lambda _module, _inputs, maps: adain(maps, feature_statistics)


@contextmanager
def _hooked(hooks: Iterable[tuple[nn.Module, Callable[..., Any]]]) -> Iterator[None]:
    handles = [module.register_forward_hook(hook) for module, hook in hooks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
