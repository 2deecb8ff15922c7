"""Copies without batch norm give the features of their network, and are made again when it changes."""

import copy
import gc
import io
import pickle
import weakref

import pytest
import timm
import torch
import torchvision
from torch import nn

from sourceward.adaptation.copies import CopyEncoder, Statistics
from sourceward.nn.alone import encode_alone
from sourceward.nn.backbones import create_backbone
from sourceward.nn.folded_batchnorm import ORDERS, FoldedCopies, ReorderedConv2d, fold_batchnorm
from sourceward.nn.kept import KEY, Kept, State, forget, kept

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def fold(function, given=IMAGES):
    return fold_batchnorm({function: given})[function]


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


class Scaled(nn.Sequential):
    scale = 1.0

    def forward(self, x):
        return super().forward(x) * self.scale


def small(*after):
    first = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.LeakyReLU(0.0)
    second = nn.Conv2d(8, 8, 3, groups=2, bias=False), nn.BatchNorm2d(8)
    return with_statistics(Scaled(*first, *second, *after, nn.Flatten()))


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
    made = fold(network)
    assert made is not network
    assert not norms(made)
    torch.testing.assert_close(made(IMAGES), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    assert torch.equal(network(IMAGES), expected)
    assert all(torch.equal(network.state_dict()[name], value) for name, value in state.items())
    assert fold(network) is made


@torch.no_grad()
def test_batch_norm_that_follows_no_convolution_stays():
    class Before(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.conv, self.last = nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x):
            return self.last(self.conv(self.norm(x))).flatten(1)

    network = with_statistics(Before())
    made = fold(network)
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


class Viewed(nn.Sequential):
    """It needs maps whose rows follow each other in memory."""

    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))

    def forward(self, x):
        return super().forward(x).view(len(x), -1)


class Uncopied(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten())

    def __deepcopy__(self, memo):
        raise TypeError("never copied")


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
        pytest.param(Viewed, id="views its maps"),
        pytest.param(lambda: small(nn.Threshold(1e9, 0)), id="zeros"),
        pytest.param(lambda: small(nn.Threshold(1e9, float("nan"))), id="not finite"),
        pytest.param(Uncopied, id="cannot be copied"),
    ],
)
@torch.no_grad()
def test_a_network_that_cannot_be_folded_is_used_itself(network):
    network = with_statistics(network())
    assert fold(network) is network


@torch.no_grad()
def test_what_several_layers_share_stays():
    norm, conv, other = nn.BatchNorm2d(4), nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
    shared = with_statistics(nn.Sequential(conv, norm, other, norm, nn.Flatten()))
    made = fold(shared)
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
    made = fold(network)
    assert not norms(made)
    torch.testing.assert_close(made(IMAGES), network(IMAGES), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_batch_statistics_are_never_folded():
    network = small()
    fold(network)
    network.train()
    assert fold(network) is network
    network.eval()
    network[1].running_mean = network[1].running_var = None  # as Tent has it
    made = fold(network)
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


def a_buffer_of_inference_mode(network):
    with torch.inference_mode():
        network[1].running_mean = torch.zeros(8)
        fold(network)
        network[1].running_mean.add_(2)


def a_hook(network):
    network[0].register_forward_hook(lambda _module, _inputs, output: output + 1)


def one_filter(network):
    network[3].weight.data[1].mul_(50)


def one_input_channel(network):
    network[3].weight.data[:, 2] = 0


def numpy(network):
    network[0].weight.detach().numpy()[:, 1] *= 40


def attribute_of_a_parent(network):
    network.scale = 3.0


def one_element(network):
    network[0].weight[0, 0, 0, 1] += 5


class Doubled(nn.Conv2d):
    def forward(self, x):
        return 2 * super().forward(x)


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
        pytest.param(lambda network: network[1].running_mean.data.add_(1), id="a buffer's data in place"),
        pytest.param(lambda network: network.double() and network[0].weight.data.mul_(2), id="float64"),
        pytest.param(a_buffer_of_inference_mode, id="a buffer of inference mode"),
        pytest.param(lambda network: setattr(network[1], "eps", 1.0), id="eps"),
        pytest.param(a_hook, id="a hook"),
        pytest.param(one_filter, id="a filter's data in place"),
        pytest.param(lambda network: setattr(network[2], "negative_slope", 0.9), id="an attribute"),
        pytest.param(lambda network: setattr(network[1], "forward", torch.zeros_like), id="forward"),
        pytest.param(one_element, id="one element"),
        pytest.param(one_input_channel, id="an input channel's data in place"),
        pytest.param(numpy, id="NumPy"),
        pytest.param(lambda network: setattr(network[0], "__class__", Doubled), id="a class"),
        pytest.param(attribute_of_a_parent, id="an attribute of a module with children"),
        pytest.param(lambda network: setattr(network[3].weight, "data", torch.ones(8, 4, 3, 3)), id="data"),
    ],
)
def test_a_network_that_changes_is_folded_again(change):
    network = small()
    with torch.no_grad():
        before = network(IMAGES)
        fold(network)
        change(network)
        images = IMAGES.to(network[0].weight.dtype)
        now = network(images)
        assert (now - before).abs().max() > 0.01
        torch.testing.assert_close(fold(network, images)(images), now, rtol=1e-4, atol=1e-4)


