"""`split_at`: a network in two parts, up to a named module and after it, so that passes share the first."""

import copy
from typing import Any

import torch
from torch import Tensor, nn


def share(module: nn.Module) -> nn.Module:
    """A copy of a module with the same parameters and buffers, not copies of them."""
    tensors = [*module.parameters(), *module.buffers()]
    return copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})


@torch.no_grad()
def split_at(network: nn.Module, name: str, inputs: Tensor) -> tuple[nn.Module, nn.Module] | None:
    """A network up to the output of a named module, and what comes after it, with the same tensors.

    None where the two parts do not give the bits of the whole on `inputs`: the network has a connection
    around that module, or computes something between modules before it.

    >>> network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh())
    >>> first, rest = split_at(network, "1", torch.ones(1, 2, 2))
    >>> first(torch.ones(1, 2, 2)).shape, torch.equal(rest(torch.ones(1, 3)), torch.ones(1, 3).tanh())
    (torch.Size([1, 3]), True)
    """
    done: list[str] = []
    handles = [
        module.register_forward_hook(lambda *_, own=own: done.append(own))
        for own, module in network.named_modules()
        if own
    ]
    try:
        expected = network(inputs)
    finally:
        for handle in handles:
            handle.remove()
    if name not in done:
        return None
    first, rest = _Front(share(network), name), share(network)
    for own in done[: done.index(name) + 1]:  # a module comes after those inside it
        _replace(rest, own, nn.Identity())
    try:
        same = torch.equal(rest(first(inputs)), expected)
    except (RuntimeError, ValueError):
        return None
    return (first, rest) if same else None


class _Front(nn.Module):
    """A network that stops at the output of a named module, and returns it."""

    def __init__(self, network: nn.Module, name: str) -> None:
        super().__init__()
        _replace(network, name, _Stop(network.get_submodule(name)))
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        try:
            return self.network(inputs)
        except _Reached as reached:
            return reached.maps


class _Stop(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any) -> Tensor:
        raise _Reached(self.module(*inputs))


class _Reached(Exception):
    """Leaves the network, whatever its code would do next."""

    def __init__(self, maps: Tensor) -> None:
        super().__init__()
        self.maps = maps


def _replace(network: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(network.get_submodule(parent), leaf, module)
