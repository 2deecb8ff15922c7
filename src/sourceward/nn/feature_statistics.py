"""`FeatureStatistics`: AdaIN of a backbone's early feature maps to the channel statistics of a source.

Mean and standard deviation of the channels of early maps describe the domain of an image rather than its
content. Adaptive instance normalisation (AdaIN; Huang & Belongie, ICCV 2017) replaces an image's own
statistics by the mean statistics of a source, as test-time augmentation (test-time style shifting, Park et
al., ICML 2023). Each image is normalised by itself.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

STRIDES = (4, 8)
"""Strides of the early maps: textures and strokes, not yet objects."""


class FeatureStatistics(nn.Module):
    """Mean feature statistics of each source.

    Args:
        statistics: (sources, 2, channels) means and standard deviations, by the name of a module inside the
            backbone.
    """

    def __init__(self, statistics: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name, values in statistics.items():
            self.register_buffer(name.replace(".", "/"), values)  # names of buffers have no dots

    @classmethod
    def like(cls, state: Mapping[str, Tensor], prefix: str) -> "FeatureStatistics":
        """A module with the buffers found in a state dict."""
        own = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        return cls({name: torch.zeros_like(value) for name, value in own.items()})

    def layers(self, backbone: nn.Module) -> list[str]:
        """Names of the modules whose maps have statistics, in the order of the backbone."""
        named = {name.replace("/", ".") for name, _ in self.named_buffers()}
        return [name for name, _ in backbone.named_modules() if name in named]

    def applied(self, backbone: nn.Module, own: int, toward: Sequence[int]) -> nn.Module:
        """A copy of the backbone, with the same tensors, that applies AdaIN to some copies of a batch.

        Its input is (copies x n, ...), copy by copy. The first `own` copies keep their statistics; after them
        comes one copy for each element of `toward`, which gets the statistics of that source.

        Args:
            backbone: whose modules are named.
            own: copies that keep their own statistics.
            toward: numbers of sources; a negative one stands for the mean over all sources.
        """
        changed = share(backbone)
        named = {name.replace("/", "."): values for name, values in self.named_buffers()}
        for name in self.layers(backbone):
            parent, _, leaf = name.rpartition(".")
            module = AdaIN(changed.get_submodule(name), named[name], own, toward)
            setattr(changed.get_submodule(parent), leaf, module)
        return changed


def share(module: nn.Module) -> nn.Module:
    """A copy of a module with the same parameters and buffers, not copies of them."""
    tensors = [*module.parameters(), *module.buffers()]
    return copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})


class AdaIN(nn.Module):
    """A module whose maps get the statistics of the sources, for some of the copies of a batch.

    Args:
        module: its output is (copies x n, channels, height, width), copy by copy.
        statistics: (sources, 2, channels).
        own, toward: see `FeatureStatistics.applied`.
    """

    statistics: Tensor

    def __init__(self, module: nn.Module, statistics: Tensor, own: int, toward: Sequence[int]) -> None:
        super().__init__()
        self.module, self.own, self.toward = module, own, toward
        self.register_buffer("statistics", statistics)

    def forward(self, *inputs: Any) -> Tensor:
        copies = self.module(*inputs)
        last = not copies.is_contiguous() and copies.is_contiguous(memory_format=torch.channels_last)
        copies = copies.unflatten(0, (self.own + len(self.toward), -1))
        own, changed = copies[: self.own], copies[self.own :]
        values = self.statistics
        target = torch.stack([values[source] if source >= 0 else values.mean(0) for source in self.toward])
        # Of four dimensions each, so that channels stay last in memory where they are; with one image they
        # do not by themselves.
        parts = [own.flatten(0, 1)] if self.own else []
        joined = torch.cat([*parts, adain(changed, target.unsqueeze(1)).flatten(0, 1)])
        return joined.contiguous(memory_format=torch.channels_last) if last else joined


def feature_statistics(maps: Tensor) -> Tensor:
    """Mean and standard deviation of each channel: (..., channels, height, width) -> (..., 2, channels).

    >>> feature_statistics(torch.tensor([[[[1.0, 3.0]]]]))
    tensor([[[2.],
             [1.]]])
    """
    mean, _, std = _centred(maps.float())
    return torch.stack([mean, std], -4)[..., 0, 0]


def adain(maps: Tensor, statistics: Tensor) -> Tensor:
    """Maps (..., channels, height, width) with the given statistics, (..., 2, channels), broadcast.

    >>> adain(torch.tensor([[[[1.0, 3.0]]]]), torch.tensor([[0.0], [5.0]]))
    tensor([[[[-5.,  5.]]]])
    """
    _, centred, own_std = _centred(maps.float())
    mean, std = statistics[..., None, None].to(centred).unbind(-4)
    tiny = torch.finfo(torch.float16).eps  # a constant map stays constant
    return torch.addcmul(mean, centred, std / own_std.clamp_min(tiny)).to(maps.dtype)


def _centred(maps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Means, maps without them, and standard deviations; `torch.std` takes seven times as long on a CPU."""
    mean = maps.mean((-2, -1), keepdim=True)
    centred = maps - mean
    return mean, centred, centred.square().mean((-2, -1), keepdim=True).sqrt()


