"""One self-contained HTML page from a list of sections: no script, no network; light, dark and print."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files

from sourceward._util.errors import InputError
from sourceward._util.tables import Table


@dataclass(frozen=True)
class Figure:
    """SVG elements side by side where there is room; the caption says what to look at. A wide figure keeps
    its size on a phone, where it scrolls sideways."""

    images: Sequence[str]
    caption: str
    wide: bool = False


@dataclass(frozen=True)
class Card:
    """One sample: its image (data URI) or text, its predictions, and a figure of its chain."""

    image: str
    title: str
    text: str
    figure: str = ""
    good: bool = True
    quote: str = ""


@dataclass(frozen=True)
class Section:
    """A title, a paragraph, then tables, figures and cards in this order."""

    title: str
    text: str = ""
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    cards: Sequence[Card] = ()


@dataclass(frozen=True)
class Page:
    """The headline states the result, notes qualify it, the footer says how to repeat it."""

    title: str
    headline: str
    notes: Sequence[str]
    sections: Sequence[Section]
    footer: Sequence[str] = field(default=())


PHONE = 40
"""Characters beside each other on a phone, the space between columns included."""


def is_wide(table: Table) -> bool:
    """Return whether the columns of a table do not fit beside each other on a phone.

    >>> is_wide(Table(["class", "right"], [["elephant", "5"]])), is_wide(Table(["a name"] * 9, []))
    (False, True)
    """
    lines = [table.header, *(row for row in table.rows if len(row) == len(table.header))]
    longest = [max(len(word) for text in column for word in [*text.split(" "), ""]) for column in zip(*lines)]
    return sum(longest) + 2 * len(longest) > PHONE


def render(page: Page) -> str:
    """Return the page as HTML. Text is escaped; SVG from `figures` is not."""
    try:
        from jinja2 import Environment
    except ImportError:
        raise InputError("A report needs jinja2: pip install 'sourceward[report]'.") from None
    template = files("sourceward.report").joinpath("page.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.tests["wide"] = is_wide
    return environment.from_string(template).render(page=page)
