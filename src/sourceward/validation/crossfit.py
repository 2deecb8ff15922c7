"""Folds for a backbone that is trained: one short fine-tuning without each source.

A source that the backbone was trained on is no unseen domain. Here the held-out source meets a backbone that
was fine-tuned without it, from the same start as the model's own and for a share of its iterations.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from sourceward._util.devices import ALONE
from sourceward.adaptation.copies import CopyEncoder, Statistics
from sourceward.adaptation.tta import CopyFeatures, copy_features
from sourceward.data import DomainDataset
from sourceward.data.loading import Samples, SourceData, encode, load_sources, prepare_samples
from sourceward.nn.backbones import Backbone, ImagePreprocessing
from sourceward.nn.feature_statistics import FeatureStatistics, early_maps, mean_statistics
from sourceward.training.finetune import finetune
from sourceward.training.run_folder import CROSSFIT, Context, RunFolder
from sourceward.validation.folds import Fold, Source, chosen_rows

STATISTICS_ROWS = 400
"""Images of a source that its amplitudes and feature statistics are taken from."""

TTA_ROWS = 1000
"""Images of a held-out source that are tested."""

MIN_ITERATIONS = 100
"""Of a fine-tuning without a source."""


def crossfit_folds(
    sources: DomainDataset,
    start: Backbone,
    context: Context,
    transforms: Sequence[str],
    amplitudes: Tensor | None,
) -> Iterator[Fold]:
    """Folds whose features come from a backbone that was fine-tuned without the held-out source.

    Args:
        sources: three or more.
        start: the backbone before any training; not changed.
        context: of the fit; every fine-tuning has a folder of its own and can be resumed.
        transforms: whose copies are encoded, too.
        amplitudes: of all sources, for `fourier`.
    """
    settings = context.settings
    short = max(
        min(MIN_ITERATIONS, settings.finetune.max_iter), round(settings.crossfit * settings.finetune.max_iter)
    )
    for number, name in enumerate(sources.domain_names):
        folder = RunFolder(context.folder.path / CROSSFIT / str(number), context.folder.configuration)
        own = replace(context, folder=folder, board=None, processes=ALONE)
        backbone = copy.deepcopy(start)
        augmentation, fraction = settings.augmentation, settings.validation_fraction
        data = load_sources(
            sources.without([name]), backbone, context.device, fraction, augmentation, False, folder.streams()
        )
        brief = replace(settings.finetune, max_iter=short, compile=False)  # too short to pay for compiling
        classifier, _ = finetune(data, backbone, own, brief)
        backbone = backbone.eval().requires_grad_(False)
        backbone.load_state_dict(classifier.backbone.state_dict())
        others = None if amplitudes is None else amplitudes[_all_but(number, len(amplitudes))]
        yield make_fold(name, sources, data, backbone, context, transforms, others)


def make_fold(
    name: str,
    sources: DomainDataset,
    data: SourceData,
    backbone: Backbone,
    context: Context,
    transforms: Sequence[str],
    amplitudes: Tensor | None,
) -> Fold:
    """The fold of one held-out source, encoded by a backbone that was trained without it."""
    labels = data.labels.cpu()
    train = [Source(encode(backbone, data.samples, rows).cpu(), labels[rows]) for rows in data.train]
    held = sources.of_domains([name])
    held = held.select(chosen_rows(len(held), TTA_ROWS))
    samples = prepare_samples(held, backbone, context.device, show=False)
    everything, label = slice(0, len(held)), torch.from_numpy(held.labels)
    if not transforms:
        return Fold(name, train, encode(backbone, samples, everything).cpu(), label)
    statistics = Statistics(len(train), amplitudes, source_statistics(backbone, data.samples, data.train))
    copies = encode_copies("+".join(transforms), statistics, backbone, samples, everything)
    (plain,) = copies.pop("")
    return Fold(name, train, plain.feature, label, copies)


def encode_copies(
    names: str, statistics: Statistics, backbone: Backbone, samples: Samples, rows: slice
) -> dict[str, list[CopyFeatures]]:
    """Raw features of samples, under the name "", and of their copies by transform; on the host."""

    assert isinstance(backbone.preprocessing, ImagePreprocessing)
    encoder = CopyEncoder(backbone, backbone.preprocessing, names, statistics)
    found = copy_features(encoder, samples.stored(rows))
    return {
        name: [CopyFeatures(part.feature.cpu(), part.weight) for part in parts]
        for name, parts in found.items()
    }


def statistics_layers(backbone: nn.Module) -> list[str]:
    """Modules whose feature maps AdaIN changes; none where the backbone has no early feature maps."""
    prepared = getattr(backbone, "preprocessing", None)
    if not isinstance(backbone, Backbone) or not isinstance(prepared, ImagePreprocessing):
        return []
    return [f"network.{name}" for name in early_maps(backbone.network, prepared.size, len(prepared.mean))]


def source_statistics(backbone: nn.Module, samples: Samples, train: list[slice]) -> FeatureStatistics | None:
    """Feature statistics of each source's images; None where the backbone has no early feature maps."""
    layers = statistics_layers(backbone.eval())
    if not layers:
        return None
    few = [slice(rows.start, min(rows.stop, rows.start + STATISTICS_ROWS)) for rows in train]
    found = [mean_statistics(backbone, layers, samples.batches(rows)) for rows in few]
    return FeatureStatistics({layer: torch.stack([of[layer] for of in found]) for layer in layers})


def _all_but(number: int, count: int) -> list[int]:
    return [other for other in range(count) if other != number]
