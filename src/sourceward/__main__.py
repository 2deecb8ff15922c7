"""`python -m sourceward` is the `sourceward` command."""

from sourceward.cli import main

main()
