"""The page of one's own fit: what to expect on an unseen domain, what was measured, and why it was chosen."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sourceward._util.errors import InputError
from sourceward._util.values import damaged, read_json
from sourceward.report import run_sections as parts
from sourceward.report.bench import settings_section
from sourceward.report.page import Page

CONFIG, EVALUATIONS = "config.json", "evaluations"


@dataclass(frozen=True)
class Measured:
    """One evaluated domain."""

    name: str
    scores: dict[str, Any]
    own: bool
    """Whether the model was evaluated as it will be deployed."""


@dataclass(frozen=True)
class Run:
    """A model folder as plain data, and its evaluations."""

    name: str
    config: dict[str, Any]
    evaluations: Sequence[dict[str, Any]] = ()
    rows: Sequence[Measured] = field(default=())

    @property
    def expected(self) -> dict[str, Any] | None:
        """The expected gain and accuracy; None where they were not estimated."""
        found = self.config.get("expected_gain")
        return found if found and found.get("accuracy") is not None else None

    @property
    def unseen(self) -> list[Measured]:
        """What the page is about: unseen domains under the model's own settings, or else what there is."""
        new = [row for row in self.rows if not row.scores["trained_on"]]
        return [row for row in new if row.own] or new or list(self.rows)


def read_run(folder: Path) -> Run:
    """Read a model folder and the evaluations of this model."""
    try:
        config = read_json(folder / CONFIG)
        if not isinstance(config, dict) or "adapt" not in config:
            raise ValueError("it describes no model")
        known = json.dumps(config.get("files"))
        files = sorted((folder / EVALUATIONS).glob("*.json"))
        found = [own for own in map(read_json, files) if str(own.get("model")) in known]
    except InputError:
        raise
    except (ValueError, AttributeError) as error:
        raise damaged(folder, error) from None
    return Run(folder.resolve().name, config, found, _rows(config, found))


def _rows(config: dict[str, Any], evaluations: Sequence[dict[str, Any]]) -> list[Measured]:
    """Every evaluated domain, named as briefly as is clear."""
    several = len({own["data"] for own in evaluations}) > 1
    own_settings = {"num_steps": config["adapt"]["num_steps"], "tta": config.get("tta", "")}
    rows = []
    for evaluation in evaluations:
        own = evaluation["settings"] == {**own_settings, "allow": "sample"}
        for name, scores in evaluation["domains"].items():
            where = f"{evaluation['data']}: {name}" if several else name
            rows.append(Measured(where if own else f"{where} ({_how(evaluation['settings'])})", scores, own))
    return sorted(rows, key=lambda row: (not row.own, row.scores["trained_on"]))


def _how(settings: dict[str, Any]) -> str:
    state = "" if settings["allow"] == "sample" else settings["allow"]
    named = f"{settings['num_steps']} steps", settings["tta"] or "no TTA", state
    return ", ".join(filter(None, named))


def run_page(run: Run) -> Page:
    """Return the page of a run."""
    config = run.config
    sections = [
        parts.measured(run),
        parts.chosen(run),
        parts.data(run),
        parts.classes(run),
        parts.confusion(run),
        *parts.samples(run),
        parts.trust(run),
        parts.cost(run),
        settings_section(config.get("training", {}).get("settings") or config["adapt"]),
    ]
    software = ", ".join(f"{name} {version}" for name, version in config.get("software", {}).items())
    footer = [*dict.fromkeys(own["command"] for own in run.evaluations if own.get("command")), software]
    title = f"sourceward: {run.name}"
    text = headline(run).replace(" %", "\u00a0%")  # a number stays on the line of its unit
    return Page(title, text, notes(run), [s for s in sections if s], footer)


def headline(run: Run) -> str:
    """Return one sentence: the accuracy measured and expected, else expected alone."""
    expected, rows = run.expected, run.unseen
    range_text = expected_text(expected)
    if not rows:
        return f"Expected accuracy on an unseen domain: {range_text}."
    mean = sum(row.scores["adapted"] for row in rows) / len(rows)
    seen = "domains that it was trained on" if rows[0].scores["trained_on"] else "unseen domains"
    where = rows[0].name if len(rows) == 1 else f"{len(rows)} {seen}"
    beside = f"; expected on an unseen domain: {range_text}" if expected else ""
    return f"Accuracy on {where}: {100 * mean:.1f} %{beside}."


def expected_text(expected: dict[str, Any] | None) -> str:
    """Return the expected accuracy with its interval."""
    if expected is None:
        return "not estimated"
    low, mid, high = (100 * expected[key] for key in ("accuracy_low", "accuracy", "accuracy_high"))
    return f"{mid:.1f} % ({low:.0f} to {high:.0f} %)"


def notes(run: Run) -> list[str]:
    """Return the sentences that qualify the headline."""
    expected, found = run.expected, []
    for row in run.unseen[:4]:
        low, gain, high = (100 * row.scores[key] for key in ("gain_low", "gain", "gain_high"))
        word = "helps" if low > 0 else "hurts" if high < 0 else "makes no clear difference"
        if parts.taken(run) or not row.own:
            found.append(f"{row.name}: adaptation {word}, {gain:+.1f} points ({low:+.1f} to {high:+.1f}).")
        if row.scores["adapted"] <= row.scores["majority"]:
            found.append(f"{row.name}: always predicting its largest class would be as accurate.")
        if expected and not row.scores["trained_on"]:
            low, high = expected["accuracy_low"], expected["accuracy_high"]
            if not low <= row.scores["adapted"] <= high:
                found.append(f"{row.name}: the accuracy lies outside of the interval that was expected.")
    if not run.rows:
        found.append("Not evaluated yet: `sourceward evaluate RUN DATA` adds what is measured to this page.")
    elif all(row.scores["trained_on"] for row in run.rows):
        found.append("The model was trained on these domains; expect lower accuracy on others.")
    return [*found, parts.adaptation(run)]