def small_state():
    return {name: value * 1.1 for name, value in small().state_dict().items()}


@torch.no_grad()
def test_doubles_that_change_are_folded_again():
    network, images = small().double(), IMAGES.double()
    assert fold(network, images) is not network
    network[0].weight.data.mul_(2)
    torch.testing.assert_close(fold(network, images)(images), network(images))


@torch.no_grad()
def test_a_network_that_is_not_finite_is_tried_once():
    network = small()
    network[0].weight[0, 0, 0, 0] = torch.nan
    assert fold(network) is network
    (tried,) = kept(network).copies.values()
    fold(network)
    assert [*kept(network).copies.values()] == [tried]


class InPlace(nn.Module):
    """Something changes the maps on the way to batch norm; not the maps of random pixels."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        nn.init.constant_(self.conv.bias, 3.0)
        self.conv.weight.data.mul_(0.1)

    def forward(self, x):
        return self.norm(self.conv(x).relu_()).flatten(1)


@pytest.mark.parametrize("inference", [False, True])
def test_maps_that_change_in_place_on_the_way_are_not_folded(inference):
    network = with_statistics(InPlace())
    with torch.inference_mode(inference), torch.no_grad():
        assert fold(network) is network


@torch.no_grad()
def test_weights_of_the_network_are_never_touched():
    network = small()
    network.__dict__["stem"] = network[0]
    weight = network[0].weight
    made = fold(network)
    assert network[0].weight is weight
    assert not norms(made)
    torch.testing.assert_close(made(IMAGES), network(IMAGES), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_an_input_that_fails_leaves_nothing():
    network = small()
    assert fold(network, torch.zeros(1, 4, 32, 32)) is network
    assert fold(network) is not network


@torch.no_grad()
def test_tensors_that_are_expanded_or_empty_are_no_obstacle():
    network = small()
    network.register_buffer("wide", torch.zeros(1).expand(1000))
    network.register_buffer("none", torch.zeros(0))
    assert fold(network) is not network
    bare = nn.Sequential(nn.BatchNorm2d(3, affine=False, track_running_stats=False), nn.Flatten()).eval()
    assert fold(bare) is bare


@torch.no_grad()
def test_a_network_that_is_dropped_is_freed_at_once():
    gc.collect()
    gc.disable()
    try:
        network = nn.Sequential(small())
        made = fold(network)
        gone = [weakref.ref(each) for each in (network, network[0], network[0][0].weight, made, made[0][0])]
        del network, made
        assert [each() for each in gone] == [None] * len(gone)
    finally:
        gc.enable()


@torch.no_grad()
def test_dropout_that_is_switched_on_is_not_missed():
    network = small(nn.Dropout(0.5))
    assert fold(network) is not network
    network[-2].train()
    assert fold(network) is network


@torch.no_grad()
def test_a_network_with_hooks_is_used_itself():
    seen = []
    network = small()
    handle = network[1].register_forward_pre_hook(lambda _module, inputs: seen.append(inputs))
    fold(network)(IMAGES)
    assert len(seen) == 1
    handle.remove()
    assert fold(network) is not network


@torch.no_grad()
def test_nothing_is_kept_of_an_empty_batch():
    network = small()
    assert fold(network, IMAGES[:0]) is network
    assert fold(network) is not network


@torch.no_grad()
def test_the_first_input_decides_nothing():
    network, other = small(), small()
    fold(network, torch.full_like(IMAGES, torch.nan))
    fold(other)
    assert torch.equal(fold(network)(IMAGES), fold(other)(IMAGES))
    assert fold(network) is not network


@torch.no_grad()
def test_a_copy_has_no_hooks_no_trials_and_weights_with_channels_last():
    network = small()
    kept(network).trials["a shape"] = kept(network[0]).trials["a shape"] = "a trial"
    made = fold(network)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in made.modules())
    assert not any(kept(part).trials for part in made.modules())
    assert kept(network).trials
    assert made[0].weight.is_contiguous(memory_format=torch.channels_last)
    made[0].register_forward_hook(print)
    assert not network[0]._forward_hooks


def padded(padding, mode="zeros"):
    return with_statistics(nn.Sequential(nn.Conv2d(3, 8, 3, 1, padding, 1, 1, True, mode), nn.BatchNorm2d(8)))


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here")
@pytest.mark.parametrize(
    ("network", "reordered"),
    [
        pytest.param(small, True, id="no padding"),
        pytest.param(lambda: padded(2), True, id="padding"),
        pytest.param(lambda: small().double(), False, id="float64"),
        pytest.param(lambda: padded("same"), False, id="padding by name"),
        pytest.param(lambda: padded(1, "reflect"), False, id="reflection"),
    ],
)
@torch.no_grad()
def test_weights_have_the_order_of_the_kernels(network, reordered):
    network = network()
    images = IMAGES.to(network[0].weight.dtype)
    convolution = fold(network, images)[0]
    assert isinstance(convolution, ReorderedConv2d) == reordered
    expected = convolution._conv_forward(images, convolution.weight, convolution.bias)
    torch.testing.assert_close(convolution(images), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("filters", [8, 24, 40, 64, 512])
@torch.no_grad()
def test_a_change_of_one_filter_or_of_one_input_channel_in_eight_is_seen(filters):
    convolution = nn.Conv2d(64, filters, 3, bias=False)
    network = with_statistics(nn.Sequential(convolution, nn.BatchNorm2d(filters)))
    state = State([*network.modules()])
    for index in [
        *((filter,) for filter in range(filters)),
        *((slice(None), slice(i, None, 8)) for i in range(8)),
    ]:
        before = convolution.weight[index].clone()
        convolution.weight.data[index] += 1
        assert not state.unchanged()
        convolution.weight.data[index] = before
        assert state.unchanged()


class Tables(nn.Sequential):
    """It has its table of modules under another name, too."""

    def __init__(self, *layers):
        super().__init__(*layers)
        self.layers = self._modules

    def forward(self, x):
        for layer in self.layers.values():
            x = layer(x)
        return x


@torch.no_grad()
def test_a_table_of_the_network_is_never_shared():
    network = with_statistics(Tables(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten()))
    made = fold(network)
    assert not norms(made)
    assert len(norms(network)) == 1
    assert isinstance(network[0].weight, nn.Parameter)


class Remembers(nn.Module):
    """It counts its passes, or remembers the first one alone."""

    def __init__(self, each):
        super().__init__()
        self.passes, self.each = 0, each

    def forward(self, x):
        if self.each or not self.passes:
            self.passes += 1
        return x


@torch.no_grad()
def test_a_network_that_every_pass_changes_is_tried_once():
    network = small(Remembers(each=True))
    for _ in range(3):
        assert fold(network)(IMAGES) is not None
        assert fold(network) is network
    (tried,) = kept(network).copies.values()
    fold(network)
    assert [*kept(network).copies.values()] == [tried]
    once = small(Remembers(each=False))
    assert fold(once) is not once


@torch.no_grad()
def test_parameters_of_a_folded_network_are_saved_as_before(tmp_path):
    network = small()
    fold(network)
    torch.save(dict(network.named_parameters()), tmp_path / "weights.pt")
    loaded = torch.load(tmp_path / "weights.pt", weights_only=True)
    assert torch.equal(loaded["0.weight"], network[0].weight)


@torch.no_grad()
def test_few_orders_of_a_weight_are_kept():
    network = small()
    made = fold(network)
    for size in range(8, 8 + 2 * ORDERS):
        images = torch.randn(1, 3, size, size)
        torch.testing.assert_close(made[:-1](images), network[:-1](images), rtol=1e-4, atol=1e-4)
        assert 0 < len(made[0].folded._reordered) <= ORDERS


@torch.no_grad()
def test_bits_do_not_depend_on_the_size_that_came_first():
    large = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    first, second = (with_statistics(torchvision.models.mobilenet_v2()) for _ in range(2))
    second.load_state_dict(first.state_dict())
    fold(first, IMAGES), fold(second, large)
    for images in (IMAGES, large):
        assert torch.equal(fold(first)(images), fold(second)(images))


class Chain(nn.Module):
    """Maps that nobody keeps, so that the next may have their place in memory."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3, 3, 1) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(3) for _ in range(4))

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms):
            x = norm(conv(x) * 1.0 * 1.0)
        return x.flatten(1)


