"""The grid of training methods and test-time methods, as tables, a page and Markdown."""

import re
from collections.abc import Iterator
from typing import Any

from sourceward._util.tables import Table, gain_text, mean_text, short_names, some_targets, target_names
from sourceward.report.page import Page, Section

NONE = "none"
PROTOCOL = (
    "Every training method fine-tunes the same backbone on the same rows, with the same augmentation and "
    "number of iterations; weights are selected on source validation. The heads of the model are then fitted "
    "to its features in the same way, and every test-time method starts from them."
)


def grid_table(results: dict[str, Any]) -> Table:
    """Return accuracy in the mean over targets: a row for each training method, a column for each adapter."""
    methods = results["methods"]
    columns = dict.fromkeys((row["method"], row["label"]) for own in methods for row in own["table"])
    rows = []
    for own in methods:
        found = {row["method"]: row for row in own["table"]}
        rows.append([own["name"], *(_mean(found.get(key), results) for key, _ in columns)])
    known = {key: results["published"].get(key.split(":")[0], []) for key, _ in columns}
    for backbone in dict.fromkeys(row["backbone"] for own in known.values() for row in own):
        each = [
            [r for r in known[key] if r["backbone"] == backbone and r["mean_here"] is not None]
            for key, _ in columns
        ]
        texts = (f"{own[0]['mean_here']:.1f}" if own else "" for own in each)
        rows.append([f"published, {backbone}", *texts])
    header = ["accuracy, %", *(label for _, label in columns)]
    return Table(header, rows, f"Mean over targets. {results['plus_minus'].split(' Differences')[0]}")


def training_table(results: dict[str, Any]) -> Table:
    """Return each training method without adaptation: by target, against the reference, cost, published."""
    methods, reference = results["methods"], results["reference"]
    plain = {own["name"]: _row(own) for own in methods}
    backbones = sorted({row["backbone"] for own in methods for row in own["published"]})
    targets = [*dict.fromkeys(where for row in plain.values() if row for where in row["targets"])]
    rows = []
    for own in methods:
        row, cost = plain[own["name"]], own["cost"]
        each = (mean_text(row["targets"].get(where) if row else None) for where in targets)
        against = gain_text(own["against"]) if own["against"] else ""
        ratio = "-" if cost is None else f"{cost['ratio']:.1f} x"
        known = {r["backbone"]: r["mean_here"] for r in own["published"] if r["mean_here"] is not None}
        beside = (f"{known[name]:.1f}" if name in known else "-" for name in backbones)
        means = (_mean(row, results), against, _validation(own, results))
        rows.append([own["name"], *each, *means, ratio, *beside])
    header = ["training method", *short_names(targets).values(), "mean", f"against {reference}"]
    header += ["source validation", "cost of an iteration", *(f"published, {name}" for name in backbones)]
    caption = (
        f"Without adaptation. Differences to {reference} with a 95 % paired bootstrap interval. Source "
        "validation: rows of the sources that were not trained on, by which a method may be chosen. Cost: an "
        "iteration alone on the device, in iterations of ERM. Published numbers have their own training and "
        "selection; those of domain_embedding and single_sample are with their own test-time classifiers."
    )
    whole = [(row["mean"], -i) for i, row in enumerate(plain.values()) if row and not _count(row, results)]
    return Table(header, rows, caption, strong=[-max(whole)[1]] if whole else [])


def _validation(own: dict[str, Any], results: dict[str, Any]) -> str:
    score, row = own.get("validation"), _row(own)  # none in earlier results
    return "-" if score is None else f"{100 * score:.1f}{_count(row, results)}"


def _all_targets(results: dict[str, Any]) -> set[str]:
    return target_names(row for own in results["methods"] for row in own["table"])


def _count(row: dict[str, Any] | None, results: dict[str, Any]) -> str:
    return some_targets(row, _all_targets(results))


def _mean(row: dict[str, Any] | None, results: dict[str, Any]) -> str:
    """Return the mean over targets; how many there are, where some are missing."""
    return f"{mean_text(row)}{_count(row, results)}"


def _few_targets(results: dict[str, Any]) -> Iterator[str]:
    """Yield each training method that did not fail, but was evaluated on fewer targets than others."""
    plain = {own["name"]: row for own in results["methods"] if (row := _row(own)) is not None}
    failed = {own["name"] for own in results["methods"] for run in own["failed"] if run["method"] == NONE}
    for name, row in plain.items():
        if _count(row, results) and name not in failed:
            yield f"{name}, {len(row['targets'])} of {len(_all_targets(results))} targets"


def _row(own: dict[str, Any]) -> dict[str, Any] | None:
    return next((row for row in own["table"] if row["method"] == NONE), None)


