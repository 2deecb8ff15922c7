import re

import numpy as np
import pytest

from sourceward._util.errors import InputError
from sourceward._util.storage import open_folder, write_whole
from sourceward._util.tables import Table
from sourceward.report import figures
from sourceward.report.page import Card, Figure, Page, Section, render


@pytest.fixture(scope="module")
def chart():
    lines = {"a": [1, 2], "b": [2, 1]}
    panel = {"plot": "lines", "x": [0, 1], "lines": lines, "xlabel": "x", "ylabel": "y", "mark": 1}
    return figures.to_svg(panel, (4, 3), "a chart")


def test_a_figure_follows_the_colours_and_the_width_of_the_page(chart):
    assert chart.startswith('<svg viewBox="0 0 ')
    assert 'aria-label="a chart"' in chart
    assert "currentColor" in chart
    assert figures.INK not in chart
    assert "http" not in chart
    assert ">x</text>" in chart  # text stays text


def test_the_same_figure_is_the_same_text():
    def svg():
        panel = {"plot": "chain", "probability": np.zeros(3), "energy": np.ones(3)}
        return figures.to_svg(panel, (3, 2), "chain")

    assert svg() == svg()


def test_a_map_shows_right_and_wrong_by_shape_too():
    rng = np.random.default_rng(0)
    points, right = rng.normal(size=(6, 2)), np.array([True, False] * 3)
    limits = np.array([[-3.0, -3.0], [3.0, 3.0]])
    panel = {
        "plot": "map",
        "sources": points,
        "points": points,
        "right": right,
        "title": "t",
        "limits": limits,
    }
    svg = figures.to_svg(panel, (3, 3), "map")
    assert figures.BLUE in svg
    assert figures.ORANGE in svg
    assert ">right</text>" in svg
    assert ">wrong</text>" in svg


def test_gains_of_zero_do_not_fill_the_chart():
    from matplotlib.figure import Figure as Drawn

    axes = Drawn().subplots()
    figures.plot_gains(axes, ["a"], [0.0], [0.0], [0.0], xlabel="gain in points")
    low, high = axes.get_xlim()
    assert low <= -0.5
    assert high >= 0.5


def test_a_page_holds_every_part_and_escapes_text(chart):
    section = Section(
        "First",
        "a < b",
        [Table(["model", "%"], [["group"], ["ours", "1.0"]], "see", strong=[1], groups=[0])],
        [Figure([chart, chart], "look")],
        [Card(figures.pixels_png(np.zeros((2, 2), np.uint8)), "a card", "of text", chart, good=False)],
    )
    html = render(Page("title", "headline", ["note"], [section], ["footer"]))
    for part in (
        "a &lt; b",
        "headline",
        "note",
        '<p class="caption">see',
        'class="strong"',
        "a card",
        "footer",
    ):
        assert part in html
    assert html.count("<svg") == 3
    assert html.index("headline") < html.index("First")
    assert "td:nth-child(2):last-child { overflow-wrap: anywhere; }" in html, "settings on a phone"
    assert not re.search(r"<script|https?:|@import|<link", html)


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "page.html"
    write_whole(path, "old")
    with pytest.raises(TypeError):
        write_whole(path, 3)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="Expected `--out` to be a folder"):
        open_folder(tmp_path / "file" / "inside")
