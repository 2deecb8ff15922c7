"""Pretend targets that the backbone never saw: one more fine-tuning for each source, without it.

A source that the backbone was trained on is no unseen domain. Here a pretend target meets a backbone, heads
and energies that were all trained without it, from the same start as the model's own.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from sourceward._util.devices import ALONE
from sourceward.data import DomainDataset
from sourceward.data.loading import encode, prepare_samples
from sourceward.estimator import EnergyAdapter
from sourceward.nn.backbones import Backbone
from sourceward.nn.projection import project_features
from sourceward.settings import AdaptSettings
from sourceward.training.run_folder import CROSSFIT, RunFolder
from sourceward.training.stage import Job
from sourceward.training.task import Prepared
from sourceward.training.two_stage import FineTuning
from sourceward.validation.leave_one_domain_out import (
    LENGTHS,
    ROWS,
    ExpectedGain,
    Trial,
    pretend,
    settle,
    settle_views,
)
from sourceward.validation.views import source_statistics, trial

Prepare = Callable[[DomainDataset, Backbone, Job], Prepared]


def crossfit(
    sources: DomainDataset,
    start: Backbone,
    job: Job,
    prepare: Prepare,
    estimator: EnergyAdapter,
    views: str,
) -> tuple[AdaptSettings, ExpectedGain, ExpectedGain | None]:
    """Settings of test time that pretend targets ask for, what they gained, and what they gained by views.

    Args:
        sources: three or more.
        start: the backbone as it was before any training; not changed.
        job: of the run; what is trained here lies in a folder of its own and can be resumed.
        prepare: makes samples ready for a backbone.
        estimator: fitted; its settings are those of the pretend models.
        views: to ask about, see `candidate`.
    """
    settings = replace(estimator._test_time(), num_steps=LENGTHS[0])
    walks, looks = [], []
    for name in sources.domain_names:
        walk, look = _trial(sources, name, start, job, prepare, estimator, settings, views)
        walks.append(walk)
        looks += [look] if look is not None else []
    return *settle(walks, settings), settle_views(looks) if looks else None


def _trial(
    sources: DomainDataset,
    name: str,
    start: Backbone,
    job: Job,
    prepare: Prepare,
    estimator: EnergyAdapter,
    settings: AdaptSettings,
    views: str,
) -> tuple[Trial, Trial | None]:
    """Of the walk, and of the views, where there are any."""
    number = str(sources.domain_names.index(name))  # a name may be no name of a folder
    folder = RunFolder(job.folder.path / CROSSFIT / number, job.folder.configuration)
    own = replace(job, folder=folder, board=None, processes=ALONE)  # stage 2 is the main process's
    backbone = copy.deepcopy(start)
    prepared = prepare(sources.without([name]), backbone, own)
    classifier, _ = FineTuning(prepared, backbone, own).finish()
    tuned = classifier.backbone.eval().requires_grad_(False)
    feature, label = _features(tuned, prepared), torch.from_numpy(prepared.dataset.labels)
    held = sources.of_domains([name])
    held = held.select(np.random.default_rng(0).permutation(len(held)))  # so that the first few stand for all
    samples = prepare_samples(held, start, prepared.labels.device, show=False)
    unseen = encode(tuned, samples, slice(0, len(held))).cpu()
    rows = slice(0, prepared.train[-1].stop)
    still, both = project_features(tuned, torch.cat([feature, unseen]), rows, job.settings.components)
    parts = [(both[part], label[part]) for part in prepared.train]
    fit = partial(estimator.pretender(np.arange(len(sources.classes)))._fit_network, shifted=None)
    network, truth = fit(parts), torch.from_numpy(held.labels)
    walk = pretend(name, network, (both[len(feature) :], truth), settings)
    assert still is not None
    left = [other for other in range(len(sources.domain_names)) if other != int(number)]
    network.backbone, network.amplitudes = still, None if job.styles is None else job.styles[left]
    network.feature_statistics = source_statistics(tuned, prepared.samples, prepared.train)
    network.eval().to(prepared.labels.device)
    if not views:
        return walk, None
    return walk, trial(name, network, samples, slice(0, min(len(held), ROWS)), truth[:ROWS], views)


def _features(backbone: torch.nn.Module, prepared: Prepared) -> Tensor:
    return encode(backbone, prepared.samples, slice(0, len(prepared.dataset))).cpu()
