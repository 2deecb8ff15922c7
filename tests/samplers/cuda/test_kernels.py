"""The Triton kernels, run by Triton's interpreter, give the samples of the fused chain."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sourceward.functional import ChainWeights
from tests.helpers import random_weights

pytest.importorskip("triton", reason="Triton is not installed")

SCRIPT = """
import torch
from sourceward.functional import ChainWeights, row_keys
from sourceward.samplers import StepSettings, chain as fused
from sourceward.samplers.cuda import kernels, resident
from tests.helpers import make_generator, random_weights

fused.NOISE_ROWS = kernels.NOISE_ROWS = resident.NOISE_ROWS = 48  # noise of three steps is drawn together

def training_noise(keys, like):
    return fused.generator_normals(make_generator(), like)  # each source has its own

for rows, dim, hidden, noise_std, checked, record in [
    (32, 48, 40, 0.05, True, False),
    (16, 70, 70, 0.05, False, True),
    (16, 70, 96, 0.05, False, "origins"),
    (16, 128, 64, 0.0, True, "origins"),
    (16, 64, 64, 0.0, True, True),
]:
    full = ChainWeights.of(random_weights(2, dim, hidden, narrow=16, dtype=torch.float32))
    weights = full._replace(half=full.halved(torch.float32))  # compare the algorithm, not the rounding
    x, z = torch.randn(2, rows, dim, generator=make_generator())
    x[3] = float("nan")  # a sample without finite energy stays where it is, and affects no other
    start, keys = x.expand(2, -1, -1), torch.arange(rows)
    step = StepSettings(step_size=4.0, noise_std=noise_std, clip=0.05)
    def ends(chain, noise):
        bias = weights.bias(z.expand(2, -1, -1))
        return chain(weights, start, bias, step, 4, noise(keys, start), checked=checked, record=record)

    pair = (fused.keyed_normals, kernels.KeyedNormals)
    if record == "origins":
        pair = (training_noise, training_noise)
    theirs = ends(fused.fused_langevin, pair[0])
    assert kernels.fits(weights, start)
    assert 0 < theirs.steps.float().mean() < 4
    for tiles in ({}, {128: resident.Tiles(32, 4, 2)}):
        resident.TILES = tiles
        assert resident.fits(weights, record) == (bool(tiles) and record is not True)
        ours = ends(kernels.kernel_langevin, pair[1])
        for name in vars(theirs):
            a, b = getattr(ours, name), getattr(theirs, name)
            assert (a is None) == (b is None), name
            if a is not None:
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, equal_nan=True, msg=name)
rows = torch.randn(5, 300, generator=make_generator())
rows[3:] = torch.tensor([[0.0], [-0.0]])
for seed in (0, 7, 2**40):
    assert torch.equal(kernels.row_keys(rows, seed), row_keys(rows, seed)), seed
print("the same")
"""


def test_kernels_give_the_samples_of_the_fused_chain():
    root = Path(__file__).parents[3]
    paths = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(root), str(root / "src")])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, cwd=root, capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "the same\n", done.stderr


def test_as_many_stages_as_fit_into_shared_memory(monkeypatch):
    from sourceward.samplers.cuda import resident

    monkeypatch.setattr(resident, "TILES", {256: resident.Tiles(64, 8, 4)})
    weights = ChainWeights.of(random_weights(2, 256, 256, narrow=128, dtype=torch.float32))
    for room, stages in ((232_448, 4), (166_912, 3), (101_376, 2)):  # H200, A100, RTX 4090
        monkeypatch.setattr(resident, "_room", lambda device, room=room: room)
        assert resident._tiles(weights).stages == stages
    monkeypatch.setattr(resident, "_room", lambda device: 49_152)
    assert resident._tiles(weights) is None
