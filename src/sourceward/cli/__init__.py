"""The command line: one thin file per subcommand, imported when that subcommand runs."""

from sourceward.cli.main import main

__all__ = ["main"]
