# %% [markdown]
# # Feature vectors
#
# You have feature vectors from several domains, and a new domain without labels. `EnergyAdapter` is a
# scikit-learn classifier with one more argument of `fit`: the domain of each row. Here the features are the
# pixels of scikit-learn's digits; the domains are rotations of 0, 15 and 30 degrees, and the unseen domain
# is 45 degrees.

# %%
import numpy as np
from scipy.ndimage import rotate
from sklearn.datasets import load_digits

import sourceward as sw

images, label = load_digits(return_X_y=True)
images, label = images.reshape(-1, 8, 8)[:800], label[:800]
angle = np.array([0, 15, 30, 45])[np.arange(800) % 4]
rotated = np.stack([rotate(image, a, reshape=False, order=1) for image, a in zip(images, angle)])
X = rotated.reshape(len(rotated), -1)
unseen = angle == 45

# %% [markdown]
# `fit` trains on the sources. With three or more of them it then holds out each once, and chooses the
# number of Langevin steps by what they gain there. No label of the unseen domain is used. (`max_iter` is
# small here to save time; leave it out for real data.)

# %%
model = sw.EnergyAdapter(max_iter=60)
model.fit(X[~unseen], label[~unseen], sample_domain=angle[~unseen])
print("expected gain:", model.expected_gain_)

# %% [markdown]
# The expected gain is known before any label of the target. With labels, compare it with the truth.
# Test-time settings can be changed without another `fit`: `num_steps=0` predicts without adaptation, and a
# number overrules validation.

# %%
for num_steps in ("auto", 0, 5):
    accuracy = model.set_params(num_steps=num_steps).score(X[unseen], label[unseen])
    print(f"num_steps={num_steps}: {100 * accuracy:.1f} %")

# %% [markdown]
# `adapt` returns the details of every prediction, and `transform` the adapted features for any other
# classifier.

# %%
result = model.adapt(X[unseen][:5])
print(result.probabilities.argmax(1), result.status, result.trust.round(2))
print(model.transform(X[unseen][:5]).shape)
