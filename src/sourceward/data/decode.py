"""From encoded images to uint8 tensors: on every core, cached by content, nothing skipped in silence."""

import io
import os
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps

from sourceward._util.errors import InputError
from sourceward.data.cache import cache_folder, find, image_keys, store
from sourceward.data.dataset import DomainDataset, Problem

Progress = Callable[[int, int], None]  # (done, total)
INTERPOLATIONS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
DECODER_VERSION = 1  # part of the cache: raise it when the same file would give other pixels


class Geometry(NamedTuple):
    """How an image becomes `height` x `width`.

    fit="crop" scales the shorter side to size / crop_pct and cuts the centre; "exact" stretches.
    """

    height: int
    width: int
    fit: Literal["crop", "exact"] = "crop"
    crop_pct: float = 1.0
    interpolation: str = "bilinear"


class Decoded(NamedTuple):
    """Images uint8 (N, 3, H, W), the dataset they belong to row by row, and those that could not be read."""

    images: torch.Tensor
    dataset: DomainDataset
    problems: tuple[Problem, ...]


def geometry(
    size: int | tuple[int, int], fit: str = "crop", crop_pct: float = 1.0, interpolation: str = "bilinear"
) -> Geometry:
    """A checked `Geometry`; `size` is a side or (height, width)."""
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise InputError(f"Expected `size` to be 1 pixel or more, but got {size}.")
    if fit not in ("crop", "exact"):
        raise InputError(f"Expected `fit` to be 'crop' or 'exact', but got {fit!r}.")
    if not 0 < crop_pct <= 1:
        raise InputError(
            f"Expected `crop_pct` to lie in (0, 1], but got {crop_pct}. 1 keeps the whole shorter side."
        )
    if interpolation not in INTERPOLATIONS:
        raise InputError(
            f"Expected `interpolation` to be 'bilinear' or 'bicubic', but got {interpolation!r}."
        )
    return Geometry(height, width, fit, crop_pct, interpolation)  # type: ignore[arg-type]


def decode_image(source: bytes | str | Path | Image.Image, shape: Geometry) -> np.ndarray:
    """One image as uint8 (3, H, W), RGB, upright. The content decides the format, not the file's name."""
    if isinstance(source, Image.Image):
        return _fit(_rgb(source), shape)
    with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
        # A JPEG can be read at 1/2, 1/4 or 1/8 of its size; twice the size we need leaves room to filter.
        image.draft(
            "RGB", (round(2 * shape.width / shape.crop_pct), round(2 * shape.height / shape.crop_pct))
        )
        return _fit(_rgb(ImageOps.exif_transpose(image)), shape)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit gray: keep the high byte, where a plain conversion would clip
        image = Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
    return image.convert("RGB")


def _scaled(height: int, width: int, shape: Geometry) -> tuple[int, int]:
    """Height and width before the cut."""
    if shape.fit == "exact":
        return shape.height, shape.width
    scale = max(shape.height / shape.crop_pct / height, shape.width / shape.crop_pct / width)
    return max(shape.height, round(height * scale)), max(shape.width, round(width * scale))


