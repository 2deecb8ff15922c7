"""Every training method under every test-time method: one bench for each training method, and their grid.

DIR/methods/NAME/           the bench of one training method: its configuration, runs and models
DIR/results.json            the grid: accuracy of each pair, cost of training, failures
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sourceward._util.devices import choose_device
from sourceward._util.errors import InputError, unknown_name
from sourceward.bench.protocol.methods import NONE
from sourceward.bench.protocol.plan import OnRun, Plan, Prepared, check_engine, leave_out, prepare, run_all
from sourceward.bench.protocol.training import Training
from sourceward.bench.published import published_beside
from sourceward.bench.speed.timing import timed
from sourceward.data import DomainDataset, open_dataset
from sourceward.data.feeds import unflatten
from sourceward.fitting.checks import make_backbone
from sourceward.functional.losses import Batch
from sourceward.functional.metrics import paired_interval
from sourceward.nn.backbones import Backbone, ImagePreprocessing
from sourceward.training.finetune import FINETUNE_METHODS, Classifier, FineTuner, FineTuneSettings
from sourceward.training.loop import freeze_batchnorm
from sourceward.training.methods import list_methods, methods_table

ERM, SWAD, ALL = "erm", "swad", "all"
AVERAGED = {
    "finetune.method": ERM,
    "finetune.average": 1.0,
    "finetune.schedule": "constant",
    "finetune.select": "late",
}
"""`swad`: ERM whose iterates are averaged, all from the hundredth on, as our default for pretrained backbones
does. SWAD (Cha et al., NeurIPS 2021) chooses the first and the last one by the validation loss."""

SWAD_ABOUT = "ERM with a constant learning rate, whose iterates are averaged; `finetune.average=1`."


def training_methods(text: str) -> list[str]:
    """Return what `--methods` names; `all` stands for every method that applies.

    >>> training_methods("erm, swad")
    ['erm', 'swad']
    """
    names = [*dict.fromkeys(name.strip() for name in text.split(",") if name.strip())]
    for name in names:
        if name not in (*list_methods(), SWAD, ALL):
            raise unknown_name("training method", name, [*list_methods(), SWAD, ALL])
    return names


def layer_of(name: str) -> dict[str, Any]:
    """Return the settings of a training method: without averaging, but for `swad`; and what it needs."""
    if name == SWAD:
        return dict(AVERAGED)
    return {"finetune.method": name, "finetune.average": 0.0, **FINETUNE_METHODS[name].needs.settings}


def check_methods(plan: Plan, names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the training methods to run, and why others of `all` do not apply; refuse what cannot run."""
    given = [key for key in plan.training.settings if key in ("finetune.method", "recipe")]
    if plan.training.freeze or given:
        what = f"--set {given[0]}" if given else "--freeze"
        raise InputError(f"--methods trains a backbone by each of several methods: leave {what} out.")
    everything, unsuitable = ALL in names, dict[str, str]()
    datasets = [open_dataset(data, **dict(plan.options)) for data in plan.data]
    names = [*list_methods(), SWAD] if everything else names
    for name in names:
        try:
            for dataset in datasets:
                _check(name, plan, dataset)
        except InputError as error:
            if not everything or name in (ERM, SWAD):
                raise
            unsuitable[name] = str(error)
    return [name for name in names if name not in unsuitable], unsuitable


def _check(name: str, plan: Plan, dataset: DomainDataset) -> None:
    if dataset.kind == "features":
        raise InputError("--methods trains a backbone, but the data holds features: leave it out.")
    needs = FINETUNE_METHODS[ERM if name == SWAD else name].needs
    settings = _training_by(name, plan).fit_settings(dataset.kind).finetune
    for left_out in leave_out(dataset, plan.targets):
        needs.check(name, dataset.kind, len(set(dataset.domain_names) - set(left_out)), settings)


def _training_by(name: str, plan: Plan) -> Training:
    return replace(plan.training, settings=layer_of(name) | plan.training.settings)


