"""EnergyAdapter with metadata routing, in scikit-learn and in SKADA, which turns routing on when imported."""

import subprocess
import sys

import numpy as np
import pytest
import sklearn
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, LeaveOneGroupOut, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sourceward import EnergyAdapter, LeaveOneDomainOut
from sourceward._util.errors import InputError
from tests.helpers import QUICK, make_domains

X, Y, SOURCE = make_domains()


def quick(**params) -> EnergyAdapter:
    return EnergyAdapter(**{**QUICK, "max_iter": 10, **params})


def test_pipeline_and_search_with_routing_on():
    with sklearn.config_context(enable_metadata_routing=True):
        pipeline = make_pipeline(StandardScaler(), quick()).fit(X, Y, sample_domain=SOURCE)
        assert pipeline[-1].sources_ == [0, 1, 2]
        assert pipeline.score(X, Y, sample_domain=SOURCE) > 0.9
        plain = pipeline.predict(X)
        assert np.array_equal(pipeline.predict(X, sample_domain=SOURCE), plain)
        search = GridSearchCV(quick(), {"num_steps": [0, 2]}, cv=LeaveOneGroupOut())
        search.fit(X, Y, sample_domain=SOURCE, groups=SOURCE)
        assert search.n_splits_ == 3
        assert search.best_estimator_.sources_ == [0, 1, 2]


def test_leave_one_domain_out_with_routing_off():
    scores = cross_val_score(
        quick(), X, Y, groups=SOURCE, cv=LeaveOneGroupOut(), params={"sample_domain": SOURCE}
    )
    assert scores.shape == (3,)
    assert scores.min() > 0.5


def test_a_search_holds_out_domains_by_sample_domain_alone_with_routing_on():
    grid, cv = {"num_steps": [0, 2]}, LeaveOneDomainOut()
    with sklearn.config_context(enable_metadata_routing=True):
        routed = GridSearchCV(quick(), grid, cv=cv).fit(X, Y, sample_domain=SOURCE)
    plain = GridSearchCV(quick(), grid, cv=LeaveOneGroupOut()).fit(X, Y, groups=SOURCE, sample_domain=SOURCE)
    assert routed.n_splits_ == 3
    for name in ("split0_test_score", "split2_test_score"):
        np.testing.assert_array_equal(routed.cv_results_[name], plain.cv_results_[name])
    again = GridSearchCV(quick(), grid, cv=cv).fit(X, Y, groups=SOURCE, sample_domain=SOURCE)  # routing off
    assert again.best_score_ == plain.best_score_


def test_domains_to_hold_out_are_required():
    with pytest.raises(InputError, match=r"Expected the domain of each row.* Pass `sample_domain`"):
        cross_val_score(quick(), X, Y, cv=LeaveOneDomainOut())
    with pytest.raises(InputError, match="2 or more source domains to hold out one, but got 1"):
        next(LeaveOneDomainOut().split(X, Y, groups=np.where(SOURCE == 0, 1, -1)))


def test_transform_gives_adapted_features_to_any_classifier():
    adapter = quick(noise_std=0.0).fit(X, Y, SOURCE)
    adapted = adapter.transform(X)
    assert adapted.shape == X.shape
    assert np.allclose(adapted, adapter.adapt(X).features.mean(1))
    off = adapter.set_params(num_steps=0).transform(X)
    assert np.allclose(off, X, atol=1e-4)  # without adaptation the features are the input
    assert not np.allclose(adapted, X, atol=1e-4)
    pipeline = make_pipeline(StandardScaler(), quick(), LogisticRegression())
    pipeline.fit(X, Y, energyadapter__sample_domain=SOURCE)
    assert pipeline.score(X, Y) > 0.9


def test_one_value_is_the_domain_of_every_row():
    assert quick().fit(X, Y, sample_domain="clinic").sources_ == ["clinic"]
    with pytest.raises(InputError, match="every entry is negative"):
        quick().fit(X, Y, sample_domain=-1)


@pytest.mark.parametrize(
    ("domain", "said"),
    [(None, "is missing, so all rows are one"), (SOURCE % 2, "has 2")],
    ids=["none", "two"],
)
def test_too_few_sources_say_what_is_not_estimated(domain, said):
    with pytest.warns(UserWarning, match=said + r".*expected gain is not estimated") as caught:
        assert quick(num_steps="auto").fit(X, Y, domain).expected_gain_ is None
    assert caught[0].filename == __file__


SKADA = """
import numpy as np, sklearn, skada
from skada import CORALAdapter, make_da_pipeline
from skada.model_selection import SourceTargetShuffleSplit
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import StandardScaler
from sourceward import EnergyAdapter, LeaveOneDomainOut
from tests.estimator.test_routing import X, Y, SOURCE, quick

assert sklearn.get_config()["enable_metadata_routing"]
domain = np.where(SOURCE == 2, -3, SOURCE + 1)  # two sources, and a target by SKADA's rule
names = np.array(["ant", "bee", "cow"])[Y]
target = domain < 0

pipeline = make_da_pipeline(StandardScaler(), quick()).fit(X, Y.copy(), sample_domain=domain)
fitted = pipeline[-1].base_estimator_
assert fitted.sources_ == [1, 2], fitted.sources_
assert fitted.classes_.tolist() == [0, 1, 2]
assert np.array_equal(pipeline.predict(X[target]), pipeline.predict(X[target], sample_domain=domain[target]))
pipeline.predict(X[target], sample_domain=-3)
pipeline.predict_proba(X, sample_domain=domain, allow_source=True)
assert pipeline.score(X[target], Y[target], sample_domain=domain[target]) > 0.5

# SKADA masks labels by -1 and so takes numbers; unmasked, EnergyAdapter leaves the target's rows out itself.
words = make_da_pipeline(StandardScaler(), quick(), mask_target_labels=False)
words.fit(X, names, sample_domain=domain)
assert words[-1].base_estimator_.sources_ == [1, 2]
assert set(words.predict(X[target], sample_domain=domain[target])) <= set(names)

search = GridSearchCV(make_da_pipeline(StandardScaler(), quick()), {"energyadapter__num_steps": [0, 2]}, cv=2)
search.fit(X, Y.copy(), sample_domain=SOURCE)
search.predict(X[target])
search = GridSearchCV(quick(), {"num_steps": [0, 2]}, cv=SourceTargetShuffleSplit(n_splits=1))
search.fit(X, Y, sample_domain=domain)

held = GridSearchCV(
    make_da_pipeline(StandardScaler(), quick()), {"energyadapter__num_steps": [0, 2]}, cv=LeaveOneDomainOut()
)
held.fit(X, np.where(target, -1, Y), sample_domain=domain)  # the target's rows are in no test part
assert held.n_splits_ == 2
assert held.best_score_ > 0.5

after = make_da_pipeline(StandardScaler(), quick(), LogisticRegression())
after.fit(X, Y.copy(), sample_domain=domain)
assert after.score(X[target], Y[target], sample_domain=domain[target]) > 0.5
before = make_da_pipeline(CORALAdapter(), quick()).fit(X, Y.copy(), sample_domain=domain)
before.predict(X[target], sample_domain=domain[target])
print("works")
"""


def test_skada():
    """In a process of its own: `import skada` changes scikit-learn's configuration."""
    ran = subprocess.run([sys.executable, "-c", SKADA], capture_output=True, text=True, check=False)
    assert ran.stdout.strip().endswith("works"), ran.stderr
