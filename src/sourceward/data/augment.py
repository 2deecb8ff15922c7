"""Training augmentation, batched on the device: each sample draws its own parameters.

Crop and flip are one bilinear read, a turn is another. Colour follows in a fixed order: brightness, contrast,
saturation, hue, gray. (torchvision shuffles it; so ordered, the batch shares each operation.) Last, an image
may be redrawn in sketch, and take over amplitudes from another one of the batch. The host never waits for the
device.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor

from sourceward._util.errors import InputError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

Generator = torch.Generator | None


@dataclass(frozen=True)
class Augmentation:
    """How far a training image may be changed. The defaults are those of JiGen (Carlucci et al., CVPR 2019).

    (DomainBed uses scale 0.7 to 1 and 0.3 for each colour.)

    Args:
        scale: least and greatest share of the image's area that a crop keeps; (1, 1) keeps the whole image.
        ratio: least and greatest width / height of a crop, before it is resized.
        flip: chance of a mirror image.
        turn: turned either way by up to this many degrees.
        brightness, contrast, saturation: each is multiplied by a factor from 1 - value to 1 + value.
        hue: turned by up to this share of the colour circle, at most 0.5.
        grayscale: chance of losing all colour.
        sketch: chance of being redrawn as dark lines on white: the luma over the mean luma around it.
        fourier: chance of mixing in the amplitude spectrum of another image of the batch; the phase, which
            carries the shapes, stays (Xu et al., CVPR 2021).
        fourier_strength: the mixed-in share is drawn from 0 to this.
    """

    scale: tuple[float, float] = (0.8, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    turn: float = 0.0
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.4
    grayscale: float = 0.1
    sketch: float = 0.0
    fourier: float = 0.0
    fourier_strength: float = 1.0

    def __post_init__(self) -> None:
        for name, high in (("scale", 1.0), ("ratio", math.inf)):
            pair = getattr(self, name)
            if not (isinstance(pair, tuple) and len(pair) == 2 and all(_is_number(x) for x in pair)):
                raise InputError(f"Expected `{name}` to be two numbers (least, greatest), but got {pair!r}.")
            if not 0 < pair[0] <= pair[1] <= high:
                raise InputError(
                    f"Expected `{name}` to rise from above 0 to at most {high:g}, but got {pair!r}. "
                    "Use (1.0, 1.0) to leave it as it is."
                )
        for field in fields(self)[2:]:
            value, high = getattr(self, field.name), {"hue": 0.5, "turn": 180}.get(field.name, 1.0)
            if not (_is_number(value) and 0 <= value <= high):
                raise InputError(
                    f"Expected `{field.name}` to be from 0 to {high:g}, but got {value!r}. "
                    "Use 0 to switch it off."
                )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


NO_AUGMENTATION = Augmentation(
    scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0, brightness=0, contrast=0, saturation=0, hue=0, grayscale=0
)


@torch.no_grad()
def augment(
    images: Tensor,
    settings: Augmentation,
    *,
    generator: Generator = None,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    size: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Crop, flip, recolour and normalise a batch.

    Shapes: `images` uint8 (batch, 3, height, width); the result is (batch, 3, size, size) of `dtype` on the
    same device. Without `size` it is as large as the input. Reading is bilinear without smoothing, so keep
    the images near the size that you ask for.

    >>> images = torch.randint(256, (4, 3, 40, 40), dtype=torch.uint8)
    >>> augment(images, Augmentation(), generator=torch.Generator().manual_seed(0), size=32).shape
    torch.Size([4, 3, 32, 32])
    """
    _check_images(images)
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise InputError(
            f"Expected `size` to be 1 pixel or more, but got {size!r}. Omit it to keep the input's."
        )
    before = (images.shape[-2], images.shape[-1])
    after = before if size is None else (size, size)
    pixels = images.float() / 255
    if settings.scale != (1, 1) or settings.flip or after != before:
        boxes = draw_boxes(pixels, settings, generator)
        pixels = crop_and_flip(pixels, boxes, _chance(pixels, settings.flip, generator), after)
    if settings.turn:
        pixels = turn(pixels, _uniform(pixels, (len(pixels),), (-settings.turn, settings.turn), generator))
    for change in (recolour, redraw, swap_style):
        pixels = change(pixels, settings, generator)
    return normalise(pixels, mean, std, dtype)


