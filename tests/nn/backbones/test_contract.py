"""One contract for every backbone."""

import copy
import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from sourceward._util.errors import InputError
from sourceward.nn.backbones import Backbone, create_backbone
from tests.nn.backbones.tiny import TEXTS, OwnNet, features, hf_folder, inputs

SPECS = {
    "tiny:conv": 128,
    "tiny:text": 64,
    "timm:test_resnet": 96,
    "timm:test_vit": 64,
    "torchvision:mobilenet_v2": 1280,
    "hf:bert": 16,
    "hf:distilbert": 16,
    "hf:t5": 16,
    "hf:vit": 16,
    "hf:resnet": 16,
    "hf:clip": 16,
    "module": 6,
}


def build(spec: str, tmp_path: Path) -> Backbone:
    torch.manual_seed(0)
    if spec == "module":
        return create_backbone(OwnNet(), image_size=32)
    if spec.startswith("hf:"):
        return create_backbone(hf_folder(tmp_path / "original", spec[3:]))
    size = None if spec.startswith("tiny") else 64
    return create_backbone(spec, weights=None, image_size=size)


@pytest.fixture(scope="module", params=SPECS)
def backbone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    return build(request.param, tmp_path_factory.mktemp("backbone")).eval()


class TestContract:
    def test_features_have_the_stated_width_and_are_repeatable(self, backbone, request):
        x = features(backbone, inputs(backbone))
        assert x.shape == (3, backbone.dim) == (3, SPECS[request.node.callspec.params["backbone"]])
        assert x.dtype == torch.float32
        assert x.isfinite().all()
        assert torch.equal(x, features(backbone, inputs(backbone)))

    def test_a_sample_does_not_depend_on_its_batch_with_frozen_batchnorm(self, backbone):
        items = inputs(backbone)
        backbone.freeze_batchnorm()
        try:
            assert not any(m.training for m in backbone.train().modules() if isinstance(m, nn.BatchNorm2d))
            for module in backbone.modules():  # dropout is random by design; only the norms are at issue
                module.training = module.training and not isinstance(module, nn.Dropout)
            if backbone.kind == "image":
                together = features(backbone, items)
                alone = torch.cat([features(backbone, [item]) for item in items])
                torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
        finally:
            backbone.freeze_batchnorm(False).eval()
        together = features(backbone, items)
        alone = torch.cat([features(backbone, [item]) for item in items])
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)

    def test_config_round_trip_is_exact(self, backbone, tmp_path):
        own = OwnNet() if backbone.family == "module" else None
        config = json.loads(json.dumps(backbone.config()))
        backbone.save_assets(tmp_path)
        again = Backbone.from_config(config, backbone.state_dict(), assets=tmp_path, module=own).eval()
        assert again.config() == config
        assert again.preprocessing == backbone.preprocessing
        assert torch.equal(features(again, inputs(backbone)), features(backbone, inputs(backbone)))

    def test_the_other_kind_of_input_is_refused(self, backbone):
        other = TEXTS if backbone.kind == "image" else [Image.new("RGB", (40, 40))]
        for wrong in (other, [], "a lone string", None):
            with pytest.raises(InputError, match="Expected"):
                backbone.prepare(wrong)
        batch = {"input_ids": torch.ones(1, 2)} if backbone.kind == "image" else torch.zeros(1, 3, 32, 32)
        with pytest.raises(InputError, match="prepare"):
            backbone(batch)

    def test_a_copy_is_independent(self, backbone):
        twin = copy.deepcopy(backbone)  # what weight averaging keeps
        before = features(backbone, inputs(backbone))
        assert torch.equal(features(twin, inputs(backbone)), before)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.zero_()
        assert torch.equal(features(backbone, inputs(backbone)), before)

    def test_every_parameter_is_used(self, backbone):
        backbone.zero_grad()
        backbone(backbone.prepare(inputs(backbone))).square().sum().backward()
        unused = [name for name, p in backbone.named_parameters() if p.grad is None]
        backbone.zero_grad()
        assert not unused
