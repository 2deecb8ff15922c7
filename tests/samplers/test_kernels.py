"""The Triton kernels, run by Triton's interpreter: the same walk as the fused chain."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

SCRIPT = """
import torch
from sourceward.functional import ChainWeights
from sourceward.samplers import StepSettings, fused, kernels
from tests.helpers import make_generator, random_weights

kernels.NOISE_ROWS = 32  # two steps share their noise
for dim, hidden, noise_std, accept, stop, record in [
    (48, 40, 0.05, "energy_not_higher", None, False),
    (70, 70, 0.05, "always", 0.3, True),
    (64, 64, 0.0, "energy_not_higher", None, True),
]:
    full = ChainWeights.of(random_weights(2, dim, hidden, narrow=16, dtype=torch.float32))
    weights = full._replace(half=full.halved(torch.float32))  # compare the algorithm, not the rounding
    x, z = torch.randn(2, 16, dim, generator=make_generator())
    start, keys = x.expand(2, -1, -1), torch.arange(16)
    step = StepSettings(step_size=4.0, noise_std=noise_std, clip=0.05, accept=accept)
    options = {"record": record, "stop_below": None if stop is None else torch.full((2, 1), stop)}
    ours, theirs = (
        chain(weights, start, weights.bias(z.expand(2, -1, -1)), step, 5, noise(keys, start), **options)
        for chain, noise in (
            (kernels.kernel_langevin, kernels.keyed_normals), (fused.fused_langevin, fused.keyed_normals)
        )
    )
    assert kernels.fits(weights, start)
    assert 0 < theirs.steps.float().mean()
    for name in ("feature", "energy_before", "energy_after", "steps", "trajectory", "energies", "origins"):
        a, b = getattr(ours, name), getattr(theirs, name)
        assert (a is None) == (b is None), name
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, msg=name)
print("the same")
"""


def test_kernels_take_the_walk_of_the_fused_chain():
    root = Path(__file__).parents[2]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, cwd=root, capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "the same\n", done.stderr
