"""`EnergyAdapter`: the method for feature matrices.

`estimator.py` has the class; `input.py` checks what it is given, `sources.py` makes one part per source of
it, `file.py` tells what is saved beside the tensors. `tuning.py` lets each source play the unseen domain: how
far to walk, and what to expected_gain.
"""

from sourceward.estimator.estimator import EnergyAdapter
from sourceward.validation.leave_one_domain_out import ExpectedGain

__all__ = ["EnergyAdapter", "ExpectedGain"]
