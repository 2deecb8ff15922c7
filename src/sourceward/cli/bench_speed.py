"""`sourceward bench speed --out DIR`: the cost of adaptation on this machine."""

import json as jsonlib
import os
import sys
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from sourceward.cli.options import wide_console


def bench_speed(out: Path, device: str, json: bool, quick: bool, only: str = "") -> None:
    """Measure, write DIR/<device>.json, print tables. A selection of sections has a file of its own: every
    number in a file comes from its command."""
    import torch

    from sourceward._util.devices import choose_device
    from sourceward._util.storage import write_whole
    from sourceward.bench.protocol.provenance import command, versions
    from sourceward.bench.speed.models import SpeedPlan
    from sourceward.bench.speed.sections import bench_speed, chosen

    where = torch.device(choose_device(device))
    plan = SpeedPlan.quick() if quick else SpeedPlan.on(where)
    chosen(only, where, plan.image_size)  # a wrong name is refused before anything is written
    file = out / f"{'-'.join([where.type, *only.split(',')]) if only else where.type}.json"
    head = {"command": command(sys.argv), "seed": plan.seed, "threads": torch.get_num_threads()}
    head |= {"load_at_start": round(os.getloadavg()[0], 2), "versions": versions(), "plan": vars(plan)}
    out.mkdir(parents=True, exist_ok=True)

    def save(section: str, found: dict[str, Any]) -> None:
        """Write after every section, so that a later failure loses nothing."""
        write_whole(file, jsonlib.dumps({**head, **found}, indent=1) + "\n")
        state = "failed" if "error" in found[section] else "done"
        print(f"{section}: {state} in {found['seconds'][section]} s", file=sys.stderr)

    results = {**head, **bench_speed(where, plan, save, only)}
    if json:
        typer.echo(jsonlib.dumps(results))
    for table in tables(results):
        wide_console(stderr=json).print(table)
    typer.echo(f"The numbers are in {file}.", err=json)


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
    return found


def _defaults(rows: list[dict[str, Any]]) -> Table:
    """What the default costs, as times of a prediction without adaptation."""
    shares = [f"{100 * (1 - one['stopped'][0]):.0f} % in doubt" for one in rows[-1]["cascade"]]
    table = Table("default", "batch", "none ms", "steps", "full set", "all copies", *shares)
    for row in rows:
        ratios = [row["steps_ms"] / row["none_ms"], row["ratio_full_set"], row["ratio_all_copies"]]
        ratios += [one["ratio"] for one in row["cascade"]]
        numbers = (f"{ratio:.2f}" for ratio in ratios)
        table.add_row(row["backbone"], str(row["batch"]), f"{row['none_ms']:.2f}", *numbers)
    return table


def _case(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["backbone"], str(row["components"] or "all"), str(row["batch"])
