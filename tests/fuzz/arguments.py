"""Odd arguments of the command line, run in this process: it ends with 0 or 2, and prints no traceback."""

import contextlib
import io
import sys
from unittest.mock import patch

import numpy as np

from sourceward.cli import main
from tests.fuzz.kinds import Finding, World, image_bytes
from tests.fuzz.mutate import WORDS, pick

ODD = (
    *(word for word in WORDS if "\0" not in word and "\ud800" not in word),
    "1e20", "-5", "mps", "cuda:9", "nan", "inf", "[]", "{}", "=", "a=b", "a=[1", "none", "auto",
)  # fmt: skip
COMMANDS = {
    "predict": ("--column", "--option", "--num-steps", "--tta", "--device", "--root"),
    "evaluate": ("--target", "--option", "--num-steps", "--tta", "--device"),
    "doctor": ("--option", "--target"),
    "fit": (
        "--target",
        "--option",
        "--set",
        "--device",
        "--max-iter",
        "--batch-size",
        "--preset",
        "--config",
    ),
    "list": ("--json",),
    "report": ("--adapter",),
}


def arguments(world: World, rng: np.random.Generator) -> str:
    """Run one command with real and odd arguments, and look for files where none should be."""
    command = pick(rng, tuple(COMMANDS))
    (world.work / "a.png").write_bytes(image_bytes(rng))
    np.save(world.work / "x.npy", rng.normal(size=(3, 5)))
    names = ("features", "images")
    places = [str(world.models[name][0]) for name in names]
    files = [str(world.work / name) for name in ("a.png", "x.npy", "missing", "")]
    if rng.random() < 0.5:
        return run(_nearly_right(world, rng))
    given = [command]
    if command != "list":
        given.append(
            pick(rng, places if command in ("predict", "evaluate") and rng.random() < 0.8 else files)
        )
    for _ in range(int(rng.integers(1, 3))):
        given.append(pick(rng, (*files, pick(rng, ODD))))
    for _ in range(int(rng.integers(0, 4))):
        given += [pick(rng, COMMANDS[command]), pick(rng, ODD)]
    if command in ("predict", "fit"):
        given += [
            "--out",
            str(world.work / pick(rng, ("out.csv", "out.jsonl", "run", "a.png/x.csv", "y" * 300 + ".csv"))),
        ]
    if command == "fit":
        given += ["--set", "max_iter=2"]
    return run(given)


def _nearly_right(world: World, rng: np.random.Generator) -> list[str]:
    """A command that works, with one more option that is odd."""
    rows = rng.normal(size=(24, 5)).astype(np.float32)
    np.savez(world.work / "f.npz", features=rows, label=np.arange(24) % 2, domain=np.arange(24) // 2 % 3)
    name, file = pick(rng, (("features", "x.npy"), ("images", "a.png")))
    run, data, out = str(world.models[name][0]), str(world.work / "f.npz"), str(world.work / "out.csv")
    right = {
        "predict": ["predict", run, str(world.work / file), "--out", out],
        "doctor": ["doctor", data],
        "fit": ["fit", data, "--out", str(world.work / "run"), "--set", "max_iter=2", "--set", "num_steps=1"],
        "list": ["list", pick(rng, ("adapters", "transforms", "presets", "datasets"))],
    }
    command = pick(rng, tuple(right))
    odd = [pick(rng, COMMANDS[command]), pick(rng, ODD)] if rng.random() < 0.7 else []
    return [*right[command], *odd]


def run(given: list[str]) -> str:
    """Run the command line; "used" or "refused" by its exit code."""
    said = io.StringIO()
    quiet = contextlib.redirect_stdout(io.StringIO())
    with patch.object(sys, "argv", ["sourceward", *given]), contextlib.redirect_stderr(said), quiet:
        try:
            main()
            code: object = 0
        except SystemExit as stop:
            code = stop.code
    if code not in (0, 2, None) or "Traceback" in said.getvalue():
        raise Finding(f"exit code {code} of {given}: {said.getvalue()[-300:]}")
    return "refused" if code == 2 else "used"
