"""Leave one domain out on feature files: fit on the other domains, answer on the one left out.

Every (file, target, seed) is one fit; no adaptation and every number of steps are asked of the same fit.
Beside it stands a linear classifier on the same features. Target labels are used to count right answers and
for nothing else.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sourceward.bench.provenance import versions
from sourceward.data import DomainDataset, open_dataset
from sourceward.errors import InputError, unknown_name
from sourceward.estimator import EnergyAdapter

STRENGTHS = (0.001, 0.01, 0.1)
"""Candidates for the linear control's inverse regularisation, chosen among by leaving out each source."""

RESAMPLES = 2000


def bench_features(
    files: Sequence[str],
    *,
    targets: Sequence[str] = (),
    seeds: Sequence[int] = (0,),
    steps: Sequence[int] = (0, 5, 10, 20),
    settings: dict[str, Any] | None = None,
    on_cell: Callable[[dict[str, Any]], None] | None = None,
    verbose: bool | None = None,
) -> dict[str, Any]:
    """Run every cell and return a results dictionary, ready for JSON.

    Args:
        files: feature files; one whose features were made without a domain (`held_out`) has that one target.
        targets: only these domains are left out; all when empty.
        seeds: one fit each.
        steps: numbers of steps to ask each fit for.
        settings: of `EnergyAdapter`, where they differ from its defaults.
        on_cell: called with each finished cell.
    """
    settings = dict(settings or {})
    for name in settings:
        if name not in EnergyAdapter().get_params():
            raise unknown_name("setting", name, EnergyAdapter().get_params())
    cells = []
    for file in files:
        dataset = open_dataset(file)
        if dataset.kind != "features":
            raise InputError(f"Expected features in '{file}', but found {dataset.kind}s.")
        for target in _targets(dataset, targets):
            data = _split(dataset, target)
            linear = linear_accuracy(*data)
            for seed in seeds:
                cell = _cell(*data, seed=seed, steps=steps, settings=settings, verbose=verbose)
                cell = {"data": Path(file).stem, "target": target, "seed": seed, "linear": linear, **cell}
                cells.append(cell)
                if on_cell is not None:
                    on_cell(cell)
    params = {
        k: v
        for k, v in EnergyAdapter(**settings).get_params().items()
        if k not in ("num_steps", "random_state")
    }
    if not cells:
        raise InputError(f"No file holds out any of {list(targets)}. Leave --targets out to run all.")
    return {"settings": params, "steps": list(steps), "versions": versions(), "cells": cells}


def linear_accuracy(
    X: np.ndarray, y: np.ndarray, domain: np.ndarray, X_target: np.ndarray, y_target: np.ndarray
) -> float:
    """Accuracy of logistic regression on the same features, its strength chosen on pretend targets."""
    from sklearn.linear_model import LogisticRegression

    scale = np.sqrt(X.shape[1]) / np.linalg.norm(X - X.mean(0), axis=1).mean()

    def score(c: float, train: np.ndarray, X_test: np.ndarray, y_test: np.ndarray) -> float:
        model = LogisticRegression(C=c, max_iter=200).fit(X[train] * scale, y[train])
        return model.score(X_test * scale, y_test)

    def pretend(c: float) -> float:
        parts = [domain == d for d in np.unique(domain)]
        return float(np.mean([score(c, ~part, X[part], y[part]) for part in parts]))

    best = max(STRENGTHS, key=pretend) if len(np.unique(domain)) > 1 else STRENGTHS[-1]
    return float(score(best, np.ones(len(y), dtype=bool), X_target, y_target))


def _cell(
    X: np.ndarray,
    y: np.ndarray,
    domain: np.ndarray,
    X_target: np.ndarray,
    y_target: np.ndarray,
    *,
    seed: int,
    steps: Sequence[int],
    settings: dict[str, Any],
    verbose: bool | None,
) -> dict[str, Any]:
    start = time.perf_counter()
    estimator = EnergyAdapter(**{"random_state": seed, "verbose": verbose, **settings})
    estimator.fit(X, y, sample_domain=domain)
    fit_seconds = time.perf_counter() - start
    unadapted = estimator.set_params(num_steps=0).predict(X_target) == y_target
    by_steps = {}
    for k in steps:
        start = time.perf_counter()
        adapted = estimator.set_params(num_steps=k).adapt(X_target)
        right = estimator.classes_[adapted.probabilities.argmax(1)] == y_target
        low, high = _interval(right.astype(int) - unadapted.astype(int), seed)
        by_steps[str(k)] = {
            "accuracy": float(right.mean()),
            "gain": float(right.mean() - unadapted.mean()),
            "gain_low": low,
            "gain_high": high,
            "energy_before": float(adapted.energy_before.mean()),
            "energy_after": float(adapted.energy_after.mean()),
            "lowered": float((adapted.energy_after < adapted.energy_before).all(1).mean()),
            "seconds": time.perf_counter() - start,
        }
    return {"rows": len(y), "target_rows": len(y_target), "fit_seconds": fit_seconds, "by_steps": by_steps}


def _interval(change: np.ndarray, seed: int) -> tuple[float, float]:
    """95 % paired bootstrap interval of a mean change in {-1, 0, 1} over samples."""
    shares = np.bincount(change + 1, minlength=3) / len(change)
    counts = np.random.default_rng(seed).multinomial(len(change), shares, RESAMPLES)
    low, high = np.quantile((counts[:, 2] - counts[:, 0]) / len(change), [0.025, 0.975])
    return float(low), float(high)


def _targets(dataset: DomainDataset, wanted: Sequence[str]) -> list[str]:
    possible = list(dataset.targets or dataset.domain_names)
    for name in wanted:
        if name not in dataset.domain_names:
            raise unknown_name("target", name, possible)
    return [name for name in possible if not wanted or name in wanted]


def _split(dataset: DomainDataset, target: str) -> tuple[np.ndarray, ...]:
    X = np.asarray(dataset.items, dtype=np.float32)
    domain = np.asarray(dataset.domain_names)[dataset.domains]
    held = domain == target
    return X[~held], dataset.labels[~held], domain[~held], X[held], dataset.labels[held]
