"""One contract for every aggregation, then what each is for."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sourceward._util.errors import InputError
from sourceward.functional import AGGREGATIONS, cosine_to_sources
from sourceward.functional.aggregation import log_mixture, mix_classifiers, select_sources
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
