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

from sourceward._util.graphs import replay
from sourceward.algorithm import adapt
from sourceward.bench.speed_models import (
    BACKBONES,
    Bare,
    make_features,
    make_images,
    make_model,
    make_network,
    make_projection,
)
from sourceward.bench.speed_reference import naive_chains
from sourceward.bench.speed_sections import chosen
from sourceward.bench.speed_timing import growth, peak_memory, timed
from sourceward.functional import keyed_normals, row_keys, row_multiple
from sourceward.nn import Network, folded
from sourceward.samplers import StepSettings, run_chain
from sourceward.samplers.chain import keys_of
from sourceward.settings import AdaptSettings
from sourceward.training.configuration import FitSettings


@dataclass(frozen=True)
class Plan:
    """What is measured. The defaults are the full run on CUDA."""

    batches: tuple[int, ...] = (1, 32, 128)
    widths: tuple[int, ...] = (256, 512, 768, 2048)
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
    components: int | None = FitSettings().components
    """Of a backbone's features, as many as `fit` keeps."""

    @classmethod
    def on(cls, device: torch.device) -> "Plan":
        """The full run; a CPU takes four times as long for 128 samples as for 32, and they are left out."""
        return cls() if device.type == "cuda" else cls(batches=(1, 32))

    @classmethod
    def quick(cls) -> "Plan":
        """Every line of code, in seconds, and no number worth keeping."""
        return cls((1, 4), (32,), (1, 4), (1, 2), (1, 2), ("resnet18",), 32, 4, 3, 0.01, 1, 2, 5)


def bench_speed(
    device: torch.device,
    plan: Plan,
    on_section: Callable[[str, dict[str, Any]], None] | None = None,
    only: str = "",
) -> dict[str, Any]:
    """Run sections; the numbers of each, or the text of what went wrong.

    Args:
        device: where.
        plan: what.
        on_section: called with the name of each section when it is over, and all that is known by then.
        only: see `chosen`.
    """
    from sourceward.bench import speed_training as training

    torch.manual_seed(plan.seed)
    sections: dict[str, Callable[[torch.device, Plan], Any]] = {
        "chain": chain_beside_backbone,
        "axes": axes,
        "predict": whole_prediction,
        "memory": memory,
        "agreement": training.agreement,
        "feature_training": training.feature_training,
        "image_training": training.image_training,
        "compiled_training": training.compiled_training,
    }
    results: dict[str, Any] = {}
    for name in chosen(only, device, plan.image_size):
        begin = time.perf_counter()
        try:
            results[name] = sections[name](device, plan)
        except Exception:  # the others are still worth having
            results[name] = {"error": traceback.format_exc()}
        if device.type == "cuda":
            torch.cuda.empty_cache()
        results.setdefault("seconds", {})[name] = round(time.perf_counter() - begin, 1)
        if on_section is not None:
            on_section(name, results)
    return results


def chain_beside_backbone(device: torch.device, plan: Plan) -> list[dict[str, Any]]:
    """The target figures: backbone, naive chain and ours at the same batch, 3 sources.

    First for the components that `fit` keeps of a backbone's features, then for features of full width.
    """
    rows: dict[int | None, list[dict[str, Any]]] = {plan.components: [], None: []}
    for name in plan.backbones:
        backbone, wide = Bare(name, device), BACKBONES[name]
        for batch in plan.batches:
            images = make_images(batch, plan.image_size, device)
            images = images.to(backbone.dtype, memory_format=torch.channels_last)
            calls: dict[str, Callable[[], Any]] = {"forward": partial(backbone, images)}
            if device.type == "cuda":
                calls["forward_graph"] = _graphed(backbone, images)
            forward = _times(calls, device, plan)
            for components, found in rows.items():
                found.append(
                    {
                        "backbone": name,
                        "components": components,
                        "batch": batch,
                        **_chain_row(make_features(batch, wide, device), components, forward, plan),
                    }
                )
    return [row for found in rows.values() for row in found]


