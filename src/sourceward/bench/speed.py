"""`sourceward bench speed`: what adaptation costs beside the backbone, and whether speed changes answers.

Every section stands alone: one that fails says why in its place, and the others go on.
"""

import time
import traceback
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sourceward.algorithm import adapt
from sourceward.bench.speed_reference import naive_chains
from sourceward.bench.speed_timing import growth, peak_memory, timed
from sourceward.functional import keyed_normals, row_keys
from sourceward.graphs import replay
from sourceward.nn import Network, folded
from sourceward.samplers import StepSettings, walk
from sourceward.settings import AdaptSettings

BACKBONES = {"resnet18": 512, "resnet50": 2048}
CLASSES = 7


@dataclass(frozen=True)
class Plan:
    """What is measured. The defaults are the full run."""

    batches: tuple[int, ...] = (1, 32, 128)
    widths: tuple[int, ...] = (512, 768, 2048)
    steps: tuple[int, ...] = (1, 5, 20, 50, 100)
    sources: tuple[int, ...] = (1, 3, 5)
    draws: tuple[int, ...] = (1, 10)
    backbones: tuple[str, ...] = ("resnet18", "resnet50")
    image_size: int = 224
    num_steps: int = 20
    repeats: int = 30
    seconds: float = 0.7
    """For each measurement."""
    train_iterations: int = 500
    train_batch: int = 128
    fit_iterations: int = 100
    seed: int = 0

    @classmethod
    def quick(cls) -> "Plan":
        """Every line of code, in seconds, and no number worth keeping."""
        return cls((1, 4), (32,), (1, 4), (1, 2), (1, 2), ("resnet18",), 32, 4, 3, 0.01, 1, 2, 5)


def bench_speed(
    device: torch.device, plan: Plan, on_section: Callable[[str, dict[str, Any]], None] | None = None
) -> dict[str, Any]:
    """Run every section; the numbers of each, or the text of what went wrong.

    Args:
        device: where.
        plan: what.
        on_section: called with the name of each section when it is over, and all that is known by then.
    """
    from sourceward.bench.speed_training import agreement, feature_training, image_training

    torch.manual_seed(plan.seed)
    sections: dict[str, Callable[[], Any]] = {
        "chain": lambda: chain_beside_backbone(device, plan),
        "axes": lambda: axes(device, plan),
        "predict": lambda: whole_prediction(device, plan),
        "memory": lambda: memory(device, plan),
        "agreement": lambda: agreement(device, plan),
        "feature_training": lambda: feature_training(device, plan),
    }
    if device.type == "cuda" or plan.image_size < 224:
        sections["image_training"] = lambda: image_training(device, plan)
    results: dict[str, Any] = {}
    for name, section in sections.items():
        begin = time.perf_counter()
        try:
            results[name] = section()
        except Exception:  # the others are still worth having
            results[name] = {"error": traceback.format_exc()}
        if device.type == "cuda":
            torch.cuda.empty_cache()
        results.setdefault("seconds", {})[name] = round(time.perf_counter() - begin, 1)
        if on_section is not None:
            on_section(name, results)
    return results


def chain_beside_backbone(device: torch.device, plan: Plan) -> list[dict[str, Any]]:
    """The target figures: backbone, naive chain and ours at the same batch, 3 sources."""
    rows = []
    for name in plan.backbones:
        backbone, dim = make_backbone(name, device), BACKBONES[name]
        network = make_network(dim, 3, device)
        for batch in plan.batches:
            images, feature = make_images(batch, plan.image_size, device), make_features(batch, dim, device)
            calls: dict[str, Callable[[], Any]] = {
                "forward": partial(backbone, images),
                "ours": _chain_call(network, feature, plan.num_steps),
                "naive": _naive_call(network, feature, plan.num_steps),
            }
            if device.type == "cuda":
                calls["forward_graph"] = _graphed(backbone, images)
            times = _times(calls, device, plan)
            fastest = min(times[k]["median_ms"] for k in times if k.startswith("forward"))
            ours, naive = times["ours"]["median_ms"], times["naive"]["median_ms"]
            rows.append(
                {
                    "backbone": name,
                    "dim": dim,
                    "batch": batch,
                    **times,
                    "chain_share": ours / fastest,
                    "times_faster_than_naive": naive / ours,
                    "same_numbers": _difference(network, feature, plan.num_steps),
                }
            )
    return rows


def axes(device: torch.device, plan: Plan) -> list[dict[str, Any]]:
    """Cost along steps, sources and draws, one at a time from (20 steps, 3 sources, 1 draw)."""
    batch = 128 if device.type == "cuda" else 32
    batch = min(batch, max(plan.batches))
    found = []
    for dim in plan.widths:
        networks = {s: make_network(dim, s, device) for s in {*plan.sources, 3}}
        feature = make_features(batch, dim, device)
        for axis, values in (("steps", plan.steps), ("sources", plan.sources), ("draws", plan.draws)):
            costs = {}
            for value in values:
                here = {"steps": plan.num_steps, "sources": 3, "draws": 1} | {axis: value}
                rows = feature.repeat(here["draws"], 1)
                call = _chain_call(networks[here["sources"]], rows, here["steps"])
                costs[value] = timed(call, device, repeats=plan.repeats, seconds=plan.seconds)
            medians = {value: cost["median_ms"] for value, cost in costs.items()}
            found.append({"dim": dim, "batch": batch, "axis": axis, "costs": costs, **growth(medians)})
    return found


def whole_prediction(device: torch.device, plan: Plan) -> list[dict[str, Any]]:
    """Images to probabilities, with and without adaptation, each as one call."""
    return [row for name in plan.backbones for row in _predictions(name, device, plan)]


