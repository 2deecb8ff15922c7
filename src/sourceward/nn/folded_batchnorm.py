"""Copies of networks for passes on a CPU: batch norm is part of the convolution before it, channels are last.

At inference batch norm multiplies and shifts each channel by constants, which a convolution can do itself. A
copy shares everything with its network but the weights of these convolutions, and is made again when the
network changes.
"""

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Function = Callable[[Any], Tensor]
"""A module, or a bound method of one."""
Tensors = dict[tuple[Any, ...], tuple[Tensor, Tensor]]
"""Folded weight and bias, by what they were made of: networks that share tensors go on sharing them."""

KEY = "_folded_batchnorm"
"""Where a module keeps its copies."""
TRIALS = "_trials"
"""Where a module keeps the results of trials, see `nn.alone`: a copy has other kernels."""
FOLDABLE = ("BatchNorm2d", "BatchNormAct2d")
"""Classes of batch norm that are folded: of torch, and of timm, which contains an activation."""
TOLERANCE = 1e-3
"""Largest difference between the outputs of copy and network, relative to the largest output."""
COPIED = {"_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks"}
"""Attributes of a module that the copy has of its own."""
SAMPLES = 32
"""Elements of each tensor that are compared before a copy is used."""


@torch.no_grad()
def fold_batchnorm(passes: Mapping[Function, Any]) -> dict[Function, Function]:
    """The same functions of copies without batch norm; each itself where there is none to fold.

    Args:
        passes: functions in eval mode, on a CPU, which may share modules, with an input of each.
    """
    functions = tuple(passes)
    kept = _owner(functions[0]).__dict__.setdefault(KEY, Kept())
    copies = kept.get(functions)
    if copies is None or not copies.valid():
        if not all(isinstance(given, Tensor) and len(given) for given in passes.values()):
            return dict(zip(functions, functions))
        copies = kept[functions] = FoldedCopies(passes)
    return copies.functions


