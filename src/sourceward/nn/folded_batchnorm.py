"""Copies of networks for passes on a CPU: batch norm is part of the convolution before it, channels are last.

At inference batch norm multiplies and shifts each channel by constants, which a convolution can do itself.
Kernels of oneDNN read weights in an order of their own, into which torch brings them in every pass; a copy
holds them in that order. It shares everything with its network but the weights of these convolutions, and is
made again when the network changes.
"""

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sourceward.nn.backbones.pointwise import Pointwise
from sourceward.nn.kept import KEY, TABLES, State, kept

Function = Callable[[Any], Tensor]
"""A module, or a bound method of one."""

FOLDABLE = ("BatchNorm2d", "BatchNormAct2d")
"""Classes of batch norm that are folded: of torch, and of timm, which contains an activation."""
TOLERANCE = 1e-3
"""Largest difference between the outputs of copy and network, relative to the largest output."""
ORDERS = 4
"""Orders of a weight that are kept: those for images, for smaller copies, and for one or several threads."""

_weights: WeakValueDictionary[int, "FoldedWeight"] = WeakValueDictionary()
"""Folded weights of the copies that there are, by the id of the network's weight."""


@torch.inference_mode(False)
@torch.no_grad()
def fold_batchnorm(passes: Mapping[Function, Any]) -> dict[Function, Function]:
    """The same functions of copies without batch norm; each itself where there is none to fold.

    Args:
        passes: functions in eval mode, on a CPU, which may share modules, with an input of each.
    """
    key = tuple((id(_owner(function)), getattr(function, "__name__", "")) for function in passes)
    known = kept(_owner(next(iter(passes)))).copies
    copies = known.get(key)
    if copies is None or not copies.valid():
        if not all(isinstance(given, Tensor) and len(given) for given in passes.values()):
            return dict(zip(passes, passes))
        try:
            copies = known[key] = FoldedCopies(passes)
        except Exception:  # an input of another shape, say: its own pass tells
            return dict(zip(passes, passes))
    return {function: copied or function for function, copied in zip(passes, copies.functions)}


class FoldedCopies:
    """Copies of functions, each made by itself, and what they were made of. It holds no reference to the
    owners of the functions, which hold it.

    Args:
        passes: functions, with an input of each.
    """

    def __init__(self, passes: Mapping[Function, Tensor]) -> None:
        self.functions: list[Function | None] = [None] * len(passes)
        modules = _modules(passes)
        self._state = State(modules) if any(isinstance(m, _BatchNorm) for m in modules) else None
        if self._state is None or not _foldable(modules):
            return
        trials = {function: random_like(given) for function, given in passes.items()}
        for function, trial in trials.items():
            function(trial)
        self._state = State(_modules(passes))  # with what the first pass leaves
        functions = [_folded(function, trial) for function, trial in trials.items()]
        if self.valid():
            self.functions = functions
        else:  # every pass leaves something
            self._state = None

    def valid(self) -> bool:
        return self._state is None or self._state.unchanged()


def _modules(passes: Mapping[Function, Any]) -> list[Any]:
    """All modules, each once."""
    return list(nn.ModuleList(dict.fromkeys(map(_owner, passes))).modules())[1:]


def _foldable(modules: Sequence[Any]) -> bool:
    """Whether batch norm is constant, and nothing reads or changes what modules compute."""
    hooked = any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in modules)
    return not hooked and not any(module.training for module in modules if isinstance(module, _BatchNorm))


def skeleton(module: nn.Module) -> nn.Module:
    """A copy of the modules alone: tensors and all other attributes are shared."""
    memo: dict[int, Any] = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    for part in module.modules():
        others = [value for name, value in vars(part).copy().items() if name not in (*TABLES, KEY)]
        memo |= {id(value): value for value in others if not isinstance(value, nn.Module)}
    for part in module.modules():  # a table may be an attribute, too
        for name in TABLES:
            memo.pop(id(vars(part)[name]), None)
    return copy.deepcopy(module, memo)


