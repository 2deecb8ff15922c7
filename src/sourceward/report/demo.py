"""The demo's page, results file and README figure, from plain data."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from sourceward._util.storage import write_whole
from sourceward._util.tables import Table
from sourceward.report import figures
from sourceward.report.page import Card, Figure, Page, Section, render

OURS = {"without adaptation": "without", "with adaptation": "with"}
SAVED = (
    "Wrong before, right after: the largest rises of the true class's probability. Solid blue: that "
    "probability. Dashed orange: the mean energy. Labels were used to find these samples only."
)
LOST = (
    "Right before, wrong after: the largest falls. The energy falls here too: a sample looks more like the "
    "sources, which does not mean that it kept its class."
)


def write_report(results: dict[str, Any], shown: dict[str, Any], out: Path) -> None:
    """Write `report.html` and `results.json`, each whole or not at all.

    Args:
        results: the numbers.
        shown: `maps`, panels for each target; `saved` and `lost`, cards of single samples.
        out: folder.
    """
    page = render(demo_page(results, shown))
    write_whole(out / "results.json", json.dumps(results, indent=2) + "\n")
    write_whole(out / "report.html", page)


def demo_page(results: dict[str, Any], shown: dict[str, Any]) -> Page:
    """Return the demo's page."""
    none = "There were none." if results["settings"]["num_steps"] else "There were none: no steps were taken."
    sections = [
        _accuracy(results),
        _steps(results),
        _maps(shown["maps"]),
        *(
            Section(
                f"Samples that adaptation {kind}", text if shown[kind] else none, cards=_cards(shown, kind)
            )
            for kind, text in (("saved", SAVED), ("lost", LOST))
        ),
        _sources(results),
        _method(results),
    ]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    footer = [f"{results['command']} · seed {results['seed']} · {results['seconds']:.0f} s", versions]
    title = "sourceward demo: digits at unseen angles"
    return Page(title, results["headline"], results["verdicts"], sections, footer)


def accuracy_table(results: dict[str, Any]) -> Table:
    """Return the accuracy on each target and in the mean, of adaptation and of every control."""
    targets, mean = results["targets"].values(), results["mean"]
    rows = [(name, [t[key] for t in targets], mean[key]) for name, key in OURS.items()]
    for name, value in mean["controls"].items():
        rows.append((f"control: {name}", [t["controls"][name] for t in targets], value))
    header = ["accuracy, %", *(f"{angle}°" for angle in results["targets"]), "mean"]
    best = max(range(len(rows)), key=lambda i: round(rows[i][-1], 1))
    caption = (
        "Bold: the best mean. The headline's interval is a bootstrap over test digits; it does not cover the "
        "randomness of training."
    )
    lines = [[name, *(f"{v:.1f}" for v in row), f"{value:.1f}"] for name, row, value in rows]
    return Table(header, lines, caption, strong=[best])


def _accuracy(results: dict[str, Any]) -> Section:
    saved, lost = (sum(t[kind] for t in results["targets"].values()) for kind in ("saved", "lost"))
    text = (
        "New digits at two new angles. Controls learn from the same data without adaptation. "
        f"Adaptation saved {saved:,} predictions and lost {lost:,}."
    )
    return Section("Does it help?", text, [accuracy_table(results)])


def curve_panels(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Return accuracy and energy against steps."""
    curve = results["curve"]
    return [
        {
            "plot": "lines",
            "x": curve["steps"],
            "lines": {f"target {angle}°": values for angle, values in curve[key].items()},
            "xlabel": "steps",
            "ylabel": label,
            "mark": results["settings"]["num_steps"],
        }
        for key, label in (("accuracy", "accuracy, %"), ("energy", "energy"))
    ]


def _steps(results: dict[str, Any]) -> Section:
    charts = [figures.to_svg(p, (4.2, 3.0), f"{p['ylabel']} against steps") for p in curve_panels(results)]
    caption = (
        "First accuracy, then mean energy, after each step; the vertical line is the number of steps in use. "
        "The energy keeps falling. See how long accuracy rises with it."
    )
    return Section("How many steps?", figures=[Figure(charts, caption)])


def _maps(maps: dict[Any, list[dict[str, Any]]]) -> Section:
    caption = (
        "Two principal components, fitted on the sources alone. Grey: source samples. Blue circles: target "
        "samples predicted right. Orange crosses: predicted wrong. After adaptation a point is the mean over "
        "the chains of all sources."
    )
    pairs = [
        Figure([figures.to_svg(p, (3.6, 3.2), f"map of target {p['title']}") for p in panels], "")
        for panels in maps.values()
    ]
    pairs[-1] = replace(pairs[-1], caption=caption)
    return Section("Where do samples go?", figures=pairs)


def _cards(shown: dict[str, Any], kind: str) -> list[Card]:
    return [
        Card(
            figures.pixels_png(card["image"]),
            card["title"],
            card["text"],
            figures.to_svg(
                {"plot": "chain", "probability": card["probability"], "energy": card["energy"]},
                (3.2, 1.9),
                card["name"],
            ),
            kind == "saved",
        )
        for card in shown[kind]
    ]


def source_table(results: dict[str, Any]) -> Table:
    """Return the accuracy and the energy of each source's own predictions on each target."""
    rows: list[list[str]] = []
    groups: list[int] = []
    for angle, target in results["targets"].items():
        groups.append(len(rows))
        rows.append([f"target {angle}°"])
        for source, r in target["per_source"].items():
            numbers = [f"{r[k]:.1f}" for k in ("without", "with")]
            numbers += [f"{r[k]:.2f}" for k in ("energy_before", "energy_after")]
            rows.append([f"{source}°", *numbers])
    header = ["source", "accuracy without, %", "with, %", "energy before", "after"]
    return Table(header, rows, groups=groups)


def _sources(results: dict[str, Any]) -> Section:
    text = (
        "Each source adapts the sample toward itself and classifies it; the prediction is the mean. Compare "
        "sources near to the target with far ones. A near source may lose because it was trained only on "
        "samples from its other side."
    )
    return Section("What does each source predict?", text, [source_table(results)])


def _method(results: dict[str, Any]) -> Section:
    text = (
        f"scikit-learn's 1,797 handwritten digits: {results['settings']['train_size']:,} for training, the "
        "others for the targets only. The backbone is a small convolutional network with random, frozen "
        "weights. Classifiers and energies were fitted on its features at 15°, 30°, 45°, 60° and 75°. Each "
        "target sample was then adapted alone, without its label, and no weight changed. All settings, those "
        "of the controls too, were chosen by holding out 15° or 75°, on training digits only."
    )
    return Section("How this was made", text)


def draw_figure(results: dict[str, Any], shown: dict[str, Any], path: Path) -> None:
    """Write the README's figure: accuracy and energy against steps, and one target before and after."""
    panels = [*curve_panels(results), *next(iter(shown["maps"].values()))]
    figures.save_png(panels, (10, 5.6), path, rows=2, ink="#333333")
