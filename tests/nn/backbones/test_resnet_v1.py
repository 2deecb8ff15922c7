"""ResNets with the stride in the first convolution; real weights on real photos."""

import io
import tarfile
from itertools import islice
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from sourceward._util.errors import InputError
from sourceward.nn.backbones import Backbone, create_backbone
from sourceward.nn.backbones.resnet_v1 import sample_photos
from tests.nn.backbones.tiny import features, inputs

SHARED = Path(__file__).parents[3].parent / "shared"
RESNET_V1 = SHARED / "weights" / "resnet50_v1_imagenet.fp16.safetensors"
MOBILENET = SHARED / "weights" / "mobilenet_v2_imagenet.fp16.safetensors"
PACS = SHARED / "data" / "pacs" / "pacs224.tar"


class TestResNetV1:
    def test_the_stride_is_in_the_first_convolution_and_stays_there(self):
        one = create_backbone("torchvision:resnet50-v1", weights=None, image_size=64).eval()
        again = Backbone.from_config(one.config(), one.state_dict()).eval()
        two = create_backbone("timm:resnet50-v1", weights=one.network.state_dict(), image_size=64).eval()
        for network in (one.network, again.network, two.network):
            for layer in (network.layer2, network.layer3, network.layer4):
                assert (layer[0].conv1.stride, layer[0].conv2.stride) == ((2, 2), (1, 1))
        x = features(one, inputs(one))
        assert torch.equal(x, features(again, inputs(one)))
        torch.testing.assert_close(x, features(two, inputs(one)), rtol=1e-4, atol=1e-4)

    def test_only_bottlenecks_have_one(self):
        with pytest.raises(InputError, match="bottleneck"):
            create_backbone("torchvision:resnet18-v1", weights=None)

    @pytest.mark.parametrize(
        ("right", "wrong"),
        [("torchvision:resnet50-v1", "torchvision:resnet50"), ("timm:resnet50", "timm:resnet50-v1")],
    )
    def test_weights_of_the_other_stride_are_noticed(self, right, wrong, recwarn):
        made = create_backbone(right, weights=None)
        for norm in made.modules():
            if isinstance(norm, torch.nn.BatchNorm2d):
                norm.momentum = None  # statistics of all that comes by
        with torch.no_grad():
            made.train().network(sample_photos())
        weights = made.network.state_dict()
        create_backbone(right, weights=weights)
        assert not recwarn.list
        with pytest.warns(UserWarning, match=f"lose accuracy in {wrong}. Use {right}"):
            other = create_backbone(wrong, weights=weights)
        first = other.network.layer2[0]
        assert (first.conv1.stride == (2, 2)) == wrong.endswith("-v1")  # as it was asked for
        assert other.network.training


ANSWERS = {"dog": range(151, 269), "elephant": (101, 385, 386), "guitar": (402, 546)}
"""Classes of ImageNet that a photo of each kind may be called."""


@pytest.fixture(scope="module")
def photos() -> tuple[list[Image.Image], list[str]]:
    """Four PACS photos of each class."""
    images, labels = [], []
    with tarfile.open(PACS) as tar:
        members = [m for m in islice(tar, 1800) if m.name.startswith("PACS/photo/") and m.isfile()]
        for label in ANSWERS:
            for member in [m for m in members if f"/{label}/" in m.name][:4]:
                images.append(Image.open(io.BytesIO(tar.extractfile(member).read())).convert("RGB"))
                labels.append(label)
    return images, labels


def score(spec: str, file: Path, photos: tuple) -> tuple[float, float]:
    """Accuracy of the ImageNet classifier on the photos, and its mean confidence."""
    images, labels = photos
    made = create_backbone(spec, weights=file).eval()
    stored = load_file(file)
    head = "fc" if "fc.weight" in stored else "classifier.1"
    logits = features(made, images) @ stored[f"{head}.weight"].float().T + stored[f"{head}.bias"].float()
    confidence, guess = logits.softmax(1).max(1)
    right = [g in ANSWERS[label] for g, label in zip(guess.tolist(), labels)]
    return sum(right) / len(right), confidence.mean().item()


@pytest.mark.skipif(not (PACS.is_file() and RESNET_V1.is_file()), reason="needs ../shared: PACS and weights")
class TestRealWeights:
    """ImageNet weights on PACS photos: the stored classifier must name dogs, elephants and guitars."""

    def test_mobilenet(self, photos):
        assert score("torchvision:mobilenet_v2", MOBILENET, photos)[0] > 0.75

    def test_resnet_v1_needs_its_stride(self, photos, recwarn):
        right = score("torchvision:resnet50-v1", RESNET_V1, photos)
        assert not recwarn.list
        with pytest.warns(UserWarning, match="Use torchvision:resnet50-v1"):
            wrong = score("torchvision:resnet50", RESNET_V1, photos)
        assert right[0] > 0.8
        assert right[0] >= wrong[0]
        assert right[1] > wrong[1] + 0.1