def normalise(
    images: Tensor,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """(pixels - mean) / std by channel; uint8 is first scaled to [0, 1], floats are taken as scaled."""
    if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
        raise InputError(
            f"Expected three means and three positive stds, but got mean={mean!r}, std={std!r}. "
            "Both are in units of [0, 1], one for each of red, green and blue."
        )
    pixels = images.float() / 255 if images.dtype == torch.uint8 else images
    out = torch.empty_like(pixels, dtype=dtype)
    for channel, (centre, spread) in enumerate(zip(mean, std)):  # numbers, not tensors: no copy to the device
        out[:, channel] = (pixels[:, channel] - centre) / spread
    return out


def draw_boxes(images: Tensor, settings: Augmentation, generator: Generator) -> Tensor:
    """Crops (batch, 4) in pixels: top, left, height, width.

    As torchvision's RandomResizedCrop: ten tries, the first that fits, else the largest crop within `ratio`;
    only that boxes need not fall on whole pixels.
    """
    batch, _, height, width = images.shape
    if settings.scale == (1, 1):
        return torch.stack([_full(images, value) for value in (0, 0, height, width)], dim=1)
    area = _uniform(images, (batch, 10), settings.scale, generator) * height * width
    low, high = settings.ratio
    ratio = _uniform(images, (batch, 10), (math.log(low), math.log(high)), generator).exp()
    widest = min(width, height * min(max(width / height, low), high))
    tallest = widest / min(max(width / height, low), high)
    wide = torch.cat([(area * ratio).sqrt(), _full(images, widest)[:, None]], dim=1)
    tall = torch.cat([(area / ratio).sqrt(), _full(images, tallest)[:, None]], dim=1)
    fits = (wide <= width) & (tall <= height)
    fits[:, -1] = True
    first = fits.int().argmax(dim=1, keepdim=True)
    wide, tall = wide.gather(1, first)[:, 0], tall.gather(1, first)[:, 0]
    place = _uniform(images, (2, batch), (0, 1), generator)
    return torch.stack([place[0] * (height - tall), place[1] * (width - wide), tall, wide], dim=1)


def crop_and_flip(images: Tensor, boxes: Tensor, flips: Tensor, size: tuple[int, int]) -> Tensor:
    """Read `boxes` (batch, 4) of the images at `size`, mirrored where `flips` (batch,) is true."""
    height, width = images.shape[-2:]
    top, left, tall, wide = boxes.unbind(1)
    zero = torch.zeros_like(top)
    across = torch.where(flips, -wide, wide) / width
    rows = [
        torch.stack([across, zero, (2 * left + wide) / width - 1], dim=1),
        torch.stack([zero, tall / height, (2 * top + tall) / height - 1], dim=1),
    ]
    grid = F.affine_grid(torch.stack(rows, dim=1), [len(images), 3, *size], align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def turn(images: Tensor, degrees: Tensor) -> Tensor:
    """Each turned counter-clockwise about its middle, by `degrees` (batch,); the border goes on outside.

    >>> corner = torch.zeros(1, 1, 4, 4); corner[0, 0, 0, 3] = 1
    >>> turn(corner, torch.tensor([90.0])).round().nonzero().tolist()
    [[0, 0, 0, 0]]
    """
    height, width = images.shape[-2:]
    angle = torch.deg2rad(degrees.to(images))
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    rows = [
        torch.stack([cos, -sin * height / width, zero], dim=1),
        torch.stack([sin * width / height, cos, zero], dim=1),
    ]
    grid = F.affine_grid(torch.stack(rows, dim=1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def recolour(images: Tensor, settings: Augmentation, generator: Generator) -> Tensor:
    """Brightness, contrast, saturation, hue and gray, in this order; what is switched off draws nothing."""
    for amount, adjust in (
        (settings.brightness, adjust_brightness),
        (settings.contrast, adjust_contrast),
        (settings.saturation, adjust_saturation),
    ):
        if amount:
            images = adjust(images, _uniform(images, (len(images),), (1 - amount, 1 + amount), generator))
    if settings.hue:
        circle = _uniform(images, (len(images),), (-settings.hue, settings.hue), generator)
        images = adjust_hue(images, circle)
    if settings.grayscale:
        lost = _chance(images, settings.grayscale, generator)[:, None, None, None]
        images = torch.where(lost, gray(images), images)
    return images


def redraw(images: Tensor, settings: Augmentation, generator: Generator) -> Tensor:
    """In sketch, of any hardness, where the dice say so."""
    if not settings.sketch:
        return images
    drawn = _chance(images, settings.sketch, generator)[:, None, None, None]
    hardness = _uniform(images, (len(images),), (1, 4), generator)
    return torch.where(drawn, sketch(images, hardness), images)


def sketch(images: Tensor, hardness: Tensor) -> Tensor:
    """Lines where the luma falls below the mean around it, darker by the power `hardness` (batch,).

    >>> paper = torch.full((1, 3, 150, 150), 0.3)
    >>> paper[..., 75] = 0.0
    >>> sketch(paper, torch.ones(1))[0, 0, 0, [10, 75]].round(decimals=1)
    tensor([1.0000, 0.1000])
    """
    luma = gray(images) + 0.02  # of black, too, there is a ratio
    around = _blur(luma, max(1.0, max(luma.shape[-2:]) / 75))  # in a narrower mean a pixel is alone
    return (luma / around).clamp_(0, 1).pow(hardness[:, None, None, None]).expand_as(images)


def swap_style(images: Tensor, settings: Augmentation, generator: Generator) -> Tensor:
    """Amplitudes of another image of the batch, in part, for the images that the dice choose."""
    if not (settings.fourier and settings.fourier_strength):
        return images
    batch = len(images)
    chosen = _chance(images, settings.fourier, generator)
    share = _uniform(images, (batch,), (0, settings.fourier_strength), generator) * chosen
    offset = 1 + (_uniform(images, (batch,), (0, 1), generator) * (batch - 1)).long()  # never its own
    other = (torch.arange(batch, device=images.device) + offset) % batch
    mixed = mix_amplitude(images, other, share).clamp_(0, 1)
    return torch.where(chosen[:, None, None, None], mixed, images)


def mix_amplitude(images: Tensor, other: Tensor, share: Tensor) -> Tensor:
    """(1 - share) of each image's amplitude spectrum and `share` of that of image `other`, at its own phase.

    Shapes: `images` float (batch, 3, height, width); `other` rows (batch,); `share` (batch,).
    """
    spectrum = torch.fft.rfft2(images.float())
    return _stretch(spectrum, spectrum.abs()[other], share[:, None, None, None], images.shape[-2:])


def toward_amplitude(images: Tensor, amplitude: Tensor, share: float) -> Tensor:
    """(1 - share) of each image's amplitude spectrum and `share` of `amplitude`, (3, height, width // 2 + 1).

    >>> gray = torch.full((1, 3, 2, 2), 0.2)
    >>> toward_amplitude(gray, torch.fft.rfft2(torch.full((3, 2, 2), 0.6)).abs(), 0.5).unique()
    tensor([0.4000])
    """
    spectrum = torch.fft.rfft2(images.float())
    return _stretch(spectrum, amplitude, share, images.shape[-2:]).clamp_(0, 1)


def _stretch(spectrum: Tensor, amplitude: Tensor, share: Tensor | float, size: Sequence[int]) -> Tensor:
    own = spectrum.abs()
    ratio = amplitude / own.clamp_min(torch.finfo(own.dtype).eps)
    # Stretching a complex number leaves its angle; share 0 multiplies by exactly 1.
    return torch.fft.irfft2(spectrum * (1 + share * (ratio - 1)), s=tuple(size))


def adjust_brightness(images: Tensor, factors: Tensor) -> Tensor:
    """Images in [0, 1] (batch, 3, height, width) times `factors` (batch,)."""
    return (images * factors[:, None, None, None]).clamp_(0, 1)


def adjust_contrast(images: Tensor, factors: Tensor) -> Tensor:
    """Away from (or toward) the mean gray of each image."""
    centre = gray(images).mean(dim=(2, 3), keepdim=True)
    return torch.lerp(centre, images, factors[:, None, None, None]).clamp_(0, 1)


def adjust_saturation(images: Tensor, factors: Tensor) -> Tensor:
    """Away from (or toward) the gray of each pixel."""
    return torch.lerp(gray(images), images, factors[:, None, None, None]).clamp_(0, 1)


def adjust_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Turn the H of HSV by `turns` (batch,) of the circle."""
    red, green, blue = images.unbind(1)
    value = images.amax(dim=1)
    span = value - images.amin(dim=1)
    inverse = 1 / torch.where(span > 0, span, 1)
    sixths = torch.where(
        value == red,
        (green - blue) * inverse,
        torch.where(value == green, (blue - red) * inverse + 2, (red - green) * inverse + 4),
    )
    sixths = sixths + 6 * turns[:, None, None]
    channels = []
    for start in (5, 3, 1):  # where on the circle red, green and blue begin to fall
        at = (sixths + start).remainder_(6)
        channels.append(value - span * torch.minimum(at, 4 - at).clamp_(0, 1))
    return torch.stack(channels, dim=1)


def gray(images: Tensor) -> Tensor:
    """Luma (batch, 1, height, width), with torchvision's weights."""
    red, green, blue = images.split(1, dim=1)
    return 0.2989 * red + 0.587 * green + 0.114 * blue


def _blur(images: Tensor, width: float) -> Tensor:
    """Gaussian mean, `width` pixels its standard deviation; the border goes on outside."""
    reach = math.ceil(3 * width)
    steps = torch.arange(-reach, reach + 1, device=images.device)
    weight = torch.softmax(-0.5 * (steps / width) ** 2, dim=0)
    padded = F.pad(images, (reach,) * 4, mode="replicate")
    return F.conv2d(F.conv2d(padded, weight[None, None, None]), weight[None, None, :, None])


def _full(images: Tensor, value: float) -> Tensor:
    return torch.full((len(images),), float(value), device=images.device)


def _uniform(
    images: Tensor, shape: tuple[int, ...], bounds: tuple[float, float], generator: Generator
) -> Tensor:
    low, high = bounds
    return torch.rand(shape, generator=generator, device=images.device) * (high - low) + low


def _chance(images: Tensor, probability: float, generator: Generator) -> Tensor:
    return torch.rand(len(images), generator=generator, device=images.device) < probability


def _check_images(images: Tensor) -> None:
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise InputError(
            f"Expected `images` to be uint8 (batch, 3, height, width), but got {images.dtype} "
            f"{tuple(images.shape)}. Augment before normalising; repeat a gray channel three times."
        )
