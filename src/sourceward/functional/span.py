"""How far feature values reach: squares have to fit into float32, or a model is ruined without a word."""

import numpy as np

SMALLEST, LARGEST = 1e-15, 1e15


def wrong_span(feature: np.ndarray, name: str = "X") -> tuple[str, str] | None:
    """Why nothing can be learned from values of such a size, and what to do; None where it can.

    >>> wrong_span(np.array([[0.0], [1.0]]))
    >>> wrong_span(np.array([[0.0], [1e30]]))
    ('Expected features whose squares fit into float32, but X spans 1e+30.', 'Rescale X.')
    """
    high, low = feature.max(0).astype(np.float64), feature.min(0).astype(np.float64)
    span = (high - low).max()
    if span == 0:
        return f"Every row of {name} is the same; there is nothing to learn from.", "Check the extraction."
    if not SMALLEST < span < LARGEST:  # NaN, too
        reason = f"Expected features whose squares fit into float32, but {name} spans {span:.0e}."
        return reason, f"Rescale {name}."
    return None
