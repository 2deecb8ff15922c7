"""The model that `fit` returns: its folder, its predictions, its evaluation.

`model.py` has the model, `file.py` its folder, `card.py` the README in it, `hub.py` the Hugging Face Hub.
`items.py` reads what a caller passes to `predict`, the next batch during this one. `evaluation.py` measures
labelled domains, `estimated.py` estimates the gain on unlabeled inputs. `predicting.py` reads files
(`inputs.py`) and writes a file of predictions (`prediction.py`). `banks.py` writes features of all domains.
"""

from sourceward.model.estimated import estimate_gain
from sourceward.model.evaluation import evaluate
from sourceward.model.model import Model, load
from sourceward.model.prediction import Prediction

__all__ = ["Model", "Prediction", "estimate_gain", "evaluate", "load"]
