"""The Triton kernels, run by Triton's interpreter, give the samples of the fused chain."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sourceward.functional import ChainWeights
from sourceward.samplers import StepSettings
from sourceward.samplers import chain as fused
from tests.helpers import make_generator, random_weights

pytest.importorskip("triton", reason="Triton is not installed")

PROBE = """
import sys, torch, triton, triton.language as tl

@triton.jit
def kernel(x, out, n, B: tl.constexpr):
    i, total = tl.arange(0, B), tl.zeros((B, B), dtype=tl.float32)
    for start in range(0, n, B):
        a = tl.load(x + start + i[:, None] * n + i[None, :])
        total = tl.dot(a, a, total)
    tl.store(out + i, tl.sum(total, axis=1))

out = torch.zeros(16)
kernel[(1,)](torch.ones(16, 32), out, 32, B=16)
sys.exit(not (out == 512).all())
"""
"""A small kernel of products in a loop, which Triton's interpreter does not survive with every NumPy."""

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


def interpreted(script: str) -> subprocess.CompletedProcess:
    root = Path(__file__).parents[3]
    paths = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(root), str(root / "src")])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=root, capture_output=True, text=True, timeout=300
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels themselves are tested, on the CUDA device")
def test_kernels_give_the_samples_of_the_fused_chain(tmp_path):
    (tmp_path / "probe.py").write_text(PROBE)  # Triton reads the source of a kernel from its file
    probe = interpreted(f"import runpy; runpy.run_path({str(tmp_path / 'probe.py')!r})")
    if probe.returncode:
        pytest.skip(f"Triton's interpreter does not run here: {probe.stderr.strip().splitlines()[-1:]}")
    done = interpreted(SCRIPT)
    assert done.stdout == "the same\n", done.stderr


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("rows", "dim", "hidden", "noise_std", "checked", "record", "path"),
    [
        (32, 256, 256, 0.05, True, False, "resident"),
        (16, 500, 70, 0.05, False, "origins", "resident"),
        (64, 300, 512, 0.0, True, False, "resident"),
        (16, 70, 96, 0.05, True, True, "wide"),
        (16, 600, 512, 0.05, True, False, "wide"),
        (48, 1024, 700, 0.05, False, "origins", "wide"),
        (32, 1280, 1280, 0.0, True, False, "wide"),
        (128, 2048, 2048, 0.05, True, False, "wide"),
    ],
)
def test_on_a_cuda_device(monkeypatch, rows, dim, hidden, noise_std, checked, record, path):
    """Products in half precision: a step may be refused that single precision accepts, few are.

    A sum of n products that are rounded to 11 bits is off by about 2^-11 of its norm, and the chain goes
    through four of them a step: 2 % of the way that a sample takes is an ample bound. As many accepted steps
    may be other steps, in one sample of a hundred at most.
    """
    from sourceward.samplers.cuda import kernels, resident

    monkeypatch.setattr(resident, "ON_CHIP", False)  # `test_onchip` has the chains that fit there
    for module in (fused, kernels, resident):
        monkeypatch.setattr(module, "NOISE_ROWS", 3 * rows)  # noise of three steps is drawn together
    energy, step_size = random_weights(2, dim, hidden, narrow=64, dtype=torch.float32), 4.0
    if not noise_std:  # energies near 0 or 1 would leave samples where they are: there is no way to compare
        energy, step_size = energy._replace(out=0.1 * energy.out), 40.0
    weights = ChainWeights.of(type(energy)(*(w if w is None else w.cuda() for w in energy)))
    x, z = torch.randn(2, rows, dim, generator=make_generator()).cuda()
    x[3] = float("nan")
    start, keys = x.expand(2, -1, -1), torch.arange(rows, device="cuda")
    step = StepSettings(step_size=step_size, noise_std=noise_std, clip=0.05)

    def ends(chain, noise):
        bias = weights.bias(z.expand(2, -1, -1))
        return chain(weights, start, bias, step, 4, noise(keys, start), checked=checked, record=record)

    assert kernels.fits(weights, start)
    assert resident.fits(weights, record) == (path == "resident")
    ours, theirs = (
        ends(kernels.kernel_langevin, kernels.KeyedNormals),
        ends(fused.fused_langevin, fused.keyed_normals),
    )
    assert theirs.steps.float().mean() > 0
    alike = ours.steps == theirs.steps
    assert alike.float().mean() > 0.9
    assert torch.equal(ours.feature.isnan(), theirs.feature.isnan())
    way = (theirs.feature - start)[alike].nan_to_num().norm(dim=1).clamp_min(1e-6)
    error = (ours.feature - theirs.feature)[alike].nan_to_num().norm(dim=1) / way
    energies = ("energy_before", "energy_after")
    apart = [
        (getattr(ours, name) - getattr(theirs, name))[alike].nan_to_num().abs().max().item()
        for name in energies
    ]
    assert error.quantile(0.99) < 0.02
    assert max(apart) < 0.02  # of energies from 0 to 1
    again = ends(kernels.kernel_langevin, kernels.KeyedNormals)
    assert torch.equal(again.feature.nan_to_num(), ours.feature.nan_to_num())  # no race


@pytest.mark.cuda
def test_keys_on_a_cuda_device():
    from sourceward.functional import row_keys
    from sourceward.samplers.cuda import kernels

    rows = torch.randn(5, 300, generator=make_generator())
    rows[3:] = torch.tensor([[0.0], [-0.0]])
    for seed in (0, 7, 2**40):
        assert torch.equal(kernels.row_keys(rows.cuda(), seed).cpu(), row_keys(rows, seed)), seed


def test_as_many_stages_as_fit_into_shared_memory(monkeypatch):
    from sourceward.samplers.cuda import resident

    monkeypatch.setattr(resident, "TILES", {256: resident.Tiles(64, 8, 4)})
    weights = ChainWeights.of(random_weights(2, 256, 256, narrow=128, dtype=torch.float32))
    for room, stages in ((232_448, 4), (166_912, 3), (101_376, 2)):  # H200, A100, RTX 4090
        monkeypatch.setattr(resident, "shared_memory", lambda device, room=room: room)
        assert resident._tiles(weights).stages == stages
    monkeypatch.setattr(resident, "shared_memory", lambda device: 49_152)
    assert resident._tiles(weights) is None


def test_narrow_chains_keep_their_kernel_where_those_for_wide_features_fail(monkeypatch):
    from types import SimpleNamespace

    from sourceward.samplers import cuda

    def check(kernels, cases):
        raise ArithmeticError("ends of chains differ")

    kernels = SimpleNamespace(fits=lambda *_: True, is_narrow=lambda weights, record: weights == "narrow")
    monkeypatch.setattr(cuda, "usable_kernels", lambda: kernels)
    monkeypatch.setattr(cuda, "_check", check)
    monkeypatch.setattr(cuda, "_wide_are_right", cuda._wide_are_right.__wrapped__)
    feature = SimpleNamespace(is_cuda=True)
    assert cuda.kernels_for("narrow", feature) is kernels
    with pytest.warns(UserWarning, match="wide features run in plain PyTorch: ends"):
        assert cuda.kernels_for("wide", feature) is None
