"""Write the generated pages: tutorials, their notebooks, reference of API, commands and settings, llms.txt.

python docs/generate.py
"""

import json
import re
from pathlib import Path
from typing import Any

import sourceward
from sourceward.cli.lazy import load_command
from sourceward.cli.main import ABOUT, COMMANDS

DOCS = Path(__file__).parent
SETTINGS = ("settings", "training.configuration")
"""Modules whose dataclasses are settings."""


def cells(source: str) -> list[tuple[str, str]]:
    """Return the cells of a percent-format file: ("markdown" or "code", text)."""
    found = []
    for cell in re.split(r"^# %%", source, flags=re.MULTILINE)[1:]:
        kind, _, body = cell.partition("\n")
        if "[markdown]" in kind:
            found.append(("markdown", re.sub(r"^# ?", "", body, flags=re.MULTILINE).strip()))
        else:
            found.append(("code", body.strip()))
    return found


def tutorial(source: str, notebook: str) -> str:
    """Return the Markdown of a percent-format file, with a link to its notebook."""
    parts = [text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in cells(source)]
    return "\n\n".join([*parts, f"[This tutorial as a notebook]({notebook})"]) + "\n"


def as_notebook(source: str) -> str:
    """Return a percent-format file as a Jupyter notebook."""
    content: list[dict[str, Any]] = []
    for number, (kind, text) in enumerate(cells(source)):
        cell = {
            "id": f"cell-{number}",
            "cell_type": kind,
            "metadata": {},
            "source": text.splitlines(keepends=True),
        }
        content.append(cell | ({"execution_count": None, "outputs": []} if kind == "code" else {}))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": content, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1) + "\n"


def api() -> str:
    """Return a page that names every public name for mkdocstrings."""
    names = (f"::: sourceward.{sourceward._HOME[name]}.{name}\n" for name in sourceward.__all__)
    return "# API\n\n`import sourceward as sw`. Each name below is one of `sw`.\n\n" + "\n".join(names)


def cli() -> str:
    """Return the page of the commands, from the commands themselves."""
    parts = [f"# Commands\n\n{ABOUT} `sourceward COMMAND --help` prints the same.\n"]
    for name in COMMANDS:
        command = load_command(name)
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        usage = " ".join(p.name.upper() if p.required else f"[{p.name.upper()}]" for p in arguments)
        parts.append(f"## {name}\n\n    sourceward {name} [OPTIONS] {usage}\n\n{_paragraphs(command.help)}\n")
        rows = [_row(p) for p in command.params if not getattr(p, "hidden", False) and p.name != "help"]
        parts.append("\n".join(["| argument or option | default | |", "|---|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def _paragraphs(text: str | None) -> str:
    return (text or "").replace("\b", "").strip()


def _row(parameter: Any) -> str:
    named = parameter.param_type_name == "option"
    name = ", ".join((*parameter.opts, *parameter.secondary_opts)) if named else parameter.name.upper()
    unset = parameter.default is None or isinstance(parameter.default, bool) or callable(parameter.default)
    default = "" if unset else parameter.default
    about = " ".join((getattr(parameter, "help", None) or "").split()).replace("|", "\\|")
    return f"| `{name}` | {f'`{default}`' if default != '' else ''} | {about} |"


def settings() -> str:
    """Return a page that names the modules of the settings for mkdocstrings."""
    about = "For `EnergyAdapter(train=...)`, `sw.fit(settings=...)` and `sourceward fit --set NAME=VALUE`."
    return f"# Settings\n\n{about}\n\n" + "\n".join(f"::: sourceward.{module}\n" for module in SETTINGS)


def llms() -> str:
    """Return llms.txt: what the project is, and every page with its title."""
    lines = [f"# sourceward\n\n> {ABOUT}\n\n## Pages\n"]
    for page in sorted(DOCS.rglob("*.md")):
        title = page.read_text().partition("\n")[0].lstrip("# ")
        place = str(page.relative_to(DOCS).with_suffix("")).removesuffix("index")
        lines.append(f"- [{title}]({place}/)" if place else f"- [{title}](.)")
    names = ", ".join(f"`{name}`" for name in sourceward.__all__)
    return "\n".join(lines) + f"\n\n## Public names of `import sourceward as sw`\n\n{names}\n"


def main() -> None:
    (DOCS / "reference").mkdir(exist_ok=True)
    for source in sorted((DOCS / "tutorials").glob("*.py")):
        text, notebook = source.read_text(), source.with_suffix(".ipynb")
        notebook.write_text(as_notebook(text))
        source.with_suffix(".md").write_text(tutorial(text, notebook.name))
    for page in (api, cli, settings):
        (DOCS / "reference" / f"{page.__name__}.md").write_text(page())
    (DOCS / "llms.txt").write_text(llms())


if __name__ == "__main__":
    main()
