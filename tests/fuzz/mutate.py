"""Damage to bytes and to JSON, drawn from a seeded generator."""

import copy
from typing import Any

import numpy as np

NUMBERS = (
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\0\0\0",
    b"\xff\xff\xff\x7f",
    b"\0\0\0\1",
)
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2**31, 10**20, -(10**20), 1e308, float("nan"), "", "x", "x" * 5000, "../..", "a\0b",
    "\ud800", [], [[]], {}, {"a": {}}, [None], "hf-hub:a/b", "local-dir:/tmp", "<U500000000", [1] * 9,
    [float("nan")], -0.5, 1e-300, "../pipe",
)  # fmt: skip
WORDS = (
    "", "a", "b", "dog", "0", "1", "-1", "1e999", "nan", "../x", "/dev/null", "a.png", "a/../a.png",
    "x" * 400, "pipe.png", "é", "\t", '"', ",", "\0", "\ud800", "train", "val", "2020-01-01", "null", "text",
    "path", "domain", "label",
)  # fmt: skip


def damage(data: bytes, rng: np.random.Generator, most: int = 4) -> bytes:
    """Flip, overwrite, cut, repeat or insert a few times."""
    found = bytearray(data)
    for _ in range(int(rng.integers(1, most + 1))):
        if not found:
            break
        place = int(rng.integers(len(found)))
        if rng.random() < 0.3:
            place = int(rng.integers(min(len(found), 64)))  # headers matter more
        kind = rng.integers(6)
        if kind == 0:
            found[place] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            found[place : place + 4] = NUMBERS[rng.integers(len(NUMBERS))]
        elif kind == 2:
            del found[place:]
        elif kind == 3:
            found[place:place] = found[place : place + int(rng.integers(1, 64))]
        elif kind == 4:
            found[place:place] = rng.bytes(int(rng.integers(1, 16)))
        else:
            del found[place : place + int(rng.integers(1, 32))]
    return bytes(found)


def other_digit(data: bytes, rng: np.random.Generator) -> bytes:
    """Another digit in one place: what is still valid in every format, and means something else."""
    found = bytearray(data)
    places = [place for place, byte in enumerate(found) if 48 <= byte < 58]
    if places:
        place = places[int(rng.integers(len(places)))]
        found[place] = 48 + (found[place] - 48 + int(rng.integers(1, 10))) % 10
    return bytes(found)


DIRECTED: tuple[tuple[str, Any], ...] = (
    ("adapter.classes_dtype", "<U500000000"),
    ("adapter.classes_dtype", "V2000000000"),
    ("adapter.dim", 10**6),
    ("adapter.n_features_in", 2 * 10**9),
    ("adapter.num_steps", 10**9),
    ("adapter.params.step_size", 1e308),
    ("adapter.params.num_draws", 10**9),
    ("adapter.source_weights", [1.0] * 9),
    ("adapter.feature_names_in", ["a"] * 10**5),
    ("adapter.classes", ["a", "a", "a"]),
    ("adapter.sources", ["a"] * 9),
    ("adapter.trust", {"temperature": 0, "quantiles": [], "error": {}, "calibration_error": []}),
    ("backbone.family", "hf"),
    ("backbone.name", "hf-hub:a/b"),
    ("backbone.preprocessing.size", [10**6, 10**6]),
    ("backbone.preprocessing.std", [0, 0, 0]),
    ("backbone.domain_norm", 10**9),
    ("files", {"../../etc/hostname": "0"}),
    ("files", {"../pipe": "0"}),
    ("tta", "hflip+" * 5000),
)
"""Places of config.json where a value could take memory or time, or lead elsewhere."""


def directed(config: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """A copy of a config.json with one of `DIRECTED` in it."""
    config = copy.deepcopy(config)
    path, value = DIRECTED[rng.integers(len(DIRECTED))]
    here: Any = config
    *above, last = path.split(".")
    for name in above:
        here = here.get(name) if isinstance(here, dict) else None
    if isinstance(here, dict):
        here[last] = value
    return config


def odd_json(value: Any, rng: np.random.Generator) -> Any:
    """A copy of a JSON value in which one place holds something odd, is missing, or is one too many."""
    value = copy.deepcopy(value)
    here = value
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        if not keys:
            return value
        key = keys[rng.integers(len(keys))]
        inner = here[key]
        if isinstance(inner, dict | list) and inner and rng.random() < 0.8:
            here = inner
            continue
        draw = rng.random()
        if draw < 0.2:
            del here[key]
        elif draw < 0.3 and isinstance(here, list):
            here.append(inner)
        elif isinstance(inner, int | float) and not isinstance(inner, bool) and draw < 0.6:
            here[key] = inner * int(rng.choice([-1, 0, 2, 1000])) + int(rng.integers(-1, 2))
        else:
            here[key] = VALUES[rng.integers(len(VALUES))]
        return value


def pick(rng: np.random.Generator, values: Any) -> Any:
    return values[int(rng.integers(len(values)))]
