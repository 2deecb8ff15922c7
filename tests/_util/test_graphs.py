"""Recorded training: recording leaves no trace, and replays are the iterations that would have been."""

from contextlib import contextmanager
from unittest.mock import MagicMock

import pytest
import torch

from sourceward._util import graphs
from sourceward.algorithm import Batch
from sourceward.data.feeds import ResidentFeed
from sourceward.nn.backbones import create_backbone
from sourceward.settings import LoopSettings
from sourceward.training import learner
from sourceward.training.finetune import Classifier, FineTuner, FineTuneSettings
from sourceward.training.trainer import Trainer
from tests.training.test_loop import FEED, INPUTS, LABELS, SHORT, make_network

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a CUDA device")


class Rehearsed(graphs.LossGraph):
    """As `LossGraph` does on CUDA, by calling the function."""

    def __init__(self, function, batch, generator, parameters, changed):
        self.function, self.batch, self.parameters = function, graphs.each(torch.clone, batch), parameters
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
    trainer = Trainer(make_network().to(device).train(), LoopSettings(max_iter=9), SHORT, 0.1, seed=3)
    trainer._capturable = captured
    losses = [trainer.step(feed) for _ in range(iterations)]
    return trainer, losses


def assert_same_state(ours, theirs):
    other = theirs.state_dict()
    for name, value in ours.state_dict().items():
        assert torch.equal(value, other[name]), name


def test_recording_leaves_no_trace(monkeypatch):
    monkeypatch.setattr(learner, "LossGraph", Rehearsed)
    ours, losses = trained(captured=True)
    theirs, expected = trained()
    assert isinstance(ours.graph, Rehearsed)
    assert theirs.graph is None
    assert_same_state(ours, theirs)
    assert [loss.total.item() for loss in losses] == [loss.total.item() for loss in expected]


def test_a_batch_of_another_shape_goes_without_a_graph(monkeypatch):
    monkeypatch.setattr(learner, "LossGraph", Rehearsed)
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

    monkeypatch.setattr(learner, "LossGraph", refuse)
    ours, _ = trained(captured=True)
    assert not ours._capturable
    assert_same_state(ours, trained()[0])


def test_every_tensor_of_a_batch_is_found():
    tokens = {"ids": torch.zeros(2, 3), "mask": torch.ones(2, 3)}
    batch = Batch(tokens, torch.ones(2))
    doubled = graphs.each(lambda tensor: 2 * tensor, batch)
    assert isinstance(doubled, Batch)
    assert [float(tensor.sum()) for tensor in graphs._flat(doubled)] == [0, 12, 4]
    assert doubled.shifted is None
    assert graphs._shapes(batch) != graphs._shapes(batch._replace(label=torch.ones(3)))


def classified(iterations=4, captured=False, device="cpu", freeze=True, text=False):
    """Stage 1 of a two-stage fit, on random inputs."""
    backbone = create_backbone("tiny:text" if text else "tiny:conv", weights=None, image_size=16)
    backbone.freeze_batchnorm(freeze)
    settings = FineTuneSettings(max_iter=9, backbone_rate=1e-2, freeze_batchnorm=freeze)
    network = Classifier(backbone, backbone.dim, 2, 3, settings)
    generator = torch.Generator().manual_seed(0)
    for parameter in network.parameters():
        parameter.data.normal_(std=0.1, generator=generator)
    tuner = FineTuner(network.to(device).train(), settings, seed=3)
    tuner._capturable = captured

    def feed(generator):
        drawn = torch.randn(2, 6, 3, 16, 16, generator=generator, device=device)
        label = torch.randint(3, (2, 6), generator=generator, device=device)
        tokens = (drawn[:, :, 0, 0].abs() * 50).long()
        return Batch(
            {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)} if text else drawn, label
        )

    return tuner, [tuner.step(feed).item() for _ in range(iterations)]


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize("text", [True, False])
def test_recording_of_fine_tuning_leaves_no_trace(freeze, text, monkeypatch):
    monkeypatch.setattr(learner, "LossGraph", Rehearsed)
    ours, losses = classified(captured=True, freeze=freeze, text=text)
    theirs, expected = classified(freeze=freeze, text=text)
    assert isinstance(ours.graph, Rehearsed)
    assert losses == expected
    assert len(set(losses)) == 4
    assert_same_state(ours, theirs)


class FakeCuda:
    """Stands in for torch.cuda: notes on which device each call finds itself."""

    def __init__(self, monkeypatch):
        self.current, self.calls = None, []
        monkeypatch.setattr(torch.cuda, "device", self.device)
        for name in ("Stream", "CUDAGraph", "current_stream", "stream", "graph"):
            monkeypatch.setattr(torch.cuda, name, self.noted(name))

    @contextmanager
    def device(self, device):
        before, self.current = self.current, device
        yield
        self.current = before

    def noted(self, name):
        def call(*args, **options):
            self.calls.append((name, self.current))
            return MagicMock()

        return call


def test_graphs_are_recorded_on_the_device_of_their_tensors(monkeypatch):
    fake, place = FakeCuda(monkeypatch), torch.device("cpu")
    graphs.Graph(torch.sum, torch.ones(3), device=place)
    weight = torch.nn.Parameter(torch.ones(3))
    graphs.LossGraph(lambda x: ((x * weight).sum(), None), torch.ones(3), torch.Generator(), [weight], [])
    assert {name for name, _ in fake.calls} == {"Stream", "CUDAGraph", "current_stream", "stream", "graph"}
    assert {device for _, device in fake.calls} == {place}


@needs_cuda
@pytest.mark.parametrize("freeze", [True, False])
def test_captured_fine_tuning_on_cuda_is_the_eager_one(freeze):
    (ours, losses), (theirs, expected) = (
        classified(captured=captured, device="cuda", freeze=freeze) for captured in (True, False)
    )
    assert isinstance(ours.graph, graphs.LossGraph)
    assert losses == pytest.approx(expected, rel=1e-3)
    eager = theirs.state_dict()
    for name, value in ours.state_dict().items():
        torch.testing.assert_close(value, eager[name], rtol=1e-2, atol=1e-2, msg=name)


@needs_cuda
def test_captured_training_on_cuda_is_the_eager_one_and_resumes():
    feed = ResidentFeed([x.cuda() for x in INPUTS], [y.cuda() for y in LABELS], 16)
    ours, theirs = (trained(feed, captured=captured, device="cuda")[0] for captured in (True, False))
    assert isinstance(ours.graph, graphs.LossGraph)
    eager = theirs.state_dict()
    for name, value in ours.state_dict().items():
        # All classes shift alike with this one: its gradient is rounding alone, and Adam makes steps of it.
        atol = 3e-2 if name.endswith("latent.mean.bias") else 1e-4
        torch.testing.assert_close(value, eager[name], rtol=1e-3, atol=atol, msg=name)
    half, _ = trained(feed, 2, captured=True, device="cuda")
    again = Trainer(make_network().cuda().train(), LoopSettings(max_iter=9), SHORT, 0.1, seed=3)
    again.load_state_dict({k: v.clone() for k, v in half.state_dict().items()}, 2)
    for _ in range(3):
        again.step(feed)
    assert_same_state(again, ours)