@torch.no_grad()
def mean_statistics(network: nn.Module, names: Sequence[str], batches: Iterable[Any]) -> dict[str, Tensor]:
    """Mean statistics (2, channels) of the outputs of each named module, over batches of inputs."""
    found: dict[str, list[Tensor]] = {name: [] for name in names}

    def append(name: str) -> Callable[..., None]:
        return lambda _module, _inputs, maps: found[name].append(feature_statistics(maps))

    with _hooked((network.get_submodule(name), append(name)) for name in names):
        for batch in batches:
            network(batch)
    return {name: torch.cat(values).mean(0) for name, values in found.items()}


@torch.no_grad()
def early_maps(
    network: nn.Module, size: tuple[int, int], channels: int = 3, strides: Sequence[int] = STRIDES
) -> tuple[str, ...]:
    """Names of the modules at the end of each of `strides`; empty for networks without such maps.

    >>> early_maps(nn.Sequential(nn.AvgPool2d(4), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()), (32, 32))
    ('1', '2')
    """
    calls: dict[str, tuple[int, int]] = {}  # strides of a module's input and output

    def note(name: str) -> Callable[..., None]:
        return lambda _module, inputs, maps: calls.update(
            {name: (_stride(inputs[0], size) if inputs else 0, _stride(maps, size))}
        )

    parameter = next(network.parameters(), None)
    blank = torch.zeros(1, channels, *size, device=None if parameter is None else parameter.device)
    with _hooked((module, note(name)) for name, module in network.named_modules() if name):
        network(blank)

    def inside_transition(name: str, stride: int) -> bool:
        """Whether it is part of a module that leads from this stride to the next."""
        parents = (calls.get(name[:dot]) for dot, letter in enumerate(name) if letter == ".")
        return (stride, 2 * stride) in parents

    # Modules are in the order in which they returned, so the last one of each stride is kept.
    ends = {out: name for name, (_, out) in calls.items() if not inside_transition(name, out)}
    return tuple(ends[stride] for stride in strides if stride in ends)


def with_map_means(network: nn.Module, names: Sequence[str], inputs: Any) -> tuple[Tensor, Tensor]:
    """What a network returns, and the channel means (batch, channels) of named maps inside it, side by side.

    >>> with_map_means(nn.Sequential(nn.Identity(), nn.Flatten()), ["0"], torch.tensor([[[[1.0, 3.0]]]]))
    (tensor([[1., 3.]]), tensor([[2.]]))
    """
    found: list[Tensor] = []

    def append(_module: nn.Module, _inputs: Any, maps: Tensor) -> None:
        found.append(maps.float().mean((2, 3)))

    with _hooked((network.get_submodule(name), append) for name in names):
        output = network(inputs)
    return output, torch.cat(found, 1)


def _stride(maps: Any, size: tuple[int, int]) -> int:
    """How many times smaller than `size` the maps are, a power of 2; 0 for anything else."""
    if not isinstance(maps, Tensor) or maps.ndim != 4:
        return 0
    for stride in (2**power for power in range(8)):
        if all(a in (b // stride, -(-b // stride)) for a, b in zip(maps.shape[2:], size)):
            return stride
    return 0


@contextmanager
def _hooked(hooks: Iterable[tuple[nn.Module, Callable[..., Any]]]) -> Iterator[None]:
    handles = [module.register_forward_hook(hook) for module, hook in hooks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
