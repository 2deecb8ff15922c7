"""CUDA graphs: a function of tensors of fixed shapes, recorded once and replayed as one launch.

Only the recording thread is held to what can be recorded: others may read and copy meanwhile. A graph is
recorded on the device of its tensors, whichever is the current one.
"""

import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

KEPT = 32
"""Graphs kept for one network: each holds the memory of its intermediate results."""


class Graph:
    """`function(*inputs)` as one launch. The outputs are its own: the next call overwrites them.

    Args:
        function: of tensors on one CUDA device; it may not wait for the device, nor look at values.
        inputs: examples of the inputs' shapes and types.
        device: where it runs; the inputs may come from elsewhere.
        pool: memory of another graph to share; one must be done with before the other is called.
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


class LossGraph:
    """A loss and its gradients for batches of one shape, as one launch.

    Gradients lie in the `grad` of the parameters, and every call writes them anew.

    Args:
        function: from a batch to a loss and whatever else is wanted.
        batch: an example: a tensor, or tuples and dictionaries of them.
        generator: whose numbers the function draws; every call draws new ones.
        parameters: those that have gradients.
        changed: tensors that the function writes to; recording leaves them, and the generator, as they were.
    """

    def __init__(
        self,
        function: Callable[[Any], tuple[Tensor, Any]],
        batch: Any,
        generator: torch.Generator,
        parameters: list[torch.nn.Parameter],
        changed: list[Tensor],
    ) -> None:
        self.batch = each(torch.clone, batch)
        with left_as_it_was(generator, changed), torch.cuda.device(generator.device):
            _warm_up(lambda: function(self.batch)[0].backward(), 3)
            for parameter in parameters:
                parameter.grad = None  # so that the graph sets gradients and does not add to them
            self.graph = torch.cuda.CUDAGraph()
            self.graph.register_generator_state(generator)
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.outputs = function(self.batch)
                self.outputs[0].backward()

    def fits(self, batch: Any) -> bool:
        """Whether a batch has the shapes that were recorded."""
        return _shapes(batch) == _shapes(self.batch)

    def __call__(self, batch: Any) -> tuple[Tensor, Any]:
        for mine, given in zip(_flat(self.batch), _flat(batch)):
            mine.copy_(given, non_blocking=True)
        self.graph.replay()
        return self.outputs


def _warm_up(function: Callable[[], Any], times: int) -> None:
    """Compiles kernels, fills caches, chooses algorithms: what a recording may not do. Beside the current
    stream, as a recording wants it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(times):
            function()
    torch.cuda.current_stream().wait_stream(stream)


@contextmanager
def left_as_it_was(generator: torch.Generator, tensors: list[Tensor]) -> Iterator[None]:
    """Whatever is drawn and written inside, nothing of it is left afterwards."""
    state, kept = generator.get_state(), [tensor.clone() for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, kept):
                tensor.copy_(value)
        generator.set_state(state)


def each(function: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """`function` of every tensor."""
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
    """`function(*inputs)` by the graph under `key`, recorded when it is first asked for.

    All graphs of one dictionary share their memory: take what is returned elsewhere before the next call. A
    function that cannot be recorded is called as it is.

    Args:
        graphs: those recorded so far.
        key: of this function and its inputs' shapes.
        function, inputs: see `Graph`.
        device: where the function runs, when inputs come from elsewhere.
    """
    place = inputs[0].device if device is None else device
    if key not in graphs:
        if len(graphs) >= KEPT:
            graphs.clear()
        try:
            pool = next((graph.graph.pool() for graph in graphs.values() if isinstance(graph, Graph)), None)
            graphs[key] = Graph(function, *inputs, device=place, pool=pool)
        except Exception as error:  # whatever in it cannot be recorded
            torch.cuda.synchronize(place)
            warnings.warn(f"No CUDA graph, launching kernels one by one: {error}", stacklevel=2)
            graphs[key] = lambda *values: function(*(value.to(place) for value in values))
    return graphs[key](*inputs)
