"""The demo's page, results file and README picture, from its outcome and its numbers."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sourceward._util.storage import write_whole
from sourceward.adaptation import AdaptationResult
from sourceward.bench.demo import Demo, Target, adapt
from sourceward.bench.demo_numbers import accuracy_rows
from sourceward.report import figures
from sourceward.report.page import Card, Figure, Page, Section, Table, render

CLOUD, SHOWN = 500, 300
"""Source and target points on a map: enough to see, few enough to draw."""


def write_report(demo: Demo, results: dict[str, Any], out: Path) -> None:
    """`report.html` and `results.json` in `out`, each whole or not at all."""
    page = render(demo_page(demo, results))
    write_whole(out / "results.json", json.dumps(results, indent=2) + "\n")
    write_whole(out / "report.html", page)


def demo_page(demo: Demo, results: dict[str, Any]) -> Page:
    sections = [
        _accuracy(results),
        _steps(demo, results),
        _map(demo),
        _walks(demo, "Samples that adaptation repaired", REPAIRED, broken=False),
        _walks(demo, "Samples that adaptation broke", BROKEN, broken=True),
        _sources(results),
        _method(demo),
    ]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    footer = [f"{results['command']} · seed {results['seed']} · {results['seconds']:.0f} s", versions]
    return Page(
        "sourceward demo: digits at angles never seen",
        results["headline"],
        results["verdicts"],
        sections,
        footer,
    )


REPAIRED = (
    "Wrong before, right after: the largest rises in the probability of the true class. Solid blue: that "
    "probability. Dashed orange: the mean energy. Labels picked these samples to look at; nothing was fitted "
    "to them."
)
BROKEN = (
    "Right before, wrong after: the largest falls. The energy goes down here too: it says that a sample "
    "looks more like the sources, not that it kept its class."
)


def _accuracy(results: dict[str, Any]) -> Section:
    header = ["accuracy, %", *(f"{angle}°" for angle in results["targets"]), "mean"]
    rows = [[name, *(f"{v:.1f}" for v in row), f"{mean:.1f}"] for name, row, mean in accuracy_rows(results)]
    best = max(range(len(rows)), key=lambda i: float(rows[i][-1]))
    repaired = sum(t["repaired"] for t in results["targets"].values())
    broken = sum(t["broken"] for t in results["targets"].values())
    text = (
        "New digits at two new angles. Controls learn from the same data without adaptation. "
        f"Adaptation repaired {repaired:,} answers and broke {broken:,}."
    )
    caption = (
        "Bold: the best mean. The headline's interval is a bootstrap over test digits; it does not cover the "
        "randomness of training."
    )
    return Section("Does it help?", text, [Table(header, rows, caption, strong=[best])])


def _steps(demo: Demo, results: dict[str, Any]) -> Section:
    charts = [
        figures.to_svg(
            partial(_draw_curve, demo=demo, results=results, key=key), (4.2, 3.0), f"{key} against steps"
        )
        for key in ("accuracy", "energy")
    ]
    caption = (
        "First accuracy, then mean energy, after each step; the vertical line is the number of steps in use. "
        "Energy keeps falling. See whether accuracy follows it, and for how long."
    )
    return Section("How many steps?", figures=[Figure(charts, caption)])


def _draw_curve(axes: Any, demo: Demo, results: dict[str, Any], key: str) -> None:
    curve = results["curve"]
    lines = {f"target {angle}°": values for angle, values in curve[key].items()}
    label = "accuracy, %" if key == "accuracy" else "energy"
    figures.draw_lines(
        axes, curve["steps"], lines, xlabel="steps", ylabel=label, mark=demo.settings.num_steps
    )


def _map(demo: Demo) -> Section:
    caption = (
        "Two principal components, fitted on the sources alone. Grey: source samples. Blue circles: target "
        "samples answered right. Orange crosses: answered wrong. After adaptation a point is the mean of its "
        "walks toward all sources: see it drift to their middle."
    )
    pairs = [Figure(_maps(demo, target), "") for target in demo.targets]
    pairs[-1] = replace(pairs[-1], caption=caption)
    return Section("Where do samples go?", figures=pairs)


def _maps(demo: Demo, target: Target) -> list[str]:
    return [
        figures.to_svg(draw, (3.6, 3.2), f"map of target {target.angle}, {name}")
        for name, draw in map_panels(demo, target).items()
    ]


def map_panels(demo: Demo, target: Target) -> dict[str, Any]:
    """Draw functions of the two maps, `before` and `after`, on one scale."""
    from sklearn.decomposition import PCA

    pca = PCA(2, random_state=0).fit(demo.source_feature)
    cloud = pca.transform(demo.source_feature[:: max(len(demo.source_feature) // CLOUD, 1)])
    ends = {
        "before": (pca.transform(target.feature), target.right(target.before)),
        "after": (pca.transform(target.after.features.mean(1)), target.right(target.after)),
    }
    everything = np.concatenate([cloud, *(points for points, _ in ends.values())])
    limits = np.percentile(everything, [0.2, 99.8], axis=0)

    def panel(name: str) -> Any:
        points, right = ends[name]
        title = f"{target.angle}°, {name}: {100 * right.mean():.0f} % right"
        return lambda axes: figures.draw_map(
            axes, cloud, points[:SHOWN], right[:SHOWN], title=title, limits=limits
        )

    return {name: panel(name) for name in ends}


def _walks(demo: Demo, title: str, text: str, *, broken: bool, count: int = 3) -> Section:
    cards = [card for target in demo.targets for card in _cards(demo, target, broken, count)]
    if not cards:
        text = "There were none." if demo.settings.num_steps else "There were none: no steps were taken."
    return Section(title, text, cards=cards)


def _cards(demo: Demo, target: Target, broken: bool, count: int) -> list[Card]:
    before, after = target.right(target.before), target.right(target.after)
    picked = np.flatnonzero(before & ~after if broken else after & ~before)
    rise = (target.after.probabilities - target.before.probabilities)[picked, target.label[picked]]
    picked = picked[np.argsort(rise if broken else -rise)[:count]]
    if not len(picked):
        return []
    steps = range(demo.settings.num_steps + 1)
    walk = [adapt(demo.estimator, target.feature[picked], number) for number in steps]
    return [_card(target, row, walk, i, good=not broken) for i, row in enumerate(picked.tolist())]


def _card(target: Target, row: int, walk: list[AdaptationResult], i: int, good: bool) -> Card:
    """Sample `row` of the target, which is number `i` of the walk."""
    true, angle = target.label[row], target.angle
    probability = np.array([step.probabilities[i, true] for step in walk])
    energy = np.array([step.energy_after[i].mean() for step in walk])
    first, last = (step.probabilities[i].argmax() for step in (walk[0], walk[-1]))
    draw = partial(figures.draw_path, probability=probability, energy=energy)
    return Card(
        figures.pixels_png(target.image[row]),
        f"A {true} at {angle}°: said {first}, then {last}",
        f"p({true}) {_change(probability)}; energy {_change(energy)}",
        figures.to_svg(draw, (3.2, 1.9), f"probability of {true} and energy, sample {row} at {angle}°"),
        good,
    )


def _change(values: np.ndarray) -> str:
    return f"{values[0]:.2f} to {values[-1]:.2f}"


def _sources(results: dict[str, Any]) -> Section:
    header = ["source", "accuracy without, %", "with, %", "energy before", "after"]
    rows: list[list[str]] = []
    groups: list[int] = []
    for angle, target in results["targets"].items():
        groups.append(len(rows))
        rows.append([f"target {angle}°"])
        for source, r in target["per_source"].items():
            numbers = (
                f"{r['without']:.1f}",
                f"{r['with']:.1f}",
                f"{r['energy_before']:.2f}",
                f"{r['energy_after']:.2f}",
            )
            rows.append([f"{source}°", *numbers])
    text = (
        "Each source moves the sample toward itself and votes; the answer is the mean vote. Compare "
        "sources near to the target with far ones. Where a near one loses, one reading is "
        "that it has practised only on samples from its other side."
    )
    return Section("What does each source say?", text, [Table(header, rows, groups=groups)])


def _method(demo: Demo) -> Section:
    text = (
        f"scikit-learn's 1,797 handwritten digits: {demo.settings.train_size:,} to train on, the others for "
        "the targets only. The backbone is a small convolutional network, frozen before it met a digit. "
        "Classifiers and energies were fitted on its features at 15°, 30°, 45°, 60° and 75°. Each target "
        "sample was then moved alone, without its label, and no weight changed. Settings, the controls' too, "
        "were chosen by pretending that 15° or 75° was the target, on training digits only."
    )
    return Section("How this was made", text)


def draw_picture(demo: Demo, results: dict[str, Any], path: Path) -> None:
    """The README's picture: accuracy and energy against steps, and one target before and after."""
    with figures.style("#333333") as figure_type:
        figure = figure_type(figsize=(10, 5.6), dpi=110, facecolor="white")
        axes = figure.subplots(2, 2)
        for cell, key in zip(axes[0], ("accuracy", "energy")):
            _draw_curve(cell, demo, results, key)
        for cell, draw in zip(axes[1], map_panels(demo, demo.targets[0]).values()):
            draw(cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
