# %% [markdown]
# # Deploy: predict, abstain, export, serve, watch
#
# A run's folder is all that a deployment needs. This tutorial fits one on feature vectors; models of images
# and texts are deployed in the same way.

# %%
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import sourceward as sw

folder = Path(tempfile.mkdtemp())
X, label = load_digits(return_X_y=True)
domain = np.repeat(["a", "b", "c", "d"], [450, 450, 450, 447])  # people write in this order
known = domain != "d"
names = {"classes": np.array([str(digit) for digit in range(10)])}
np.savez(folder / "digits.npz", features=X[known], label=label[known], domain=domain[known], **names)
settings = {"max_iter": 60, "batch_size": 64}
model = sw.fit(folder / "digits.npz", out=folder / "run", settings=settings, progress=False)
print("expected gain:", model.adapter.expected_gain_)

# %% [markdown]
# **Predict.** `sw.Predictor` takes columns to columns, so that it fits into Ray Data, Spark and `datasets`
# ([large data](../batch.md)). A row that cannot be predicted does not stop the others.

# %%
rows = X[~known][:200].astype(np.float32)
rows[3] = np.nan
predict = sw.Predictor(folder / "run", keep=["id"])
answer = predict({"features": rows, "id": np.arange(len(rows))})
print(answer["label"][:5], answer["status"][:5], answer["reason"][3])

# %% [markdown]
# **Abstain.** `calibrate` returns the trust that a share of the held-out sources' samples reaches. Below it,
# pass a sample on to a person ([more](../how-to/abstain.md)).

# %%
threshold = model.calibrate(coverage=0.9)
answered = answer["trust"] >= threshold
right = answer["label"] == label[~known][:200].astype(str)
print(
    f"answered: {answered.mean():.0%}; wrong: {(~right[answered]).mean():.1%}, of all {(~right).mean():.1%}"
)

# %% [markdown]
# **Export.** One file that runs without sourceward; it is compared with the model before it is written.
# `model.onnx` needs the extra `deploy`, `model.pt2` nothing.

# %%
check = sw.export(model, folder / "model.pt2", samples=X[known][:20])
print(sorted(path.name for path in folder.glob("model*")))

# %% [markdown]
# **Serve and watch.** On the command line:
#
#     sourceward serve run --port 8000                           # HTTP and a web page
#     sourceward predict run new.parquet --out predictions/
#     sourceward drift run predictions/ --fail-on alarm          # exit code 3 on an alarm
#
# [Export and serve](../deploy.md) has the interface and its limits, [drift](../drift.md) what is tested.
