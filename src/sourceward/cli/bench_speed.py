"""`sourceward bench speed --out DIR`: what adaptation costs on this machine."""

import json as jsonlib
import os
import sys
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table


def bench_speed(out: Path, device: str, json: bool, quick: bool) -> None:
    """Measure, write DIR/<device>.json, print a table."""
    import torch

    from sourceward.bench.provenance import command, versions
    from sourceward.bench.speed import Plan, bench_speed
    from sourceward.parallel import choose_device
    from sourceward.report.page import write_whole

    place = torch.device(choose_device(device))
    plan = Plan.quick() if quick else Plan.on(place)
    head = {"command": command(sys.argv), "seed": plan.seed, "threads": torch.get_num_threads()}
    head |= {"load_at_start": round(os.getloadavg()[0], 2), "versions": versions(), "plan": vars(plan)}
    out.mkdir(parents=True, exist_ok=True)

    def save(section: str, found: dict[str, Any]) -> None:
        """After every section: what is measured stays, whatever comes next."""
        write_whole(out / f"{place.type}.json", jsonlib.dumps({**head, **found}, indent=1) + "\n")
        state = "failed" if "error" in found[section] else "done"
        print(f"{section}: {state} in {found['seconds'][section]} s", file=sys.stderr)

    results = {**head, **bench_speed(place, plan, save)}
    if json:
        typer.echo(jsonlib.dumps(results))
    for table in tables(results):
        Console(stderr=json).print(table)


def tables(results: dict[str, Any]) -> list[Table]:
    """The chain beside its backbone, whole predictions, growth; a section that failed has none."""
    found = []
    if isinstance(results["chain"], list):
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
    if isinstance(results["predict"], list):
        table = Table("prediction", "components", "batch", "bare ms", "without ms", "with ms", "ratio")
        for row in results["predict"]:
            three = (f"{row[k]['median_ms']:.2f}" for k in ("bare", "without", "with"))
            table.add_row(*_case(row), *three, f"{row['ratio']:.2f}")
        found.append(table)
    if isinstance(results["axes"], list):
        table = Table("width", "axis", "exponent (1 is linear)")
        for row in results["axes"]:
            table.add_row(str(row["dim"]), row["axis"], f"{row['exponent']:.2f}")
        found.append(table)
    return found


def _case(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["backbone"], str(row["components"] or "all"), str(row["batch"])
