"""One contract for every aggregation, then what each is for."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sourceward._util.errors import InputError
from sourceward.functional import AGGREGATIONS, cosine_to_sources
from sourceward.functional.aggregation import (
    BY_ENERGY,
    EVIDENCE,
    Evidence,
    evidence,
    learn_source_weights,
    log_mixture,
    mix_classifiers,
    score,
    select_sources,
)
from tests.helpers import make_generator

every = pytest.mark.parametrize("name", list(AGGREGATIONS))
sizes = given(st.integers(1, 5), st.integers(1, 7), st.integers(2, 6), st.integers(0, 10_000))


def make_predictions(sources: int, batch: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = make_generator(seed)
    logits = 2 * torch.randn(sources, batch, classes, generator=generator, dtype=torch.float64)
    similarity = 2 * torch.rand(sources, batch, generator=generator, dtype=torch.float64) - 1
    return logits.softmax(-1), similarity


def aggregate(name: str, probability: Tensor, similarity: Tensor) -> Tensor:
    """Aggregate with one number per source in place of similarity, z-score and score."""
    return AGGREGATIONS[name](probability, similarity, similarity, -2 * similarity)


@every
@sizes
def test_rows_are_distributions(name, sources, batch, classes, seed):
    probability, similarity = make_predictions(sources, batch, classes, seed)
    found = aggregate(name, probability, similarity)
    assert found.shape == (batch, classes)
    assert (found >= 0).all()
    torch.testing.assert_close(found.sum(-1), torch.ones(batch, dtype=torch.float64), rtol=0, atol=1e-12)


@every
@sizes
def test_sources_that_agree_give_their_common_prediction(name, sources, batch, classes, seed):
    probability, similarity = make_predictions(sources, batch, classes, seed)
    same = probability[:1].expand(sources, batch, classes)
    torch.testing.assert_close(aggregate(name, same, similarity), probability[0], rtol=1e-12, atol=1e-12)


@every
@sizes
def test_order_of_sources_does_not_matter(name, sources, batch, classes, seed):
    probability, similarity = make_predictions(sources, batch, classes, seed)
    order = torch.randperm(sources, generator=make_generator(seed + 1))
    expected = aggregate(name, probability, similarity)
    found = aggregate(name, probability[order], similarity[order])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@every
@sizes
def test_a_lone_source_is_returned_unchanged(name, sources, batch, classes, seed):
    probability, similarity = make_predictions(1, batch, classes, seed)
    assert torch.equal(aggregate(name, probability, similarity), probability[0])


def test_each_on_a_hand_computed_example():
    # One row, two sources, two classes.
    probability = torch.tensor([[[0.6, 0.4]], [[0.1, 0.9]]])
    similarity = torch.tensor([[0.5], [0.0]])
    expected = {
        "mean": [0.35, 0.65],
        "closest": [0.6, 0.4],  # cosine 0.5 > 0
        "cosine": [0.4, 0.6],  # weights 1.5 and 1: (1.5 * 0.6 + 0.1) / 2.5
        "confident": [0.1, 0.9],  # 0.9 > 0.6
        "energy": [0.2887703, 0.7112297],  # weights exp(-0.5) and 1: (0.60653 * 0.6 + 0.1) / 1.60653
        "learned": [0.2344707, 0.7655293],  # weights exp(-1) and 1: (0.36788 * 0.6 + 0.1) / 1.36788
    }
    for name, row in expected.items():
        torch.testing.assert_close(aggregate(name, probability, similarity), torch.tensor([row]))


def test_cosine_to_sources_equals_the_formula():
    generator = make_generator()
    feature = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    center = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    expected = (center @ feature.T) / (center.norm(dim=1)[:, None] * feature.norm(dim=1)[None])
    torch.testing.assert_close(cosine_to_sources(feature, center), expected)


def test_unknown_name_gets_the_nearest():
    with pytest.raises(InputError, match=r"Unknown aggregation 'closst'\. Did you mean 'closest'"):
        AGGREGATIONS["closst"]


@pytest.mark.parametrize("similarity", [-1.0, -1 - 2**-23])
def test_a_sample_opposite_to_every_source_has_a_valid_prediction(similarity):
    """Cosines round to -1, or slightly beyond."""
    probability = torch.tensor([[[0.6, 0.4]], [[0.1, 0.9]]])
    found = AGGREGATIONS["cosine"](probability, torch.full((2, 1), similarity), torch.zeros(2, 1))
    torch.testing.assert_close(found.sum(-1), torch.ones(1))
    assert (found >= 0).all()


def test_missing_source_weights_are_an_error():
    probability, similarity = make_predictions(2, 3, 2, 0)
    with pytest.raises(InputError, match="has no learned source weights"):
        AGGREGATIONS["learned"](probability, similarity, similarity)


def test_select_sources_takes_their_rows_in_order():
    first, second = torch.arange(12.0).view(3, 4), torch.arange(24.0).view(3, 4, 2)
    for value, found in zip((first, second), select_sources((2, 0), first, second)):
        assert torch.equal(found, value[[2, 0]])


def test_both_mixtures_are_the_mean_of_probabilities():
    logits = torch.randn(3, 2, 5, 4, generator=make_generator(), dtype=torch.float64)
    mean = logits.softmax(-1).mean((0, 1))
    torch.testing.assert_close(log_mixture(logits).exp(), mean)
    weight = torch.full((3, 1), 1 / 3, dtype=torch.float64)
    torch.testing.assert_close(mix_classifiers(logits.permute(1, 2, 0, 3), weight).mean(0), mean)


def test_classifiers_are_mixed_by_their_weights():
    logits = torch.randn(5, 2, 4, generator=make_generator())
    first, second = logits.softmax(-1).unbind(1)
    found = mix_classifiers(logits, torch.tensor([[0.25], [0.75]]))
    torch.testing.assert_close(found, 0.25 * first + 0.75 * second)


def test_the_log_is_finite_where_the_probability_underflows():
    logits = torch.tensor([0.0, 500.0]).expand(2, 1, 1, 2)
    assert log_mixture(logits)[0, 0] == -500


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
