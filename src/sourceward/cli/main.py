"""The `sourceward` command: finds the subcommand, turns errors into one line and an exit code.

Exit codes: 0 done, 2 the user's input is wrong, 3 some cells of a bench failed, 1 a bug.
"""

import importlib
import sys

from sourceward._util.errors import InputError, TrainingError

COMMANDS = ("demo", "doctor", "fit", "evaluate", "predict", "bench", "reproduce", "report", "list")
"""Each is a function of the same name in the module of the same name beside this file."""


def build_app():  # type: ignore[no-untyped-def]
    """The typer application, built when it is called: nothing is imported for `import sourceward`."""
    import typer

    app = typer.Typer(
        name="sourceward",
        help="Move each test sample toward the source domains, without changing a weight.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    def print_version(asked: bool) -> None:
        if asked:
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

    for name in COMMANDS:
        module = importlib.import_module(f"sourceward.cli.{name}")
        app.command(name)(getattr(module, name))
    return app


def main() -> None:
    try:
        app = build_app()
    except ImportError as error:
        print(f"sourceward: {error}. Install the command line: pip install sourceward[cli]", file=sys.stderr)
        sys.exit(2)
    try:
        app()
    except (InputError, TrainingError) as error:
        print(f"sourceward: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