def bench_methods(
    plan: Plan,
    names: Sequence[str],
    out: str | Path,
    *,
    engine: str = "local",
    workers: int = 1,
    on_run: OnRun | None = None,
) -> dict[str, Any]:
    """Run a plan for each training method and return the grid, ready for JSON.

    Args:
        plan: what each of them is evaluated by; its training has no method.
        names: of `training_methods`.
        out: folder; runs found there are not computed again.
        engine, workers, on_run: see `bench`.
    """
    check_engine(engine)
    if (Path(out) / "bench.json").exists():
        raise InputError(f"'{out}' holds results of a bench without --methods. Name another folder.")
    names, unsuitable = check_methods(plan, names)
    prepared = {}
    for name in names:
        own = replace(plan, training=_training_by(name, plan))
        prepared[name] = prepare(own, Path(out) / "methods" / name)
    trained_by = {
        job.run_key(target, method): name
        for name, own in prepared.items()
        for job in own.jobs
        for target, method in job.pairs()
    }
    tell = None if on_run is None else lambda run: on_run(run | {"trained_by": trained_by[run["key"]]})
    failed = run_all([*prepared.values()], engine, workers, tell)
    results = [own.results(lost) for own, lost in zip(prepared.values(), failed)]
    about = {row["name"]: row for row in methods_table()}
    about[SWAD] = about[ERM] | {"name": SWAD, "about": SWAD_ABOUT}
    reference = prepared[ERM if ERM in prepared else names[0]]
    cost = training_cost(plan, names, next(iter(reference.named.values())))
    targets = {target for job in reference.jobs for target, _ in job.pairs()}
    entries = [
        {
            **about[name],
            "settings": layer_of(name),
            "cost": cost.get(name),
            "validation": _validation(own),
            "against": _against(own, reference),
            "published": published_beside(name, targets),
            "table": found["table"],
            "failed": found["failed"],
            "unfinished": found["unfinished"],
        }
        for (name, own), found in zip(prepared.items(), results)
    ]
    shared = ("format", "settings", "seeds", "selection", "versions", "classes", "plus_minus")
    return {
        "kind": "grid",
        **{key: results[0][key] for key in shared},
        "reference": ERM if ERM in prepared else names[0],
        "methods": entries,
        "published": {method.name: published_beside(method.name, targets) for method in plan.methods},
        "not_applicable": unsuitable,
    }


def _validation(own: Prepared) -> float | None:
    """Return the accuracy on source validation without adaptation, the mean over trainings: by it, and not by
    the targets, a training method may be chosen."""
    found = [run["numbers"]["validation"] for run in own.runs() if run["method"] == NONE]
    return float(np.mean(found)) if found else None


def _against(own: Prepared, reference: Prepared) -> dict[str, float] | None:
    """Return the difference without adaptation to the reference method, with its 95 % interval."""
    labels, sides = own.labels(), []
    for part in (own, reference):
        runs = [run for run in part.runs() if run["method"] == NONE]
        sides.append({(run["data"], run["target"], run["seed"]): run["numbers"]["predicted"] for run in runs})
    by_target: dict[Any, list[np.ndarray]] = {}
    for (data, target, seed), predicted in sides[0].items():
        if (data, target, seed) in sides[1]:
            label, other = labels[data, target], sides[1][data, target, seed]
            change = (np.asarray(predicted) == label).astype(int) - (np.asarray(other) == label)
            by_target.setdefault((data, target), []).append(change)
    if not by_target or own is reference:
        return None
    changes = [np.stack(found) for found in by_target.values()]
    low, high = paired_interval(changes)
    return {"gain": float(np.mean([c.mean() for c in changes])), "gain_low": low, "gain_high": high}


def training_cost(plan: Plan, names: Sequence[str], dataset: DomainDataset) -> dict[str, Any]:
    """Return milliseconds of an iteration by each method, alone on the device, and their ratio to ERM's.

    Inputs are random: what is measured is the loss, its gradients and the optimizer, not reading and
    augmenting. A method that fails here has no cost.
    """
    training, device = plan.training, choose_device(plan.training.device)
    left_out = next(iter(leave_out(dataset, plan.targets)))
    sizes = len(set(dataset.domain_names) - set(left_out)), len(dataset.classes)
    found: dict[str, float] = {}
    for name in dict.fromkeys([ERM, *names]):
        settings = _training_by(name, plan).fit_settings(dataset.kind)
        with suppress(Exception):  # the runs matter more
            backbone = make_backbone(dataset, training.spec, training.weights, settings, True, 0)
            assert backbone is not None
            found[name] = iteration_ms(settings.finetune, backbone, *sizes, device)
    erm = found.get(ERM, math.nan)
    return {name: {"iteration_ms": ms, "ratio": ms / erm} for name, ms in found.items()}


def iteration_ms(
    settings: FineTuneSettings, backbone: Backbone, sources: int, classes: int, device: torch.device
) -> float:
    """Return the median milliseconds of an iteration of fine-tuning."""
    network = Classifier(backbone, backbone.dim, sources, classes, settings).to(device).train()
    if settings.freeze_batchnorm:
        freeze_batchnorm(network)
    fast, shape = device.type == "cuda", (sources, settings.batch_size)
    if fast and backbone.kind == "image":
        backbone.to(memory_format=torch.channels_last)
    label = (torch.arange(settings.batch_size, device=device) % classes).expand(shape)
    inputs: Any = unflatten(_random_inputs(backbone, math.prod(shape), device), shape)
    batch = Batch(inputs, label.contiguous())
    learner = FineTuner(network, settings, bf16=fast)
    return timed(lambda: learner.step(lambda _: batch), device, repeats=20)["median_ms"]


def _random_inputs(backbone: Backbone, count: int, device: torch.device) -> Any:
    """Return a batch that the backbone takes."""
    prepared = backbone.preprocessing
    if not isinstance(prepared, ImagePreprocessing):
        tokens = backbone.prepare(["a text of some ten words that stands for any"] * count)
        return {name: value.to(device) for name, value in tokens.items()}
    images = torch.randn(count, len(prepared.mean), *prepared.size, device=device)
    return images.contiguous(memory_format=torch.channels_last) if device.type == "cuda" else images