@torch.no_grad()
def test_a_map_that_is_gone_is_not_taken_for_another():
    network = with_statistics(Chain())
    assert fold(network) is network


@torch.no_grad()
def test_copies_of_earlier_weights_are_not_kept():
    network, encoder = small(), nn.Sequential(small())
    for owner in (network, encoder):
        fold(owner)
        gc.collect()
        before = sum(type(one) is FoldedCopies for one in gc.get_objects())
        for _ in range(5):
            (owner[0] if owner is network else owner[0][0]).weight.mul_(1.1)
            fold(owner)
        gc.collect()
        assert sum(type(one) is FoldedCopies for one in gc.get_objects()) == before


@torch.no_grad()
def test_shallow_copies_have_folded_copies_of_their_own():
    network = small()
    fold(network)
    for _ in range(20):  # some have the id of one that is gone
        other = copy.copy(network)
        other._modules = {**network._modules, "1": with_statistics(nn.BatchNorm2d(8))}
        nn.init.uniform_(other[1].weight, 2, 5)
        torch.testing.assert_close(fold(other)(IMAGES), other(IMAGES), rtol=1e-4, atol=1e-4)
    assert len(kept(network).copies) == 1


@torch.no_grad()
def test_a_function_whose_owner_is_gone_is_not_taken_for_another():
    first, second = small(), small()
    fold_batchnorm({first: IMAGES, second: IMAGES})
    (state,) = [made._state for made in kept(first).copies.values()]
    assert state.unchanged()
    del second
    assert not state.unchanged()


