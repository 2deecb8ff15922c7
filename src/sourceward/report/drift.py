"""The page of `sourceward drift`: verdict, distances per window, and what has changed."""

from typing import Any

from sourceward._util.tables import Table
from sourceward.report.figures import to_svg
from sourceward.report.page import Figure, Page, Section


def drift_headline(results: dict[str, Any]) -> str:
    """Return the verdict in one sentence."""
    alarms, count = results["alarms"], len(results["windows"])
    share = f"{100 * results['level']:g}"
    if results["alarm"]:
        return f"Drift: {alarms} of {count} windows differ from every mixture of the sources."
    if alarms:
        return f"No clear drift: {alarms} of {count} windows alarm, and {share} % of them do without shift."
    return f"No drift found: none of {count} windows differs from a mixture of the sources."


def drift_rows(results: dict[str, Any]) -> Table:
    """Return a row for each window."""
    header = [
        "window",
        "rows",
        "largest KS",
        "of",
        "critical",
        "above 99 %",
        "confidence",
        "agreement",
        "alarm",
    ]
    rows = []
    for number, window in enumerate(results["windows"], 1):
        name = max(window["ks"], key=window["ks"].get)
        rows.append(
            [
                f"{number}",
                f"{window['rows']:,}",
                f"{window['ks'][name]:.3f}",
                name,
                f"{window['critical']:.3f}",
                f"{100 * window['above_99']['all']:.1f} %",
                f"{window['confidence']:.3f} ({window['confidence_change']:+.3f})",
                f"{window['agreement']:.3f} ({window['agreement_change']:+.3f})",
                "ALARM" if window["alarm"] else "",
            ]
        )
    strong = [number for number, window in enumerate(results["windows"]) if window["alarm"]]
    caption = (
        "KS: Kolmogorov-Smirnov distance of a statistic's quantiles from uniform. Above 99 %: share of "
        "samples whose energy exceeds the 99 % quantile of held-out samples for every source. In brackets: "
        "change against held-out samples of the same mixture of sources."
    )
    return Table(header, rows, caption, strong)


def drift_page(results: dict[str, Any], command: str) -> Page:
    """Return the page of what `deploy.monitor.measure_drift` returns."""
    windows = results["windows"]
    x = list(range(1, len(windows) + 1))
    lines = {name: [window["ks"][name] for window in windows] for name in results["statistics"]}
    lines = {"critical value": [window["critical"] for window in windows], **lines}
    label = {"xlabel": "window", "from_zero": True}
    distance = {"plot": "lines", "x": x, "lines": lines, "ylabel": "KS distance", **label}
    shares = {name: [window["shares"].get(name, 0.0) for window in windows] for name in results["sources"]}
    mixture = {"plot": "lines", "x": x, "lines": shares, "ylabel": "share in the nearest mixture", **label}
    figures = [
        Figure([to_svg(distance, (7, 3.4), "distances")], "A window alarms above the critical value."),
        Figure(
            [to_svg(mixture, (7, 3.4), "shares")], "The mixture of sources that each window is nearest to."
        ),
    ]
    held_out = ", ".join(f"{name} {rows:,}" for name, rows in results["reference_rows"].items())
    notes = [
        f"Reference: held-out samples of the sources ({held_out}).",
        f"{results['alarms_needed']} or more of {len(windows)} windows have to alarm for a verdict of drift, "
        f"since {100 * results['level']:g} % of them alarm without shift.",
    ]
    sections = [Section("Windows", "", [drift_rows(results)], figures)]
    return Page("sourceward drift", drift_headline(results), notes, sections, [command])
