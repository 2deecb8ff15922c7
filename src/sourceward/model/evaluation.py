"""Accuracy on labelled domains with and without adaptation, with a bootstrap interval of the gain."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sourceward._util.errors import InputError, unknown_name
from sourceward._util.progress import Advance, progress_bar
from sourceward.adaptation import AdaptationResult
from sourceward.adaptation.base import select_rows
from sourceward.adaptation.tta import (
    CopyFeatures,
    copy_features,
    flat,
    levels,
    predict_each,
    stop_early,
    stopped_shares,
)
from sourceward.data import DomainDataset, open_dataset
from sourceward.data.features import extract_amplitude_mixed, extract_features
from sourceward.data.loading import encode, prepare_samples
from sourceward.data.transforms import parse_transforms
from sourceward.functional.calibration import calibration_gap, risk_coverage
from sourceward.functional.metrics import (
    MANY_CLASSES,
    balanced_accuracy,
    confusion_counts,
    interval,
    macro_f1,
    paired_draws,
)
from sourceward.model.captured import copy_encoder
from sourceward.model.estimated import estimated
from sourceward.model.examples import saved_and_lost
from sourceward.model.items import PLURAL
from sourceward.model.model import Model
from sourceward.validation.stream import ALLOW, run_stream
from sourceward.validation.trust import COVERAGES


def evaluate(
    model: Model,
    data: str | Path | DomainDataset,
    *,
    target: str | Sequence[str] = (),
    num_steps: int | None = None,
    allow: str = ALLOW[0],
    examples: bool = False,
    progress: bool | None = None,
) -> dict[str, Any]:
    """Measure accuracy on each domain, per source and aggregated, with a 95 % interval of the gain.

    Test-time augmentation (`Model.with_tta`) is part of adaptation; the unadapted accuracy has none. Beside
    accuracy it measures balanced accuracy, macro-F1, confusion and trust: calibration, and the error against
    the share of samples that are answered.

    Args:
        model: see `load`.
        data: anything `open_dataset` takes.
        target: the domains to evaluate; by default those that the model was not trained on, or all if there
            are no others.
        num_steps: instead of the model's own.
        allow: `sample` by sample, or with a state that every domain starts anew: a `stream` in random order,
            or the whole domain as one `batch`.
        examples: also return samples that adaptation saved or lost, and mistakes, with image or text.
        progress: show bars; None shows them if standard error is a terminal.

    Returns:
        {"classes": names, "domains": {name: scores}, "mean": scores}; accuracies are between 0 and 1. The
        mean is over the domains that the model was not trained on, if there are any. `majority` is the share
        of the domain's largest class. Rows of `confusion` are true classes, columns predictions. Where
        samples in doubt alone get copies, `stopped` are the shares that need none or those of the first
        transform alone, `passes` are the backbone's passes for each sample, and `all_copies` is the accuracy
        with all copies of every one. `estimated` is the gain as `estimate_gain` states it without labels.
    """
    if allow not in ALLOW:
        raise unknown_name("choice of `allow`,", allow, ALLOW)
    dataset = open_dataset(data)
    if dataset.kind != model.kind:
        raise InputError(f"This model reads {PLURAL[model.kind]}, but the data holds {PLURAL[dataset.kind]}.")
    dataset = _domains(dataset, target, model)
    labels = _labels(dataset, model)
    copies = dataset_copies(model, dataset, model.tta if num_steps != 0 else "", progress)
    random = np.random.default_rng(0)
    domains, draws = {}, {}
    for code, name in enumerate(dataset.domain_names):
        rows = np.flatnonzero(dataset.domains == code)
        if len(rows):
            there = torch.from_numpy(rows).to(model.device)
            parts = [copy._replace(feature=copy.feature[there]) for copy in copies]
            before, after, more = _predict(model, parts, num_steps, allow, labels[rows])
            domains[name], draws[name] = _scores(model, before, after, labels[rows], random)
            if num_steps is None and allow == ALLOW[0] and (here := estimated(model, before, after)):
                more["estimated"] = here
            domains[name] |= {"trained_on": name in model.sources, **more}
            if examples:
                own = replace(dataset.select(rows), labels=labels[rows], classes=model.classes)
                p, codes = (before.probabilities, after.probabilities), np.arange(len(model.classes))
                domains[name]["examples"] = saved_and_lost(*p, own.labels, codes, own, mistakes=True)
    return {"classes": [*model.classes], "domains": domains, "mean": _mean(domains, draws)}


def _predict(
    model: Model, parts: list[CopyFeatures], num_steps: int | None, allow: str, label: np.ndarray
) -> tuple[AdaptationResult, AdaptationResult, dict[str, Any]]:
    """Predictions on one domain without and with adaptation, and what a cascade leaves out."""
    before = model.adapt_features(parts[0].feature, num_steps=0)
    settings = model.settings if num_steps is None else model.settings_for(num_steps)
    tta, thresholds = (model.tta, model.tta_thresholds) if num_steps != 0 else ("", ())
    each = predict_each(model.network, parts, settings)
    after = stop_early(each, tta, thresholds).with_trust(settings.temperature)
    after = _with_state(model, after, allow)
    if not thresholds:
        return before, after, {}
    stopped = stopped_shares(each, tta, thresholds)
    passes = _passes([copy.name for copy in parts], levels(tta, thresholds), stopped)
    right = stop_early(each, tta).probabilities.argmax(1) == label
    return before, after, {"stopped": stopped, "passes": passes, "all_copies": float(right.mean())}


def _mean(domains: dict[str, Any], draws: dict[str, np.ndarray]) -> dict[str, Any]:
    """Means over the domains that the model was not trained on, or over all if there are no others."""
    averaged = [name for name, scores in domains.items() if not scores["trained_on"]] or list(domains)
    mean: dict[str, Any] = {
        key: np.mean([domains[name][key] for name in averaged], axis=0).tolist()
        for key in ("unadapted", "adapted", "gain", "majority", "stopped", "passes", "all_copies")
        if all(key in domains[name] for name in averaged)
    }
    for key in ("balanced_accuracy", "macro_f1"):
        mean[key] = {
            way: float(np.mean([domains[name][key][way] for name in averaged]))
            for way in ("unadapted", "adapted")
        }
    mean |= _interval(np.mean([draws[name] for name in averaged], axis=0))
    mean["samples"] = sum(domains[name]["samples"] for name in averaged)
    return mean


@torch.no_grad()
def dataset_features(model: Model, dataset: DomainDataset, progress: bool | None = None) -> Tensor:
    """Rescaled features of every row; those of a frozen backbone come from the cache."""
    backbone = model.backbone
    if backbone is not None and model.info.get("training", {}).get("freeze"):
        dataset = extract_features(dataset, backbone, model.device, progress)
    if dataset.kind == "features":
        return model.features(dataset.items)
    model.network.eval()
    samples = prepare_samples(dataset, backbone, model.device, show=progress)
    return encode(model.network.features, samples, slice(0, len(dataset)))


@torch.no_grad()
def dataset_copies(
    model: Model, dataset: DomainDataset, tta: str, progress: bool | None = None
) -> list[CopyFeatures]:
    """Rescaled features of every row and of its copies, the very ones that `predict` averages over.

    Amplitude-mixed copies come from the cache where the backbone is frozen.
    """
    plain = CopyFeatures(dataset_features(model, dataset, progress), 1.0)
    network, backbone, names = model.network.eval(), model.backbone, parse_transforms(tta)
    found = [plain]
    if "fourier" in names and backbone is not None and model.info.get("training", {}).get("freeze"):
        names.remove("fourier")
        assert network.amplitudes is not None
        for source in range(network.sources):
            toward, where = np.full(len(dataset), source), model.device
            mixed = extract_amplitude_mixed(dataset, backbone, network.amplitudes, toward, where, progress)
            found.append(CopyFeatures(model.features(mixed), 1 / network.sources, "fourier"))
    if names:
        samples = prepare_samples(dataset, backbone, model.device, show=progress)
        encoder = copy_encoder(model, "+".join(names), plain=False)
        images = samples.stored(slice(0, len(dataset)))
        with progress_bar(len(dataset), "features of copies", progress) as advance:
            found += flat(copy_features(encoder, _counted(images, advance), network.rescale))
    return found


def _passes(names: Sequence[str], every: Sequence[Sequence[str]], stopped: Sequence[float]) -> float:
    """Backbone passes for each sample of a cascade.

    >>> _passes(["", "hflip", "adain", "adain"], [("",), ("", "hflip"), ("", "hflip", "adain")], [0.5, 0.25])
    2.0
    """
    copies = [sum(name in level for name in names) for level in every]
    return float(np.dot(copies, [*stopped, 1 - sum(stopped)]))


def _counted(batches: Iterable[Tensor], advance: Advance) -> Iterator[Tensor]:
    """The batches, reporting the rows of those that are done."""
    done = 0
    for batch in batches:
        yield batch
        done += len(batch)
        advance(done)


def _with_state(model: Model, result: AdaptationResult, allow: str) -> AdaptationResult:
    """The predictions of a stream in random order, or of one batch, in the order of the rows."""
    if allow == ALLOW[0]:
        return result
    order = np.random.default_rng(0).permutation(len(result))
    temperature = getattr(model.adapter.stream_, "temperature", 1.0)
    together = allow == ALLOW[2]
    found = run_stream(model.network, select_rows(result, order), temperature=temperature, together=together)
    return select_rows(found, np.argsort(order))


def _trust(model: Model, result: AdaptationResult, right: np.ndarray) -> dict[str, Any]:
    """Calibration, and the error among the most trusted share of the samples."""
    fitted, confidence = model.adapter.trust_, result.probabilities.max(1)
    thresholds = {} if fitted is None else {f"{c:g}": fitted.threshold(c) for c in COVERAGES}
    return {
        "calibration_error": {
            "confidence": calibration_gap(confidence, right),
            "trust": calibration_gap(result.trust, right),
        },
        "risk": {f"{c:g}": error for c, error in risk_coverage(result.trust, right, COVERAGES).items()},
        "thresholds": thresholds,
        "answered": {c: float((result.trust >= t).mean()) for c, t in thresholds.items()},
    }


def _scores(
    model: Model,
    before: AdaptationResult,
    after: AdaptationResult,
    labels: np.ndarray,
    random: np.random.Generator,
) -> tuple[dict[str, Any], np.ndarray]:
    """Return the scores of one domain, and the bootstrap draws of its gain."""
    right = [adapted.probabilities.argmax(1) == labels for adapted in (before, after)]
    change = right[1].astype(int) - right[0].astype(int)
    resampled = paired_draws(change, random)
    per_source = {
        name: {
            "unadapted": float((before.per_source[:, i].argmax(1) == labels).mean()),
            "adapted": float((after.per_source[:, i].argmax(1) == labels).mean()),
            "energy_before": float(after.energy_before[:, i].mean()),
            "energy_after": float(after.energy_after[:, i].mean()),
        }
        for i, name in enumerate(model.sources)
    }
    count = len(model.classes)
    confusion = {
        way: confusion_counts(result.probabilities.argmax(1), labels, count)
        for way, result in (("unadapted", before), ("adapted", after))
    }
    scores = {
        "samples": len(labels),
        "unadapted": float(right[0].mean()),
        "adapted": float(right[1].mean()),
        "gain": float(change.mean()),
        **_interval(resampled),
        "majority": float(np.bincount(labels).max() / len(labels)),
        "balanced_accuracy": {way: balanced_accuracy(counts) for way, counts in confusion.items()},
        "macro_f1": {way: macro_f1(counts) for way, counts in confusion.items()},
        "confusion": {way: counts.tolist() for way, counts in confusion.items()}
        if count <= MANY_CLASSES
        else None,
        "per_source": per_source,
        "status": dict(Counter(after.status.tolist())),
        "trust": _trust(model, after, right[1]),
    }
    return scores, resampled


def _interval(draws: np.ndarray) -> dict[str, float]:
    return dict(zip(("gain_low", "gain_high"), interval(draws)))


def _domains(dataset: DomainDataset, target: str | Sequence[str], model: Model) -> DomainDataset:
    """Return the part of the dataset to evaluate."""
    named = (target,) if isinstance(target, str) else tuple(target)
    unseen = [name for name in dataset.domain_names if name not in model.sources]
    chosen = dataset.of_domains(named or unseen or dataset.domain_names)
    broken = int((~np.isfinite(chosen.items).all(1)).sum()) if chosen.kind == "features" else 0
    if broken:
        rows = "row holds" if broken == 1 else "rows hold"
        raise InputError(f"{broken:,} feature {rows} NaN or infinity. Remove or recompute them.")
    return chosen


def _labels(dataset: DomainDataset, model: Model) -> np.ndarray:
    """Return the dataset's labels as indices of the model's classes."""
    used = np.unique(dataset.labels)
    numbers = np.full(len(dataset.classes), -1)
    for code in used:
        name = dataset.classes[code]
        if name not in model.classes:
            raise unknown_name("class", name, model.classes)
        numbers[code] = model.classes.index(name)
    return numbers[dataset.labels]
