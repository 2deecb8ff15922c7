"""The method that a bench's page is about: its numbers in every run, and its example samples."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sourceward._util.tables import short_names
from sourceward._util.values import read_json
from sourceward.report.page import Card, Section

NONE = "none"
AUTO, FIXED = "ebtsa:num_steps=auto", "ebtsa:num_steps=5"
"""The default method, and the default where there are too few sources to choose the number of steps."""

CARDS = 8
TEXTS = {
    "saved": "Wrong without, right with: the largest rises of the true class's probability.",
    "lost": "Right without, wrong with: the largest falls. Labels were used to find these samples only.",
}


@dataclass(frozen=True)
class Subject:
    """One row of the table with the runs behind it: those that also have no adaptation."""

    row: dict[str, Any]
    none: dict[str, Any]
    runs: list[dict[str, Any]]
    class_names: dict[str, list[str]]

    @property
    def title(self) -> str:
        """The method in a headline."""
        label = self.row["label"]
        if not label.startswith("ebtsa"):
            return label
        rest = label.removeprefix("ebtsa").strip(" ,()")
        return f"Adaptation ({rest})" if rest else "Adaptation"

    @property
    def names(self) -> dict[str, str]:
        """Each DATA/TARGET with its short name."""
        return short_names(self.row["targets"])

    @property
    def partial(self) -> bool:
        """Whether it was evaluated on some of the samples, where no adaptation was on all."""
        return any("rows" in self.numbers(run) for run in self.runs)

    def expected_gain(self, run: dict[str, Any]) -> float | None:
        """Return the expected gain as a share of 1; only the default method has one."""
        found = run.get("expected_gain") if self.row["method"] == AUTO else None
        return float(found["gain"]) if found else None

    def key(self, run: dict[str, Any]) -> str:
        """Return the method in this run: a selected one may differ from run to run."""
        chosen = self.row.get("chosen")
        own = f"{run['data']}/{run['target']}/{run['seed']}"
        return self.row["method"] if chosen is None else chosen.get(own, NONE)

    def numbers(self, run: dict[str, Any]) -> dict[str, Any]:
        """Return the method's numbers in a run."""
        return run["methods"][self.key(run)]

    def before(self, run: dict[str, Any]) -> dict[str, Any]:
        """Return the numbers without adaptation in a run."""
        return run["methods"][NONE]


def in_part(runs: Iterable[dict[str, Any]]) -> set[str]:
    """Return the methods that were evaluated on some rows: their means are those of other samples."""
    return {key for run in runs for key, numbers in run["methods"].items() if "rows" in numbers}


def choose_subject(results: dict[str, Any], method: str | None = None) -> Subject:
    """Return the named method; else the default, or what was selected without the target where it is not
    always `none`; else another setting of ours, or another method."""
    rows = {row["method"]: row for row in results["table"]}
    selected = [
        key
        for key, row in rows.items()
        if key == "selected:ebtsa" and any(chosen != NONE for chosen in row["chosen"].values())
    ]
    usual = [key for key in (AUTO, *selected, FIXED) if key in rows]
    ours = [key for key in rows if key.split(":")[0] == "ebtsa"]
    others = [key for key in rows if key != NONE and not rows[key]["oracle"] and not rows[key]["control"]]
    key = method or [*usual, *ours, *others, NONE][0]
    subject = Subject(rows[key], rows[NONE], [], results["classes"])
    return replace(subject, runs=[run for run in results["runs"] if subject.key(run) in run["methods"]])


def samples(subject: Subject, folder: Path) -> list[Section]:
    """Return saved and lost samples, where the runs' files are beside the results."""
    found: dict[str, list[list[Card]]] = {"saved": [], "lost": []}
    first = min((run["seed"] for run in subject.runs), default=0)
    for run in (run for run in subject.runs if run["seed"] == first):
        own = _read(folder, subject.numbers(run)["run"])
        for kind, by_target in found.items():
            by_target.append([sample_card(run["target"], s) for s in own if s["kind"] == kind])
    return [
        Section(f"Samples that were {kind}", TEXTS[kind], cards=cards)
        for kind, by_target in found.items()
        if (cards := in_turn(by_target))
    ]


def in_turn(by_target: list[list[Card]]) -> list[Card]:
    """Return the first card of every target, then the second of every target, up to as many as are shown."""
    longest = max(map(len, by_target), default=0)
    return [own[i] for i in range(longest) for own in by_target if i < len(own)][:CARDS]


def sample_card(target: str, sample: dict[str, Any]) -> Card:
    """Return the card of a saved or lost sample, or of a mistake."""
    title = f"{sample['true']}: predicted {sample['before']}, then {sample['after']}"
    text = f"target {target}; p({sample['true']}) {sample['p_before']:.2f} to {sample['p_after']:.2f}"
    if sample["kind"] == "wrong":
        title = f"{sample['true']}: predicted {sample['after']}"
        text = f"target {target}; p({sample['after']}) {sample['p_predicted']:.2f}"
    quote = sample.get("text", "" if "image" in sample else sample["id"])
    return Card(sample.get("image", ""), title, text, good=sample["kind"] == "saved", quote=quote)


def _read(folder: Path, key: str) -> list[dict[str, Any]]:
    try:
        return read_json(folder / "runs" / f"{key}.json")["samples"]
    except (ValueError, KeyError, TypeError):
        return []
