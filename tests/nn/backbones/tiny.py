"""Backbones of seconds, and what to feed them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from sourceward.nn.backbones import Backbone

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
