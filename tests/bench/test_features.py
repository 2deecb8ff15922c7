"""Leave one domain out on feature files."""

import numpy as np
import pytest

from sourceward.bench.features import bench_features, linear_accuracy
from sourceward.errors import InputError
from tests.helpers import make_domains

QUICK = {"max_iter": 5, "batch_size": 8, "train_steps": 2, "chains": 4}


@pytest.fixture
def file(tmp_path):
    X, y, domain = make_domains(sources=3, classes=2, dim=4, rows=12)
    path = tmp_path / "features.npz"
    names = np.array(["a", "b", "c"])
    np.savez(path, features=X, label=y, domain=domain, domains=names, classes=np.array(["x", "y"]))
    return str(path)


def test_every_domain_is_left_out_once_per_seed(file):
    results = bench_features([file], seeds=(0, 1), steps=(0, 3), settings=QUICK)
    assert [(c["target"], c["seed"]) for c in results["cells"]] == [
        (target, seed) for target in "abc" for seed in (0, 1)
    ]
    for cell in results["cells"]:
        still, moved = cell["by_steps"]["0"], cell["by_steps"]["3"]
        assert still["gain"] == 0
        assert moved["gain"] == pytest.approx(moved["accuracy"] - still["accuracy"])
        assert moved["gain_low"] <= moved["gain"] <= moved["gain_high"]
        assert moved["energy_after"] <= moved["energy_before"]


def test_target_labels_only_count(file, tmp_path):
    """Permuting the target's labels changes its accuracy, and nothing that was learned."""
    arrays = dict(np.load(file))
    held = arrays["domain"] == 2
    arrays["label"][held] = 1 - arrays["label"][held]
    other = tmp_path / "permuted.npz"
    np.savez(other, **arrays)
    one, two = (
        bench_features([f], targets=["c"], steps=(2,), settings=QUICK)["cells"][0]["by_steps"]["2"]
        for f in (file, str(other))
    )
    assert one["energy_after"] == two["energy_after"]
    assert one["accuracy"] == pytest.approx(1 - two["accuracy"])


def test_the_linear_control_learns():
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    X = (rng.normal(size=(60, 3)) + 4 * y[:, None]).astype(np.float32)
    assert linear_accuracy(X[:40], y[:40], np.repeat(["a", "b"], 20), X[40:], y[40:]) > 0.9


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"targets": ["d"]}, "Unknown target 'd'"),
        ({"settings": {"max_itre": 3}}, "Did you mean 'max_iter'"),
        ({"settings": {"step_size": "abc"}}, "Expected `step_size` to be 0 or more, but got 'abc'"),
    ],
)
def test_bad_input(file, options, says):
    with pytest.raises(InputError, match=says):
        bench_features([file], **options)
