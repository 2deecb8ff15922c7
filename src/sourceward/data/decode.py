"""Decode images to uint8 arrays and tensors: on every core, cached on disk, unreadable files reported.

torch is imported where tensors are made, so that reading and diagnosing a dataset does without it.
"""

import io
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps

from sourceward._util.errors import InputError
from sourceward._util.reading import check_limit, read_regular
from sourceward._util.threads import available_cores
from sourceward.data.cache import cache_folder, find, gather, image_keys, store
from sourceward.data.dataset import DomainDataset

if TYPE_CHECKING:
    from torch import Tensor

Progress = Callable[[int, int], None]  # (done, total)
INTERPOLATIONS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000")
"""Formats that are decoded. Pillow has more, some of which start another program."""
MAX_SCANS = 500
"""Most scans of a progressive JPEG: each takes the time of the whole image. Usual are about 10."""
DECODER_VERSION = 1  # part of the cache key: raise it when the same file would give other pixels


@dataclass(frozen=True)
class Geometry:
    """How an image is brought to `height` x `width`.

    fit="crop" scales the shorter side to size / crop_pct and crops the centre; "exact" ignores the aspect.
    """

    height: int
    width: int
    fit: str = "crop"
    crop_pct: float = 1.0
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        if self.height < 1 or self.width < 1:
            raise InputError(f"Expected `size` to be 1 pixel or more, but got {(self.height, self.width)}.")
        check_limit("image_pixels", self.height * self.width, "An image of the expected `size`")
        if self.fit not in ("crop", "exact"):
            raise InputError(f"Expected `fit` to be 'crop' or 'exact', but got {self.fit!r}.")
        if not 0 < self.crop_pct <= 1:
            raise InputError(
                f"Expected `crop_pct` to lie in (0, 1], but got {self.crop_pct}. "
                "1 keeps the whole shorter side."
            )
        if self.interpolation not in INTERPOLATIONS:
            raise InputError(
                f"Expected `interpolation` to be 'bilinear' or 'bicubic', but got {self.interpolation!r}."
            )


Size = int | tuple[int, int] | Geometry


def geometry(size: Size) -> Geometry:
    """Return a `Geometry` for a side, for (height, width) or for a `Geometry`."""
    if isinstance(size, Geometry):
        return size
    return Geometry(size, size) if isinstance(size, int) else Geometry(*size)


def decode_image(source: bytes | str | Path | Image.Image, shape: Geometry) -> np.ndarray:
    """Decode one image to uint8 (3, H, W), RGB, upright; an image that cannot be decoded is an `InputError`.

    THE decoder of images from anywhere. Its format is detected from its content, among `FORMATS`. The limits
    `image_bytes` and `image_pixels` of `_util.reading` bound the file and every image on the way.
    """
    try:
        if isinstance(source, Image.Image):
            return _fit(_rgb(_bounded(source)), shape)
        data = source if isinstance(source, bytes) else read_regular(source, "image_bytes")
        with open_image(data) as image:
            # A JPEG can be decoded at 1/2, 1/4 or 1/8 of its size; twice the size needed keeps the resize
            # sharp.
            image.draft(
                "RGB", (round(2 * shape.width / shape.crop_pct), round(2 * shape.height / shape.crop_pct))
            )
            return _fit(_rgb(ImageOps.exif_transpose(image)), shape)
    except InputError:
        raise
    except Exception as error:  # every format of PIL has its own exceptions for broken files
        raise InputError(reason_of(error)) from None


def open_image(data: bytes) -> Image.Image:
    """Return an encoded image, not decoded yet: of one of `FORMATS`, and within the limits.

    THE call of `Image.open`: without `formats`, Pillow hands a file in PostScript to another program,
    whatever its name is.
    """
    check_limit("image_bytes", len(data), "The file")
    if data.count(b"\xff\xda") > MAX_SCANS and data.startswith(b"\xff\xd8"):
        raise InputError(f"The file has more than {MAX_SCANS} scans.")
    try:
        return _bounded(Image.open(io.BytesIO(data), formats=FORMATS))
    except InputError:
        raise
    except Exception as error:  # every format of PIL has its own exceptions for broken files
        raise InputError(reason_of(error)) from None


def _bounded(image: Image.Image) -> Image.Image:
    check_limit("image_pixels", image.width * image.height, "The image")
    return image


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit gray: keep the high byte, where a plain conversion would clip
        image = Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
    return image.convert("RGB")


def _scaled(height: int, width: int, shape: Geometry) -> tuple[int, int]:
    """Return height and width before the crop."""
    if shape.fit == "exact":
        return shape.height, shape.width
    if not height or not width:
        raise InputError("The image has no pixels.")
    scale = max(shape.height / shape.crop_pct / height, shape.width / shape.crop_pct / width)
    down, across = max(shape.height, round(height * scale)), max(shape.width, round(width * scale))
    check_limit("image_pixels", down * across, f"The image, {width} x {height} and then resized,")
    return down, across


