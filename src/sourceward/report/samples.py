"""Example samples of a bench's page: saved and lost ones, with their images or texts."""

import json
from pathlib import Path
from typing import Any

from sourceward.report.page import Card, Section
from sourceward.report.subject import Subject

CARDS = 8
TEXTS = {
    "saved": "Wrong without, right with: the largest rises of the true class's probability.",
    "lost": "Right without, wrong with: the largest falls. Labels were used to find these samples only.",
}


def samples(subject: Subject, folder: Path) -> list[Section]:
    """Return saved and lost samples, where the runs' files are beside the results."""
    found: dict[str, list[list[Card]]] = {"saved": [], "lost": []}
    first = min((run["seed"] for run in subject.runs), default=0)
    for run in (run for run in subject.runs if run["seed"] == first):
        own = _read(folder, subject.numbers(run)["run"])
        for kind, by_target in found.items():
            by_target.append([_card(run["target"], s) for s in own if s["kind"] == kind])
    return [
        Section(f"Samples that were {kind}", TEXTS[kind], cards=cards)
        for kind, by_target in found.items()
        if (cards := _in_turn(by_target))
    ]


def _in_turn(by_target: list[list[Card]]) -> list[Card]:
    """Return the first card of every target, then the second of every target, up to as many as are shown."""
    longest = max(map(len, by_target), default=0)
    return [own[i] for i in range(longest) for own in by_target if i < len(own)][:CARDS]


def _card(target: str, sample: dict[str, Any]) -> Card:
    title = f"{sample['true']}: predicted {sample['before']}, then {sample['after']}"
    text = f"target {target}; p({sample['true']}) {sample['p_before']:.2f} to {sample['p_after']:.2f}"
    quote = sample.get("text", "" if "image" in sample else sample["id"])
    return Card(sample.get("image", ""), title, text, good=sample["kind"] == "saved", quote=quote)


def _read(folder: Path, key: str) -> list[dict[str, Any]]:
    try:
        return json.loads((folder / "runs" / f"{key}.json").read_text())["samples"]
    except (OSError, ValueError, KeyError):
        return []
