import pytest

from tests.tiny_runs import fit_tiny, tiny_features


@pytest.fixture(scope="session")
def feature_run(tmp_path_factory):
    """A model folder of features, trained once for all tests that only read it."""
    out = tmp_path_factory.mktemp("runs") / "features"
    fit_tiny(tiny_features(), out)
    return out
