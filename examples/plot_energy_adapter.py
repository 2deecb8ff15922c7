"""
========================================================
Test sample adaptation with several sources and a target
========================================================

A classifier is trained on three source domains and meets a fourth. ``EnergyAdapter`` adapts each test sample
to the energies of the sources. It never sees the target in training, and states beforehand, from the sources
alone, what accuracy to expect there.
"""

# Author: The sourceward maintainers
# License: Apache-2.0

# %% Imports
import matplotlib.pyplot as plt
import numpy as np
from scipy.ndimage import rotate
from skada import CORALAdapter, make_da_pipeline
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import StandardScaler

from sourceward import EnergyAdapter, LeaveOneDomainOut

# %%
# The data: digits at four angles
# -------------------------------
# Each domain has digits of its own. As everywhere in SKADA, sources have positive numbers and targets
# negative ones, and the labels of the target are masked by -1 in training.

X, y = load_digits(return_X_y=True)
X, y = X[:1000], y[:1000]
angle = np.array([0, 20, 60, 40])[np.arange(len(y)) % 4]
X = np.stack([rotate(x.reshape(8, 8), a, reshape=False, order=1).ravel() for x, a in zip(X, angle)])
sample_domain = np.select([angle == 0, angle == 20, angle == 60], [1, 2, 3], -4)
target = sample_domain < 0
y_train = np.where(target, -1, y)

# %%
# Fit, and read what to expect
# ----------------------------

adapter = make_da_pipeline(StandardScaler(), EnergyAdapter(max_iter=60, verbose=False))
adapter.fit(X, y_train, sample_domain=sample_domain)
expected = adapter[-1].base_estimator_.expected_gain_
print("expected accuracy:", expected.accuracy_text)
print("expected gain:", expected)

# %%
# Search with whole domains held out
# ----------------------------------
# A random split shows every domain to the training. ``LeaveOneDomainOut`` holds out one source at a time, so
# that the score is that of unseen domains; rows of the target are never scored.

search = GridSearchCV(
    make_da_pipeline(StandardScaler(), EnergyAdapter(num_steps=0, max_iter=60, verbose=False)),
    {"energyadapter__kl_weight": [0.005, 0.02]},
    cv=LeaveOneDomainOut(),
)
search.fit(X, y_train, sample_domain=sample_domain)
print("held-out sources:", search.best_params_, round(search.best_score_, 3))

# %%
# Compare on the target
# ---------------------
# CORAL uses the target's samples in training; the others do not.


def logistic():
    return LogisticRegression(max_iter=500).set_score_request(sample_weight=True)


methods = {
    "logistic regression": make_da_pipeline(StandardScaler(), logistic()),
    "CORAL": make_da_pipeline(StandardScaler(), CORALAdapter(), logistic()),
}
scores = {}
for name, method in methods.items():
    method.fit(X, y_train, sample_domain=sample_domain)
    scores[name] = method.score(X[target], y[target], sample_domain=sample_domain[target])
scores["EnergyAdapter"] = adapter.score(X[target], y[target], sample_domain=sample_domain[target])
print({name: round(score, 3) for name, score in scores.items()})

# %%
# Plot
# ----

plt.figure(figsize=(6, 3))
plt.barh(list(scores), list(scores.values()))
plt.axvline(expected.accuracy, color="k", linestyle="--", label="EnergyAdapter, expected")
plt.xlabel("accuracy at 40 degrees")
plt.legend()
plt.tight_layout()
plt.show()
