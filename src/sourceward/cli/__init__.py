"""The command line: one file per subcommand, each a thin layer over the library."""

from sourceward.cli.main import main

__all__ = ["main"]
