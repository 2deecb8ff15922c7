"""`fit`: from a dataset to a model folder.

`pipeline.py` reads as the pipeline: fine-tune the backbone, extract features, fit the estimator, validate,
save. `adapter.py` fits the estimator, `checks.py` refuses what cannot work before any training.
"""

from sourceward.fitting.pipeline import fit, keep_features

__all__ = ["fit", "keep_features"]
