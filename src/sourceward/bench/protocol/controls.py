"""Controls: classifiers trained by ordinary means on the rows and features that heads and energies learn."""

import warnings
from collections.abc import Callable

import numpy as np

from sourceward.bench.protocol.methods import LINEAR, SINGLE_SAMPLE

STRENGTHS = (0.001, 0.01, 0.1)
"""Candidates for the inverse regularisation, chosen among by leave-one-domain-out validation."""

Classifier = Callable[[np.ndarray], np.ndarray]
"""Features (n, dim) to probabilities (n, classes), in the order of labels."""


def fit_control(
    name: str, X: np.ndarray, y: np.ndarray, domain: np.ndarray, seed: int
) -> tuple[Classifier, np.ndarray]:
    """Train a control; returns it with the classes that it knows."""
    make = {LINEAR: linear_control, SINGLE_SAMPLE: single_sample_control}[name]
    return make(X, y, domain, seed), np.unique(y)


def linear_control(X: np.ndarray, y: np.ndarray, domain: np.ndarray, seed: int = 0) -> Classifier:
    """Fit logistic regression, its strength chosen on held-out sources; it starts at zero for every seed."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    scale = np.sqrt(X.shape[1]) / np.linalg.norm(X - X.mean(0), axis=1).mean()

    def fitted(c: float, rows: np.ndarray) -> LogisticRegression:
        with warnings.catch_warnings():  # stopping early regularises as well
            warnings.simplefilter("ignore", ConvergenceWarning)
            return LogisticRegression(C=c, max_iter=200).fit(X[rows] * scale, y[rows])

    def validated(c: float) -> float:
        parts = [domain == d for d in np.unique(domain)]
        return float(np.mean([fitted(c, ~part).score(X[part] * scale, y[part]) for part in parts]))

    best = max(STRENGTHS, key=validated) if len(np.unique(domain)) > 1 else STRENGTHS[-1]
    model = fitted(best, np.ones(len(y), dtype=bool))
    return lambda rows: model.predict_proba(rows * scale)


def single_sample_control(X: np.ndarray, y: np.ndarray, domain: np.ndarray, seed: int = 0) -> Classifier:
    """Fit a network that generates a classifier for each sample: see `single_sample`."""
    from sourceward.bench.protocol.single_sample import SingleSample

    return SingleSample(seed=seed).fit(X, y, domain)
