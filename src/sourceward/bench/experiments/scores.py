"""Right answers by row, target and seed; and the table they make, published numbers beside."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sourceward.bench.experiments.base import Drawing
from sourceward.bench.quoted import Quoted
from sourceward.bench.summary import over_seeds
from sourceward.functional.bootstrap import paired_interval
from sourceward.report.page import Table
from sourceward.report.words import gain, short_names, spread, target_of

MEANING = "± is the standard deviation over {seeds} seeds. "
INTERVAL = "Differences carry a 95 % paired bootstrap interval over samples{and_seeds}."


class Scores:
    """Collects right answers; every row must meet the same samples."""

    def __init__(self) -> None:
        self.right: dict[str, dict[str, dict[int, np.ndarray]]] = {}

    def add(self, row: str, place: str, seed: int, right: np.ndarray) -> None:
        self.right.setdefault(row, {}).setdefault(place, {})[seed] = np.asarray(right, dtype=bool)

    @property
    def places(self) -> list[str]:
        return list(dict.fromkeys(place for by_place in self.right.values() for place in by_place))

    def mean(self, row: str) -> float:
        """Accuracy over places and seeds, in per cent."""
        return 100 * float(
            np.mean([np.mean([r.mean() for r in s.values()]) for s in self.right[row].values()])
        )

    def numbers(self, against: Mapping[str, str] | None = None) -> dict[str, Any]:
        """For a results file; shares of 1."""
        return {row: self._row(row, (against or {}).get(row)) for row in self.right}

    def table(
        self,
        first: str,
        against: Mapping[str, str] | None = None,
        published: Sequence[Quoted] = (),
        caption: str = "",
    ) -> Table:
        """A row for each contestant, then the published ones, marked as such.

        Args:
            first: header of the first column.
            against: for some rows, the row that a difference is taken to.
            published: rows to quote.
            caption: what to see.
        """
        numbers, places = self.numbers(against), self.places
        rows = [
            [row, *(spread(n["targets"].get(place)) for place in places), spread(n), gain(n)]
            for row, n in numbers.items()
        ]
        groups = []
        if published:
            groups = [len(rows)]
            rows.append(["published, with selection and training of their own"])
            rows += [quoted_row(row, places) for row in published]
        seeds = max(len(by_seed) for by_place in self.right.values() for by_seed in by_place.values())
        said = (MEANING.format(seeds=seeds) if seeds > 1 else "") + (
            INTERVAL.format(and_seeds=" and seeds" if seeds > 1 else "") if against else ""
        )
        header = [first, *short_names(places).values(), "mean", "difference"]
        return Table(header, rows, f"{caption} {said}".strip(), groups=groups)

    def drawing(self, name: str, against: Mapping[str, str]) -> Drawing:
        """A figure of the rows that a difference is taken of."""
        from sourceward.report import figures

        rows = {row: n for row, n in self.numbers(against).items() if "gain" in n}
        low, gain, high = (
            np.array([100 * n[key] for n in rows.values()]) for key in ("gain_low", "gain", "gain_high")
        )
        bases = dict.fromkeys(n["against"] for n in rows.values())
        to = next(iter(bases)) if len(bases) == 1 else "the same without adaptation"

        def draw(figure: Any) -> None:
            figures.draw_gains(figure.subplots(), list(rows), gain, low, high, xlabel=f"points above {to}")

        caption = (
            f"Difference to {to}, mean over targets, with its 95 % interval. Blue: a clear gain. Orange: a "
            "clear loss. Grey: the interval holds 0."
        )
        return Drawing(name, caption, (7.0, 0.9 + 0.35 * len(rows)), draw)

    def _row(self, row: str, baseline: str | None) -> dict[str, Any]:
        own = self.right[row]
        seeds = [
            seed for seed in next(iter(own.values())) if all(seed in by_seed for by_seed in own.values())
        ]
        means = np.array([np.mean([own[place][seed].mean() for place in own]) for seed in seeds])
        result: dict[str, Any] = {**over_seeds(means)}
        result["targets"] = {
            place: over_seeds(np.array([right.mean() for right in by_seed.values()]))
            for place, by_seed in own.items()
        }
        if baseline is not None and baseline in self.right:
            changes = [
                np.stack([by_seed[s].astype(int) - self.right[baseline][place][s] for s in by_seed])
                for place, by_seed in own.items()
            ]
            low, high = paired_interval(changes)
            gain = float(np.mean([change.mean() for change in changes]))
            result |= {"against": baseline, "gain": gain, "gain_low": low, "gain_high": high}
        return result


def quoted_row(row: Quoted, places: Sequence[str]) -> list[str]:
    """A published row for a table of these places."""
    targets = list(dict.fromkeys(map(target_of, places)))
    known = row.per_target
    per_target = [f"{known[t]:.1f}" if (t := target_of(place)) in known else "-" for place in places]
    via = (f", in {row.via}" if row.via else "") + (f"; {row.note}" if row.note else "")
    mean = row.mean_over(targets)
    via += "" if mean in (row.mean, None) else "; mean over these targets"
    told = "-" if mean is None else f"{mean:.1f}"
    return [f"{row.method}, {row.backbone} ({row.source}{via})", *per_target, told, ""]
