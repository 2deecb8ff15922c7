"""Run one of the paper's experiments and write what it shows: results.json, figures, tables."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sourceward._util.errors import InputError
from sourceward._util.storage import open_folder, write_whole
from sourceward.bench.cells import refuse_model, refuse_other
from sourceward.bench.experiments import EXPERIMENTS, Context, Outcome
from sourceward.bench.provenance import versions


def reproduce(name: str, context: Context, command: str = "") -> dict[str, Any]:
    """Run experiment `name`; returns what results.json holds."""
    from sourceward.report import figures

    experiment = EXPERIMENTS[name]
    if context.num_steps < 0:
        raise InputError(f"Expected `num_steps` to be 0 or more, but got {context.num_steps}.")
    experiment.check(context)
    configuration = _configuration(name, context)
    _check_folder(context.out, configuration)
    open_folder(context.out)
    outcome: Outcome = experiment.run(context)
    drawn = []
    for drawing in outcome.drawings:
        file = "".join(c if c.isalnum() or c in "-_" else "_" for c in drawing.name)
        figures.save_figure(drawing.draw, drawing.size, context.out / file)
        drawn.append({"file": f"{file}.svg", "caption": drawing.caption})
    results = configuration | {
        "about": experiment.about,
        "command": command,
        "versions": versions(),
        "tables": [asdict(table) for table in outcome.tables],
        "figures": drawn,
        "notes": outcome.notes,
        "numbers": outcome.numbers,
    }
    write_whole(context.out / "results.json", json.dumps(results, indent=1, default=str) + "\n")
    return results


def _configuration(name: str, context: Context) -> dict[str, Any]:
    """What a folder's tables and figures are of."""
    given = {
        "weights": _name(context.training.weights),
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
    try:
        unsaid = {"data": now["data"], "targets": now["targets"]}  # by earlier versions
        before = unsaid | json.loads(file.read_text())
    except (ValueError, TypeError):
        raise InputError(f"'{file}' is damaged. Remove '{path}' to start anew.") from None
    for key in ("targets", "seeds"):  # no targets are all of them
        if not now[key] or (before.get(key) and set(before[key]) <= set(now[key])):
            before[key] = now[key]
    refuse_other(path, {key: before.get(key) for key in now}, now)


def _name(path: str | None) -> str | None:
    """A file's name without its folders."""
    return None if path is None else Path(path).name
