"""`sourceward report DIR`: one HTML page of a run of `fit`, of several, of a bench or an experiment."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Where `fit`, `bench` or `reproduce` wrote; or a folder of several fits."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="The page; DIR/report.html if not given.")] = None,
    adapter: Annotated[
        str | None, typer.Option(help="The method that the page is about, as in results.json.")
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="All results below DIR as one Markdown page instead.")
    ] = False,
) -> None:
    """Write one self-contained HTML page of results: no script, no network; for screen, phone and print.

    The page of a run has its data, what was chosen and why, and what `evaluate` measured beside what was
    expected. Of a folder that holds several runs, the page compares them.
    """
    from sourceward._util.storage import check_target, write_whole
    from sourceward.bench.published import published, rows_for
    from sourceward.report.document import document
    from sourceward.report.results import read_all, readable, report_html

    check_target(out or folder / ("results.md" if markdown else "report.html"))
    if markdown:
        results = read_all(folder)
        with readable(folder):
            for own in results.values():
                if own.get("kind") == "bench":
                    own["published"] = rows_for(own)
        known = [row for data in ("pacs", "pheme") for row in published("comparison", dataset=data)]
        with readable(folder):
            text = document(folder.resolve().name, results, [row.to_dict() for row in known])
        page_file = out or folder / "results.md"
        write_whole(page_file, text)
        typer.echo(f"Read {page_file}")
        return
    target = out or folder / "report.html"
    headline, html = report_html(folder, adapter)
    write_whole(target, html)
    typer.echo(headline)
    typer.echo(f"Open {target}")
