"""Names of backbones, and what is said of wrong ones."""

import pytest
from torch import nn

from sourceward._util.errors import InputError
from sourceward.nn.backbones import Backbone, create_backbone, list_backbones
from tests.nn.backbones.tiny import OwnNet


class TestNames:
    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ("timm:resnt18", "Did you mean 'resnet18'"),
            ("timm:resnet18.nowhere", "Unknown timm model"),
            ("torchvision:mobilenetv2", "mobilenet_v2"),
            ("torchvision:resnet50.imagenet1k_v7", "imagenet1k_v1"),
            ("tiny:cnv", "Did you mean 'conv'"),
            ("tim:resnet18", "Did you mean 'timm'"),
            ("resnet18", "'timm:resnet18'"),
            ("no/such/folder", "no folder"),
            ("torchvision:resnet50-v1", "pass a file as `weights`"),
            ("tiny:cnv", "`sourceward list backbones 'tiny:[*]'` names all 2"),
        ],
    )
    def test_unknown_names_get_the_nearest(self, spec, message):
        with pytest.raises(InputError, match=message):
            create_backbone(spec)

    @pytest.mark.parametrize("spec", ["timm:resnet18", "torchvision:resnet34", "hf:nobody/nothing"])
    def test_no_download_is_one_sentence(self, spec, monkeypatch, tmp_path):
        monkeypatch.setenv("TORCH_HOME", str(tmp_path))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        if spec.startswith("hf:"):
            pytest.importorskip("transformers")
        with pytest.raises(InputError, match=r"Could not download .*, (or )?(give|pass) a f") as error:
            create_backbone(spec, local_files_only=True)
        assert "\n" not in str(error.value)

    def test_list(self):
        assert list_backbones("tiny:*") == ["tiny:conv", "tiny:text"]
        assert {"timm:resnet18", "torchvision:resnet18"} <= set(list_backbones("resnet18"))
        assert "hf:distilbert-base-uncased" in list_backbones()

    def test_a_backbone_is_its_own_spec(self):
        made = create_backbone("tiny:conv")
        assert made.training
        assert create_backbone(made) is made

    def test_own_module_errors(self):
        with pytest.raises(InputError, match="image_size"):
            create_backbone(nn.Linear(7, 3))
        assert create_backbone(nn.Linear(7, 3), dim=3).dim == 3
        made = create_backbone(OwnNet())
        with pytest.raises(InputError, match=r"OwnNet.*module="):
            Backbone.from_config(made.config(), made.state_dict())
