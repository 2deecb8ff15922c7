"""One thread, modest property tests, and the real data where it lies beside the checkout."""

from pathlib import Path

import pytest
import torch
from hypothesis import settings

# Cores are shared: many threads on small tensors spend their time waiting for each other.
torch.set_num_threads(1)

# The same examples in every run: a red test is red again when it is run alone.
settings.register_profile("sourceward", deadline=None, max_examples=20, derandomize=True)
settings.load_profile("sourceward")


@pytest.fixture(scope="session")
def shared() -> Path:
    """Real data that is never part of the project."""
    folder = Path(__file__).parents[1].parent / "shared"
    if not folder.exists():
        pytest.skip("real data is not beside this checkout (../shared)")
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded images and features of a test stay in its own folder."""
    monkeypatch.setenv("SOURCEWARD_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder of images, trained once for all tests that only read it."""
    from tests.tiny_runs import fit_tiny, tiny_images

    out = tmp_path_factory.mktemp("runs") / "images"
    fit_tiny(tiny_images(), out)
    return out


@pytest.fixture(scope="session")
def joint_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of the recipe `joint`."""
    from tests.tiny_runs import fit_tiny, tiny_images

    out = tmp_path_factory.mktemp("runs") / "joint"
    fit_tiny(tiny_images(), out, settings={"recipe": "joint"})
    return out
