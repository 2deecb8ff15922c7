# %% [markdown]
# # Images with a frozen backbone
#
# A dataset of images is a folder `<domain>/<class>/<file>`. This tutorial writes a small one: digits 0, 1
# and 2 in four colours, one colour per domain.

# %%
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

import sourceward as sw

folder = Path(tempfile.mkdtemp())
colours = {"red": (1, 0.2, 0.2), "green": (0.2, 1, 0.2), "blue": (0.2, 0.2, 1), "white": (1, 1, 1)}
digits, label = load_digits(n_class=3, return_X_y=True)
for number, (pixels, digit) in enumerate(zip(digits[:160], label)):
    domain = list(colours)[number % 4]
    grey = np.kron(pixels.reshape(8, 8) * 15, np.ones((2, 2)))
    place = folder / "photos" / domain / f"digit{digit}"
    place.mkdir(parents=True, exist_ok=True)
    Image.fromarray((grey[..., None] * colours[domain]).astype(np.uint8)).save(place / f"{number}.png")

# %% [markdown]
# `fit` with `freeze=True` computes the features of a pretrained backbone once, and trains heads and
# energies on them. Leave `backbone` and `weights` out for a pretrained ResNet-18; `tiny:conv` needs no
# download. On the command line:
#
#     sourceward doctor photos/
#     sourceward fit photos/ --target white --freeze --out run

# %%
model = sw.fit(
    folder / "photos",
    out=folder / "run",
    target="white",
    backbone="tiny:conv",
    weights=None,
    freeze=True,
    settings={"max_iter": 40, "batch_size": 16, "image_size": 16},
    device="cpu",
)
print("expected gain:", model.adapter.expected_gain_)

# %% [markdown]
# Predict files, and measure on the domain that was left out:

# %%
for prediction in model.predict(sorted((folder / "photos" / "white").rglob("*.png"))[:3]):
    print(prediction.label, round(prediction.trust, 2), prediction.status)
scores = sw.evaluate(model, folder / "photos")
print(scores["mean"])

# %% [markdown]
# The run's folder is the model: `sw.load` reads it anywhere.

# %%
again = sw.load(folder / "run")
print(again.classes, again.sources)
