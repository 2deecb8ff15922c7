"""How the demo's settings were chosen: by holding out an outermost source.

    python -m sourceward.bench.demo.selection results/demo/selection.json

For every seed, the training digits are split again: candidates are fitted on the other four sources and
scored on held-out digits at the held-out angle. The demo's target digits and angles take no part.

The head is the default of `EnergyAdapter`, with the guide that scores best; 20 steps, the paper's number,
are within half a point of the best. The controls take the settings that score best. `concat`, one classifier
shared by all sources, scores higher and gains nothing from adaptation: samples of the other sources are no
shift for it, so its energies have nothing to learn from.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sourceward._util.progress import progress_bar
from sourceward._util.storage import write_whole
from sourceward.bench.demo.digits import load_split, rotated, rotated_all, untrained_network
from sourceward.bench.demo.experiment import (
    ESTIMATOR,
    SOURCES,
    DemoSettings,
    Frozen,
    adapt,
    fit_hidden,
    one_thread,
)
from sourceward.estimator import EnergyAdapter

SEEDS, HELD_OUT, STEP_COUNTS = (0, 1), (15, 75), (0, 5, 10, 20, 30)
CANDIDATES = (("pooled", 1), ("pooled", 3), ("pooled", 10), ("prototype", 3), ("concat", 1))
"""Head, and weight of the last line of eq. 10."""


def select(seeds: tuple[int, ...] = SEEDS) -> dict[str, Any]:
    """Return the mean accuracy in per cent of every candidate over seeds and held-out sources."""
    scores: dict[str, list[float]] = {}
    with one_thread(), progress_bar(len(seeds) * len(HELD_OUT), "selecting", True) as advance:
        for done, (seed, *task) in enumerate(_tasks(seeds), 1):
            for name, score in _score(seed, *task):
                scores.setdefault(name, []).append(score)
            advance(done)
    return {
        "seeds": list(seeds),
        "held_out": list(HELD_OUT),
        "accuracy": {name: {"mean": float(np.mean(s)), "each": s} for name, s in scores.items()},
    }


def _tasks(seeds: tuple[int, ...]) -> Iterator[tuple[Any, ...]]:
    for seed in seeds:
        digits, _ = load_split(DemoSettings().train_size, seed)
        cut = 7 * len(digits.label) // 10
        train, test = digits.take(np.arange(cut)), digits.take(np.arange(cut, len(digits.label)))
        for held in HELD_OUT:
            inputs, label, source = rotated_all(train, [angle for angle in SOURCES if angle != held])
            encode = Frozen(untrained_network(seed), inputs)
            yield seed, encode(inputs), label.numpy(), source, encode(rotated(test, held)), test.label


def _score(
    seed: int, x: np.ndarray, y: np.ndarray, source: np.ndarray, x_test: np.ndarray, y_test: np.ndarray
) -> Iterator[tuple[str, float]]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    def percent(predicted: np.ndarray) -> float:
        return round(100 * float((predicted == y_test).mean()), 2)

    for strength in (0.001, 0.01, 0.1):
        linear = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=300)).fit(x, y)
        yield f"logistic regression, C {strength}", percent(linear.predict(x_test))
    for noise in (0.0, 0.5):
        for epochs in (20, 40):
            hidden = fit_hidden(x, y, epochs, seed, noise)
            yield f"two hidden layers, noise {noise}, {epochs} epochs", percent(hidden.predict(x_test))
    for head, guide in CANDIDATES:
        name, train = f"{head}, guide {guide}", ESTIMATOR["train"] | {"guide_weight": float(guide)}
        estimator = EnergyAdapter(
            random_state=seed, verbose=False, **{**ESTIMATOR, "head": head, "train": train}
        )
        estimator.fit(x, y, sample_domain=source)
        closest = adapt(estimator, x_test, 0, aggregation="closest").probabilities.argmax(1)
        yield f"{name}, closest source alone, 0 steps", percent(closest)
        for steps in STEP_COUNTS:
            predicted = adapt(estimator, x_test, steps).probabilities.argmax(1)
            yield f"{name}, {steps} steps", percent(predicted)


if __name__ == "__main__":
    write_whole(Path(sys.argv[1]), json.dumps(select(), indent=2) + "\n")
