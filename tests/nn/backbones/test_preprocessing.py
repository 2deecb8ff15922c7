"""Images on their way to a backbone, as the owners of its weights prepare them."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from sourceward._util.errors import InputError
from sourceward.nn.backbones import ImagePreprocessing, create_backbone
from sourceward.nn.backbones.backbone import reads
from sourceward.nn.backbones.preprocessing import from_dict


class TestImages:
    def test_every_form_of_the_same_image_is_the_same(self):
        prepare = create_backbone("tiny:conv").prepare
        array = np.random.default_rng(0).integers(0, 255, (50, 60, 3), np.uint8)
        tensor = torch.from_numpy(array).permute(2, 0, 1)
        expected = prepare([Image.fromarray(array)])
        for form in ([array], [tensor], tensor, tensor[None], (tensor,)):
            assert torch.equal(prepare(form), expected)
        small = torch.zeros(3, 20, 20, dtype=torch.uint8)
        assert torch.equal(prepare([small, tensor])[1:], expected)

    def test_gray_images_get_three_channels(self):
        batch = create_backbone("tiny:conv").prepare(torch.full((2, 1, 32, 32), 255, dtype=torch.uint8))
        assert torch.equal(batch, torch.ones(2, 3, 32, 32))

    def test_floats_are_refused(self):
        with pytest.raises(InputError, match="uint8"):
            create_backbone("tiny:conv").prepare(torch.zeros(1, 3, 32, 32))

    @pytest.mark.parametrize("shape", [(300, 451), (451, 300), (224, 224), (100, 90)])
    @pytest.mark.parametrize("name", ["mobilenet_v2", "efficientnet_b1", "swin_t"])
    def test_preprocessing_is_that_of_torchvision(self, shape, name):
        import torchvision

        from sourceward.nn.backbones.from_torchvision import _preprocessing

        weights = torchvision.models.get_model_weights(name).DEFAULT
        image = torch.arange(shape[0] * shape[1] * 3).remainder(251).view(*shape, 3).to(torch.uint8)
        picture = Image.fromarray(image.numpy())
        ours = _preprocessing(weights, None).prepare([picture])[0]
        theirs = weights.transforms()(picture)
        assert ours.shape == theirs.shape
        assert (ours - theirs).abs().max() < 2.5 / 255 / 0.22  # two gray levels

    def test_preprocessing_is_that_of_timm(self):
        from timm.data import create_transform

        made = create_backbone("timm:test_vit", weights=None)
        settings = made.preprocessing
        picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (211, 300, 3), np.uint8))
        data = made.network.pretrained_cfg
        theirs = create_transform(
            data["input_size"], mean=data["mean"], std=data["std"], crop_pct=data["crop_pct"],
            interpolation=data["interpolation"],
        )(picture)  # fmt: skip
        assert settings.size == tuple(data["input_size"][1:])
        assert (made.prepare([picture])[0] - theirs).abs().max() < 2.5 / 255 / min(settings.std)

    def test_own_preprocessing_wins(self):
        mine = ImagePreprocessing((16, 16), (0.0,) * 3, (1.0,) * 3, "bicubic", crop_fraction=1.0)
        made = create_backbone("tiny:conv", preprocessing=mine)
        assert made.prepare(torch.zeros(1, 3, 40, 40, dtype=torch.uint8)).shape == (1, 3, 16, 16)


class TestCopies:
    @pytest.mark.parametrize(
        ("size", "scale", "small"),
        [
            ((224, 224), 0.7, (160, 160)),
            ((224, 224), 5 / 7, (160, 160)),
            ((224, 288), 0.85, (192, 256)),
            ((299, 97), 1.0, (299, 97)),
            ((32, 97), 0.5, (32, 65)),
            ((28, 28), 0.1, (28, 28)),
            ((64, 96), 1e-20, (32, 32)),
        ],
    )
    def test_copies_are_smaller_by_whole_strides(self, size, scale, small):
        assert ImagePreprocessing(size, copy_scale=scale).copy_size == small

    def test_files_without_a_scale_have_copies_as_large_as_the_image(self):
        values = json.loads(json.dumps(ImagePreprocessing(copy_scale=0.5).to_dict()))
        assert from_dict("image", values).copy_size == (128, 128)
        assert from_dict("image", values | {"copy_scale": None}).copy_size == (224, 224)
        del values["copy_scale"]
        assert from_dict("image", values).copy_size == (224, 224)

    @pytest.mark.parametrize("scale", [0, 1.1, -1, "small"])
    def test_other_scales_are_refused(self, scale):
        values = json.loads(json.dumps(ImagePreprocessing().to_dict()))
        with pytest.raises(ValueError, match="copy_scale"):
            from_dict("image", values | {"copy_scale": scale})

    @pytest.mark.parametrize(
        ("spec", "smaller"), [("timm:vit_tiny_patch16_224", False), ("torchvision:resnet18", True)]
    )
    def test_whether_a_backbone_reads_smaller_images_is_tried(self, spec, smaller):
        backbone = create_backbone(spec, weights=None).train()
        assert reads(backbone, backbone.preprocessing.size)
        assert reads(backbone, (96, 96)) is smaller
        assert all(module.training for module in backbone.modules())
