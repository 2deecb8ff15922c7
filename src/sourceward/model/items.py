"""Read what a caller passes to a model: images in several forms, texts, or a feature matrix."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sourceward._util.errors import InputError
from sourceward.data.decode import Geometry, decode_image, map_threads, resize_arrays

PLURAL = {"image": "images", "text": "texts", "features": "features"}
"""What a model reads, for messages."""


def read_images(items: Any, shape: Geometry) -> Tensor:
    """Return uint8 (n, 3, height, width) from paths, PIL images, arrays, or one array or tensor of all."""
    if isinstance(items, Tensor):
        items = items.cpu().numpy()
    if isinstance(items, np.ndarray) and items.ndim == 4:
        return resize_arrays(items, shape)
    if len(items) > 1 and all(isinstance(item, str | Path) for item in items):
        read = map_threads(lambda row: read_image(items[row], shape), range(len(items)), None)
        return torch.stack([*read])
    return torch.stack([read_image(item, shape) for item in items])  # an open PIL image is not thread-safe


def read_image(item: Any, shape: Geometry) -> Tensor:
    """Return one image as uint8 (3, height, width)."""
    if isinstance(item, np.ndarray) and item.ndim in (2, 3):  # gray, or colours last
        from PIL import Image

        item = Image.fromarray(item)
    elif isinstance(item, Tensor) and item.ndim == 3:
        return resize_arrays(item[None].cpu().numpy(), shape)[0]
    try:
        return torch.from_numpy(decode_image(item, shape))
    except Exception as error:  # PIL raises different exceptions for each format
        what = f"'{item}'" if isinstance(item, str | Path) else describe(item)
        raise InputError(f"Expected an image, but {what} cannot be read as one: {error}.") from None


def items_of(inputs: Any) -> Any:
    """Return the inputs as a sequence; a single path, text or PIL image becomes a list of one."""
    return [inputs] if isinstance(inputs, str | Path) or hasattr(inputs, "getpixel") else inputs


def is_matrix(inputs: Any) -> bool:
    """Return whether the inputs are a feature matrix: an array, a tensor, or a list of rows."""
    if isinstance(inputs, Tensor):
        return inputs.ndim == 2 and inputs.is_floating_point()
    if isinstance(inputs, np.ndarray):
        return inputs.ndim == 2 and inputs.dtype.kind in "fiuc"
    return (
        isinstance(inputs, list)
        and bool(inputs)
        and isinstance(inputs[0], list | np.ndarray)
        and (np.ndim(inputs[0]) == 1)
    )


def describe(inputs: Any) -> str:
    """Return the type of the inputs in words, for error messages."""
    if isinstance(inputs, np.ndarray | Tensor):
        return f"an array of shape {tuple(inputs.shape)}"
    if isinstance(inputs, list | tuple) and inputs:
        return f"a list of {type(inputs[0]).__name__}"
    return type(inputs).__name__
