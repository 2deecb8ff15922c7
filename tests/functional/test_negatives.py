"""Negatives: chain starts are labelled samples that are not the source's own."""

import pytest
import torch

from sourceward.functional.losses import Batch, jitter, negatives
from tests.helpers import make_generator

SOURCES, ROWS = 3, 5


def make_batch(sources: int = SOURCES, shifted: int = 0) -> Batch:
    """Features that say where they come from: 100 * source + row; shifted samples are negative."""
    feature = 100.0 * torch.arange(sources).view(-1, 1, 1) + torch.arange(ROWS).view(1, -1, 1)
    label = feature.squeeze(-1).long()
    if not shifted:
        return Batch(feature, label)
    extra = -1.0 - torch.arange(shifted)
    return Batch(feature, label, extra.unsqueeze(1), extra.long())


@pytest.mark.parametrize("shifted", [0, 4])
def test_every_sample_but_the_source_s_own_is_drawn_with_its_label(shifted):
    batch = make_batch(shifted=shifted)
    start, label = negatives(batch, 500, 1.0, make_generator())
    assert start.shape == (SOURCES, 500, 1)
    assert torch.equal(start.squeeze(-1).long(), label)
    everything = set(batch.label.flatten().tolist()) | set(range(-shifted, 0))
    for source in range(SOURCES):
        assert set(label[source].tolist()) == everything - set(batch.label[source].tolist())


def test_there_are_as_many_chains_as_rows_by_default():
    assert negatives(make_batch(), None, 1.0, make_generator())[0].shape == (SOURCES, ROWS, 1)


def test_a_lone_source_starts_from_its_own_samples_plus_noise():
    batch = make_batch(1)
    start, label = negatives(batch, 4, 0.5, make_generator(1))
    assert torch.equal(label, batch.label[:, :4])
    assert torch.equal(start, jitter(batch.feature[:, :4], 0.5, make_generator(1)))
    assert (start != batch.feature[:, :4]).all()


def test_a_lone_source_prefers_shifted_samples():
    start, _ = negatives(make_batch(1, shifted=4), 50, 0.5, make_generator())
    assert (start < 0).all()


def test_no_noise_draws_nothing():
    generator = make_generator()
    feature = torch.ones(2, 3)
    assert jitter(feature, 0.0, generator) is feature
    assert torch.equal(torch.rand(1, generator=generator), torch.rand(1, generator=make_generator()))
