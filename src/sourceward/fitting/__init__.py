"""From a dataset to a model folder.

`fit.py` is the way through. What it can be told: `settings.py`, as people type it (`values.py`), as the paper
has it (`presets.py`). What is trained on what: `task.py`, which rows (`arrange.py`), in which styles
(`styles.py`). Two recipes: `two_stage.py` fine-tunes the backbone (`finetune.py`, `methods/`), then
fits an `EnergyAdapter` on its features, tuned where asked on pretend targets that the backbone never saw
(`crossfit.py`); `joint.py` runs Algorithm 1 from end to end, or on features that are given. Either trains in
a `stage.py`, keeps the weights that `selection.py` picks, and leaves its files in a `run_folder.py`, with
what it cost (`cost.py`).
"""

from sourceward.fitting.fit import fit
from sourceward.fitting.presets import PRESETS, list_presets
from sourceward.fitting.settings import FitSettings

__all__ = ["PRESETS", "FitSettings", "fit", "list_presets"]