def remarks(results: dict[str, Any]) -> list[str]:
    """Return what failed and what does not apply, each with the reason."""
    groups: dict[tuple[str, str], dict[str, None]] = {}
    failed: dict[tuple[str, str], dict[str, dict[str, None]]] = {}
    applies: dict[str, list[str]] = {}
    for own in results["methods"]:
        for row in own["table"]:
            applies.setdefault(row["method"], []).append(own["name"])
        for run in own["failed"]:
            if run.get("unsuitable"):
                groups.setdefault((run["method"], run["reason"]), {})[own["name"]] = None
            else:
                adapters = failed.setdefault((own["name"], _without_sizes(run["reason"])), {})
                adapters.setdefault(run["method"], {})[run["target"]] = None
    found = []
    for (adapter, reason), names in groups.items():
        few = applies.get(adapter, [])
        says, those = ("applies only", few) if 0 < len(few) < len(names) else ("does not apply", [*names])
        found.append(f"{adapter} {says} after {', '.join(those)}: {reason}")
    for (name, reason), adapters in failed.items():
        for targets in dict.fromkeys(map(tuple, adapters.values())):
            failing = ", ".join(adapter for adapter, own in adapters.items() if tuple(own) == targets)
            found.append(f"{name} FAILED on {', '.join(targets)} with {failing}: {reason}")
    unfinished = [own["name"] for own in results["methods"] if not own["table"] and not own["failed"]]
    found += [f"No run finished of {', '.join(unfinished)}."] if unfinished else []
    found += [f"Not finished: {text}." for text in _few_targets(results)]
    skipped = [f"{name} does not apply: {reason}" for name, reason in results["not_applicable"].items()]
    return [*found, *skipped]


def _without_sizes(reason: str) -> str:
    """Return a reason without how full the memory of a GPU was, which is another text every time.

    >>> _without_sizes("OutOfMemoryError: CUDA out of memory. Tried to allocate 22.00 MiB. GPU 0 has ...")
    'OutOfMemoryError: CUDA out of memory.'
    """
    return re.sub(r"(out of memory\.) Tried to allocate.*", r"\1", reason, flags=re.DOTALL)


def finding(results: dict[str, Any]) -> str:
    """Return which training methods differ from the reference by more than their intervals."""
    known = {own["name"]: own["against"] for own in results["methods"] if own["against"]}
    reads = {name: f"{name} ({100 * own['gain']:+.1f}{_over(name, results)})" for name, own in known.items()}
    ahead = [reads[name] for name, own in known.items() if own["gain_low"] > 0]
    behind = [reads[name] for name, own in known.items() if own["gain_high"] < 0]
    return (
        f"Without adaptation, ahead of {results['reference']} by more than the interval: "
        f"{', '.join(ahead) or 'none'}; behind: {', '.join(behind) or 'none'}; of {len(known)} methods."
    )


def _over(name: str, results: dict[str, Any]) -> str:
    """Return over how many targets a training method is compared with the reference, '' where over all."""
    plain = {own["name"]: row["targets"].keys() for own in results["methods"] if (row := _row(own))}
    shared = plain.get(name, set()) & plain.get(results["reference"], set())
    if shared == _all_targets(results):
        return ""
    return f" over {len(shared)} target{'s' * (len(shared) != 1)}"


def headline(results: dict[str, Any]) -> str:
    """Return the best pair, picked by these numbers."""
    cells = [
        (row["mean"], own["name"], row["label"])
        for own in results["methods"]
        for row in own["table"]
        if not row["oracle"] and "rows=" not in row["method"] and not _count(row, results)  # same samples
    ]
    if not cells:
        return "No pair has runs on every target." if _all_targets(results) else "No run finished."
    mean, method, label = max(cells)
    return f"Best of {len(cells)} pairs, picked by these numbers: {method} with {label}, {100 * mean:.1f} %."


def grid_page(results: dict[str, Any]) -> Page:
    """Return the page of a grid."""
    sections = [
        Section("Every training method under every test-time method", PROTOCOL, [grid_table(results)]),
        Section("Training methods", finding(results), [training_table(results)]),
    ]
    footer = [
        f"Run it again: {results['command']}",
        f"seeds {', '.join(map(str, results['seeds']))}; "
        + ", ".join(f"{name} {version}" for name, version in results["versions"].items()),
    ]
    title = f"sourceward bench, training methods: {', '.join(results['classes'])}"
    return Page(title, headline(results).replace(" %", "\u00a0%"), remarks(results), sections, footer)


def grid_sections(results: dict[str, Any]) -> Iterator[str | Table]:
    """Yield paragraphs and tables for a Markdown page."""
    yield PROTOCOL
    for table in (grid_table(results), training_table(results)):
        yield table
        yield table.caption
    yield f"{headline(results)} {finding(results)}"
    if remarks(results):
        yield "\n".join(f"- {text}" for text in remarks(results))
