"""Speed from files: predictions from JPEG files, and fits, beside a busy process and of PACS."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from sourceward._util.threads import available_cores
from sourceward.bench.speed.models import CLASSES, SpeedPlan, make_network, make_projection
from sourceward.estimator import EnergyAdapter
from sourceward.fitting import fit
from sourceward.model import Model
from sourceward.model.predicting import predict_files
from sourceward.nn import Projected
from sourceward.nn.backbones import create_backbone
from sourceward.settings import AdaptSettings

ARCHITECTURE = "mobilenetv2_100"
SHARED = Path(__file__).parents[5] / "shared"
"""Where real data lies, beside the checkout."""


def predict_from_files(device: torch.device, plan: SpeedPlan) -> dict[str, Any]:
    """Predict JPEG files of 500 x 375 pixels: `predict_files` without adaptation, and a plain timm loop with
    its own transform and loader on the same files, images per second each."""
    with tempfile.TemporaryDirectory() as folder:
        files = _pictures(Path(folder), plan.pictures)
        model = _file_model(device, plan)
        out = Path(folder) / "predictions.csv"
        ours, theirs = [], []
        for _ in range(2):  # the first warms up
            ours.append(_rate(lambda: predict_files(model, [folder], out, progress=False), len(files)))
            theirs.append(_rate(lambda: _timm_loop(files, plan.image_size, device), len(files)))
    return {"files": len(files), "ours": ours[-1], "timm": theirs[-1], "ratio": ours[-1] / theirs[-1]}


def _rate(call: Any, count: int) -> float:
    start = time.perf_counter()
    call()
    return round(count / (time.perf_counter() - start), 2)


def _pictures(folder: Path, count: int) -> list[Path]:
    random = np.random.default_rng(0)
    coarse = random.integers(256, size=(count, 15, 20, 3), dtype=np.uint8)
    files = [folder / f"{number:04}.jpg" for number in range(count)]
    for file, pixels in zip(files, coarse):
        Image.fromarray(pixels).resize((500, 375), Image.Resampling.BICUBIC).save(file, quality=90)
    return files


def _file_model(device: torch.device, plan: SpeedPlan) -> Model:
    backbone = create_backbone(f"timm:{ARCHITECTURE}", weights=None, image_size=plan.image_size)
    projection = make_projection(backbone.dim, plan.components, device)
    assert projection is not None
    network = make_network(projection.shape[1], 3, device, Projected(backbone.eval(), projection))
    adapter = EnergyAdapter(0)
    adapter.start("abc", np.array([str(number) for number in range(CLASSES)]), backbone.dim)
    return Model(adapter.set_network(network, AdaptSettings().off()))


def _timm_loop(files: list[Path], size: int, device: torch.device) -> None:
    """What one writes by hand: timm's model, transform and dataset, torch's loader, batches of 32."""
    import timm
    from timm.data import ImageDataset, create_transform, resolve_data_config
    from torch.utils.data import DataLoader

    model = timm.create_model(ARCHITECTURE, num_classes=CLASSES).eval().to(device)
    config = resolve_data_config({}, model=model) | {"input_size": (3, size, size)}
    dataset = ImageDataset(str(files[0].parent), class_map={"": 0}, transform=create_transform(**config))
    with torch.no_grad():
        for images, _ in DataLoader(dataset, 32, num_workers=available_cores()):
            model(images.to(device)).softmax(1).argmax(1).tolist()


def fit_beside_a_busy_process(device: torch.device, plan: SpeedPlan) -> dict[str, Any]:
    """Fit 450 x 24 features with default threads and with one, alone and beside a process that is busy on one
    core, seconds each; always on the CPU."""
    before = torch.get_num_threads()
    found: dict[str, Any] = {"threads": before, "cores": available_cores()}
    try:
        for name in ("alone", "beside_busy"):
            busy = _busy() if name == "beside_busy" else None
            for label, threads in (("one_thread", 1), ("default", before)):
                torch.set_num_threads(threads)
                found[f"{name}_{label}"] = _feature_fit(plan)
            if busy is not None:
                busy.kill()
                busy.wait()
            found[f"{name}_ratio"] = found[f"{name}_default"] / found[f"{name}_one_thread"]
    finally:
        torch.set_num_threads(before)
    return found


def _busy() -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", "while True: pass"])


def _feature_fit(plan: SpeedPlan) -> float:
    random = np.random.default_rng(0)
    label, domain = np.arange(450) % 5, np.arange(450) % 3
    X = random.normal(size=(450, 24)) + 2 * random.normal(size=(5, 24))[label]
    start = time.perf_counter()
    EnergyAdapter(20, max_iter=3 * plan.fit_iterations, verbose=False).fit(X, label, sample_domain=domain)
    return round(time.perf_counter() - start, 3)


def frozen_fit(device: torch.device, plan: SpeedPlan) -> dict[str, Any]:
    """`fit --freeze` of PACS without sketch on MobileNetV2: seconds of each part, first with an empty cache,
    then with features cached. It needs the data beside the checkout."""
    data = SHARED / "data/pacs/pacs224.tar"
    weights = SHARED / "weights/mobilenet_v2_imagenet.fp16.safetensors"
    if plan.image_size < 224 or not data.exists():
        return {"not_measured": "it takes PACS beside the checkout, and is left out of --quick"}
    found: dict[str, Any] = {}
    before = os.environ.get("SOURCEWARD_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SOURCEWARD_CACHE"] = f"{folder}/cache"
        try:
            for name in ("not_cached", "cached"):
                start = time.perf_counter()
                model = fit(
                    data, out=f"{folder}/{name}", target="sketch", backbone="torchvision:mobilenet_v2",
                    weights=weights, freeze=True, device=device, progress=False,
                    settings={"crop_fraction": 1.0},
                )  # fmt: skip
                seconds = round(time.perf_counter() - start, 1)
                found[name] = {"seconds": seconds, "parts": model.info["cost"]["parts"]}
        finally:
            del os.environ["SOURCEWARD_CACHE"]
            os.environ |= {} if before is None else {"SOURCEWARD_CACHE": before}
    return found
