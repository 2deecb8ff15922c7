"""The cost of `sourceward predict` on large data: rows a second, peak memory, after a kill, on Ray workers.

Weights and data are random: neither changes the cost. Every case is a process of its own, whose peak memory
the system reports.
"""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from sourceward._util.errors import InputError
from sourceward.bench.speed.models import BACKBONES, CLASSES, make_network, make_projection
from sourceward.deploy.parquet import pyarrow
from sourceward.estimator import EnergyAdapter
from sourceward.model import Model
from sourceward.nn import Projected
from sourceward.nn.backbones import create_backbone
from sourceward.settings import AdaptSettings

DISTINCT = 256
"""Different images; a file repeats them."""


@dataclass(frozen=True)
class LargePlan:
    """What is predicted; the defaults take some minutes on two cores."""

    rows: int = 1_000_000
    images: int = 20_000
    files: int = 16
    width: int = 256
    num_steps: int = 5
    image_size: int = 224
    backbone: str = "mobilenet_v2"


QUICK = LargePlan(4000, 32, 8, image_size=32)


def measure_large(plan: LargePlan, section: str) -> dict[str, Any]:
    """Measure `features` or `images`: a quarter of the rows, all, a quarter with a kill, and on two Ray
    workers: all features, or a quarter of the images."""
    if section not in ("features", "images"):
        raise InputError(f"Expected `--only` features or images after `bench predict`, but got {section!r}.")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        make_folder(plan, section, work / "run")
        for number in range(plan.files):
            part = "quarter" if number < plan.files // 4 else "rest"
            _write(plan, section, work / "in" / part / f"part-{number:03d}.parquet", number)
        quarter = _predict(work, work / "in" / "quarter", "quarter")
        whole = _predict(work, work / "in", "whole")
        killed = _killed(work, plan.files // 4)
        found = {"quarter": quarter, "all": whole, "quarter_with_a_kill": killed}
        name, data = ("whole", work / "in") if section == "features" else ("quarter", work / "in" / "quarter")
        ray = _predict(work, data, "ray", "--engine", "ray", "--jobs", "2")
        ray |= {"peak_mb_is_of": "the driver", "same_files": _same(work / name, work / "ray")}
        found[f"{'all' if name == 'whole' else name}_on_2_ray_workers"] = ray
    more, longer = whole["rows"] - quarter["rows"], whole["seconds"] - quarter["seconds"]
    hours = (whole["seconds"] + (1e8 - whole["rows"]) * longer / more) / 3600
    found["estimate"] = {
        "rows": 100_000_000,
        "hours_on_this_machine": round(hours, 1),
        "how": "time of all rows, and of the others at the rate between a quarter and all",
        "memory_ratio_all_to_quarter": round(whole["peak_mb"] / quarter["peak_mb"], 3),
    }
    return found


def make_folder(plan: LargePlan, section: str, folder: Path) -> None:
    """Write a model folder of three sources with random weights."""
    cpu, module, wide = torch.device("cpu"), None, plan.width
    if section == "images":
        wide = BACKBONES[plan.backbone]
        body = create_backbone(f"torchvision:{plan.backbone}", weights=None, image_size=plan.image_size)
        projection = make_projection(wide, plan.width, cpu)
        assert projection is not None
        module = Projected(body.eval(), projection)
    adapter = EnergyAdapter(plan.num_steps)
    adapter.start("abc", np.array([f"class {number}" for number in range(CLASSES)]), wide)
    network = make_network(plan.width, 3, cpu, module)
    Model(adapter.set_network(network, AdaptSettings(plan.num_steps))).save(folder)


def _write(plan: LargePlan, section: str, path: Path, seed: int) -> None:
    """Write one Parquet file of random features, or of JPEG images."""
    pa, random = pyarrow(), np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    if section == "images":
        known = [*random_jpegs(plan.image_size, random)]
        column = pa.array([known[i % len(known)] for i in range(plan.images // plan.files)])
        pa.parquet.write_table(pa.table({"image": column}), path, row_group_size=1024)
        return
    rows = plan.rows // plan.files
    schema = pa.schema([("features", pa.list_(pa.float32(), plan.width)), ("id", pa.int64())])
    with pa.parquet.ParquetWriter(path, schema, compression="none") as file:
        for start in range(0, rows, 16_384):
            count = min(16_384, rows - start)
            flat = pa.array(random.standard_normal(count * plan.width, dtype=np.float32))
            ids = pa.array(np.arange(start, start + count) + seed * rows)
            file.write_table(
                pa.table([pa.FixedSizeListArray.from_arrays(flat, plan.width), ids], schema=schema)
            )


def random_jpegs(size: int, random: np.random.Generator) -> Iterator[bytes]:
    """Yield smooth images as JPEG files."""
    for _ in range(DISTINCT):
        coarse = Image.fromarray(random.integers(256, size=(12, 12, 3), dtype=np.uint8))
        stream = io.BytesIO()
        coarse.resize((size, size), Image.Resampling.BICUBIC).save(stream, "JPEG", quality=85)
        yield stream.getvalue()


def _start(work: Path, data: Path, out: str, *options: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "sourceward", "predict", str(work / "run"), str(data), "--device", "cpu"]
    return subprocess.Popen([*command, "--out", str(work / out), "--json", *options], stdout=subprocess.PIPE)


def _predict(work: Path, data: Path, out: str, *options: str) -> dict[str, Any]:
    """Predict in a process; returns rows, seconds, rows a second and peak memory."""
    start = time.monotonic()
    process = _start(work, data, out, *options)
    assert process.stdout is not None
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"`predict` failed with code {process.returncode}.")
    seconds, rows = time.monotonic() - start, json.loads(text)["rows"]
    return {
        "rows": rows,
        "seconds": round(seconds, 1),
        "rows_per_second": round(rows / seconds, 1),
        "peak_mb": round(usage.ru_maxrss / 2**10, 1),
    }


def _killed(work: Path, files: int) -> dict[str, Any]:
    """Kill a prediction when half of its files are there, run it again, compare with the one before."""
    out = work / "killed"
    process = _start(work, work / "in" / "quarter", "killed")
    while len([*out.glob("*.parquet")]) < max(files // 2, 1) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = len([*out.glob("*.parquet")])
    again = _predict(work, work / "in" / "quarter", "killed")
    found = {"files": files, "complete_at_the_kill": left, "same_files": _same(work / "quarter", out)}
    shutil.rmtree(out)
    return found | {"rows_predicted_after_it": again["rows"], "seconds_after_it": again["seconds"]}


def _same(one: Path, other: Path) -> bool:
    """Return whether two folders hold the same Parquet files, byte for byte."""
    names = [{path.relative_to(folder) for path in folder.rglob("*.parquet")} for folder in (one, other)]
    return names[0] == names[1] and all((one / n).read_bytes() == (other / n).read_bytes() for n in names[0])
