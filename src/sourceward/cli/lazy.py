"""A command group that imports a subcommand when it runs."""

import inspect
import re
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

NESTED = {"bench": ("speed", "predict", "serve", "drift")}
"""Commands of two words, with options and help of their own."""


class LazyGroup(TyperGroup):
    """Lists placeholders with their help texts, and imports the one command that is to run.

    A placeholder `name` stands for the function `name` of the module `sourceward.cli.name`, and a pair of
    words of `NESTED` for the function and module `first_second`.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)  # an unknown name is an error here
        if name is not None and rest[:1] and rest[0] in NESTED.get(name, ()):
            return f"{name} {rest[0]}", load_command(f"{name}_{rest[0]}"), rest[1:]
        return name, command if name is None else load_command(name), rest


def load_command(name: str) -> Any:
    """Import the module of a subcommand and return its command."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    function = getattr(import_module(f"sourceward.cli.{name}"), name)
    app.command(name, help=reflow(inspect.getdoc(function) or ""))(function)
    return typer.main.get_command(app)


def reflow(text: str) -> str:
    """Return a help text with each paragraph, and each item of a list, on one line: the terminal wraps it.

    >>> reflow("One line\\nand more.\\n\\n- item\\n- another\\n  of two lines")
    'One line and more.\\n\\n- item\\n- another of two lines'
    """
    return re.sub(r"(?<!\n)\n(?!\n|- )\s*", " ", text)
