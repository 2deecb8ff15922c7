"""The adapter that a bench's page is about, and its numbers in every cell."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sourceward.validation.leave_one_domain_out import LENGTHS

NONE = "none"
TUNED, USUAL = "ebtsa:num_steps=auto", f"ebtsa:num_steps={LENGTHS[0]}"
"""What a user gets who sets nothing, now and where there are too few sources to tune."""


@dataclass(frozen=True)
class Subject:
    """One row of the table with the cells behind it."""

    row: dict[str, Any]
    none: dict[str, Any]
    cells: list[dict[str, Any]]
    """Those that have both the subject and no adaptation."""
    class_names: dict[str, list[str]]

    @property
    def title(self) -> str:
        label = self.row["label"]
        name, _, rest = label.partition(", ")
        return (
            f"Adaptation ({rest})" if name == "ebtsa" and rest else "Adaptation" if name == "ebtsa" else label
        )

    @property
    def partial(self) -> bool:
        """Whether it answered a part of the samples, where no adaptation answered all."""
        return any("rows" in self.numbers(cell) for cell in self.cells)

    def promised(self, cell: dict[str, Any]) -> float | None:
        """The gain that the model promised on unseen domains, as a share of 1; it is that of the walk which
        the model chose itself."""
        expected_gain = cell.get("expected_gain") if self.row["adapter"] == TUNED else None
        return float(expected_gain["gain"]) if expected_gain else None

    def key(self, cell: dict[str, Any]) -> str:
        """Which contestant the subject is in this cell: a selected one may differ from cell to cell."""
        chosen = self.row.get("chosen")
        own = f"{cell['data']}/{cell['target']}/{cell['seed']}"
        return self.row["adapter"] if chosen is None else chosen.get(own, NONE)

    def numbers(self, cell: dict[str, Any]) -> dict[str, Any]:
        return cell["adapters"][self.key(cell)]

    def before(self, cell: dict[str, Any]) -> dict[str, Any]:
        return cell["adapters"][NONE]


def in_part(cells: Iterable[dict[str, Any]]) -> set[str]:
    """Contestants that answered some rows of the targets: their means are those of other samples."""
    return {key for cell in cells for key, numbers in cell["adapters"].items() if "rows" in numbers}


def choose_subject(results: dict[str, Any], adapter: str | None = None) -> Subject:
    """The one asked for; else the default, or what was selected honestly where it did anything; else ours."""
    rows = {row["adapter"]: row for row in results["table"]}
    moved = [
        key
        for key, row in rows.items()
        if key == "selected:ebtsa" and any(chosen != NONE for chosen in row["chosen"].values())
    ]
    ours = [key for key in rows if key.split(":")[0] == "ebtsa"]
    others = [key for key in rows if key != NONE and not rows[key]["oracle"] and not rows[key]["control"]]
    usual = [key for key in (TUNED, *moved, USUAL) if key in rows]
    key = adapter or [*usual, *ours, *others, NONE][0]
    subject = Subject(rows[key], rows[NONE], [], results["classes"])
    cells = [cell for cell in results["cells"] if subject.key(cell) in cell["adapters"]]
    return Subject(rows[key], rows[NONE], cells, results["classes"])
