"""Passes of a backbone one by one: every number of threads gives the bits of one thread."""

import os
import threading

import pytest
import torch
from torch import nn

from sourceward.nn import alone
from sourceward.nn.backbones import create_backbone
from sourceward.nn.backbones.pointwise import Pointwise


@pytest.fixture(autouse=True)
def four_threads(monkeypatch):
    monkeypatch.setattr(alone, "available_cores", lambda: 4)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    assert torch.get_num_threads() == 4
    torch.set_num_threads(before)


class Watched(nn.Module):
    """Notes the thread and the number of torch's threads of each pass."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append((threading.get_ident(), torch.get_num_threads(), torch.is_grad_enabled()))
        return x + 1


def test_many_passes_have_a_thread_each():
    module = Watched()
    found = alone.encode_alone([(module, torch.full((1,), float(i))) for i in range(9)])
    assert [float(value) for value in found] == list(range(1, 10))
    assert {(count, grad) for _, count, grad in module.seen} == {(1, False)}
    pool, threads = alone._pools[4], set(alone._pools[4]._threads)
    alone.encode_alone([(module, torch.ones(1)) for _ in range(9)])
    assert (alone._pools[4], pool._threads) == (pool, threads)
    assert threading.get_ident() not in {thread for thread, _, _ in module.seen}


def test_passes_overlap():
    class Meets(nn.Module):
        def __init__(self):
            super().__init__()
            self.both = threading.Barrier(2)

        def forward(self, x):
            self.both.wait(timeout=60)
            return x

    assert len(alone.encode_alone([(Meets().eval(), torch.ones(1))] * 4)) == 4


def test_threads_that_cannot_start_do_not_keep_the_process(monkeypatch):
    start, started = threading.Thread.start, []

    def refuse(thread):
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    alone._pools.clear()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        alone.encode_alone([(Watched(), torch.ones(1)) for _ in range(4)])
    for thread in started:
        thread.join(timeout=60)
        assert not thread.is_alive()
    monkeypatch.undo()
    assert not alone._pools


def test_a_forked_process_has_threads_of_its_own():
    alone.encode_alone([(Watched(), torch.ones(1)) for _ in range(4)])
    child = os.fork()
    if child == 0:
        os._exit(len(alone._pools))
    assert os.waitpid(child, 0)[1] == 0


def test_autocast_of_the_caller_changes_no_bit():
    class Rounds(nn.Module):
        def forward(self, x):
            return x @ x

    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        for count in (1, 5):
            assert torch.equal(alone.encode_alone([(Rounds(), x)] * count)[0], plain(x))


def plain(x):
    with torch.autocast("cpu", enabled=False):
        return x @ x


def test_a_pass_that_fails_leaves_the_number_of_threads_to_threads_to_come():
    class Fails(nn.Module):
        def forward(self, x):
            raise ValueError("no such image")

    alone._pools.clear()
    with pytest.raises(ValueError, match="no such image"):
        alone.encode_alone([(Fails(), torch.ones(1)) for _ in range(9)])
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert seen == [4]


def test_few_passes_share_the_threads_where_a_trial_gives_the_same_bits():
    class Depends(Watched):
        def forward(self, x):
            return super().forward(x) + (torch.get_num_threads() > 1) * self.by

    for by, threads in ((0, 4), (1, 1)):
        module = Depends()
        module.by = by
        for _ in range(2):
            assert float(alone.encode_alone([(module, torch.ones(1))])[0]) == 2
        assert [count for _, count, _ in module.seen] == [4, 1, 1, threads, threads]


@pytest.mark.parametrize("passes", [1, 2])
def test_beside_busy_processes_one_thread_computes_for_a_while(monkeypatch, passes):
    now = [0.0]
    monkeypatch.setattr(alone.time, "monotonic", lambda: now[0])

    class Waits(Watched):
        def forward(self, x):
            now[0] += 1 if torch.get_num_threads() == 1 else self.together
            return super().forward(x)

    module = Waits()

    def threads(together):
        module.together = together
        alone.encode_alone([(module, torch.ones(1))] * passes)
        return module.seen[-1][1]

    assert [threads(0.5), threads(20), threads(0.5), threads(1.4), threads(1.4)] == [4] * 5
    assert [threads(20), threads(1.6), threads(20)] == [4, 4, 1]
    now[0] += alone.PAUSE * 20
    assert [threads(0.5), threads(0.5)] == [4, 4]


def test_texts_are_not_tried_and_have_one_thread():
    module = Watched()
    module.forward = lambda batch: Watched.forward(module, batch["ids"])
    alone.encode_alone([(module, {"ids": torch.ones(1)})])
    assert [count for _, count, _ in module.seen] == [1]


def test_passes_of_a_users_own_module_do_not_overlap():
    class Stateful(nn.Module):
        def forward(self, images):
            self.kept = images.mean((2, 3))
            threading.Event().wait(0.01)
            return self.kept

    backbone = create_backbone(Stateful(), image_size=8)
    images = torch.rand(6, 3, 8, 8)
    found = alone.encode_alone([(backbone, image) for image in images.split(1)])
    assert torch.equal(torch.cat(found), images.mean((2, 3)))


def test_1x1_convolutions_are_those_of_torch():
    backbone = create_backbone("torchvision:resnet50", weights=None, image_size=32)
    mine = [module for module in backbone.modules() if isinstance(module, Pointwise)]
    assert len(mine) == 36
    for module in mine[:12:3]:
        maps = torch.randn(2, module.in_channels, 5, 5)
        expected = nn.functional.conv2d(maps, module.weight, module.bias, module.stride)
        with torch.no_grad():
            torch.testing.assert_close(module(maps), expected)
        assert module(maps).requires_grad
