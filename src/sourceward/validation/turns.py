"""Do the sources differ by a turn? Then the next domain may, too.

The mean image of each class of one source is turned onto that of another. Where less than half of their
squared distance is left, a turn is most of what differs between the two.
"""

from itertools import combinations

import torch
import torch.nn.functional as F
from torch import Tensor

from sourceward.data.image_ops import grayscale as gray
from sourceward.data.image_ops import rotate as turn
from sourceward.training.task import Prepared

ANGLES = tuple(float(angle) for angle in range(-60, 61, 15) if angle)
"""Degrees that are tried."""

LEFT = 0.5
"""Share of the squared distance that a turn may leave."""

SIDE = 32
"""Pixels of the shorter side of a mean image: enough to see a turn by."""

ROWS = 1000
"""Samples of each source that are looked at."""


def differ_by_turn(prepared: Prepared) -> bool:
    """Whether most pairs of sources are turned copies of one another, class by class."""
    few = [slice(rows.start, min(rows.stop, rows.start + ROWS)) for rows in prepared.train]
    means = [_class_means(prepared, rows) for rows in few]
    pairs = [is_turned(one, other) for one, other in combinations(means, 2)]
    return 2 * sum(pairs) > len(pairs)


def is_turned(one: Tensor, other: Tensor) -> bool:
    """Whether a turn brings the images (classes, 1, height, width) of one to those of the other.

    Classes that either lacks are NaN.

    >>> bar = torch.zeros(1, 1, 9, 9); bar[..., 4] = 1
    >>> is_turned(bar, turn(bar, torch.tensor([30.0]))), is_turned(bar, bar.flip(-2) + 1)
    (True, False)
    """
    both = ~(one + other).isnan().flatten(1).any(1)
    one, other = one[both], other[both]
    apart = (one - other).square().sum()
    return bool(both.any() and max(_nearest(one, other), _nearest(other, one)) < LEFT * apart)


def _nearest(one: Tensor, other: Tensor) -> Tensor:
    """Squared distance that the best turn of one leaves. A turn smooths noise away: so ask both ways."""
    turned = [turn(one, one.new_full((len(one),), angle)) for angle in ANGLES]
    return torch.stack([(image - other).square().sum() for image in turned]).min()


def _class_means(prepared: Prepared, rows: slice) -> Tensor:
    """(classes, 1, height, width); NaN where there are no samples."""
    label, small = prepared.labels[rows], []
    for images in prepared.samples.kept(rows):
        size = [round(SIDE * side / min(images.shape[-2:])) for side in images.shape[-2:]]
        small.append(F.interpolate(gray(images.float() / 255), size=size, mode="bilinear", antialias=True))
    share = F.one_hot(label, len(prepared.dataset.classes)).T.float()
    share = share / share.sum(1, keepdim=True)  # 0 / 0 where a class is missing
    return torch.einsum("cn,n...->c...", share, torch.cat(small))
