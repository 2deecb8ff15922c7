"""Controls: what ordinary training makes of the same features; a classifier is trained anew beside the
network, on the rows and features that its heads and energies were trained on."""

import warnings
from collections.abc import Callable

import numpy as np

STRENGTHS = (0.001, 0.01, 0.1)
"""Candidates for the inverse regularisation, chosen among by leaving out each source."""

Answer = Callable[[np.ndarray], np.ndarray]
"""Features (n, dim) to probabilities (n, classes), in the order of labels."""


def linear_control(X: np.ndarray, y: np.ndarray, domain: np.ndarray, seed: int = 0) -> Answer:
    """Logistic regression, its strength chosen on pretend targets; it starts at zero, so no seed matters."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    scale = np.sqrt(X.shape[1]) / np.linalg.norm(X - X.mean(0), axis=1).mean()

    def fitted(c: float, rows: np.ndarray) -> LogisticRegression:
        with warnings.catch_warnings():  # to stop early is one more regularisation
            warnings.simplefilter("ignore", ConvergenceWarning)
            return LogisticRegression(C=c, max_iter=200).fit(X[rows] * scale, y[rows])

    def pretend(c: float) -> float:
        parts = [domain == d for d in np.unique(domain)]
        return float(np.mean([fitted(c, ~part).score(X[part] * scale, y[part]) for part in parts]))

    best = max(STRENGTHS, key=pretend) if len(np.unique(domain)) > 1 else STRENGTHS[-1]
    model = fitted(best, np.ones(len(y), dtype=bool))
    return lambda rows: model.predict_proba(rows * scale)


def single_sample_control(X: np.ndarray, y: np.ndarray, domain: np.ndarray, seed: int = 0) -> Answer:
    """A classifier generated for each sample: see `single_sample`."""
    from sourceward.bench.single_sample import SingleSample

    return SingleSample(seed=seed).fit(X, y, domain)
