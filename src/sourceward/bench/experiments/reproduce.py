"""Run one of the paper's experiments and write what it shows: results.json, figures, tables."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sourceward._util.errors import InputError
from sourceward._util.storage import open_folder, write_whole
from sourceward.bench.experiments import EXPERIMENTS, Context
from sourceward.bench.experiments.base import Drawing
from sourceward.bench.protocol.provenance import versions, weights_name
from sourceward.bench.protocol.runs import read_json, refuse_model, refuse_other


def reproduce(
    name: str, context: Context, command: str = "", draw: Callable[[Drawing, Path], Any] | None = None
) -> dict[str, Any]:
    """Run experiment `name`; returns the content of results.json.

    Args:
        name: of the experiment.
        context: data, training and folder.
        command: as typed, for the results file.
        draw: writes a figure to a path without ending, as .svg and .png; no figures when None.
    """
    experiment = EXPERIMENTS[name]
    if context.num_steps < 0:
        raise InputError(f"Expected `num_steps` to be 0 or more, but got {context.num_steps}.")
    experiment.check(context)
    configuration = _configuration(name, context)
    _check_folder(context.out, configuration)
    open_folder(context.out)
    outcome = experiment.run(context)
    figures = []
    for drawing in outcome.drawings if draw is not None else ():
        file = "".join(c if c.isalnum() or c in "-_" else "_" for c in drawing.name)
        draw(drawing, context.out / file)  # type: ignore[misc]
        figures.append({"file": f"{file}.svg", "caption": drawing.caption})
    results = configuration | {
        "about": experiment.about,
        "command": command,
        "versions": versions(),
        "tables": [asdict(table) for table in outcome.tables],
        "figures": figures,
        "notes": outcome.notes,
        "numbers": outcome.numbers,
    }
    write_whole(context.out / "results.json", json.dumps(results, indent=1, default=str) + "\n")
    return results


def _configuration(name: str, context: Context) -> dict[str, Any]:
    """Return what the tables and figures of a folder depend on."""
    weights = context.training.weights
    given = {
        "weights": weights_name(weights),
        "num_steps": context.num_steps,
        "small": context.small,
    }
    return {
        "kind": "experiment",
        "experiment": name,
        "data": {named: dataset.fingerprint() for named, dataset in context.datasets()},
        "targets": list(context.targets),
        "seeds": list(context.seeds),
        "settings": asdict(context.training) | given,
    }


def _check_folder(path: Path, configuration: dict[str, Any]) -> None:
    """Refuse the folder of another experiment or configuration: its figures would stay beside the new ones.
    Targets and seeds may grow."""
    refuse_model(path)
    file = path / "results.json"
    if not file.exists():
        return
    now = json.loads(json.dumps(configuration, default=str))
    before = read_json(file)
    for key in ("targets", "seeds"):  # no targets are all of them
        if not now[key] or (before.get(key) and set(before[key]) <= set(now[key])):
            before[key] = now[key]
    refuse_other(path, {key: before.get(key) for key in now}, now)
