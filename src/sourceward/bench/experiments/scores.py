"""Right predictions by row, target and seed; and the table they make, with published numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sourceward._util.tables import Table, gain_text, mean_text, short_names, target_of
from sourceward.bench.experiments.base import Drawing
from sourceward.bench.protocol.summary import over_seeds
from sourceward.bench.published import Published
from sourceward.functional.metrics import paired_interval

PUBLISHED = "published, with their own training and selection"


class Scores:
    """Collects right predictions; every row must be evaluated on the same samples."""

    def __init__(self) -> None:
        self.right: dict[str, dict[str, dict[int, np.ndarray]]] = {}

    def add(self, row: str, where: str, seed: int, right: np.ndarray) -> None:
        """Add one row's predictions on DATA/TARGET after one training."""
        self.right.setdefault(row, {}).setdefault(where, {})[seed] = np.asarray(right, dtype=bool)

    @property
    def targets(self) -> list[str]:
        """Every DATA/TARGET."""
        return list(dict.fromkeys(where for by_target in self.right.values() for where in by_target))

    def mean(self, row: str) -> float:
        """Return the accuracy over targets and seeds, in per cent."""
        return 100 * float(
            np.mean([np.mean([r.mean() for r in s.values()]) for s in self.right[row].values()])
        )

    def numbers(self, against: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return each row's numbers for a results file; `against` names the row of each difference."""
        return {row: self._row(row, (against or {}).get(row)) for row in self.right}

    def table(
        self,
        first: str,
        against: Mapping[str, str] | None = None,
        rows_published: Sequence[Published] = (),
        caption: str = "",
    ) -> Table:
        """Return a table with a line for each row, then the published ones, marked as such.

        Args:
            first: header of the first column.
            against: for some rows, the row that a difference is taken to.
            rows_published: to show below.
            caption: what to look at.
        """
        numbers, targets = self.numbers(against), self.targets
        rows = [
            [row, *(mean_text(n["targets"].get(where)) for where in targets), mean_text(n), gain_text(n)]
            for row, n in numbers.items()
        ]
        groups = [len(rows)] if rows_published else []
        if rows_published:
            rows += [[PUBLISHED], *(published_row(row, targets) for row in rows_published)]
        seeds = max(len(by_seed) for by_target in self.right.values() for by_seed in by_target.values())
        if seeds > 1:
            caption += f" ± is the standard deviation over {seeds} seeds."
        if against:
            over = "samples and seeds" if seeds > 1 else "samples"
            caption += f" Differences have a 95 % paired bootstrap interval over {over}."
        header = [first, *short_names(targets).values(), "mean", "difference"]
        return Table(header, rows, caption.strip(), groups=groups)

    def drawing(self, name: str, against: Mapping[str, str]) -> Drawing:
        """Return a figure of the rows that a difference is taken of."""
        rows = {row: n for row, n in self.numbers(against).items() if "gain" in n}
        bases = dict.fromkeys(n["against"] for n in rows.values())
        return gains_drawing(name, rows, next(iter(bases)) if len(bases) == 1 else "the same row unadapted")

    def _row(self, row: str, baseline: str | None) -> dict[str, Any]:
        own = self.right[row]
        seeds = [
            seed for seed in next(iter(own.values())) if all(seed in by_seed for by_seed in own.values())
        ]
        means = np.array([np.mean([own[where][seed].mean() for where in own]) for seed in seeds])
        result: dict[str, Any] = {**over_seeds(means)}
        result["targets"] = {
            where: over_seeds(np.array([right.mean() for right in by_seed.values()]))
            for where, by_seed in own.items()
        }
        if baseline is not None and baseline in self.right:
            changes = [
                np.stack([by_seed[s].astype(int) - self.right[baseline][where][s] for s in by_seed])
                for where, by_seed in own.items()
            ]
            low, high = paired_interval(changes)
            gain = float(np.mean([change.mean() for change in changes]))
            result |= {"against": baseline, "gain": gain, "gain_low": low, "gain_high": high}
        return result


def gains_drawing(name: str, rows: Mapping[str, dict[str, Any]], baseline: str) -> Drawing:
    """Return a figure of gains over `baseline`, with their intervals."""
    panel = {"plot": "gains", "names": list(rows), "xlabel": f"points above {baseline}"}
    panel |= {key: [100 * n[key] for n in rows.values()] for key in ("gain", "gain_low", "gain_high")}
    caption = (
        f"Difference to {baseline}, mean over targets, with its 95 % interval. Blue: a clear gain. Orange: a "
        "clear loss. Grey: the interval contains 0."
    )
    return Drawing(name, caption, (7.0, 0.9 + 0.35 * len(rows)), [panel])


def published_row(row: Published, where: Sequence[str]) -> list[str]:
    """Return a published row for a table of these DATA/TARGET columns."""
    targets = [target_of(name) for name in where]
    per_target = [f"{row.per_target[name]:.1f}" if name in row.per_target else "-" for name in targets]
    mean = row.mean_over(list(dict.fromkeys(targets)))
    origin = row.source + (f", in {row.via}" if row.via else "") + (f"; {row.note}" if row.note else "")
    origin += "" if mean in (row.mean, None) else "; mean over these targets"
    mean_here = "-" if mean is None else f"{mean:.1f}"
    return [f"{row.method}, {row.backbone} ({origin})", *per_target, mean_here, ""]
