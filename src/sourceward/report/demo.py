"""The demo's sentences, page, results file and README figure, from plain data."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sourceward._util.storage import write_whole
from sourceward._util.tables import Table, gain_text
from sourceward.report import figures
from sourceward.report.page import Card, Figure, Page, Section, render

DEFAULT, NONE, FORCED = "default", "no adaptation", "rotate on every image"
CARDS = (
    "Samples whose prediction rotate changes: up to three that it saves, then up to three that it loses. "
    "Labels were used to find them only."
)


METHODS = (
    "The default decides for each deployment. Every other row always does the same. The paper's rows are "
    "EnergyAdapter.paper() on the features of the same backbone; logistic regression is trained on them; "
    "T3A adjusts the class centres by the target samples that it has seen."
)


def write_report(results: dict[str, Any], cards: Mapping[str, Sequence[dict[str, Any]]], out: Path) -> None:
    """Write `report.html` and `results.json`, each whole or not at all.

    Args:
        results: the numbers.
        cards: single samples of each deployment.
        out: folder.
    """
    page = render(demo_page(results, cards))
    write_whole(out / "results.json", json.dumps(results, indent=2) + "\n")
    write_whole(out / "report.html", page)


def expected_sentence(expected: Mapping[str, Any]) -> str:
    """Return what leave-one-domain-out validation states, before the target is measured."""
    accuracy = (
        f"Expected accuracy {100 * expected['accuracy']:.1f} % "
        f"({100 * expected['accuracy_low']:.0f} to {100 * expected['accuracy_high']:.0f})"
    )
    if expected["adapts"]:
        return (
            f"{accuracy}, {_points(expected)} points of it by adaptation, which is on ({chosen(expected)})."
        )
    tried = {name: sum(gains.values()) / len(gains) for name, gains in expected["tried"].items()}
    refused = ", ".join(f"{name} {100 * gain:+.1f}" for name, gain in tried.items())
    return f"{accuracy}. Adaptation is off: no safe gain on the held-out sources ({refused} points)."


def chosen(expected: Mapping[str, Any]) -> str:
    """Return the adaptation that was chosen, in a few words."""
    steps = f"{expected['num_steps']} steps" if expected["num_steps"] else ""
    return " and ".join(filter(None, (steps, expected["tta"]))) or (
        "weights" if expected["adapts"] else "off"
    )


def is_right(deployment: Mapping[str, Any]) -> bool:
    """Return whether the decision was right: what is on gains, or what is off would not have gained."""
    measured = deployment["measured"]
    if deployment["expected"]["adapts"]:
        return measured[DEFAULT]["gain_low"] > 0
    return measured[FORCED]["gain_low"] <= 0


def verdict(deployment: Mapping[str, Any]) -> str:
    """Return what the target shows about the decision, in one sentence."""
    measured, expected = deployment["measured"], deployment["expected"]
    none, ours, forced = (measured[name] for name in (NONE, DEFAULT, FORCED))
    result = "right" if is_right(deployment) else "wrong"
    if expected["adapts"]:
        return (
            f"Target {deployment['target']}: adaptation was switched on, which was {result}: "
            f"{_percent(none)} without, {_percent(ours)} with, a gain of {gain_text(ours)} points; expected: "
            f"{_points(expected)}."
        )
    return (
        f"Target {deployment['target']}: adaptation was left off, which was {result}: {_percent(ours)} "
        f"without; rotate would have changed that by {gain_text(forced)} points."
    )


def headline(deployments: Sequence[Mapping[str, Any]]) -> str:
    """Return how many decisions were right."""
    right = sum(map(is_right, deployments))
    return (
        f"{right} of {len(deployments)} decisions were right, each made from the source domains alone, "
        "before any sample of the target was seen."
    )


def summary_table(deployments: Sequence[Mapping[str, Any]]) -> Table:
    """Return expectation and truth, a column for each deployment."""
    columns = [
        ["adaptation", "expected accuracy, %", "measured accuracy", "expected gain, points", "measured gain"]
    ]
    for own in deployments:
        expected, ours, adapts = own["expected"], own["measured"][DEFAULT], own["expected"]["adapts"]
        low, high = 100 * expected["accuracy_low"], 100 * expected["accuracy_high"]
        columns.append(
            [
                chosen(expected),
                f"{100 * expected['accuracy']:.1f} ({low:.0f} to {high:.0f})",
                f"{100 * ours['accuracy']:.1f}",
                _points(expected) if adapts else "none",
                gain_text(ours) if adapts else "none",
            ]
        )
    header = ["", *(own["target"] for own in deployments)]
    caption = (
        "Expected: with the 90 % interval for one new domain. Measured gain: 95 % interval over samples."
    )
    return Table(header, [list(row) for row in zip(*columns)], caption)


def method_table(deployments: Sequence[Mapping[str, Any]]) -> Table:
    """Return the accuracy of every method on each target and in the mean."""
    rows, means = [], []
    for name in deployments[0]["measured"]:
        each = [100 * own["measured"][name]["accuracy"] for own in deployments]
        means.append(sum(each) / len(each))
        rows.append([name, *(f"{value:.1f}" for value in (*each, means[-1]))])
    header = ["accuracy, %", *(own["target"] for own in deployments), "mean"]
    best = max(range(len(rows)), key=lambda row: round(means[row], 1))
    return Table(header, rows, "All use the same trained backbone. Bold: the best mean.", strong=[best])


def gain_panel(deployment: Mapping[str, Any]) -> dict[str, Any]:
    """Return a chart of the expected gain above the measured ones."""
    measured = {name: own for name, own in deployment["measured"].items() if name != NONE}
    expected = deployment["expected"]
    first = {"gain": expected["gain"], "gain_low": expected["low"], "gain_high": expected["high"]}
    rows = {"expected gain": first, **measured}
    rows = {("measured: default" if name == DEFAULT else name): own for name, own in rows.items()}
    return {
        "plot": "gains",
        "names": list(rows),
        **{key: [100 * own[key] for own in rows.values()] for key in ("gain", "gain_low", "gain_high")},
        "xlabel": f"target {deployment['target']}: points against no adaptation",
    }


def demo_page(results: dict[str, Any], cards: Mapping[str, Sequence[dict[str, Any]]]) -> Page:
    """Return the demo's page."""
    deployments = results["deployments"]
    sections = [
        Section(
            "Expected, then measured",
            "The expectation comes from leave-one-domain-out validation: each source in turn is held out, "
            "and a model that was trained without it predicts it. The target was measured afterwards.",
            [summary_table(list(deployments.values()))],
        ),
        Section(
            "Deciding for each deployment, and always doing the same",
            METHODS,
            [method_table(list(deployments.values()))],
        ),
        *(_deployment(name, own, cards[name]) for name, own in deployments.items()),
        _method(),
    ]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    footer = [f"{results['command']} · seed {results['seed']} · {results['seconds']:.0f} s", versions]
    return Page(
        "sourceward demo: will adaptation help?", results["headline"], results["verdicts"], sections, footer
    )


