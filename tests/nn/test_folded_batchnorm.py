"""Copies without batch norm give the features of their network, and are made again when it changes."""

import copy
import pickle

import pytest
import timm
import torch
import torchvision
from torch import nn

from sourceward.adaptation.copies import CopyEncoder, Statistics
from sourceward.nn.alone import encode_alone
from sourceward.nn.backbones import create_backbone
from sourceward.nn.folded_batchnorm import KEY, fold_batchnorm

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def norms(module):
    return [part for part in module.modules() if isinstance(part, nn.BatchNorm2d)]


def with_statistics(network):
    """A network whose batch norm has seen something, in eval mode."""
    torch.manual_seed(0)
    for norm in norms(network):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.uniform_(norm.bias, -0.5, 0.5)
        nn.init.uniform_(norm.running_mean, -0.5, 0.5)
        nn.init.uniform_(norm.running_var, 0.5, 2.0)
    return network.eval()


def small(*after):
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2, bias=False)
    return with_statistics(nn.Sequential(*layers, nn.BatchNorm2d(8), *after, nn.Flatten()))


@pytest.mark.parametrize(
    "network",
    [
        pytest.param(lambda: torchvision.models.resnet18(), id="resnet18"),
        pytest.param(lambda: torchvision.models.mobilenet_v2(), id="mobilenet_v2"),
        pytest.param(lambda: timm.create_model("tf_efficientnet_lite0"), id="batch norm with activation"),
        pytest.param(lambda: timm.create_model("regnetx_002"), id="regnetx"),
        pytest.param(small, id="a bias, groups, no bias"),
    ],
)
@torch.no_grad()
def test_a_copy_without_batch_norm_gives_the_features_of_its_network(network):
    network = with_statistics(network())
    state = {name: value.clone() for name, value in network.state_dict().items()}
    expected = network(IMAGES)
    made = fold_batchnorm(network, IMAGES)
    assert made is not network
    assert not norms(made)
    torch.testing.assert_close(made(IMAGES), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    assert torch.equal(network(IMAGES), expected)
    assert all(torch.equal(network.state_dict()[name], value) for name, value in state.items())
    assert fold_batchnorm(network, IMAGES) is made


@torch.no_grad()
def test_batch_norm_that_follows_no_convolution_stays():
    class Before(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.conv, self.last = nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x):
            return self.last(self.conv(self.norm(x))).flatten(1)

    network = with_statistics(Before())
    made = fold_batchnorm(network, IMAGES)
    assert [type(made.norm), type(made.last)] == [nn.BatchNorm2d, nn.Identity]
    torch.testing.assert_close(made(IMAGES), network(IMAGES), rtol=1e-4, atol=1e-4)


class ReadTwice(nn.Module):
    """What a convolution gives is read by batch norm and by something else."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x):
        maps = self.conv(x)
        return (self.norm(maps) + maps).flatten(1)


class Standardized(nn.Conv2d):
    """Its weights are not what it multiplies with."""

    def forward(self, x):
        weight = (self.weight - self.weight.mean()) / self.weight.std()
        return nn.functional.conv2d(x, weight, self.bias)


@pytest.mark.parametrize(
    "network",
    [
        pytest.param(ReadTwice, id="read twice"),
        pytest.param(lambda: nn.Sequential(Standardized(3, 4, 3), nn.BatchNorm2d(4)), id="standardized"),
        pytest.param(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()), id="no batch norm"),
    ],
)
@torch.no_grad()
def test_a_network_that_cannot_be_folded_is_used_itself(network):
    network = with_statistics(network())
    assert fold_batchnorm(network, IMAGES) is network


@torch.no_grad()
def test_what_several_layers_share_stays():
    norm, conv, other = nn.BatchNorm2d(4), nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
    shared = with_statistics(nn.Sequential(conv, norm, other, norm, nn.Flatten()))
    made = fold_batchnorm(shared, IMAGES)
    assert [type(layer) for layer in made][:4] == [nn.Conv2d, nn.BatchNorm2d] * 2
    assert torch.equal(made(IMAGES), shared(IMAGES))


@torch.no_grad()
def test_a_pass_of_several_rows_is_folded():
    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = small()

        def forward(self, x):
            return torch.cat([self.network(row) for row in x.split(1)])

    network = Rows().eval()
    made = fold_batchnorm(network, IMAGES)
    assert not norms(made)
    torch.testing.assert_close(made(IMAGES), network(IMAGES), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_batch_statistics_are_never_folded():
    network = small()
    fold_batchnorm(network, IMAGES)
    network.train()
    assert fold_batchnorm(network, IMAGES) is network
    network.eval()
    network[1].running_mean = network[1].running_var = None  # as Tent has it
    made = fold_batchnorm(network, IMAGES)
    assert len(norms(made)) == 1
    torch.testing.assert_close(made(IMAGES), network(IMAGES), rtol=1e-4, atol=1e-4)


def one_step(optimizer):
    def change(network):
        with torch.enable_grad():
            network(IMAGES).square().sum().backward()
        optimizer(network.parameters()).step()

    return change


def averaged(network):
    with torch.no_grad():
        torch._foreach_lerp_(list(network.parameters()), [p + 1 for p in network.parameters()], 0.5)


def in_inference_mode(network):
    with torch.inference_mode():
        network[0].weight.mul_(2)


def other_module(network):
    network[1] = with_statistics(nn.BatchNorm2d(8))
    network[1].weight.data.add_(1)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(one_step(lambda given: torch.optim.AdamW(given, lr=0.1)), id="AdamW"),
        pytest.param(one_step(lambda given: torch.optim.Adam(given, lr=0.1, fused=True)), id="Adam, fused"),
        pytest.param(one_step(lambda given: torch.optim.SGD(given, lr=0.1, foreach=True)), id="SGD, foreach"),
        pytest.param(averaged, id="average"),
        pytest.param(in_inference_mode, id="inference mode"),
        pytest.param(lambda network: network.load_state_dict(small_state()), id="load_state_dict"),
        pytest.param(lambda network: network[1].running_var.mul_(2), id="statistics"),
        pytest.param(other_module, id="another module"),
        pytest.param(lambda network: network[0].weight.data.mul_(2), id="data in place"),
        pytest.param(lambda network: setattr(network[3].weight, "data", torch.ones(8, 4, 3, 3)), id="data"),
    ],
)
def test_a_network_that_changes_is_folded_again(change):
    network = small()
    with torch.no_grad():
        before = network(IMAGES)
        fold_batchnorm(network, IMAGES)
        change(network)
        now = network(IMAGES)
        assert (now - before).abs().max() > 0.01
        torch.testing.assert_close(fold_batchnorm(network, IMAGES)(IMAGES), now, rtol=1e-4, atol=1e-4)


def small_state():
    return {name: value * 1.1 for name, value in small().state_dict().items()}


@torch.no_grad()
def test_a_method_is_that_of_the_copy():
    backbone = create_backbone("torchvision:resnet18", weights=None, image_size=32).eval()
    made = fold_batchnorm(backbone.forward, IMAGES)
    assert made.__name__ == "forward"
    assert not norms(made.__self__)


@torch.no_grad()
def test_copies_and_pickles_of_a_network_have_no_folded_copy():
    network = small()
    fold_batchnorm(network, IMAGES)
    for other in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert other.__dict__[KEY] is None
        other[0].weight.mul_(2)
        torch.testing.assert_close(fold_batchnorm(other, IMAGES)(IMAGES), other(IMAGES), rtol=1e-4, atol=1e-4)


def test_passes_of_one_backbone_share_their_folded_weights():
    backbone = create_backbone("torchvision:resnet18", weights=None, image_size=32).eval()
    pixels = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    plain = encode_alone([(backbone, backbone.preprocessing.normalize(pixels))])[0]
    encoder = CopyEncoder(backbone, backbone.preprocessing, "hflip+crop", Statistics(2))
    assert torch.equal(encoder.encode(pixels)[0], plain)
    owners = [backbone, *(method.__self__ for method in encoder._alone.values())]
    weights = [next(owner.__dict__[KEY].copy.parameters()) for owner in owners]
    assert len({weight.data_ptr() for weight in weights}) == 1
    assert len(weights) == 4
