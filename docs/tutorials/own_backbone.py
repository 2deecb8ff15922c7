# %% [markdown]
# # Your own backbone
#
# Any `torch.nn.Module` from images (n, 3, height, width) to features (n, dim) is a backbone.

# %%
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import sourceward as sw
from sourceward.data.dataset import build


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 16)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


torch.manual_seed(0)
module = Small()
backbone = sw.create_backbone(module, image_size=16)
print(backbone.dim)

# %% [markdown]
# Images in memory: uint8 (n, 3, height, width), with names of classes and domains. The class is the
# brighter half, the domain a tint.

# %%
random = np.random.default_rng(0)
number = np.arange(144)
label, domain = number % 2, number // 2 % 4
images = random.integers(0, 60, (144, 3, 16, 16), dtype=np.uint8)
for row in number:
    half = slice(0, 8) if label[row] else slice(8, 16)
    images[row, :, half] += np.array([100, 100, 100], np.uint8)[:, None, None]
    images[row, domain[row] % 3] += np.uint8(20)
data = build(
    "image",
    images,
    [("lower", "upper")[each] for each in label],
    [f"camera{each}" for each in domain],
    [str(each) for each in number],
    name="halves",
)

# %%
folder = Path(tempfile.mkdtemp())
settings = {"max_iter": 40, "batch_size": 16, "tta": "none"}
model = sw.fit(
    data,
    out=folder / "run",
    target="camera3",
    backbone=backbone,
    freeze=True,
    settings=settings,
    device="cpu",
)
print(sw.evaluate(model, data)["mean"])

# %% [markdown]
# The folder holds the weights but not your code: pass a module of the same shape when loading.

# %%
again = sw.load(folder / "run", module=Small())
print(np.abs(again.predict_proba(images[:4]) - model.predict_proba(images[:4])).max())