def _deployment(name: str, own: Mapping[str, Any], cards: Sequence[Mapping[str, Any]]) -> Section:
    chart = figures.to_svg(gain_panel(own), (5.2, 2.8), f"expected and measured gain on {own['target']}")
    caption = (
        "Gains against the same model without adaptation. Expected gain: 90 % interval for one new domain. "
        f"Measured gains: 95 % interval over the {own['samples']} samples. {CARDS if cards else ''}"
    )
    return Section(
        own["title"],
        f"{own['about']} {expected_sentence(own['expected'])}",
        figures=[Figure([chart], caption)],
        cards=[_card(card) for card in cards],
    )


def _card(card: Mapping[str, Any]) -> Card:
    true, before, after = card["names"]
    title = f"A {true}: predicted {before}, with rotate {after}"
    return Card(
        figures.pixels_png(card["image"]), title, "saved" if card["good"] else "lost", good=card["good"]
    )


def _method() -> Section:
    text = (
        "scikit-learn's 1,797 handwritten digits; every domain has digits of its own. sourceward fit "
        "trains a small convolutional network on the four sources, once more without each of them, and "
        "heads and energies on its features. It chooses Langevin steps and transforms of test-time "
        "augmentation by what the held-out sources gain. Target samples are predicted one at a time, and "
        "no weight changes. All settings were chosen on held-out sources. Where the shift is known "
        "beforehand, training on rotated images does more than any method at test time."
    )
    return Section("How this was made", text)


def draw_figure(results: Mapping[str, Any], path: Path) -> None:
    """Write the README's figure: expected and measured gains of the deployments, side by side."""
    panels = [gain_panel(own) for own in results["deployments"].values()]
    figures.save_png(panels, (11, 3.2), path, ink="#333333")


def _points(expected: Mapping[str, Any]) -> str:
    keys = {"gain": "gain", "gain_low": "low", "gain_high": "high"}
    return gain_text({key: expected[own] for key, own in keys.items()})


def _percent(numbers: Mapping[str, Any]) -> str:
    return f"{100 * numbers['accuracy']:.1f} %"
