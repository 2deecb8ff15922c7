"""The artefact of a fit, and its answers.

`model.py` is the model: what it takes, adapts and predicts; `file.py` its folder, `card.py` the page in it,
`hub.py` the way to the Hugging Face Hub. `items.py` tells images, texts and features apart, and `ahead.py`
reads the next while these are computed. Answers at large: `evaluation.py` measures labelled domains,
`predicting.py` turns files (`samples.py`) into a file of predictions (`rows.py`), `banks.py` keeps the
features of all domains.
"""

from sourceward.model.evaluation import evaluate
from sourceward.model.model import Model, Prediction, load

__all__ = ["Model", "Prediction", "evaluate", "load"]
