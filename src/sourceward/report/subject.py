"""The method that a bench's page is about, and its numbers in every run."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from sourceward._util.tables import short_names

NONE = "none"
AUTO, FIXED = "ebtsa:num_steps=auto", "ebtsa:num_steps=5"
"""The default method, and the default where there are too few sources to choose the number of steps."""


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
