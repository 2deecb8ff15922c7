"""`EnergyAdapter`: the method for feature matrices.

`estimator.py` is the class, `classifier.py` its scikit-learn methods, `network.py` the procedure that trains
its network. `input.py` checks what it is given and splits it into sources, `file.py` saves and restores,
`splitting.py` holds out domains in a search.
"""

from sourceward.estimator.estimator import EnergyAdapter

__all__ = ["EnergyAdapter"]