def _predictions(name: str, device: torch.device, plan: Plan) -> Iterator[dict[str, Any]]:
    backbone, network = make_backbone(name, device), make_network(BACKBONES[name], 3, device)
    fold, settings = folded(network), AdaptSettings(plan.num_steps)

    def adapted(images: Tensor) -> Tensor:
        feature = _rows(backbone(images).float())
        return adapt(network, feature, row_keys(feature), settings).probability[: len(images)]

    def plain(images: Tensor) -> Tensor:
        feature = _rows(backbone(images).float()).expand(network.sources, -1, -1)
        votes = [fold.head(feature, None, z).softmax(-1) for z in (fold.class_latent, fold.pooled_latent)]
        return torch.stack(votes).mean((0, 1))[: len(images)]

    wrap = _graphed if device.type == "cuda" else partial
    for batch in plan.batches:
        images = make_images(batch, plan.image_size, device)
        times = _times({"with": wrap(adapted, images), "without": wrap(plain, images)}, device, plan)
        ratio = times["with"]["median_ms"] / times["without"]["median_ms"]
        yield {"backbone": name, "batch": batch, **times, "ratio": ratio}


def memory(device: torch.device, plan: Plan) -> dict[str, Any]:
    """Memory of a prediction by number of steps: the chain keeps one point, however long it is."""
    network, feature = make_network(512, 3, device), make_features(128, 512, device)
    keys = row_keys(feature)
    found: dict[str, Any] = {}
    for steps in plan.steps:
        call = partial(adapt, network, feature, keys, AdaptSettings(steps))
        found[str(steps)] = peak_memory(call, device)
    return {"batch": 128, "dim": 512, "sources": 3, "peak_mb_by_steps": found}


def make_backbone(name: str, device: torch.device) -> Callable[[Tensor], Tensor]:
    """A torchvision network with random weights and no last layer; bfloat16 on CUDA, channels last."""
    import torchvision

    model = getattr(torchvision.models, name)(weights=None)
    model.fc = nn.Identity()
    model = model.eval().requires_grad_(False).to(device, memory_format=torch.channels_last)
    return model.bfloat16() if device.type == "cuda" else model


def make_images(batch: int, size: int, device: torch.device) -> Tensor:
    images = torch.randn(batch, 3, size, size, device=device)
    images = images.to(memory_format=torch.channels_last)
    return images.bfloat16() if device.type == "cuda" else images


def make_features(batch: int, dim: int, device: torch.device) -> Tensor:
    return torch.randn(batch, dim, generator=torch.Generator().manual_seed(1)).to(device)


def make_network(dim: int, sources: int, device: torch.device) -> Network:
    network = Network(sources, CLASSES, dim, "pooled")
    network.reset_parameters(torch.Generator().manual_seed(0))
    network.centers.copy_(torch.randn(network.centers.shape, generator=torch.Generator().manual_seed(2)))
    return network.requires_grad_(False).eval().to(device)


def _rows(feature: Tensor) -> Tensor:
    """Padded as `adapters.ebtsa` pads."""
    multiple = 16 if feature.is_cuda else 4
    return nn.functional.pad(feature, (0, 0, 0, -len(feature) % multiple))


def _chain_call(network: Network, feature: Tensor, steps: int) -> Callable[[], Any]:
    """Everything adaptation adds: keys, latent, what is constant along the chain, noise, steps."""
    fold, padded, graphs = folded(network), _rows(feature), dict[Hashable, Any]()

    def chain(feature: Tensor) -> Any:
        z = fold.latent(feature).mean if fold.latent is not None else None
        start = feature.expand(network.sources, -1, -1)
        bias = fold.energy.bias(None if z is None else z.expand_as(start))
        return walk("langevin", start, fold.energy, bias, StepSettings(), steps, row_keys(feature))

    if feature.is_cuda:
        return lambda: replay(graphs, 0, chain, padded)
    return lambda: chain(padded)


def _naive_call(network: Network, feature: Tensor, steps: int) -> Callable[[], Any]:
    weights, normals = network.energy.weights().detach(), _normals(feature, steps)
    latent = network.latent(feature).mean if network.latent is not None else None
    return lambda: naive_chains(weights, feature, latent, normals, StepSettings())


def _normals(feature: Tensor, steps: int) -> list[Tensor]:
    keys = row_keys(feature)
    return list(keyed_normals(keys, range(0, 2 * steps, 2), feature.shape[1], feature.dtype))


def _difference(network: Network, feature: Tensor, steps: int) -> dict[str, Any]:
    """How far our ends are from the naive ones, relative to how far the samples moved."""
    ours = _chain_call(network, feature, steps)().feature[:, : len(feature)]
    naive, _ = _naive_call(network, feature, steps)()
    moved = (naive - feature).norm(dim=-1).mean()
    apart = float((ours - naive).norm(dim=-1).mean() / moved)
    tolerance = 0.02 if feature.is_cuda else 1e-3  # float16 products, float32 products
    return {"relative_difference": apart, "tolerance": tolerance, "ok": apart <= tolerance}


def _graphed(function: Callable[[Tensor], Any], images: Tensor) -> Callable[[], Any]:
    graphs: dict[Hashable, Any] = {}
    return lambda: replay(graphs, 0, function, images)


def _times(calls: dict[str, Callable[[], Any]], device: torch.device, plan: Plan) -> dict[str, Any]:
    """Each in turn; a naive chain takes its time, so it is repeated less."""
    with torch.no_grad():
        times = {}
        for name, call in calls.items():
            with torch.set_grad_enabled(name == "naive"):
                times[name] = timed(call, device, repeats=plan.repeats, seconds=plan.seconds)
    return times