def random_like(given: Tensor) -> Tensor:
    """Pixels of the shape and type of an input, always the same."""
    pixels = torch.randint(256, given.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return pixels if given.dtype == torch.uint8 else (pixels / 128 - 1).to(given.dtype)


def _folded(function: Function, given: Tensor) -> Function | None:
    """The function of a copy without batch norm; None if there is none to fold, or the outputs differ."""
    expected = function(given)
    try:
        owner = _owner(function)
        made = skeleton(owner)
        copied: Function = made if function is owner else getattr(made, function.__name__)
        folded = {norm: _fold(convolution, norm) for convolution, norm in _pairs(made, lambda: copied(given))}
        for part in list(made.modules()):
            part._modules.update({name: folded[m] for name, m in part._modules.items() if m in folded})
        difference, largest = (copied(given) - expected).abs().max(), expected.abs().max()
    except Exception:  # it cannot be copied, or does not take maps with channels last
        return None
    agree = 0 < largest < float("inf") and difference <= TOLERANCE * largest
    return copied if folded and agree else None


def _fold(convolution: Any, norm: Any) -> nn.Module:
    """Make batch norm part of a convolution; what remains of it is its activation, if it has one."""
    weight, bias = _folded_tensors(convolution, norm)
    folded = _weights.get(id(convolution.weight))
    if folded is None or not torch.equal(folded.weight, weight):
        folded = _weights[id(convolution.weight)] = FoldedWeight(weight)
    if _can_reorder(convolution):
        convolution.__class__ = ReorderedConv2d
    convolution.folded = folded
    own: dict[str, Any] = convolution._parameters
    own["weight"], own["bias"] = folded.weight, bias
    return nn.Sequential(norm.drop, norm.act) if hasattr(norm, "act") else nn.Identity()


def _pairs(network: nn.Module, run: Callable[[], Any]) -> list[tuple[nn.Conv2d, nn.Module]]:
    """Convolutions whose output one batch norm reads, which reads no other."""
    outputs: dict[int, tuple[nn.Conv2d, Tensor, int]] = {}
    pairs: dict[tuple[nn.Conv2d, nn.Module], None] = {}

    def after(convolution: Any, _inputs: Any, output: Tensor) -> None:
        # The tensor is kept, so that no other gets its id; its version changes with what is done in place.
        outputs[id(output)] = convolution, output, output._version

    def before(norm: nn.Module, given: tuple[Tensor, ...]) -> None:
        convolution, _, version = outputs.get(id(given[0]), (None, None, -1))
        if convolution is not None and version == given[0]._version:
            pairs[convolution, norm] = None

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


class FoldedWeight:
    """The folded weight of a convolution, for all its copies.

    Which order a kernel reads depends on the shape of the maps and on the number of threads.
    """

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self._reordered: dict[Any, Tensor] = {}

    def reordered(self, shape: torch.Size, settings: tuple[Any, ...]) -> Tensor:
        """The weight in the order of the kernel for maps of this shape."""
        key = shape, settings, torch.get_num_threads()
        found = self._reordered.get(key)
        if found is None:
            reorder: Any = torch._C._nn.mkldnn_reorder_conv2d_weight
            made = reorder(self.weight.to_mkldnn(), *settings, shape)
            if len(self._reordered) >= ORDERS:
                self._reordered.clear()
            self._reordered[key] = found = made
        return found


class ReorderedConv2d(nn.Conv2d):
    """`nn.Conv2d` by oneDNN, with a weight in the order that its kernels read."""

    folded: FoldedWeight

    def forward(self, maps: Tensor) -> Tensor:
        settings = self.padding, self.stride, self.dilation, self.groups
        weight = self.folded.reordered(maps.shape, settings)
        return torch.ops.mkldnn._convolution_pointwise(maps, weight, self.bias, *settings, "none", [], "")


def _can_reorder(convolution: nn.Conv2d) -> bool:
    return (
        type(convolution) in (nn.Conv2d, Pointwise)
        and convolution.padding_mode == "zeros"
        and not isinstance(convolution.padding, str)
        and convolution.weight.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_convolution_pointwise")
    )


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
