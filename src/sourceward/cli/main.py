"""The `sourceward` command: imports the subcommand that was named and turns errors into exit codes.

Exit codes: 0 done, 2 the input is wrong (one sentence on standard error), 1 a bug; 3 is explained by the
subcommands that use it.
"""

import io
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sourceward._util.errors import InputError, TrainingError

ABOUT = "Adapt each test sample to the source domains; no weight of the model changes."

COMMANDS = {
    "demo": "Decide for two deployments whether to adapt, then measure. Takes a minute, downloads nothing.",
    "doctor": "Check a dataset: domains, classes, duplicates, broken files, and what `fit` would do.",
    "fit": "Train on the source domains and write a model folder.",
    "evaluate": "Measure accuracy with and without adaptation on labelled domains.",
    "predict": "Predict files: to a .csv or .jsonl, or to a folder of Parquet files of any size.",
    "export": "Write a model as one .onnx or .pt2 file that runs without sourceward.",
    "serve": "Serve a model over HTTP, with a web page.",
    "drift": "Test whether predictions still come from a mixture of the sources.",
    "bench": "Compare adaptation methods by leave-one-domain-out; `bench speed` measures cost.",
    "reproduce": "Run an experiment of the paper, next to the published numbers.",
    "report": "Write the HTML page of a run, of several, of a bench or an experiment.",
    "cache": "Show what the cache on disk holds, or clear it.",
    "list": "List datasets, methods, adapters, backbones, presets, transforms or experiments.",
}
"""Each is a function of that name in the module of that name beside this file. The texts stand here so that
`sourceward --help` imports none of them."""


INTERRUPTED = 130
"""Exit code of typer after Ctrl-C."""
MEMORY_HINT = "Use smaller inputs or fewer at a time; docs/security.md lists the limits on inputs."
RESUME_HINT = (
    "Files are replaced only when they are complete, and checkpoints in the output folder are kept: run the "
    "same command again to go on from there."
)


def build_app() -> Any:
    """Return the typer application. typer is an optional package, so it is imported here."""
    import typer

    from sourceward.cli.lazy import LazyGroup

    app = typer.Typer(
        name="sourceward",
        cls=LazyGroup,
        help=ABOUT,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    def print_version(wanted: bool) -> None:
        if wanted:
            from sourceward import __version__

            typer.echo(__version__)
            raise typer.Exit()

    @app.callback()
    def options(
        version: bool = typer.Option(
            False, "--version", help="Print the version and exit.", is_eager=True, callback=print_version
        ),
    ) -> None:
        pass

    def placeholder() -> None:
        """`LazyGroup` puts the real command in its place."""

    for name, about in COMMANDS.items():
        app.command(name, help=about)(placeholder)
    return app


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print warnings as one sentence, without the line of code that raised them."""
    before = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"sourceward: warning: {message}\n"
    try:
        yield
    finally:
        warnings.formatwarning = before


@plain_warnings()
def main() -> None:
    """Run the command line and exit with its code."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # as on standard error: names need not be valid Unicode
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app = build_app()
    except ImportError as error:
        print(f"sourceward: {error}. Install the command line: pip install sourceward[cli]", file=sys.stderr)
        sys.exit(2)
    try:
        app(prog_name="sourceward")
    except (InputError, TrainingError) as error:
        print(f"sourceward: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:  # a full disk, a file without permission
        where = "" if error.filename is None else f"'{error.filename}': "
        print(f"sourceward: {where}{error.strerror or error}.", file=sys.stderr)
        sys.exit(2)
    except MemoryError:
        print(f"sourceward: Not enough memory. {MEMORY_HINT}", file=sys.stderr)
        sys.exit(2)
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            print(f"\nsourceward: Interrupted. {RESUME_HINT}", file=sys.stderr)
        raise
