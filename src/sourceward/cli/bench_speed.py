"""`sourceward bench speed --out DIR`: the cost of adaptation on this machine."""

import json as jsonlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from rich.table import Table

from sourceward.cli.options import Device, Json, Out, Quick, Threads, wide_console

Only = Annotated[
    str,
    typer.Option(
        help="Sections, or the groups costs, prediction and training, by comma; all by default. A wrong name "
        "lists them."
    ),
]


def bench_speed(
    out: Out,
    only: Only = "",
    device: Device = "auto",
    threads: Threads = None,
    quick: Quick = False,
    json: Json = False,
) -> None:
    """Measure the cost of adaptation on this machine beside that of its backbone; with random weights.

    Writes OUT/DEVICE.json, and the tables as Markdown beside it. A selection of sections has a file of its
    own: every number in a file comes from its command.
    """
    import torch

    from sourceward._util.devices import choose_device
    from sourceward._util.storage import open_folder, write_whole
    from sourceward.bench.protocol.provenance import command, versions
    from sourceward.bench.speed.models import SpeedPlan
    from sourceward.bench.speed.sections import bench_speed, chosen

    where = torch.device(choose_device(device))
    plan = SpeedPlan.quick() if quick else SpeedPlan.on(where)
    chosen(only, where, plan.image_size)  # a wrong name is refused before anything is written
    file = out / f"{'-'.join([where.type, *only.split(',')]) if only else where.type}.json"
    head = {"command": command(sys.argv), "seed": plan.seed, "threads": torch.get_num_threads()}
    head |= {"load_at_start": round(os.getloadavg()[0], 2), "versions": versions(), "plan": vars(plan)}
    open_folder(out)

    def save(section: str, found: dict[str, Any]) -> None:
        """Write after every section, so that a later failure loses nothing."""
        write_whole(file, jsonlib.dumps({**head, **found}, indent=1) + "\n")
        state = "failed" if "error" in found[section] else "done"
        print(f"{section}: {state} in {found['seconds'][section]} s", file=sys.stderr)

    results = {**head, **bench_speed(where, plan, save, only)}
    if json:
        typer.echo(jsonlib.dumps(results))
    found = tables(results)
    write_whole(file.with_suffix(".md"), "\n".join(map(markdown, found)))
    for table in found:
        wide_console(stderr=json).print(table)
    typer.echo(
        f"The numbers are in {file}, the tables in {file.with_suffix('.md').name} beside it.", err=json
    )


def markdown(table: Table) -> str:
    """Return a table in Markdown, for documentation."""
    columns = [[str(column.header), *map(str, column.cells)] for column in table.columns]
    head, *rows = (f"| {' | '.join(cells)} |" for cells in zip(*columns))
    return "\n".join([head, "|" + "---|" * len(columns), *rows]) + "\n"


def tables(results: dict[str, Any]) -> list[Table]:
    """Return tables of the default's cost, the chain beside its backbone, predictions, growth, training."""
    found = [_defaults(results["default"])] if isinstance(results.get("default"), list) else []
    if isinstance(results.get("chain"), list):
        table = Table(
            "backbone", "components", "batch", "forward ms", "naive ms", "ours ms", "share", "faster", "same"
        )
        for row in results["chain"]:
            forward = min(row[k]["median_ms"] for k in ("forward", "forward_graph") if k in row)
            naive, ours = row["naive"]["median_ms"], row["ours"]["median_ms"]
            numbers = f"{forward:.2f}", f"{naive:.2f}", f"{ours:.2f}", f"{100 * row['chain_share']:.1f} %"
            same = "yes" if row["same_numbers"]["ok"] else "NO"
            faster = f"{row['times_faster_than_naive']:.0f}x"
            table.add_row(*_case(row), *numbers, faster, same)
        found.append(table)
    if isinstance(results.get("predict"), list):
        table = Table("prediction", "components", "batch", "bare ms", "without ms", "with ms", "ratio")
        for row in results["predict"]:
            three = (f"{row[k]['median_ms']:.2f}" for k in ("bare", "without", "with"))
            table.add_row(*_case(row), *three, f"{row['ratio']:.2f}")
        found.append(table)
    if isinstance(results.get("axes"), list):
        table = Table("width", "axis", "exponent (1 is linear)")
        for row in results["axes"]:
            table.add_row(str(row["dim"]), row["axis"], f"{row['exponent']:.2f}")
        found.append(table)
    names = ("image_training", "compiled_training")
    trained = {name: results[name] for name in names if "ratio" in results.get(name, ())}
    if trained:
        table = Table("training", "images", "ordinary ms", "full ms", "ratio", "minutes of 10,000")
        for name, row in trained.items():
            both = (f"{row[k]['ms']:.2f}" for k in ("erm", "full"))
            minutes = f"{row['minutes_per_10000']:.1f}"
            table.add_row(
                name.removesuffix("_training"), str(row["images"]), *both, f"{row['ratio']:.2f}", minutes
            )
        found.append(table)
    return [*found, *_costs(results)]


