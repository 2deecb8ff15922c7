"""Recorded training: recording leaves no trace, and replays are the iterations that would have been."""

import pytest
import torch

from sourceward import graphs, train
from sourceward.algorithm import Batch
from sourceward.settings import LoopSettings
from sourceward.train import ResidentFeed, Trainer
from tests.test_train import FEED, INPUTS, LABELS, SHORT, make_network

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a CUDA device")


class Rehearsed(graphs.LossGraph):
    """As `LossGraph` does on CUDA, by calling the function."""

    def __init__(self, function, batch, generator, parameters, changed):
        self.function, self.batch, self.parameters = function, graphs._each(torch.clone, batch), parameters
        with graphs.left_as_it_was(generator, changed):
            for _ in range(3):
                function(self.batch)[0].backward()

    def __call__(self, batch):
        for mine, given in zip(graphs._flat(self.batch), graphs._flat(batch)):
            mine.copy_(given)
        for parameter in self.parameters:
            parameter.grad = None
        outputs = self.function(self.batch)
        outputs[0].backward()
        return outputs


def trained(feed=FEED, iterations=5, captured=False, device="cpu"):
    trainer = Trainer(make_network().to(device).train(), LoopSettings(max_iter=9), SHORT, seed=3)
    trainer._capturable = captured
    losses = [trainer.step(feed) for _ in range(iterations)]
    return trainer, losses


def assert_same_state(ours, theirs):
    other = theirs.state_dict()
    for name, value in ours.state_dict().items():
        assert torch.equal(value, other[name]), name


def test_recording_leaves_no_trace(monkeypatch):
    monkeypatch.setattr(train, "LossGraph", Rehearsed)
    ours, losses = trained(captured=True)
    theirs, expected = trained()
    assert isinstance(ours.graph, Rehearsed)
    assert theirs.graph is None
    assert_same_state(ours, theirs)
    assert [loss.total.item() for loss in losses] == [loss.total.item() for loss in expected]


def test_a_batch_of_another_shape_goes_without_a_graph(monkeypatch):
    monkeypatch.setattr(train, "LossGraph", Rehearsed)
    sizes = iter([16, 16, 8, 16])

    def feed(generator):
        return ResidentFeed(INPUTS, LABELS, next(sizes))(generator)

    ours, _ = trained(feed, 4, captured=True)
    assert ours.graph is None
    sizes = iter([16, 16, 8, 16])
    assert_same_state(ours, trained(feed, 4)[0])


def test_what_cannot_be_recorded_trains_all_the_same(monkeypatch):
    def refuse(function, batch, generator, parameters, changed):
        with graphs.left_as_it_was(generator, changed):
            function(batch)
            raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(train, "LossGraph", refuse)
    ours, _ = trained(captured=True)
    assert not ours._capturable
    assert_same_state(ours, trained()[0])


def test_every_tensor_of_a_batch_is_found():
    tokens = {"ids": torch.zeros(2, 3), "mask": torch.ones(2, 3)}
    batch = Batch(tokens, torch.ones(2))
    doubled = graphs._each(lambda tensor: 2 * tensor, batch)
    assert isinstance(doubled, Batch)
    assert [float(tensor.sum()) for tensor in graphs._flat(doubled)] == [0, 12, 4]
    assert doubled.shifted is None
    assert graphs._shapes(batch) != graphs._shapes(batch._replace(label=torch.ones(3)))


@needs_cuda
def test_captured_training_on_cuda_is_the_eager_one_and_resumes():
    feed = ResidentFeed([x.cuda() for x in INPUTS], [y.cuda() for y in LABELS], 16)
    ours, theirs = (trained(feed, captured=captured, device="cuda")[0] for captured in (True, False))
    assert isinstance(ours.graph, graphs.LossGraph)
    eager = theirs.state_dict()
    for name, value in ours.state_dict().items():
        torch.testing.assert_close(value, eager[name], rtol=1e-3, atol=1e-4, msg=name)
    half, _ = trained(feed, 2, captured=True, device="cuda")
    again = Trainer(make_network().cuda().train(), LoopSettings(max_iter=9), SHORT, seed=3)
    again.load_state_dict({k: v.clone() for k, v in half.state_dict().items()}, 2)
    for _ in range(3):
        again.step(feed)
    assert_same_state(again, ours)
