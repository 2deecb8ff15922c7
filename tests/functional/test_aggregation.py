"""One contract for every aggregation, then what each is for."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sourceward._util.errors import InputError
from sourceward.functional import AGGREGATIONS, cosine_to_sources
from tests.helpers import make_generator

every = pytest.mark.parametrize("name", list(AGGREGATIONS))
sizes = given(st.integers(1, 5), st.integers(1, 7), st.integers(2, 6), st.integers(0, 10_000))


def make_votes(sources: int, batch: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = make_generator(seed)
    logits = 2 * torch.randn(sources, batch, classes, generator=generator, dtype=torch.float64)
    similarity = 2 * torch.rand(sources, batch, generator=generator, dtype=torch.float64) - 1
    return logits.softmax(-1), similarity


def vote(name: str, probability: Tensor, similarity: Tensor) -> Tensor:
    """One number for each source stands for all that is known of it."""
    return AGGREGATIONS[name](probability, similarity, similarity, -2 * similarity)


@every
@sizes
def test_rows_are_distributions(name, sources, batch, classes, seed):
    probability, similarity = make_votes(sources, batch, classes, seed)
    answer = vote(name, probability, similarity)
    assert answer.shape == (batch, classes)
    assert (answer >= 0).all()
    torch.testing.assert_close(answer.sum(-1), torch.ones(batch, dtype=torch.float64), rtol=0, atol=1e-12)


@every
@sizes
def test_sources_that_agree_are_repeated(name, sources, batch, classes, seed):
    probability, similarity = make_votes(sources, batch, classes, seed)
    same = probability[:1].expand(sources, batch, classes)
    torch.testing.assert_close(vote(name, same, similarity), probability[0], rtol=1e-12, atol=1e-12)


@every
@sizes
def test_order_of_sources_does_not_matter(name, sources, batch, classes, seed):
    probability, similarity = make_votes(sources, batch, classes, seed)
    order = torch.randperm(sources, generator=make_generator(seed + 1))
    expected = vote(name, probability, similarity)
    found = vote(name, probability[order], similarity[order])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@every
@sizes
def test_a_lone_source_is_returned_unchanged(name, sources, batch, classes, seed):
    probability, similarity = make_votes(1, batch, classes, seed)
    assert torch.equal(vote(name, probability, similarity), probability[0])


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
        torch.testing.assert_close(vote(name, probability, similarity), torch.tensor([row]))


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
def test_a_sample_opposite_to_every_source_still_gets_an_answer(similarity):
    """Cosines round to -1, or just past it."""
    probability = torch.tensor([[[0.6, 0.4]], [[0.1, 0.9]]])
    answer = AGGREGATIONS["cosine"](probability, torch.full((2, 1), similarity), torch.zeros(2, 1))
    torch.testing.assert_close(answer.sum(-1), torch.ones(1))
    assert (answer >= 0).all()


def test_votes_that_nobody_taught_are_refused():
    probability, similarity = make_votes(2, 3, 2, 0)
    with pytest.raises(InputError, match="has not learned which sources to source_weights"):
        AGGREGATIONS["learned"](probability, similarity, similarity)