@torch.no_grad()
def test_an_equal_tensor_in_place_of_one_is_not_lost_sight_of():
    network = small()
    network.register_buffer("shift", torch.ones(1))
    state = State([*network.modules()])
    network.shift = torch.ones(1)
    assert state.unchanged()
    network.shift.data.add_(1)
    assert not state.unchanged()


@torch.no_grad()
def test_what_modules_keep_can_be_freed():
    network = nn.Sequential(small())
    made = weakref.ref(fold(network)), weakref.ref(fold(network[0]))
    forget(network)
    gc.collect()
    assert [each() for each in made] == [None, None]
    assert not any(KEY in vars(part) for part in network.modules())


class TwoMethods(nn.Module):
    def __init__(self):
        super().__init__()
        self.network, self.read_twice = small(), with_statistics(ReadTwice())

    def one(self, x):
        return self.network(x)

    def other(self, x):
        return self.read_twice(x)


@torch.no_grad()
def test_each_method_has_its_own_copy():
    network = TwoMethods().eval()
    one, other = fold(network.one), fold(network.other)
    assert one != network.one
    assert one.__name__ == "one"
    assert not norms(one.__self__.network)
    assert other == network.other
    together = fold_batchnorm({network.one: IMAGES, network.other: IMAGES})
    assert torch.equal(together[network.one](IMAGES), one(IMAGES))
    assert together[network.other] == other


@torch.no_grad()
def test_copies_and_pickles_of_a_network_have_no_folded_copy():
    network = small()
    size = len(pickle.dumps(network))
    fold(network)
    assert len(pickle.dumps(network)) < size + 200
    file = io.BytesIO()
    torch.save(network, file)
    file.seek(0)
    with torch.serialization.safe_globals([*{type(part) for part in network.modules()}, Kept]):
        loaded = torch.load(file, weights_only=True)
    for other in (copy.deepcopy(network), loaded):
        assert not kept(other).copies
        other[0].weight.mul_(2)
        torch.testing.assert_close(fold(other)(IMAGES), other(IMAGES), rtol=1e-4, atol=1e-4)


def test_passes_of_one_backbone_share_their_folded_weights():
    backbone = create_backbone("torchvision:resnet18", weights=None, image_size=32).eval()
    pixels = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    plain = encode_alone([(backbone, backbone.preprocessing.normalize(pixels))])[0]
    encoder = CopyEncoder(backbone, backbone.preprocessing, "hflip+crop", Statistics(2))
    assert torch.equal(encoder.encode(pixels)[0], plain)
    _, methods = encoder._alone
    (folded,) = [made for method in methods for made in kept(method.__self__).copies.values()]
    (before,) = kept(backbone).copies.values()
    networks = [getattr(made, "__self__", made) for made in (*folded.functions, *before.functions)]
    assert len({id(next(network.parameters())) for network in networks}) == 1
    assert len(networks) == 4
