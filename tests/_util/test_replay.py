"""CUDA graphs are captured once for each shape, share their memory, and are few."""

from typing import ClassVar

import pytest
import torch

from sourceward._util import graphs


class FakeGraph:
    """Calls the function in place of a capture; fails for three rows."""

    graph = type("", (), {"pool": staticmethod(lambda: "a pool")})
    pools: ClassVar[list] = []

    def __init__(self, function, *inputs, device, pool):
        self.pools.append(pool)
        self.function = function
        if len(inputs[0]) == 3:
            raise RuntimeError("it waits for the device")

    def __call__(self, *inputs):
        return "replayed", self.function(*inputs)


@pytest.fixture(autouse=True)
def fake(monkeypatch):
    monkeypatch.setattr(graphs, "Graph", FakeGraph)
    monkeypatch.setattr(FakeGraph, "pools", [])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)


def test_graphs_share_memory_and_are_few(monkeypatch):
    monkeypatch.setattr(graphs, "KEPT", 2)
    known = {}
    for rows in (1, 2, 1, 4):
        kind, value = graphs.replay(known, rows, torch.sum, torch.ones(rows))
        assert (kind, value) == ("replayed", rows)
        assert len(known) <= 2
    assert FakeGraph.pools == [None, "a pool", None]


def test_a_function_that_cannot_be_captured_is_called():
    known = {}
    with pytest.warns(UserWarning, match="it waits for the device"):
        assert graphs.replay(known, 0, torch.sum, torch.ones(3)) == 3
    assert graphs.replay(known, 0, torch.sum, torch.ones(3)) == 3
