"""Algorithm 1 from end to end: backbone, heads and energies are trained together, as in the paper."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from sourceward._util.devices import Meter
from sourceward._util.errors import TrainingError
from sourceward._util.storage import save_tensors
from sourceward.adaptation.energy import EnergyAdaptation
from sourceward.data.corrupting import corrupt_batch
from sourceward.data.loading import SourceData, encode
from sourceward.nn import Network
from sourceward.nn.backbones import Backbone
from sourceward.settings import AdaptSettings
from sourceward.training.configuration import FitSettings
from sourceward.training.distillation import distil
from sourceward.training.learner import flat
from sourceward.training.loop import Training
from sourceward.training.run_folder import KEPT, LAST, Context
from sourceward.training.trainer import Trainer

NORM_BATCH, NORM_BATCHES = 32, 10
"""Samples of each source in a batch, and batches, from which batch norm statistics are first estimated."""

TOGETHER = 64
"""Samples of one pass without training on a CPU."""

SAME = 1e-4
"""Distance of features from their mean, in units of their norm, below which they are all the same."""


def train_joint(
    data: SourceData, backbone: Backbone, context: Context
) -> tuple[Network, dict[str, Any], dict[str, Any]]:
    """Train a network with its backbone; return it with its scores on source validation and its cost.

    The weights with the best adapted accuracy on source validation are kept.
    """
    settings: FitSettings = context.settings
    processes, device = context.processes, context.device
    network = Network(len(data.train), len(data.dataset.classes), backbone.dim, settings.head, backbone)
    network.to(device)
    fast = device.type == "cuda"
    if fast and backbone.kind == "image":
        backbone.to(memory_format=torch.channels_last)
    network.reset_parameters(torch.Generator().manual_seed(context.seed))
    if _open_residuals(backbone) or not settings.freeze_batchnorm:
        _fit_batchnorm(backbone, data, context.seed)
    _fit_scale(network.eval(), data)
    parts = settings.train_settings(processes.count)
    options: dict[str, Any] = {"processes": processes, "bf16": fast, "compile": settings.finetune.compile}
    options["per_source"] = settings.update_per_source
    learner = Trainer(network, settings.loop(), parts, settings.kl_weight, context.seed, **options)
    meter, size = Meter(device), max(1, settings.batch_size // processes.count)
    adapt = settings.adapt().before_learning()
    samples: Any = data.samples
    if settings.corrupts(backbone.kind, len(data.train)):
        samples = replace(samples, change=corrupt_batch)

    def scores(current: Network) -> dict[str, Any]:
        _fit_centers(current, data, (_features(current, data, rows) for rows in data.train))
        calibrate(current, data)
        if settings.keep_checkpoints and processes.is_main:
            kept = context.folder.path / KEPT / f"{learner.iteration:06d}.safetensors"
            save_tensors(kept, current.state_dict(), {"iteration": learner.iteration})
        return validation_scores(current, data, adapt)

    training = Training(
        learner,
        lambda start: samples.feed(data.train, data.labels, size, learner.seed, start),
        size * len(data.train) * processes.count,
        name="joint",
        checkpoint=context.folder.checkpoint,
        checkpoint_every=settings.checkpoint_every,
        validate=scores,
        evaluate_every=settings.evaluate_every,
        select_on="adapted",
        log=context.log("joint"),
        progress=context.progress if processes.is_main else False,
    )
    current = training.run()
    best = training.best_scores
    if best["iteration"] != learner.iteration:
        if processes.is_main:
            _complete(current, data, context)
            path = context.folder.path / LAST
            save_tensors(path, current.state_dict(), {"iteration": learner.iteration})
        current.distilled = None
        current.load_state_dict(training.best)
    _complete(current, data, context)
    cost = meter.read() | {"images_per_second": training.speed.steady()}
    return current, best | {"last_iteration": learner.iteration}, cost


@torch.no_grad()
def _features(network: Network, data: SourceData, rows: slice, everything: bool = False) -> Tensor:
    """Features of rows of the sources. In batches on a CPU, too: training need not care that the bits of a
    sample then depend on the others, and small images take a tenth of the time."""
    rows = rows if everything else data.first(rows)
    if data.labels.device.type != "cpu":
        return encode(network.features, data.samples, rows)
    stored, parts = data.samples.stored(rows), []
    encoder: Callable[[Any], Tensor] = network.features
    while some := [*islice(stored, TOGETHER)]:
        parts.append(encoder(data.samples.normalize(torch.cat(some))))
    return torch.cat(parts)


def _batchnorms(backbone: Backbone) -> list[nn.modules.batchnorm._BatchNorm]:
    return [part for part in backbone.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]


@torch.no_grad()
def _open_residuals(backbone: Backbone) -> bool:
    """Whether the batch norms have seen no data, so that the weights are random. If so, residual branches
    that start at zero are opened: of a small image a strided ResNet without them sees one corner, and the
    scale of the features would be fitted to that."""
    norms = _batchnorms(backbone)
    if not norms or any(norm.running_mean is None or norm.running_mean.any() for norm in norms):
        return False
    for norm in norms:
        if norm.weight is not None and not norm.weight.any():
            nn.init.ones_(norm.weight)
    return True


@torch.no_grad()
def _fit_batchnorm(backbone: Backbone, data: SourceData, seed: int) -> None:
    """Batch norm statistics of the sources, where there are none or training will use those of its batches:
    the scale of the features is fitted once, and statistics of other data would give another one."""
    norms = _batchnorms(backbone)
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean of all batches
    feed = data.samples.feed(data.train, data.labels, NORM_BATCH, seed, 0)
    generator = torch.Generator(device=data.labels.device).manual_seed(seed)
    torch.manual_seed(seed)  # of dropout
    for _ in range(NORM_BATCHES if norms else 0):
        backbone.train()(flat(feed(generator).feature))
    for norm, momentum in zip(norms, momenta):
        norm.momentum = momentum


def _fit_scale(network: Network, data: SourceData) -> None:
    """Centre and scale of the source features, and their class centres, before any training."""
    parts = [_features(network, data, rows) for rows in data.train]
    raw = torch.cat(parts)
    if (raw - raw.mean(0)).norm(dim=1).mean() <= SAME * raw.norm(dim=1).mean():
        raise TrainingError(
            "The backbone's weights give every sample the same features, so they have no scale to train on. "
            "Start from pretrained weights, raise `image_size`, or use `recipe=two-stage`."
        )
    network.fit_scale(raw)
    _fit_centers(network, data, [network.rescale(part) for part in parts])


def _fit_centers(network: Network, data: SourceData, features: Iterable[Tensor]) -> None:
    """Class centres of every source, from the features of its first rows."""
    network.centers.zero_()
    for source, (rows, feature) in enumerate(zip(data.train, features)):
        network.fit_centers(source, feature, data.labels[rows.start : rows.start + len(feature)])
    network.fill_centers()


def calibrate(network: Network, data: SourceData) -> None:
    """Calibrate the energies, and weight the LDA head, on rows that were not trained on."""
    rows = [val if val.stop > val.start else train for train, val in zip(data.train, data.val)]
    features = [_features(network, data, part) for part in rows]
    for source, feature in enumerate(features):
        network.fit_calibration(source, feature)
    labels = [data.labels[part.start : part.start + len(x)] for part, x in zip(rows, features)]
    network.fit_lda(torch.cat(features), torch.cat(labels))


def _complete(network: Network, data: SourceData, context: Context) -> None:
    """Class centres from every training sample, calibrated energies, and the distilled sampler. Validation
    has fitted the former two, to the samples that it looks at."""
    settings: FitSettings = context.settings
    network.eval()
    if any(data.first(rows) != rows for rows in data.train):
        _fit_centers(network, data, (_features(network, data, rows, everything=True) for rows in data.train))
        calibrate(network, data)
    if settings.sampler == "distilled":
        feature = torch.cat([_features(network, data, rows) for rows in data.train])
        steps, iterations = settings.train.distilled_steps, settings.max_iter
        network.distilled = distil(network, feature, settings.adapt().step, steps, iterations, context.seed)


@torch.no_grad()
def validation_scores(network: Network, data: SourceData, settings: AdaptSettings) -> dict[str, Any]:
    """Accuracy on the validation rows of each source, with and without adaptation."""
    names = data.dataset.domain_names
    features = [_features(network, data, rows) for rows in data.val]
    labels = [data.labels[rows.start : rows.start + len(x)] for rows, x in zip(data.val, features)]
    return score_domains(network, zip(names, features, labels), settings)


def score_domains(
    network: Network, parts: Iterable[tuple[str, Tensor, Tensor]], settings: AdaptSettings
) -> dict[str, Any]:
    """Accuracy with and without adaptation on (name, rescaled features, labels), and its mean."""
    per_source = {}
    for name, feature, label in parts:
        if len(label):
            truth = label.cpu().numpy()
            plain, adapted = (
                float((EnergyAdaptation(one)(network, feature).probabilities.argmax(1) == truth).mean())
                for one in (settings.off(), settings)
            )
            per_source[name] = {"unadapted": plain, "adapted": adapted, "samples": len(label)}
    count = max(len(per_source), 1)
    means = {
        key: sum(scores[key] for scores in per_source.values()) / count for key in ("unadapted", "adapted")
    }
    return {**means, "per_source": per_source}
