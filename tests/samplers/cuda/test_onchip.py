"""The on-chip kernel: compiled for an H100 anywhere, run on a CUDA device."""

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

pytest.importorskip("triton.experimental.gluon", reason="This Triton has no Gluon")

from sourceward.samplers.cuda import kernels, onchip, resident

SCRIPT = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource
from sourceward.samplers.cuda import onchip

dim, hidden, narrow = map(int, sys.argv[1:])
constants = {"DIM": dim, "HIDDEN": hidden, "NARROW": narrow, "BD": onchip.padded(dim), "BM": 16}
constants |= {"BH": onchip.padded(hidden), "PIECE": onchip.PIECE, "FIRST": True, "ALWAYS": False}
constants |= dict.fromkeys(("NOISY", "ORIGINS"), True)
kinds = dict.fromkeys(constants, "constexpr") | dict.fromkeys(("lift", "up", "narrow_up"), "*fp16")
kinds |= dict.fromkeys(("clip", "scale"), "fp32") | {"taken": "*i64"}
kinds |= dict.fromkeys(("steps", "rows", "start_source", "jitter_step", "jitter_source"), "i32")
signature = {name: kinds.get(name, "*fp32") for name in onchip.langevin_chain.arg_names}
source = GluonASTSource(onchip.langevin_chain, signature, constants)
options = {"num_warps": onchip.WARPS}
print(triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).metadata.shared)
"""


@pytest.mark.parametrize("sizes", [(256, 256, 128), (48, 70, 16)])
def test_it_uses_the_shared_memory_that_it_states(sizes):
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", SCRIPT, *map(str, sizes)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(root / "src")]),
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    dim, hidden, narrow = sizes
    weights = ChainWeights.of(random_weights(1, dim, hidden, narrow=narrow, dtype=torch.float32))
    assert done.stdout == f"{onchip.shared_bytes(weights)}\n", done.stderr
    assert onchip.shared_bytes(weights) <= 232_448  # of an H100


def test_it_does_not_fit_on_a_cpu():
    weights = ChainWeights.of(random_weights(1, 64, 64, narrow=16, dtype=torch.float32))
    assert not resident._on_chip(weights)


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("dim", "hidden", "noise_std", "checked", "record"),
    [
        (256, 256, 0.05, True, False),
        (200, 70, 0.05, False, "origins"),
        (64, 128, 0.0, True, False),
    ],
)
def test_it_gives_the_samples_of_the_fused_chain(monkeypatch, dim, hidden, noise_std, checked, record):
    monkeypatch.setattr(resident, "NOISE_ROWS", 96)  # noise of three steps is drawn together
    energy = random_weights(2, dim, hidden, narrow=32, dtype=torch.float32)
    weights = ChainWeights.of(type(energy)(*(w if w is None else w.cuda() for w in energy)))
    x, z = torch.randn(2, 32, dim, generator=make_generator()).cuda()
    x[3] = float("nan")
    start, keys = x.expand(2, -1, -1), torch.arange(32, device="cuda")
    step = StepSettings(step_size=4.0, noise_std=noise_std, clip=0.05)

    def ends(chain, noise):
        return chain(
            weights,
            start,
            weights.bias(z.expand(2, -1, -1)),
            step,
            4,
            noise(keys, start),
            checked=checked,
            record=record,
        )

    assert resident._on_chip(weights)
    ours, theirs = (
        ends(kernels.kernel_langevin, kernels.KeyedNormals),
        ends(fused.fused_langevin, fused.keyed_normals),
    )
    alike = ours.steps == theirs.steps
    assert alike.float().mean() > 0.9  # half precision may refuse a step that single accepts
    for name in ("feature", "energy_before", "energy_after"):
        a, b = getattr(ours, name)[alike], getattr(theirs, name)[alike]
        torch.testing.assert_close(a, b, rtol=5e-3, atol=5e-3, equal_nan=True, msg=name)
    if record:
        torch.testing.assert_close(ours.origins[0], theirs.origins[0], rtol=1e-4, atol=1e-4, equal_nan=True)
