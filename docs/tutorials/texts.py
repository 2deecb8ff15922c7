# %% [markdown]
# # Texts
#
# A dataset of texts is a table (CSV, TSV or Parquet) with a text, a label and a domain per row. This
# tutorial writes reviews of three shops and a new one.

# %%
import csv
import tempfile
from pathlib import Path

import sourceward as sw

folder = Path(tempfile.mkdtemp())
words = {"good": ["fine", "great", "lovely"], "bad": ["awful", "poor", "sad"]}
things = {"books": "novel", "music": "album", "films": "movie", "games": "puzzle"}
with open(folder / "reviews.csv", "w", newline="") as stream:
    table = csv.writer(stream)
    table.writerow(["text", "label", "domain"])
    for domain, thing in things.items():
        for label, tellings in words.items():
            for number in range(12):
                table.writerow([f"a {tellings[number % 3]} {thing}, number {number}", label, domain])

# %% [markdown]
# `tiny:text` has random weights and needs no download: it shows the calls, not the quality. Leave
# `backbone` and `weights` out for DistilBERT (extra `text`). Columns with other names are found by meaning,
# or named: `sw.open_dataset("reviews.csv", text="body", domain="shop")`.

# %%
model = sw.fit(
    folder / "reviews.csv",
    out=folder / "run",
    target="games",
    backbone="tiny:text",
    weights=None,
    freeze=True,
    settings={"max_iter": 40, "batch_size": 8},
    device="cpu",
)
print("expected gain:", model.adapter.expected_gain_)
for prediction in model.predict(["a lovely puzzle", "a sad puzzle"]):
    print(prediction.label, round(prediction.probability, 2))