def _costs(results: dict[str, Any]) -> Iterator[Table]:
    """Tables of predictions from files, of fits, and of growth with the size of data."""
    if "ratio" in (one := results.get("files", {})):
        yield _table(
            ("JPEG files", "ours, images/s", "timm, images/s", "ratio"),
            [_row(one, ("files", "ours", "timm", "ratio"))],
        )
    if "alone_ratio" in (one := results.get("busy_fit", {})):
        rows = [
            (part, *_row(one, [f"{part}_{name}" for name in ("one_thread", "default", "ratio")]))
            for part in ("alone", "beside_busy")
        ]
        yield _table(("fit of features", "one thread, s", "default, s", "ratio"), rows)
    if "cached" in (one := results.get("frozen_fit", {})):
        parts = [*one["not_cached"]["parts"]]
        rows = [
            (name, *_row(one[name], ["seconds"]), *_row(one[name]["parts"], parts))
            for name in ("not_cached", "cached")
        ]
        yield _table(("fit --freeze of PACS", "s", *parts), rows)
    if isinstance(results.get("growth"), list):
        head = (
            "axis",
            "from",
            "to",
            "fit s",
            "fit MB",
            "predict s",
            "predict MB",
            "exponent of fit",
            "of predict",
        )
        yield _table(head, [_grown(one) for one in results["growth"] if one["axis"] != "copies"])


def _defaults(rows: list[dict[str, Any]]) -> Table:
    """What the default costs, as times of a prediction without adaptation."""
    shares = [f"{100 * (1 - one['stopped'][0]):.0f} % in doubt" for one in rows[-1]["cascade"]]
    table = Table("default", "copies", "batch", "none ms", "steps", "full set", "all copies", *shares)
    for row in rows:
        ratios = [row[f"ratio_{key}"] for key in ("steps", "full_set", "all_copies")]
        ratios += [one["ratio"] for one in row["cascade"]]
        numbers = (f"{ratio:.2f}" for ratio in ratios)
        size = " x ".join(map(str, row["copy_size"]))
        table.add_row(row["backbone"], size, str(row["batch"]), f"{row['none_ms']:.2f}", *numbers)
    return table


def _case(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["backbone"], str(row["components"] or "all"), str(row["batch"])


def _grown(one: dict[str, Any]) -> tuple[str, ...]:
    """The largest size of an axis: JSON has made its sizes strings."""
    costs = {int(size): cost for size, cost in one["costs"].items()}
    names = "fit_seconds", "fit_mb", "predict_seconds", "predict_mb"
    ends = f"{min(costs):,}", f"{max(costs):,}"
    return (
        one["axis"],
        *ends,
        *_row(costs[max(costs)], names),
        *_row(one["exponents"], names[::2]),
    )


def _row(values: dict[str, Any], names: Sequence[str]) -> tuple[str, ...]:
    found = (values.get(name) for name in names)
    return tuple("" if value is None else f"{value:,.4g}" for value in found)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(*head)
    for row in rows:
        table.add_row(*row)
    return table
