"""Gradients that several methods need: reversed ones, and those of a network with other weights."""

from typing import Any

from torch import Tensor, nn
from torch.func import functional_call


def reverse_gradient(x: Tensor, weight: float = 1.0) -> Tensor:
    """Return x; its gradient is reversed and multiplied by `weight` (Ganin & Lempitsky, ICML 2015).

    >>> import torch
    >>> x = torch.ones(1, requires_grad=True)
    >>> (3 * reverse_gradient(x, 0.5)).sum().backward(), x.grad
    (None, tensor([-1.5000]))
    """
    constant = x.detach()
    return constant + weight * (constant - x)


def plain(module: Any) -> nn.Module:
    """Return a module without the wrapper of torch.compile, whose names of weights differ."""
    return getattr(module, "_orig_mod", module)


def call_with(module: nn.Module, weights: dict[str, Tensor], inputs: Any) -> Tensor:
    """Return `module(inputs)` with other weights; those that are not named are its own."""
    return functional_call(plain(module), weights, (inputs,))
