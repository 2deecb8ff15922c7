"""Speed of prediction: the chain beside its backbone, whole predictions, growth and memory."""

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sourceward._util.graphs import replay
from sourceward._util.threads import threads_for
from sourceward.algorithm import adapt
from sourceward.bench.speed.models import (
    BACKBONES,
    Bare,
    SpeedPlan,
    make_features,
    make_images,
    make_model,
    make_network,
    make_projection,
)
from sourceward.bench.speed.reference import naive_chains
from sourceward.bench.speed.timing import growth, peak_memory, timed
from sourceward.functional import keyed_normals, row_keys, row_multiple
from sourceward.nn import Network, folded
from sourceward.nn.backbones import ImagePreprocessing
from sourceward.nn.encoder import ImageEncoder
from sourceward.samplers import StepSettings, run_chain
from sourceward.samplers.chain import keys_of
from sourceward.settings import AdaptSettings


def chain_beside_backbone(device: torch.device, plan: SpeedPlan) -> list[dict[str, Any]]:
    """Time backbone, naive chain and our chain at the same batch, 3 sources: for the components that `fit`
    keeps of a backbone's features, then for features of full width."""
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
    feature: Tensor, components: int | None, forward: dict[str, Any], plan: SpeedPlan
) -> dict[str, Any]:
    """Time our chain on a backbone's features, projection included, and the naive one after it."""
    device, wide = feature.device, feature.shape[1]
    network = make_network(components or wide, 3, device)
    projection, steps = make_projection(wide, components, device), plan.num_steps
    start = feature if projection is None else feature @ projection
    times = forward | _times(
        {
            "ours": _chain_call(network, feature, steps, projection),
            "one_step": _chain_call(network, feature, 1, projection),
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


def axes(device: torch.device, plan: SpeedPlan) -> list[dict[str, Any]]:
    """Time the chain along steps, sources and draws, one at a time from (20 steps, 3 sources, 1 draw)."""
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


def whole_prediction(device: torch.device, plan: SpeedPlan) -> list[dict[str, Any]]:
    """Time `Model` from pixels to probabilities on the host, with and without adaptation, and a bare
    classifier with nothing that only adaptation needs. `ratio` is to the faster of the last two."""
    cases = [(name, components) for components in (plan.components, None) for name in plan.backbones]
    return [row for name, components in cases for row in _predictions(name, components, device, plan)]


def _predictions(
    name: str, components: int | None, device: torch.device, plan: SpeedPlan
) -> Iterator[dict[str, Any]]:
    bare = Bare(name, device)
    model = make_model(name, bare, components, plan.image_size, plan.num_steps, device)
    fold, backbone = folded(model.network), model.backbone
    assert backbone is not None
    assert isinstance(backbone.preprocessing, ImagePreprocessing)
    encoder = ImageEncoder(model.network, backbone.preprocessing)

    def classify(images: Tensor) -> Tensor:
        rows = _rows(encoder(images), model.network)
        return fold.classify(rows.expand(3, -1, -1), None).mean(0)[: len(images)]

    for batch in plan.batches:
        images = make_images(batch, plan.image_size, device)
        wrap = _graphed if device.type == "cuda" else partial
        calls: dict[str, Callable[[], Any]] = {
            "with": partial(model.adapt_images, images),
            "without": partial(model.adapt_images, images, 0),
            "bare": partial(_to_host, wrap(classify, images)),
        }
        times = _times(calls, device, plan)
        fastest = min(times[k]["median_ms"] for k in ("without", "bare"))
        row = {"backbone": name, "components": components, "batch": batch, **times}
        yield row | {"ratio": times["with"]["median_ms"] / fastest}


def _to_host(call: Callable[[], Tensor]) -> Tensor:
    return call().cpu()


def memory(device: torch.device, plan: SpeedPlan) -> dict[str, Any]:
    """Measure the memory of a prediction by number of steps: a chain of any length keeps one point."""
    network, feature = make_network(512, 3, device), make_features(128, 512, device)
    keys = row_keys(feature)
    found: dict[str, Any] = {}
    for steps in plan.steps:
        call = partial(adapt, network, feature, keys, AdaptSettings(steps))
        found[str(steps)] = peak_memory(call, device)
    return {"batch": 128, "dim": 512, "sources": 3, "peak_mb_by_steps": found}


def _rows(feature: Tensor, network: Network) -> Tensor:
    """Pad rows as `adaptation.energy` does."""
    multiple = 16 if feature.is_cuda else row_multiple(network.dim, network.energy.hidden)
    return nn.functional.pad(feature, (0, 0, 0, -len(feature) % multiple))


def _chain_call(
    network: Network, feature: Tensor, steps: int, projection: Tensor | None = None
) -> Callable[[], Any]:
    """Return everything that adaptation adds: projection, keys, latent, constants, noise, steps."""
    fold, padded, graphs = folded(network), _rows(feature, network), dict[Hashable, Any]()
    own = len(feature)

    def chain(feature: Tensor) -> Any:
        if projection is not None:
            feature = (feature @ projection - network.shift) * network.scale
        start = feature.expand(network.sources, -1, -1)
        z = None if fold.latent is None else fold.prior_mean(feature).expand_as(start)
        keys = keys_of(feature if feature.is_cuda else feature[:own], 0)  # as `adaptation.energy` does
        return run_chain("langevin", start, fold.energy, fold.energy.bias(z), StepSettings(), steps, keys)

    if feature.is_cuda:
        return lambda: replay(graphs, 0, chain, padded)

    def with_threads() -> Any:
        """With as many threads as a prediction uses."""
        with threads_for(network.dim):
            return chain(padded)

    return with_threads


def _naive_call(network: Network, feature: Tensor, steps: int) -> Callable[[], Any]:
    weights, normals = network.energy.weights().detach(), _normals(feature, steps)
    latent = network.latent(feature).mean if network.latent is not None else None
    return lambda: naive_chains(weights, feature, latent, normals, StepSettings())


def _normals(feature: Tensor, steps: int) -> list[Tensor]:
    keys = row_keys(feature)
    return list(keyed_normals(keys, range(0, 2 * steps, 2), feature.shape[1], feature.dtype))


def _difference(network: Network, feature: Tensor, steps: int) -> dict[str, Any]:
    """Compare our final points with the naive ones, relative to the distance between start and end."""
    ours = _chain_call(network, feature, steps)().feature[:, : len(feature)]
    naive, _ = _naive_call(network, feature, steps)()
    length = (naive - feature).norm(dim=-1).mean()
    apart = float((ours - naive).norm(dim=-1).mean() / length)
    tolerance = 0.02 if feature.is_cuda else 1e-3  # float16 products, float32 products
    return {"relative_difference": apart, "tolerance": tolerance, "ok": apart <= tolerance}


def _graphed(function: Callable[[Tensor], Any], images: Tensor) -> Callable[[], Any]:
    graphs: dict[Hashable, Any] = {}
    return lambda: replay(graphs, 0, function, images)


def _times(calls: dict[str, Callable[[], Any]], device: torch.device, plan: SpeedPlan) -> dict[str, Any]:
    """Time each call; the naive chain needs gradients."""
    with torch.no_grad():
        times = {}
        for name, call in calls.items():
            with torch.set_grad_enabled(name == "naive"):
                times[name] = timed(call, device, repeats=plan.repeats, seconds=plan.seconds)
    return times