def _chain_row(
    feature: Tensor, components: int | None, forward: dict[str, Any], plan: Plan
) -> dict[str, Any]:
    """Our chain from a backbone's features on, projection included; the naive one from where it starts."""
    device, wide = feature.device, feature.shape[1]
    network = make_network(components or wide, 3, device)
    projection, steps = make_projection(wide, components, device), plan.num_steps
    start = feature if projection is None else feature @ projection
    times = forward | _times(
        {
            "ours": _chain_call(network, feature, steps, projection),
            "naive": _naive_call(network, start, steps),
        },
        device,
        plan,
    )
    fastest = min(times[k]["median_ms"] for k in times if k.startswith("forward"))
    ours, naive = times["ours"]["median_ms"], times["naive"]["median_ms"]
    return {
        "dim": network.dim,
        **times,
        "chain_share": ours / fastest,
        "times_faster_than_naive": naive / ours,
        "same_numbers": _difference(network, start, steps),
    }


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
    """Pixels to probabilities on the host by `Model`, with and without adaptation.

    Beside them a bare classifier: backbone, components and votes, and nothing that only adaptation needs.
    `ratio` is to the faster of the two that do not adapt.
    """
    cases = [(name, components) for components in (plan.components, None) for name in plan.backbones]
    return [row for name, components in cases for row in _predictions(name, components, device, plan)]


def _predictions(
    name: str, components: int | None, device: torch.device, plan: Plan
) -> Iterator[dict[str, Any]]:
    bare = Bare(name, device)
    model = make_model(name, bare, components, plan.image_size, plan.num_steps, device)
    encoder, fold = model._encoder(), folded(model.network)

    def votes(images: Tensor) -> Tensor:
        rows = _rows(encoder(images), model.network)
        return fold.classify(rows.expand(3, -1, -1), None).mean(0)[: len(images)]

    for batch in plan.batches:
        images = make_images(batch, plan.image_size, device)
        wrap = _graphed if device.type == "cuda" else partial
        calls: dict[str, Callable[[], Any]] = {
            "with": partial(model.adapt_images, images),
            "without": partial(model.adapt_images, images, 0),
            "bare": partial(_to_host, wrap(votes, images)),
        }
        times = _times(calls, device, plan)
        fastest = min(times[k]["median_ms"] for k in ("without", "bare"))
        row = {"backbone": name, "components": components, "batch": batch, **times}
        yield row | {"ratio": times["with"]["median_ms"] / fastest}


def _to_host(call: Callable[[], Tensor]) -> Tensor:
    return call().cpu()


def memory(device: torch.device, plan: Plan) -> dict[str, Any]:
    """Memory of a prediction by number of steps: the chain keeps one point, however long it is."""
    network, feature = make_network(512, 3, device), make_features(128, 512, device)
    keys = row_keys(feature)
    found: dict[str, Any] = {}
    for steps in plan.steps:
        call = partial(adapt, network, feature, keys, AdaptSettings(steps))
        found[str(steps)] = peak_memory(call, device)
    return {"batch": 128, "dim": 512, "sources": 3, "peak_mb_by_steps": found}


def _rows(feature: Tensor, network: Network) -> Tensor:
    """Padded as `adapters.ebtsa` pads."""
    multiple = 16 if feature.is_cuda else row_multiple(network.dim, network.energy.hidden)
    return nn.functional.pad(feature, (0, 0, 0, -len(feature) % multiple))


def _chain_call(
    network: Network, feature: Tensor, steps: int, projection: Tensor | None = None
) -> Callable[[], Any]:
    """Everything adaptation adds: projection, keys, latent, what is constant on the way, noise, steps."""
    fold, padded, graphs = folded(network), _rows(feature, network), dict[Hashable, Any]()

    def chain(feature: Tensor) -> Any:
        if projection is not None:
            feature = (feature @ projection - network.shift) * network.scale
        start = feature.expand(network.sources, -1, -1)
        z = None if fold.latent is None else fold.prior_mean(feature).expand_as(start)
        keys = keys_of(feature, 0)
        return run_chain("langevin", start, fold.energy, fold.energy.bias(z), StepSettings(), steps, keys)

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
