"""Samples for the check of an exported file, and their form as inputs of its graph."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from sourceward._util.errors import InputError
from sourceward.data.loading import image_geometry
from sourceward.model import Model
from sourceward.model.inputs import Failure, find_inputs
from sourceward.model.items import read_image, read_images
from sourceward.nn import Projected

SAMPLES = 16
"""Samples of a check."""


def stored_samples(model: Model) -> Any:
    """Samples from what the model folder holds, for `Model.predict`; the same for every call.

    Features lie around the class centres of the sources; images are random patches of colour; texts are made
    of the names of classes and sources.
    """
    random = torch.Generator().manual_seed(0)
    if model.kind == "image":
        coarse = torch.rand(SAMPLES, 3, 6, 6, generator=random)
        patches = interpolate(coarse, model.preprocessing.size, mode="bicubic").clamp(0, 1)
        return (patches * 255).round().byte()
    if model.kind == "text":
        words = [*model.classes, *model.sources]
        return [" ".join(np.resize(np.roll(words, row), 1 + row).tolist()) for row in range(SAMPLES)]
    network = model.network
    centers = network.centers.flatten(0, 1).cpu()
    picked = centers[torch.randint(len(centers), (SAMPLES,), generator=random)]
    near = network.raw(picked + 0.7 * torch.randn(picked.shape, generator=random))
    if isinstance(network.backbone, Projected):
        near = near @ network.backbone.projection.T  # its columns are orthonormal
    return near.numpy()


def given_samples(model: Model, paths: Sequence[str]) -> Any:
    """`SAMPLES` samples at equal distances from files that `predict` reads, for `Model.predict`."""
    found = [item for item in find_inputs(model.kind, paths) if not isinstance(item.value, Failure)]
    picked = [found[i].value for i in np.linspace(0, len(found) - 1, SAMPLES).astype(int)] if found else []
    if not picked:
        raise InputError(f"Found no samples in {', '.join(paths)}.")
    if model.kind == "image":
        shape = image_geometry(model.preprocessing)
        return torch.stack([read_image(file.read(), shape) for file in picked])
    return np.stack(picked) if model.kind == "features" else picked


def graph_inputs(model: Model, samples: Any) -> tuple[Tensor, ...]:
    """Samples as inputs of the graph: uint8 images, token ids with their mask, or features."""
    if model.kind == "image":
        return (read_images(samples, image_geometry(model.preprocessing)).contiguous(),)
    if model.kind == "features":
        return (torch.as_tensor(np.asarray(samples, dtype=np.float32)),)
    assert model.backbone is not None
    tokens = model.backbone.prepare([*samples])
    return tokens["input_ids"], tokens["attention_mask"]
