"""Check the range of feature values: their squares have to fit into float32."""

import numpy as np

SMALLEST, LARGEST = 1e-15, 1e15


def value_range_problem(feature: np.ndarray, name: str = "X") -> tuple[str, str] | None:
    """Why features (rows, dim) of such a range cannot be learned from, and what to do; None if they can.

    >>> value_range_problem(np.array([[0.0], [1.0]]))
    >>> value_range_problem(np.array([[0.0], [1e30]]))
    ('Expected features whose squares fit into float32, but the range of X is 1e+30.', 'Rescale X.')
    """
    high, low = feature.max(0).astype(np.float64), feature.min(0).astype(np.float64)
    span = (high - low).max()
    if span == 0:
        return f"All rows of {name} are equal, so nothing can be learned.", "Check the feature extraction."
    if not SMALLEST < span < LARGEST:  # NaN, too
        reason = f"Expected features whose squares fit into float32, but the range of {name} is {span:.0e}."
        return reason, f"Rescale {name}."
    return None
