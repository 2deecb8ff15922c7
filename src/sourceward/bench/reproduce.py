"""Run one of the paper's experiments and write what it shows: results.json, figures, tables."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sourceward.bench.experiments import EXPERIMENTS, Context, Outcome
from sourceward.bench.provenance import versions
from sourceward.storage import open_folder, write_whole


def reproduce(name: str, context: Context, command: str = "") -> dict[str, Any]:
    """Run experiment `name`; returns what results.json holds."""
    from sourceward.report import figures

    experiment = EXPERIMENTS[name]
    open_folder(context.out)
    outcome: Outcome = experiment.run(context)
    drawn = []
    for drawing in outcome.drawings:
        file = "".join(c if c.isalnum() or c in "-_" else "_" for c in drawing.name)
        figures.save_figure(drawing.draw, drawing.size, context.out / file)
        drawn.append({"file": f"{file}.svg", "caption": drawing.caption})
    results = {
        "kind": "experiment",
        "experiment": name,
        "about": experiment.about,
        "command": command,
        "seeds": list(context.seeds),
        "settings": asdict(context.training)
        | {
            "weights": _name(context.training.weights),
            "num_steps": context.num_steps,
            "small": context.small,
        },
        "versions": versions(),
        "tables": [asdict(table) for table in outcome.tables],
        "figures": drawn,
        "notes": outcome.notes,
        "numbers": outcome.numbers,
    }
    write_whole(context.out / "results.json", json.dumps(results, indent=1, default=str) + "\n")
    return results


def _name(path: str | None) -> str | None:
    """A file's name without its folders."""
    return None if path is None else Path(path).name
