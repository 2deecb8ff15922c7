"""Nothing that a person reads uses an old word: help texts, strings, docstrings, README, docs, CHANGELOG."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import sourceward
from sourceward.cli.main import COMMANDS, build_app
from tests.words import WORDS, old_words

SOURCE = Path(sourceward.__file__).parent
ROOT = Path(__file__).parents[1]
ROOMS = sorted(path.name for path in SOURCE.iterdir() if path.suffix == ".py" or any(path.glob("*.py")))
PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *SOURCE.rglob("*.j2"))
)


NOT_READ = re.compile(r"(?<=\])\([^)]*\)|<style>.*?</style>|<[^<>]*>|{[{%#].*?[}%#]}", re.DOTALL)
"""Where a link leads, and the tags and expressions of a template."""


@pytest.mark.parametrize("room", ROOMS)
def test_strings_and_docstrings(room: str):
    path = SOURCE / room
    files = [path] if path.is_file() else sorted(path.rglob("*.py"))
    found = [
        f"{file.relative_to(SOURCE)}:{line}: {word}"
        for file in files
        for line, text in _strings(file)
        for word in old_words(text)
    ]
    assert not found, "\n".join(["old words", *found])


@pytest.mark.parametrize("page", PAGES)
def test_pages(page: str):
    text = NOT_READ.sub(" ", (ROOT / page).read_text())
    found = [
        f"{page}: {word}"
        for paragraph in re.split(r"\n\s*\n|\n(?=[-|*] )", text)
        for word in old_words(paragraph)
    ]
    assert not found, "\n".join(["old words", *found])


@pytest.mark.parametrize(
    "words", [[], *([name] for name in COMMANDS)], ids=lambda words: "".join(words) or "-"
)
def test_help(words: list[str]):
    shown = CliRunner().invoke(
        build_app(), [*words, "--help"], env={"COLUMNS": "1000", "TERMINAL_WIDTH": "1000"}
    )
    assert shown.exit_code == 0, shown.output
    assert not old_words(shown.output), "\n".join(old_words(shown.output))


@pytest.mark.parametrize(
    "text",
    [
        "Returns the tensor, or a view of the weights.",
        "Adaptation is turned off; the loss turns every row into a probability.",
        "The sample is moved to the device.",
        "Compare with the first moments of the density.",
        "Linear discriminant analysis (LDA) is the head.",
        "The random walk of os.walk, each source in turn.",
        "Fourier style calibration (Zhao et al., 2022) and the task of MixStyle.",
    ],
)
def test_the_same_word_in_another_sense_is_allowed(text: str):
    assert old_words(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "three views of it",
        "rotated by a turn",
        "the discriminant",
        "the moments of a source",
        "kept_gate",
        "it moved",
    ],
)
def test_an_old_word_is_found_once(text: str):
    assert len(old_words(text)) == 1
    assert any(old_words(text)[0].endswith(word.instead) for word in WORDS)


def _strings(file: Path) -> Iterator[tuple[int, str]]:
    """Yield every string of a module with its line; the parts of an f-string, too."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
