"""The cost of an iteration by each training method, measured alone on the device and kept beside the runs.

DIR/cost.json               milliseconds and ratio of each method, with the code and the device
"""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from sourceward._util import values
from sourceward._util.devices import choose_device
from sourceward._util.storage import write_whole
from sourceward.bench.protocol.plan import Plan, Prepared, leave_out
from sourceward.bench.protocol.provenance import code_version, versions
from sourceward.bench.protocol.runs import key_of
from sourceward.bench.protocol.training import Training
from sourceward.bench.speed.timing import timed
from sourceward.data import DomainDataset
from sourceward.data.feeds import unflatten
from sourceward.fitting.checks import make_backbone
from sourceward.functional.losses import Batch
from sourceward.nn.backbones import Backbone, ImagePreprocessing
from sourceward.training.finetune import Classifier, FineTuner, FineTuneSettings
from sourceward.training.loop import freeze_batchnorm

FILE = "cost.json"
Costs = dict[str, dict[str, float]]


def measured_by(prepared: Prepared, plan: Plan) -> dict[str, str]:
    """Return what costs depend on: code, device, data and the settings that all training methods share."""
    data = {job.name: job.fingerprint for job in prepared.jobs}
    training = key_of([plan.training.identity(), data])
    return {"code": code_version(), "machine": versions()["machine"], "training": training}


def known_costs(out: Path, of: dict[str, str]) -> Costs:
    """Return what was measured before, `of` the same code, device and training."""
    try:
        found = values.read_json(out / FILE)
    except ValueError:
        return {}
    return found["methods"] if isinstance(found, dict) and found.get("of") == of else {}


def keep_costs(out: Path, of: dict[str, str], costs: Costs) -> Costs:
    """Add costs to those that are known, and return all of them."""
    costs = known_costs(out, of) | costs
    write_whole(out / FILE, json.dumps({"of": of, "methods": costs}, indent=1) + "\n")
    return costs


def training_cost(plan: Plan, trainings: Mapping[str, Training], dataset: DomainDataset) -> Costs:
    """Return milliseconds of an iteration by each method, alone on the device, and their ratio to ERM's.

    Inputs are random: what is measured is the loss, its gradients and the optimizer, not reading and
    augmenting. A method that fails here has no cost; where ERM fails, none has.

    Args:
        plan: of the grid.
        trainings: by the name of the method, that of ERM first.
        dataset: whose kind and sizes are taken.
    """
    device = choose_device(plan.training.device)
    left_out = next(iter(leave_out(dataset, plan.targets)))
    sizes = len(set(dataset.domain_names) - set(left_out)), len(dataset.classes)
    found: dict[str, float] = {}
    for name, training in trainings.items():
        settings = training.fit_settings(dataset.kind)
        with suppress(Exception):  # the runs matter more
            backbone = make_backbone(dataset, training.spec, training.weights, settings, True, 0)
            assert backbone is not None
            found[name] = iteration_ms(settings.finetune, backbone, *sizes, device)
    first = found.get(next(iter(trainings)))
    if first is None:
        return {}
    return {name: {"iteration_ms": ms, "ratio": ms / first} for name, ms in found.items()}


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
