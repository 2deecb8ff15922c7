"""CUDA graphs: a function of tensors of fixed shapes, recorded once and replayed as one launch."""

import warnings
from collections.abc import Callable, Hashable
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
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(stream):
            for _ in range(2):  # compiles kernels, fills caches, chooses algorithms
                function(*self.inputs)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(self.graph, pool=pool):
            self.outputs = function(*self.inputs)

    def __call__(self, *inputs: Tensor) -> Any:
        for mine, given in zip(self.inputs, inputs):
            mine.copy_(given, non_blocking=True)
        self.graph.replay()
        return self.outputs


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
            torch.cuda.synchronize()
            warnings.warn(f"No CUDA graph, launching kernels one by one: {error}", stacklevel=2)
            graphs[key] = lambda *values: function(*(value.to(place) for value in values))
    return graphs[key](*inputs)