class Kept(dict[tuple[Function, ...], "FoldedCopies"]):
    """Copies of a module, by functions. A module that is copied or pickled has none."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Kept, ()


class FoldedCopies:
    """Copies of functions, each made by itself, and what they were made of.

    Args:
        passes: functions, with an input of each.
    """

    def __init__(self, passes: Mapping[Function, Tensor]) -> None:
        self.functions: dict[Function, Function] = dict(zip(passes, passes))
        network = nn.ModuleList(dict.fromkeys(map(_owner, passes)))
        self._norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
        if not self._norms:
            return
        self._state = State(network, self._norms)
        if self._state.hooked() or any(norm.training for norm in self._norms):
            return
        tensors: Tensors = {}
        for function, given in passes.items():
            try:
                self.functions[function] = _folded(function, random_like(given), tensors)
            except Exception:  # it cannot be copied, or does not take maps with channels last
                continue

    def valid(self) -> bool:
        return not self._norms or self._state.unchanged()


class State:
    """All that copies depend on. Fused optimizers do not count their changes to a tensor, and nobody counts
    those to `.data`, so some elements of each tensor are compared, too.

    Args:
        network: all modules.
        norms: batch norm among them.
    """

    def __init__(self, network: nn.Module, norms: Sequence[Any]) -> None:
        self._modules, self._norms = list(network.modules()), norms
        self._tables = [t for m in self._modules for t in (m._modules, m._parameters, m._buffers)]
        self._entries = self._values()
        self._tensors = list({id(value): value for value in self._entries if torch.is_tensor(value)}.values())
        self._counted = [tensor for tensor in self._tensors if not tensor.is_inference()]
        self._samples = [_samples(tensor) for tensor in self._tensors if tensor.numel()]
        self._kept = self._numbers()
        self._bits = self._sampled()

    def unchanged(self) -> bool:
        """Whether every module and tensor is the one that was there, as it was."""
        values = self._values()
        return (
            len(values) == len(self._entries)
            and all(map(is_, values, self._entries))
            and self._numbers() == self._kept
            and torch.equal(self._sampled(), self._bits)
        )

    def hooked(self) -> bool:
        return any(module._forward_hooks or module._forward_pre_hooks for module in self._modules)

    def _values(self) -> list[Any]:
        return [value for table in self._tables for value in table.values()]

    def _numbers(self) -> tuple[list[Any], ...]:
        return (
            [tensor._version for tensor in self._counted],
            [tensor.data_ptr() for tensor in self._tensors],
            [module.training for module in self._modules],
            [norm.eps for norm in self._norms],
            [self.hooked()],
        )

    def _sampled(self) -> Tensor:
        return torch.cat(self._samples).view(torch.uint8)  # bits, so that NaN equals itself


def _samples(tensor: Tensor) -> Tensor:
    """Elements in the memory of the tensor, at equal distances."""
    there = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    elements = min(tensor.numel(), there)  # rows of an expanded tensor are one in memory
    step = -(-elements // SAMPLES)
    return tensor.detach().as_strided((elements // step,), (step,))


def skeleton(module: nn.Module) -> nn.Module:
    """A copy of the modules alone: tensors and all other attributes are shared."""
    memo: dict[int, Any] = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    for part in module.modules():
        memo |= {id(value): value for name, value in vars(part).items() if name not in COPIED}
    made = copy.deepcopy(module, memo)
    for part in made.modules():
        part.__dict__.pop(TRIALS, None)
    return made


def random_like(given: Tensor) -> Tensor:
    """Pixels of the shape and type of an input, always the same."""
    pixels = torch.randint(256, given.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return pixels if given.dtype == torch.uint8 else (pixels / 128 - 1).to(given.dtype)


def _folded(function: Function, given: Tensor, tensors: Tensors) -> Function:
    """The function of a copy without batch norm; itself if there is none to fold, or the outputs differ."""
    owner = _owner(function)
    made = skeleton(owner)
    copied: Function = made if function is owner else getattr(made, function.__name__)
    pairs = _pairs(made, lambda: copied(given))
    folded = {norm: _fold(convolution, norm, tensors) for convolution, norm in pairs}
    for part in list(made.modules()):
        part._modules.update({name: folded[m] for name, m in part._modules.items() if m in folded})
    expected = function(given)
    difference, largest = ((copied(given) - expected).abs().max(), expected.abs().max())
    agree = 0 < largest < float("inf") and difference <= TOLERANCE * largest
    return copied if folded and agree else function


def _fold(convolution: nn.Conv2d, norm: Any, tensors: Tensors) -> nn.Module:
    """Make batch norm part of a convolution; what remains of it is its activation, if it has one."""
    key = (*map(id, (convolution.weight, convolution.bias, *_statistics(norm))), norm.eps)
    if key not in tensors:
        tensors[key] = _folded_tensors(convolution, norm)
    own: dict[str, Any] = convolution._parameters
    own["weight"], own["bias"] = tensors[key]
    return nn.Sequential(norm.drop, norm.act) if hasattr(norm, "act") else nn.Identity()


def _pairs(network: nn.Module, run: Callable[[], Any]) -> list[tuple[nn.Conv2d, nn.Module]]:
    """Convolutions whose output one batch norm reads, which reads no other."""
    outputs: dict[int, tuple[nn.Conv2d, Tensor]] = {}
    pairs: dict[tuple[nn.Conv2d, nn.Module], None] = {}

    def after(convolution: Any, _inputs: Any, output: Tensor) -> None:
        outputs[id(output)] = convolution, output  # the tensor is kept, so that no other gets its id

    def before(norm: nn.Module, given: tuple[Tensor, ...]) -> None:
        if id(given[0]) in outputs:
            pairs[outputs[id(given[0])][0], norm] = None

    hooks = []
    for part in network.modules():
        if isinstance(part, nn.Conv2d):
            hooks.append(part.register_forward_hook(after))
        elif type(part).__name__ in FOLDABLE and part.running_mean is not None:
            hooks.append(part.register_forward_pre_hook(before))
    run()
    for hook in hooks:
        hook.remove()
    convolutions, norms = (Counter(side) for side in zip(*pairs)) if pairs else (Counter(), Counter())
    return [pair for pair in pairs if convolutions[pair[0]] == 1 == norms[pair[1]]]


def _statistics(norm: Any) -> tuple[Tensor | None, ...]:
    return norm.running_mean, norm.running_var, norm.weight, norm.bias


def _folded_tensors(convolution: nn.Conv2d, norm: Any) -> tuple[Tensor, Tensor]:
    """Weight and bias of a convolution followed by batch norm."""
    mean, variance = norm.running_mean.double(), norm.running_var.double()
    factor = (variance + norm.eps).rsqrt() * (1 if norm.weight is None else norm.weight)
    own = 0 if convolution.bias is None else convolution.bias
    bias = (own - mean) * factor + (0 if norm.bias is None else norm.bias)
    weight = (convolution.weight * factor[:, None, None, None]).to(convolution.weight.dtype)
    return weight.contiguous(memory_format=torch.channels_last), bias.to(weight.dtype)


def _owner(function: Any) -> nn.Module:
    return getattr(function, "__self__", function)
