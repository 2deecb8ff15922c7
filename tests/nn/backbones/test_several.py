"""Several backbones side by side."""

import pytest
import torch

from sourceward import InputError, load
from sourceward.nn.backbones import Backbone, ImagePreprocessing, create_backbone
from sourceward.nn.backbones.several import join, split
from tests.tiny_runs import fit_tiny, tiny_images

BOTH = "tiny:conv,torchvision:squeezenet1_1"


@pytest.fixture
def both():
    torch.manual_seed(0)
    return create_backbone("tiny:conv,tiny:conv", weights=None).eval()


def test_features_are_those_of_each_scaled_alike(both):
    images = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8)
    alone = split(both)
    first, second = (body.eval()(body.prepare(images)) for body in alone)
    expected = torch.cat([128**0.5 * x / x.norm(dim=1, keepdim=True) for x in (first, second)], dim=1)
    assert both.dim == 256
    torch.testing.assert_close(both(both.prepare(images)), expected)
    assert not torch.allclose(first, second)  # weights of their own


def test_every_network_gets_images_in_its_own_normalisation():
    images = torch.randint(256, (1, 3, 32, 32), dtype=torch.uint8)
    prepared = [ImagePreprocessing((32, 32)), ImagePreprocessing((32, 32), mean=(0.5,) * 3, std=(0.25,) * 3)]
    torch.manual_seed(0)
    alone = [create_backbone("tiny:conv", weights=None, preprocessing=own).eval() for own in prepared]
    joined = join(alone).eval()
    for body, found in zip(alone, joined.network.raw(joined.prepare(images))):
        assert torch.equal(found, body(body.prepare(images)))  # bit for bit: the cache relies on it
    for body, apart in zip(alone, split(joined)):
        assert apart.config() == body.config()


def test_it_is_rebuilt_from_its_config(both):
    again = Backbone.from_config(both.config(), both.network.state_dict()).eval()
    assert again.spec == both.spec == "tiny:conv,tiny:conv"
    batch = torch.randn(2, 3, 32, 32)
    assert torch.equal(again(batch), both(batch))


def test_a_config_may_name_no_other_family(both):
    config = both.config()
    config["architecture"]["parts"][0]["family"] = "os"
    with pytest.raises(InputError, match="Unknown backbone family 'os'"):
        Backbone.from_config(config)


@pytest.mark.parametrize(
    ("spec", "weights", "message"),
    [
        ("tiny:conv,tiny:text", None, "tiny:text reads texts"),
        (BOTH, None, "images of one size"),
        ("tiny:conv,tiny:conv", "one.safetensors", "2 files joined by commas"),
    ],
)
def test_what_cannot_be_joined_is_refused(spec, weights, message):
    with pytest.raises(InputError, match=message):
        create_backbone(spec, weights=weights)


def test_a_frozen_fit_saves_and_loads_them(tmp_path):
    data = tiny_images()
    model = fit_tiny(data, tmp_path / "run", backbone="tiny:conv,tiny:conv", freeze=True)
    again = load(tmp_path / "run", "cpu")
    assert again.backbone.dim == 256
    assert (again.predict_proba(data.items[:4]) == model.predict_proba(data.items[:4])).all()


def test_they_are_used_frozen(tmp_path):
    with pytest.raises(InputError, match="pass --freeze"):
        fit_tiny(tiny_images(), tmp_path / "run", backbone="tiny:conv,tiny:conv")
