"""An interval over domains: what the gains on a few held-out sources say about domains like them.

The held-out sources are the sample, three to five of them, and not their rows. How far gains differ between
domains cannot be known from so few, so the variance has a prior: a scaled inverse chi-squared distribution,
fitted by maximum likelihood to the gains on held-out sources of every data set in `results/`
(`results/domains/results.json`).
"""

import numpy as np

PRIOR_DOF, PRIOR_SD = 2.0, 0.007
"""Of the standard deviation of gains between domains: degrees of freedom, and scale in shares of 1."""

ACCURACY_PRIOR = (2.0, 0.12)
"""The same for accuracies, which differ between domains far more than gains do: a weak prior, whose scale is
about the median over the benches in `results/` (`results/domains/results.json`)."""

LEVEL = 0.9
"""Of the intervals: one in twenty lies below, one in twenty above."""

NOISE = 1.645
"""A held-out source loses where its gain is more than this many standard errors below 0."""


def domain_interval(
    gains: np.ndarray,
    *,
    new: bool = False,
    level: float = LEVEL,
    prior: tuple[float, float] = (PRIOR_DOF, PRIOR_SD),
) -> tuple[float, float]:
    """Interval of the mean gain over domains like the held-out sources.

    Args:
        gains: on each held-out source.
        new: of the gain on one more domain, rather than of the mean.
        level: probability that the interval holds it.
        prior: degrees of freedom and scale of the standard deviation between domains.

    >>> low, high = domain_interval(np.array([0.018, 0.006, 0.013]))
    >>> round(100 * low, 1), round(100 * high, 1)
    (0.4, 2.0)
    """
    from scipy.stats import t

    count, (prior_dof, prior_sd) = len(gains), prior
    dof = prior_dof + count - 1
    spread = float(np.var(gains, ddof=1)) * (count - 1) if count > 1 else 0.0
    variance = (prior_dof * prior_sd**2 + spread) / dof
    half = t.ppf(0.5 + level / 2, dof) * np.sqrt(variance * (1 / count + new))
    return float(gains.mean() - half), float(gains.mean() + half)


def accuracy_interval(accuracies: np.ndarray) -> tuple[float, float]:
    """Interval of the accuracy on one new domain, from 0 to 1, given that on each held-out source.

    >>> low, high = accuracy_interval(np.array([0.66, 0.73, 0.80]))
    >>> round(100 * low), round(100 * high)
    (49, 97)
    """
    low, high = domain_interval(accuracies, new=True, prior=ACCURACY_PRIOR)
    return max(low, 0.0), min(high, 1.0)


def standard_errors(changes: list[np.ndarray]) -> np.ndarray:
    """Standard error of each held-out source's gain, from the changes (-1, 0 or 1) of its samples."""
    return np.array([np.sqrt(change.var() / max(len(change) - 1, 1)) for change in changes])


def is_safe(gains: np.ndarray, errors: np.ndarray) -> bool:
    """Whether the interval of the mean gain is above 0 and no held-out source loses more than its noise.

    >>> is_safe(np.array([0.01, 0.02, 0.015]), np.full(3, 0.003))
    True
    >>> is_safe(np.array([0.04, 0.05, -0.01]), np.full(3, 0.003))
    False
    """
    return domain_interval(gains)[0] > 0 and bool((gains >= -NOISE * errors).all())
