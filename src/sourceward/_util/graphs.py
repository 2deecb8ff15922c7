"""CUDA graphs: a function of tensors of fixed shapes, captured once and replayed as one launch.

Capture is thread-local: other threads may use the device meanwhile. A graph is captured on the device of its
tensors, whichever is the current one.
"""

import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

KEPT = 128
"""Largest number of graphs for one network: they share the memory of intermediate results."""


class Graph:
    """A captured `function(*inputs)`. Each call overwrites the outputs of the one before.

    Args:
        function: of tensors on one CUDA device; it must not synchronize with the host.
        inputs: examples of the inputs' shapes and types.
        device: where it runs; inputs are copied there.
        pool: memory pool of another graph, to share; the outputs of one are lost when the other runs.
    """

    def __init__(
        self, function: Callable[..., Any], *inputs: Tensor, device: torch.device, pool: Any = None
    ) -> None:
        self.inputs = tuple(value.to(device, copy=True) for value in inputs)
        with torch.no_grad(), torch.cuda.device(device):
            _warm_up(lambda: function(*self.inputs), 2)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
                self.outputs = function(*self.inputs)

    def __call__(self, *inputs: Tensor) -> Any:
        for mine, given in zip(self.inputs, inputs):
            mine.copy_(given, non_blocking=True)
        self.graph.replay()
        return self.outputs


class HostCopy:
    """A copy of a tensor on the host. From CUDA it is made when the work before it is done: the host goes on
    meanwhile, and the tensor may be overwritten by work that starts later."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._ready = tensor, None
        if tensor.is_cuda:
            self._tensor = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._tensor.copy_(tensor, non_blocking=True)
            self._ready = torch.cuda.Event()
            self._ready.record(torch.cuda.current_stream(tensor.device))

    def numpy(self) -> np.ndarray:
        """Wait for the numbers."""
        if self._ready is not None:
            self._ready.synchronize()
        return self._tensor.numpy()


class LossGraph:
    """A captured loss and its gradients, for batches of one shape.

    Every call overwrites the `grad` of the parameters.

    Args:
        function: from a batch to a loss and any other outputs.
        batch: an example: a tensor, or tuples and dictionaries of them.
        generator: the random generator of the function; every call draws new numbers.
        parameters: those that have gradients.
        changed: tensors that the function writes to; capture restores them and the generator.
    """

    def __init__(
        self,
        function: Callable[[Any], tuple[Tensor, Any]],
        batch: Any,
        generator: torch.Generator,
        parameters: list[torch.nn.Parameter],
        changed: list[Tensor],
    ) -> None:
        self.batch, self.parameters = each(torch.clone, batch), parameters
        with restored(generator, changed), torch.cuda.device(generator.device), _drawing(generator):
            _warm_up(lambda: function(self.batch)[0].backward(), 3)
            torch.cuda.empty_cache()  # the graph has memory of its own
            for parameter in parameters:
                parameter.grad = None  # so that the graph sets gradients and does not add to them
            self.graph = torch.cuda.CUDAGraph()
            self.graph.register_generator_state(generator)
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.outputs = function(self.batch)
                self.outputs[0].backward()
        self.gradients = [parameter.grad for parameter in parameters]

    def fits(self, batch: Any) -> bool:
        """Return whether a batch has the captured shapes."""
        return _shapes(batch) == _shapes(self.batch)

    def __call__(self, batch: Any) -> tuple[Tensor, Any]:
        for mine, given in zip(_flat(self.batch), _flat(batch)):
            mine.copy_(given, non_blocking=True)
        self.graph.replay()
        for parameter, gradient in zip(self.parameters, self.gradients):
            parameter.grad = gradient  # another graph of the same parameters may have set its own
        return self.outputs


def _warm_up(function: Callable[[], Any], times: int) -> None:
    """Run a function on a side stream, since kernels cannot be compiled or chosen during capture."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(times):
            function()
    torch.cuda.current_stream().wait_stream(stream)


@contextmanager
def _drawing(generator: torch.Generator) -> Iterator[None]:
    """Let the generator, and the default one, draw after a capture that failed: their states refuse to."""
    try:
        yield
    except Exception:
        default = torch.cuda.default_generators[torch.cuda.current_device()]
        for own in (generator, default):
            own.graphsafe_set_state(torch.Generator(own.device))
        raise


@contextmanager
def restored(generator: torch.Generator, tensors: list[Tensor]) -> Iterator[None]:
    """Restore the generator and the tensors at the end of the block."""
    state, kept = generator.get_state(), [tensor.clone() for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, kept):
                tensor.copy_(value)
        generator.set_state(state)


def each(function: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """Apply `function` to every tensor of a batch of nested tuples and dictionaries."""
    if isinstance(batch, dict):
        return {name: each(function, value) for name, value in batch.items()}
    if isinstance(batch, tuple):
        parts = [each(function, value) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
    return batch if batch is None else function(batch)


def _flat(batch: Any) -> list[Tensor]:
    found: list[Tensor] = []
    each(lambda tensor: found.append(tensor) or tensor, batch)  # type: ignore[func-returns-value]
    return found


def _shapes(batch: Any) -> list[tuple[torch.Size, torch.dtype]]:
    return [(tensor.shape, tensor.dtype) for tensor in _flat(batch)]


def replay(
    graphs: dict[Hashable, Any],
    key: Hashable,
    function: Callable[..., Any],
    *inputs: Tensor,
    device: torch.device | None = None,
) -> Any:
    """Return `function(*inputs)` by the graph under `key`, which is captured on first use.

    All graphs of one dictionary share memory: copy the outputs before the next call. A function that cannot
    be captured is called directly, with a warning.

    Args:
        graphs: the graphs captured so far.
        key: identifies the function and the shapes of its inputs.
        function, inputs: see `Graph`.
        device: where the function runs, if not on the device of the inputs.
    """
    place = inputs[0].device if device is None else device
    if key not in graphs:
        if len(graphs) >= KEPT:
            graphs.clear()
        try:
            pool = next((graph.graph.pool() for graph in graphs.values() if isinstance(graph, Graph)), None)
            graphs[key] = Graph(function, *inputs, device=place, pool=pool)
        except Exception as error:  # any operation that cannot be captured
            torch.cuda.synchronize(place)
            warnings.warn(f"No CUDA graph, running eagerly: {error}", stacklevel=2)
            graphs[key] = lambda *values: function(*(value.to(place) for value in values))
    return graphs[key](*inputs)
