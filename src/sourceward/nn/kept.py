"""What a module keeps of its passes on a CPU, and whether the modules it depends on are as they were."""

import math
from collections.abc import Sequence
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch import Tensor, nn

KEY = "_kept"
"""The attribute of a module that holds its `Kept`."""
TABLES = "_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks"
"""Attributes of a module that hold others."""
SAMPLES = 32
"""Elements of each tensor, at least, that are compared."""
GOLDEN = (math.sqrt(5) - 1) / 2
"""Share of a row between two samples: they spread over all parts of it."""
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers by their size in bytes: as integers, NaN equals itself."""


class Kept:
    """Copies of a module, see `nn.folded_batchnorm`, and results of trials, see `nn.alone`. A module that is
    copied or pickled starts without them."""

    def __init__(self, owner: nn.Module | None = None) -> None:
        self._owner = None if owner is None else ref(owner)
        self.copies: dict[Any, Any] = {}
        self.trials: dict[Any, Any] = {}

    def belongs_to(self, module: nn.Module) -> bool:
        return self._owner is not None and self._owner() is module

    def __reduce__(self) -> tuple[Any, ...]:
        return Kept, ()


def kept(module: nn.Module) -> Kept:
    """What this module keeps. A shallow copy has the attributes of its original, but keeps nothing yet."""
    found = vars(module).get(KEY)
    if found is None or not found.belongs_to(module):
        found = vars(module)[KEY] = Kept(module)
    return found


def forget(module: nn.Module) -> None:
    """Free the memory of what a module and those in it keep."""
    for part in module.modules():
        vars(part).pop(KEY, None)


class State:
    """Modules and tensors as they were. References to modules are weak: a network that is dropped is freed at
    once, together with what is kept of it.

    Torch counts the changes of a tensor, but not those by fused optimizers or through `.data`. So some
    elements of each tensor are compared, too: at least one for each output of a weight.

    Args:
        modules: all of them, also those in others.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules = [ref(module) for module in modules]
        self._values = self._read()
        tensors = list({id(value): value for value in self._values if torch.is_tensor(value)}.values())
        self._tensors, self._counted = tensors, [one for one in tensors if not one.is_inference()]
        sampled = [one for one in tensors if one.is_floating_point() and one.numel()]
        self._samples = [np.empty(0, np.int8), *map(_samples, sampled)]
        self._counts, self._bits = self._count(), np.concatenate(self._samples)

    def unchanged(self) -> bool:
        """Whether every module, attribute and tensor is the one that was there, or its equal, as it was."""
        try:
            same = self._read() == self._values  # objects are compared only where they are not the same
        except Exception:  # tensors or arrays, which are not
            return False
        same = same and self._count() == self._counts  # first: samples are of where tensors were
        return same and np.array_equal(np.concatenate(self._samples), self._bits)

    def _read(self) -> list[Any]:
        """Classes and attributes of all modules, and what is in their tables; nothing if one is gone."""
        found: list[Any] = []
        for reference in self._modules:
            module = reference()
            if module is None:
                return []
            own = vars(module).copy()  # another thread may add what it keeps
            own.pop(KEY, None)
            found.append(type(module))
            found += own.values()
            for name in TABLES:
                found += own[name].values()
        return found

    def _count(self) -> tuple[list[int], list[int]]:
        """Changes that torch counts, and addresses."""
        return [one._version for one in self._counted], [one.data_ptr() for one in self._tensors]


def _samples(tensor: Tensor) -> np.ndarray:
    """Bits of elements in the memory of the tensor, at equal distances: in each row another place."""
    there = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    elements = int(min(tensor.numel(), there))  # rows of an expanded tensor are one in memory
    row = max(elements // max(SAMPLES, len(tensor) if tensor.dim() else 1), 1)
    step = math.ceil(GOLDEN * row)
    while math.gcd(step, row) > 1:
        step += 1
    some = tensor.detach().as_strided((-(-elements // step),), (step,))
    return some.view(BITS[tensor.itemsize]).numpy()
