"""What all trainings share: the average, and the statistics that belong to it."""

import pytest
import torch

from sourceward._util.storage import load_tensors, save_tensors
from sourceward.data.feeds import ResidentFeed
from sourceward.nn.backbones import create_backbone
from sourceward.training import learner
from sourceward.training.finetune import Classifier, FineTuner, FineTuneSettings
from tests.tiny_runs import fit_tiny, kill_at, tiny_images, weights_of

LIVE = {"finetune.freeze_batchnorm": False, "finetune.average": 1.0}


def data():
    images = torch.from_numpy(tiny_images().items).float() / 127.5 - 1
    labels = torch.from_numpy(tiny_images().labels)
    return images, labels


def tuner(iterations, rate, average=1.0):
    torch.manual_seed(0)
    backbone = create_backbone("tiny:conv", weights=None, image_size=16).freeze_batchnorm(False)
    rates = {"backbone_learning_rate": rate, "head_learning_rate": rate, "schedule": "constant"}
    settings = FineTuneSettings(max_iter=iterations, average=average, freeze_batchnorm=False, **rates)
    network = Classifier(backbone, backbone.dim, 3, 3, settings)
    network.reset_head(torch.Generator().manual_seed(0))
    return FineTuner(network.train(), settings)


def steps(ours, iterations):
    images, labels = data()
    feed = ResidentFeed(list(images.split(18)), list(labels.split(18)), 8)
    for _ in range(iterations):
        ours.step(feed)
        yield ours.network


def test_statistics_are_averaged_as_weights_are(monkeypatch):
    monkeypatch.setattr(learner, "MEAN_FROM", 2)
    ours = tuner(6, 1e-2)
    seen = [
        {name: value.clone() for name, value in network.state_dict().items()} for network in steps(ours, 6)
    ]
    for name, value in ours.average.state_dict().items():
        if name.endswith("num_batches_tracked"):
            assert value == 6
        else:  # iterates 2 to 6
            mean = torch.stack([state[name] for state in seen[1:]]).mean(0)
            torch.testing.assert_close(value, mean, msg=name)


def test_averaged_statistics_are_nearer_to_those_of_the_averaged_weights_than_the_last():
    ours = tuner(250, 2e-2)
    *_, network = steps(ours, 250)
    average = ours.average
    averaged = [norm.running_mean.clone() for norm in norms(average)]
    for norm in norms(average):
        norm.momentum = 1.0
    average.train()(data()[0])
    for norm, mean, last in zip(norms(average), averaged, norms(network)):
        error = (mean - norm.running_mean).norm()
        assert error < 0.5 * (last.running_mean - norm.running_mean).norm()


def norms(network):
    return [module for module in network.modules() if isinstance(module, torch.nn.BatchNorm2d)]


@pytest.mark.parametrize("iteration", [3, 8])
def test_killed_and_resumed_statistics_have_the_same_bits(iteration, tmp_path, monkeypatch):
    monkeypatch.setattr(learner, "MEAN_FROM", 2)
    fit_tiny(tiny_images(), tmp_path / "whole", settings=LIVE)
    with monkeypatch.context() as patch:
        kill_at(patch, iteration, FineTuner)
        with pytest.raises(KeyboardInterrupt):
            fit_tiny(tiny_images(), tmp_path / "run", settings=LIVE)
    fit_tiny(tiny_images(), tmp_path / "run", settings=LIVE)
    assert weights_of(tmp_path / "run") == weights_of(tmp_path / "whole")


def test_one_kernel_takes_the_same_steps(monkeypatch):
    one = list(steps(tuner(5, 1e-2), 5))[-1].state_dict()
    monkeypatch.setattr(learner, "FUSED_FROM", 0)
    ours = tuner(5, 1e-2)
    assert ours.optimizer.defaults["fused"]
    before = [parameter._version for parameter in ours.network.parameters()]
    for name, value in list(steps(ours, 5))[-1].state_dict().items():
        torch.testing.assert_close(value, one[name], msg=name)
    after = [parameter._version for parameter in ours.network.parameters()]
    assert all(now > then for now, then in zip(after, before))  # what was computed before is computed again


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_one_kernel_goes_on_to_the_same_bits(monkeypatch, tmp_path, layout):
    monkeypatch.setattr(learner, "FUSED_FROM", 0)
    whole, half, rest = (tuner(6, 1e-2) for _ in range(3))
    for ours in (whole, half, rest):
        ours.network.to(memory_format=layout)
    *_, expected = steps(whole, 6)
    *_, _ = steps(half, 3)
    save_tensors(tmp_path / "half.safetensors", half.state_dict(), {})
    rest.load_state_dict(load_tensors(tmp_path / "half.safetensors")[0], 3)
    *_, found = steps(rest, 3)
    for name, value in found.state_dict().items():
        assert torch.equal(value, expected.state_dict()[name]), name
