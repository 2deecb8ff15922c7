"""Speed of training beside ordinary training, and predictions at full speed beside a float32 reference."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sourceward.adaptation import EnergyAdaptation
from sourceward.bench.speed.models import SpeedPlan
from sourceward.bench.speed.reference import naive_chains
from sourceward.bench.speed.timing import timed, wait
from sourceward.data.arrays import load_numpy
from sourceward.data.augment import IMAGENET_MEAN, IMAGENET_STD, Augmentation, augment
from sourceward.data.feeds import ResidentFeed
from sourceward.estimator import EnergyAdapter
from sourceward.functional import Coefficients, keyed_normals, row_keys
from sourceward.nn import Network
from sourceward.nn.network import CLASSIFIER_WEIGHT
from sourceward.samplers import StepSettings
from sourceward.settings import AdaptSettings, LoopSettings, TrainSettings
from sourceward.training.loop import freeze_batchnorm
from sourceward.training.trainer import Trainer

SOURCES, CLASSES, IMAGES = 3, 7, 400
"""As in PACS; images of each source that live on the device."""


def agreement(device: torch.device, plan: SpeedPlan) -> list[dict[str, Any]]:
    """Compare our predictions on real features at full speed with naive float32 chains on the CPU."""
    return [_agreement(name, *data, device, plan) for name, data in _real_features(plan).items()]


def _agreement(
    name: str, X: np.ndarray, y: np.ndarray, domain: np.ndarray, device: torch.device, plan: SpeedPlan
) -> dict[str, Any]:
    target, source = domain < 0, domain >= 0
    est = EnergyAdapter(plan.num_steps, max_iter=plan.fit_iterations, device=device.type, verbose=False)
    network = est.fit(X[source], y[source], sample_domain=domain[source]).network_.to("cpu")
    feature = est.rescale(X[target][:4096])
    labels = np.searchsorted(est.classes_, y[target][:4096])
    reference = _reference(network, feature, plan.num_steps).argmax(1).numpy()
    adapter = EnergyAdaptation(AdaptSettings(plan.num_steps, aggregation="mean"))
    ours = adapter(network.to(device), feature.to(device)).probabilities.argmax(1)
    agree = float((ours == reference).mean())
    gap = 100 * float(abs((ours == labels).mean() - (reference == labels).mean()))
    return {
        "data": name,
        "rows": len(labels),
        "agreement": agree,
        "accuracy": float((ours == labels).mean()),
        "accuracy_gap_points": gap,
        "ok": agree >= 0.999 and gap <= 0.1,
    }


def _real_features(plan: SpeedPlan) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return features, labels and domains (the target is -1) of digits rotated by right angles, and of PACS
    where its feature files are present."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    rotated = np.concatenate([np.rot90(digits.images, k, (1, 2)).reshape(-1, 64) for k in (0, 1, 2)])
    domain = np.repeat([0, 1, -1], len(digits.target))
    found = {"digits": (rotated.astype(np.float32), np.tile(digits.target, 3), domain)}
    folder = Path(__file__).parents[5] / "shared" / "data" / "banks"
    names = ("pacs_mobilenetv2_frozen_without_sketch", "pacs_resnet50_without_art_painting")
    for name in names if plan.image_size >= 224 else ():
        if (folder / f"{name}.npz").exists():
            bank = load_numpy(folder / f"{name}.npz")
            held_out = bank["domains"].tolist().index(str(bank["held_out"]))
            domain = np.where(bank["domain"] == held_out, -1, bank["domain"].astype(int))
            found[name] = (bank["features"].astype(np.float32), bank["label"].astype(int), domain)
    return found


def _reference(network: Network, feature: Tensor, steps: int) -> Tensor:
    """Return probabilities by naive chains in float32."""
    assert network.latent is not None
    normals = keyed_normals(row_keys(feature), range(0, 2 * steps, 2), feature.shape[1])
    with torch.no_grad():
        weights, z = network.energy.weights(), network.latent(feature).mean
    ends, _ = naive_chains(weights, feature, z, list(normals), StepSettings())
    with torch.no_grad():
        own, pooled = network.centers, network.centers.mean(0).expand_as(network.centers)
        latents = [network.latent(centers).mean for centers in (own, pooled)]
        parts = [network.head(ends, None, latent).softmax(-1) for latent in latents]
        weight, bias = network.lda()
        parts = parts * CLASSIFIER_WEIGHT + [(ends @ weight.T + bias).softmax(-1)] * int(network.lda_weight)
        return torch.stack(parts).mean((0, 1))


def feature_training(device: torch.device, plan: SpeedPlan) -> dict[str, Any]:
    """Time an iteration of `EnergyAdapter` on 256 features, 3 sources, 32 chains of 20 steps."""
    network = _initialised(Network(SOURCES, CLASSES, 256, "pooled"), device)
    inputs = [torch.randn(1000, 256, device=device) for _ in range(SOURCES)]
    labels = [torch.randint(CLASSES, (1000,), device=device) for _ in range(SOURCES)]
    trainer = Trainer(network.train(), LoopSettings(10**6), TrainSettings(), EnergyAdapter().kl_weight)
    feed = ResidentFeed(inputs, labels, 128)
    return timed(lambda: trainer.step(feed), device, repeats=plan.repeats, seconds=4 * plan.seconds)


def image_training(device: torch.device, plan: SpeedPlan, compiled: bool = False) -> dict[str, Any]:
    """Time ResNet-18 iterations on device-resident uint8 images with augmentation: ordinary training, and
    Algorithm 1, with or without compiled backbones. On CUDA each is one graph."""
    size, batch, count = plan.image_size, plan.train_batch, plan.train_iterations
    shape = (IMAGES, 3, size, size)
    inputs = [torch.randint(256, shape, dtype=torch.uint8, device=device) for _ in range(SOURCES)]
    labels = [torch.randint(CLASSES, (IMAGES,), device=device) for _ in range(SOURCES)]

    def prepare(images: Tensor, generator: torch.Generator) -> Tensor:
        images = augment(images, Augmentation(), generator=generator, mean=IMAGENET_MEAN, std=IMAGENET_STD)
        return images.contiguous(memory_format=torch.channels_last)

    feed = ResidentFeed(inputs, labels, batch, prepare=prepare)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
    found: dict[str, Any] = {"images": SOURCES * batch, "size": size, "iterations": count}
    for name, make in (("erm", _erm), ("full", _full)):
        found[name] = _iterations(make(device, compiled), feed, device, count)
    found["ratio"] = found["full"]["ms"] / found["erm"]["ms"]
    found["minutes_per_10000"] = 10_000 * found["full"]["ms"] / 60e3
    return found


def _erm(device: torch.device, compiled: bool) -> Any:
    from sourceward.training.finetune import Classifier, FineTuner, FineTuneSettings

    settings = FineTuneSettings(compile=compiled)
    classifier = Classifier(_resnet(device), 512, SOURCES, CLASSES, settings).to(device).train()
    freeze_batchnorm(classifier)
    return FineTuner(classifier, settings, bf16=device.type == "cuda")


def _full(device: torch.device, compiled: bool) -> Any:
    network = _initialised(Network(SOURCES, CLASSES, 512, "prototype", _resnet(device)), device)
    freeze_batchnorm(network.train())
    options: dict[str, Any] = {"bf16": device.type == "cuda", "compile": compiled}
    settings = TrainSettings(chains=None, feature_noise=0.0)
    return Trainer(network, LoopSettings(10**6), settings, Coefficients().kl, **options)


def _resnet(device: torch.device) -> nn.Module:
    import torchvision

    model = torchvision.models.resnet18(weights=None)
    model.fc = nn.Identity()
    return model.to(device, memory_format=torch.channels_last)


def _initialised(network: Network, device: torch.device) -> Network:
    network.reset_parameters(torch.Generator().manual_seed(0))
    return network.to(device)


def _iterations(trainer: Any, feed: ResidentFeed, device: torch.device, count: int) -> dict[str, float]:
    """Return milliseconds per iteration: the mean of `count`, and quartiles over groups of ten."""
    for _ in range(max(count // 10, 1)):
        trainer.step(feed)
    wait(device)
    groups, begin = [], time.perf_counter()
    for start in range(0, count, 10):
        here, number = time.perf_counter(), min(10, count - start)
        for _ in range(number):
            trainer.step(feed)
        wait(device)
        groups.append(1e3 * (time.perf_counter() - here) / number)
    mean = 1e3 * (time.perf_counter() - begin) / count
    low, middle, high = np.percentile(groups, [25, 50, 75]).tolist()
    return {"ms": mean, "low_ms": low, "median_ms": middle, "high_ms": high}
