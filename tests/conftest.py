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
