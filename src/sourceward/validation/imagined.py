"""Domains that are imagined: held-out samples of the sources, changed as hardly any training image was.

A backbone knows its sources, so their held-out samples tell little about a domain that it will not know.
Corrupted they are strange to it; where the sources differ by a turn, they are when turned far.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from sourceward.data.corruptions import EXTRA_CORRUPTIONS, SMALLEST_SIDE
from sourceward.data.features import Corrupted
from sourceward.data.image_ops import rotate as turn
from sourceward.data.loading import Changed, Shown
from sourceward.data.transforms import TURN, look, transform_names

FURTHER = (-45.0, 45.0)
"""Degrees: none that a turned image is asked about at."""

ROWS = 500
"""Samples of each domain that are looked at."""

Domain = tuple[str, Shown, slice]
"""A name, samples, and which of them."""


def imagine(own: Sequence[Domain], views: str) -> list[Domain]:
    """Domains like the next one, as far as the views of a model tell what that may be; none of tiny images.

    Args:
        own: held-out samples of each source, one or more; a corruption that is one of them is not imagined.
        views: names; with turns, it is a turn by which the sources differ.
    """
    sources = {name for name, _, _ in own}
    few = [
        (name, samples, slice(rows.start, min(rows.stop, rows.start + ROWS))) for name, samples, rows in own
    ]
    if TURN in transform_names(views):
        return [
            (f"{name} turned by {degrees:g}", Turned(samples, degrees), rows)
            for name, samples, rows in few
            for degrees in FURTHER
        ]
    _, samples, rows = few[0]
    if _side(samples, rows) < SMALLEST_SIDE:
        return []
    return [
        (f"{name} with {kind.replace('_', ' ')}", Corrupted(samples, kind, number, 0), rows)
        for name, samples, rows in few
        for number, kind in enumerate(EXTRA_CORRUPTIONS)
        if kind not in sources
    ]


def _side(samples: Shown, rows: slice) -> int:
    """Pixels of the shorter one."""
    return min(next(iter(samples.kept(slice(rows.start, rows.start + 1)))).shape[-2:])


@dataclass(frozen=True)
class Turned(Changed):
    """Images, all turned alike, by `degrees` counter-clockwise."""

    degrees: float

    def kept(self, rows: slice) -> Iterator[Tensor]:
        def turned(pixels: Tensor) -> list[Tensor]:
            return [turn(pixels, pixels.new_full((len(pixels),), self.degrees))]

        for images in self.samples.kept(rows):
            yield from look(images, turned)
