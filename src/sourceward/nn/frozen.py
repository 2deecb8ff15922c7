"""A module with its parameters held constant: the stop-gradient sg(phi) of eq. 7 and eq. 10."""

from typing import Any

from torch import Tensor, nn
from torch.func import functional_call


def frozen_call(module: nn.Module, *inputs: Tensor | None) -> Any:
    """The module's output, differentiable in the inputs alone."""
    constants = {name: parameter.detach() for name, parameter in module.named_parameters()}
    return functional_call(module, constants, inputs)