def _fit(image: Image.Image, shape: Geometry) -> np.ndarray:
    down, across = _scaled(image.height, image.width, shape)
    if (across, down) != image.size:
        image = image.resize((across, down), INTERPOLATIONS[shape.interpolation])
    left, top = (across - shape.width) // 2, (down - shape.height) // 2
    pixels = np.asarray(image)[top : top + shape.height, left : left + shape.width]
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def decode_images(
    dataset: DomainDataset,
    size: Size,
    *,
    cache_dir: str | Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> "Tensor":
    """Return every image as uint8 (N, 3, H, W), decoded once and then read from the cache.

    Every image is cached once, whatever subsets it belongs to. `cache_dir=None` means `cache_folder()`, ""
    means no cache; arrays in memory are not cached. An unreadable image is an `InputError`.
    """
    import torch

    check_images(dataset)
    shape = geometry(size)
    if isinstance(dataset.items, np.ndarray):
        return resize_arrays(dataset.items, shape)
    folder = (cache_folder() if cache_dir is None else Path(cache_dir)) / "images" / _folder_name(shape)
    keys = image_keys(dataset)
    if cache_dir == "" or not len(dataset):
        return torch.from_numpy(_decode_all(dataset, shape, workers, progress))
    images = find(folder, keys)
    if images is None:
        images, missing = gather(folder, keys)
        if len(missing):
            decoded = _decode_all(dataset.select(missing), shape, workers, progress)
            store(folder, keys[missing], decoded)
            if images is None:
                images = decoded
            else:
                images[missing] = decoded
    assert images is not None
    return torch.from_numpy(images)


def check_images(dataset: DomainDataset) -> None:
    if dataset.kind != "image":
        raise InputError(f"Expected a dataset of images, but '{dataset.name}' holds {dataset.kind}.")


def _folder_name(shape: Geometry) -> str:
    height, width, fit, crop_pct, interpolation = astuple(shape)
    return f"v{DECODER_VERSION}-{height}x{width}-{fit}-{crop_pct:g}-{interpolation}"


def _decode_all(
    dataset: DomainDataset, shape: Geometry, workers: int | None, progress: Progress | None
) -> np.ndarray:
    images = np.empty((len(dataset), 3, shape.height, shape.width), dtype=np.uint8)

    def decode(row: int) -> str | None:
        result = try_decode(dataset.items[row], shape)
        if isinstance(result, str):
            return result
        images[row] = result
        return None

    reasons: list[str] = []
    for row, reason in enumerate(map_threads(decode, range(len(dataset)), workers)):
        if reason is not None:
            reasons.append(f"{dataset.ids[row]!r} ({reason})")
        if progress is not None:
            progress(row + 1, len(dataset))
    if reasons:
        more = f" and {len(reasons) - 3:,} more" if len(reasons) > 3 else ""
        raise InputError(
            f"{len(reasons):,} of {len(dataset):,} images of '{dataset.name}' cannot be read: "
            f"{', '.join(reasons[:3])}{more}. Replace or remove them; `sourceward doctor` lists all of them."
        )
    return images


def try_decode(item: object, shape: Geometry) -> np.ndarray | str:
    """Return the decoded image, or the reason why it cannot be read."""
    try:
        return decode_image(item.read(), shape)  # type: ignore[attr-defined]
    except (InputError, OSError) as error:
        return reason_of(error)


def reason_of(error: Exception) -> str:
    """Return the reason of an error in one line, without addresses of objects.

    >>> reason_of(OSError("cannot identify image file <_io.BytesIO object at 0x7f5>"))
    'cannot identify image file'
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return re.sub(r" ?<\S+ object at 0x[0-9a-fA-F]+>", "", line)


def map_threads(work: Callable, rows: Iterable[int], workers: int | None) -> Iterable:
    """Map `work` over `rows` in threads, in order. PIL releases the interpreter lock while it decodes."""
    with ThreadPoolExecutor(workers or available_cores()) as pool:
        yield from pool.map(work, rows)


def resize_arrays(pixels: np.ndarray, shape: Geometry, chunk: int = 1024) -> "Tensor":
    """Resize uint8 (N, 1 or 3, h, w) to RGB (N, 3, H, W); gray images share one channel in memory."""
    import torch

    images = torch.from_numpy(np.ascontiguousarray(pixels))
    down, across = _scaled(images.shape[-2], images.shape[-1], shape)
    if (down, across) != images.shape[-2:]:
        images = torch.cat(
            [_resize(piece, (down, across), shape.interpolation) for piece in images.split(chunk)]
        )
    top, left = (down - shape.height) // 2, (across - shape.width) // 2
    images = images[..., top : top + shape.height, left : left + shape.width]
    return images.expand(-1, 3, -1, -1)


def _resize(images: "Tensor", size: tuple[int, int], mode: str) -> "Tensor":
    from torch.nn.functional import interpolate

    values = interpolate(images.float(), size, mode=mode, antialias=True)
    return values.round().clamp(0, 255).byte()