def _fit(image: Image.Image, shape: Geometry) -> np.ndarray:
    down, across = _scaled(image.height, image.width, shape)
    if (across, down) != image.size:
        image = image.resize((across, down), INTERPOLATIONS[shape.interpolation])
    left, top = (across - shape.width) // 2, (down - shape.height) // 2
    pixels = np.asarray(image)[top : top + shape.height, left : left + shape.width]
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def load_images(
    dataset: DomainDataset,
    size: int | tuple[int, int],
    *,
    indices: Sequence[int] | np.ndarray | None = None,
    fit: str = "crop",
    crop_pct: float = 1.0,
    interpolation: str = "bilinear",
    cache_dir: str | Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> torch.Tensor:
    """Every image (or those at `indices`) as uint8 (N, 3, H, W); an unreadable one is an `InputError`.

    `decode_images` is the same, and can go on without the unreadable ones.
    """
    chosen = dataset if indices is None else dataset.select(indices)
    decoded = decode_images(
        chosen,
        size,
        fit=fit,
        crop_pct=crop_pct,
        interpolation=interpolation,
        cache_dir=cache_dir,
        workers=workers,
        progress=progress,
    )
    return decoded.images


def decode_images(
    dataset: DomainDataset,
    size: int | tuple[int, int],
    *,
    fit: str = "crop",
    crop_pct: float = 1.0,
    interpolation: str = "bilinear",
    cache_dir: str | Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    on_error: Literal["raise", "skip"] = "raise",
) -> Decoded:
    """Decode once, then read from the cache; what was cached for a dataset serves its parts too.

    on_error="skip" leaves unreadable images out of `images` and `dataset` alike and lists them in `problems`.
    `cache_dir=None` means `cache_folder()`; "" means no cache. Arrays in memory are never cached.
    """
    if dataset.kind != "image":
        raise InputError(f"Expected a dataset of images, but '{dataset.name}' holds {dataset.kind}.")
    shape = geometry(size, fit, crop_pct, interpolation)
    if isinstance(dataset.items, np.ndarray):
        return Decoded(resize_arrays(dataset.items, shape), dataset, ())
    folder = (cache_folder() if cache_dir is None else Path(cache_dir)) / "images" / _folder_name(shape)
    keys = image_keys(dataset)
    cached = None if cache_dir == "" else find(folder, keys)
    if cached is not None:
        return Decoded(cached, dataset, ())
    images, reasons = _decode_all(dataset, shape, workers, progress)
    if reasons:
        return _without_broken(images, dataset, reasons, on_error)
    if cache_dir != "" and len(dataset):
        store(folder, keys, images)
    return Decoded(torch.from_numpy(images), dataset, ())


def _folder_name(shape: Geometry) -> str:
    height, width, fit, crop_pct, interpolation = shape
    return f"v{DECODER_VERSION}-{height}x{width}-{fit}-{crop_pct:g}-{interpolation}"


def _decode_all(
    dataset: DomainDataset, shape: Geometry, workers: int | None, progress: Progress | None
) -> tuple[np.ndarray, dict[int, str]]:
    images = np.empty((len(dataset), 3, shape.height, shape.width), dtype=np.uint8)

    def decode(row: int) -> str | None:
        result = try_decode(dataset.items[row], shape)
        if isinstance(result, str):
            return result
        images[row] = result
        return None

    reasons: dict[int, str] = {}
    for row, reason in enumerate(map_threads(decode, range(len(dataset)), workers)):
        if reason is not None:
            reasons[row] = reason
        if progress is not None:
            progress(row + 1, len(dataset))
    return images, reasons


def try_decode(item: object, shape: Geometry) -> np.ndarray | str:
    """The image, or why it cannot be read."""
    try:
        return decode_image(item.read(), shape)  # type: ignore[attr-defined]
    except Exception as error:  # every format of PIL has its own exceptions for broken files
        return reason_of(error)


def reason_of(error: Exception) -> str:
    """Why a file cannot be read, for a person: one line, no addresses of objects.

    >>> reason_of(OSError("cannot identify image file <_io.BytesIO object at 0x7f5>"))
    'cannot identify image file'
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return re.sub(r" ?<\S+ object at 0x[0-9a-fA-F]+>", "", line)


def map_threads(work: Callable, rows: Iterable[int], workers: int | None) -> Iterable:
    """`work` over `rows`, in order. PIL works without the interpreter lock, so threads suffice."""
    with ThreadPoolExecutor(workers or available_cores()) as pool:
        yield from pool.map(work, rows)


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _without_broken(
    images: np.ndarray, dataset: DomainDataset, reasons: dict[int, str], on_error: str
) -> Decoded:
    if on_error == "raise":
        shown = ", ".join(f"{dataset.ids[row]!r} ({why})" for row, why in list(reasons.items())[:3])
        more = f" and {len(reasons) - 3:,} more" if len(reasons) > 3 else ""
        raise InputError(
            f"{len(reasons):,} of {len(dataset):,} images of '{dataset.name}' cannot be read: {shown}{more}. "
            "Replace or remove them; `sourceward doctor` lists all of them."
        )
    problems = tuple(
        Problem("unreadable", dataset.ids[row], why, dataset.domain_names[dataset.domains[row]])
        for row, why in reasons.items()
    )
    kept = np.setdiff1d(np.arange(len(dataset)), list(reasons))
    rest = dataset.select(kept)
    return Decoded(torch.from_numpy(images[kept]), replace(rest, problems=rest.problems + problems), problems)


def resize_arrays(pixels: np.ndarray, shape: Geometry, chunk: int = 1024) -> torch.Tensor:
    """uint8 (N, 1 or 3, h, w) as RGB (N, 3, H, W); gray images share their three channels in memory."""
    images = torch.from_numpy(np.ascontiguousarray(pixels))
    down, across = _scaled(images.shape[-2], images.shape[-1], shape)
    if (down, across) != images.shape[-2:]:
        images = torch.cat(
            [_resize(piece, (down, across), shape.interpolation) for piece in images.split(chunk)]
        )
    top, left = (down - shape.height) // 2, (across - shape.width) // 2
    images = images[..., top : top + shape.height, left : left + shape.width]
    return images.expand(-1, 3, -1, -1)


def _resize(images: torch.Tensor, size: tuple[int, int], mode: str) -> torch.Tensor:
    values = torch.nn.functional.interpolate(images.float(), size, mode=mode, antialias=True)
    return values.round().clamp(0, 255).byte()
