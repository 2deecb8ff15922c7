"""`sourceward cache [show|clear]`: decoded images and features of frozen backbones, kept on disk."""

import json as jsonlib
from typing import Annotated

import typer

from sourceward._util.errors import unknown_name
from sourceward.cli.options import Json

ACTIONS = ("show", "clear")


def cache(
    action: Annotated[str, typer.Argument(help="show or clear.")] = "show",
    json: Json = False,
) -> None:
    """Show where the cache is and how much it holds, or delete all of it.

    Deleting is safe: what is missing is computed again. SOURCEWARD_CACHE names another folder,
    SOURCEWARD_CACHE_GB the size at which the oldest files are deleted (20).
    """
    from sourceward.data.cache import cache_folder, cache_limit, cached_files, trim_cache

    if action not in ACTIONS:
        raise unknown_name("action", action, ACTIONS)
    folder, deleted = cache_folder(), trim_cache(0) if action == "clear" else 0
    sizes: dict[str, int] = {}
    for path, stat in cached_files():
        kind = path.relative_to(folder).parts[0]
        sizes[kind] = sizes.get(kind, 0) + stat.st_size
    if json:
        held = {"folder": str(folder), "limit": cache_limit(), "bytes": sizes, "deleted": deleted}
        typer.echo(jsonlib.dumps(held, indent=2))
        return
    typer.echo(str(folder))
    for kind, size in sorted(sizes.items()):
        typer.echo(f"  {kind:<10} {size / 1e6:10.1f} MB")
    total = f"{sum(sizes.values()) / 1e6:.1f} MB of at most {cache_limit() / 1e9:g} GB"
    typer.echo(f"Deleted {deleted / 1e6:.1f} MB." if action == "clear" else f"{total}.")
