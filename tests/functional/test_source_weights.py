"""Learned source weights: the evidence, and what is learned from held-out sources."""

import torch

from sourceward.functional import AGGREGATIONS
from sourceward.functional.source_weights import (
    BY_ENERGY,
    EVIDENCE,
    Evidence,
    evidence,
    learn_source_weights,
    score,
)
from tests.helpers import make_generator


def predictions(sources: int = 3, rows: int = 200, classes: int = 4, seed: int = 0):
    generator = make_generator(seed)
    probability = torch.randn(sources, rows, classes, generator=generator).double().mul(2).softmax(-1)
    rest = torch.rand(3, sources, rows, generator=generator).double()
    return probability, *rest


def test_initial_source_weights_equal_aggregation_by_energy():
    probability, similarity, before, after = predictions()
    number = score(evidence(probability, similarity, before, after), BY_ENERGY)
    torch.testing.assert_close(
        AGGREGATIONS["learned"](probability, similarity, before, number),
        AGGREGATIONS["energy"](probability, similarity, before),
    )


def test_evidence_follows_the_sources_in_any_order():
    inputs = predictions()
    order = [2, 0, 1]
    torch.testing.assert_close(evidence(*(v[order] for v in inputs)), evidence(*inputs)[order])
    assert evidence(*inputs).shape == (3, 200, len(EVIDENCE))


def test_large_zscores_are_clipped():
    probability, similarity, before, after = predictions()
    far, further = (evidence(probability, similarity, before + by, after) for by in (1e3, 1e6))
    assert torch.equal(far, further)


def test_certain_predictions_gain_weight_where_they_were_right():
    """Two sources: one is right and certain, the other neither; energies carry no information."""
    label = torch.arange(300) % 3
    truth = torch.nn.functional.one_hot(label, 3).double()
    probability = torch.stack([0.9 * truth + 0.1 / 3, 0.45 * truth.roll(1, 1) + 0.55 / 3])
    nothing = torch.zeros(2, 300)
    values = evidence(probability, nothing, nothing, nothing)
    source_weights = learn_source_weights([Evidence(values, probability, label)])
    assert source_weights[2] < -0.05, "entropy lowers the weight"
    learned = AGGREGATIONS["learned"](probability, nothing, nothing, score(values, source_weights))
    equal = probability.mean(0)
    assert learned.gather(1, label[:, None]).mean() > equal.gather(1, label[:, None]).mean() + 0.02


def test_held_out_sources_have_equal_weight_whatever_their_size():
    def trial(rows: int, right: int) -> Evidence:
        label = torch.zeros(rows, dtype=torch.int64)
        probability = torch.tensor([[0.9, 0.1], [0.1, 0.9]]).double().roll(right, 0)
        probability = probability[:, None].expand(2, rows, 2)
        values = torch.zeros(2, rows, 5).double()
        values[0, :, 4] = 1.0
        return Evidence(values, probability, label)

    few, many = (
        learn_source_weights([trial(10, 0), trial(10, 1)]),
        learn_source_weights([trial(10, 0), trial(1000, 1)]),
    )
    assert few == many
    assert abs(few[4]) < 1e-3, "the two contradict each other"
