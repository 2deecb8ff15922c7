"""ReplayBuffer: rings by source and class."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sourceward.nn import ReplayBuffer
from tests.helpers import make_generator


def tagged(*tags: float) -> Tensor:
    """One source, rows that can be distinguished: (1, batch, 1)."""
    return torch.tensor(tags, dtype=torch.float32).reshape(1, -1, 1)


def stored(buffer: ReplayBuffer, source: int, label: int) -> list[float]:
    count = min(buffer.pushed[source, label].item(), buffer.per_class)
    return sorted(buffer.rows[source, label, :count, 0].tolist())


def test_the_oldest_rows_of_a_class_go_first():
    buffer = ReplayBuffer(1, 2, 1, per_class=3)
    buffer.push(tagged(1, 2, 10), torch.tensor([[0, 0, 1]]))
    assert stored(buffer, 0, 0) == [1, 2]
    buffer.push(tagged(3, 4), torch.tensor([[0, 0]]))
    assert stored(buffer, 0, 0) == [2, 3, 4]
    buffer.push(tagged(5, 6), torch.tensor([[0, 0]]))
    assert stored(buffer, 0, 0) == [4, 5, 6]
    # The other class was never touched.
    assert stored(buffer, 0, 1) == [10]
    assert buffer.pushed.tolist() == [[6, 1]]


def test_rows_of_one_class_in_one_push_get_slots_of_their_own():
    buffer = ReplayBuffer(1, 2, 1, per_class=5)
    buffer.push(tagged(1, 10, 2, 11, 3), torch.tensor([[0, 1, 0, 1, 0]]))
    assert stored(buffer, 0, 0) == [1, 2, 3]
    assert stored(buffer, 0, 1) == [10, 11]


def test_of_more_rows_than_a_ring_holds_the_newest_stay():
    buffer = ReplayBuffer(1, 2, 1, per_class=3)
    buffer.push(tagged(1, 2, 3, 10, 4, 5, 6, 7), torch.tensor([[0, 0, 0, 1, 0, 0, 0, 0]]))
    assert stored(buffer, 0, 0) == [5, 6, 7]
    assert stored(buffer, 0, 1) == [10]
    # No two rows were written to one place, whose order would not be defined, but for the bin.
    assert buffer.rows[0, 0, 3].item() in (1, 2, 3, 4)
    buffer.push(tagged(8), torch.tensor([[0]]))
    assert stored(buffer, 0, 0) == [6, 7, 8]


def test_what_overflowed_is_never_drawn():
    buffer = ReplayBuffer(1, 1, 1, per_class=3)
    label = torch.zeros(1, 400, dtype=torch.int64)
    buffer.push(tagged(*range(1, 8)), label[:, :7])
    out = buffer.replace(tagged(*[-1.0] * 400), label, 1.0, make_generator())
    assert set(out.flatten().tolist()) == {5.0, 6.0, 7.0}


def test_sources_have_rings_of_their_own():
    buffer = ReplayBuffer(2, 2, 1, per_class=4)
    buffer.push(torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]]), torch.tensor([[0, 1], [0, 0]]))
    assert [[stored(buffer, s, c) for c in range(2)] for s in range(2)] == [[[1], [2]], [[3, 4], []]]


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=8), st.integers(1, 6)
)
def test_a_ring_holds_the_newest_rows(pushes, per_class):
    buffer = ReplayBuffer(1, 3, 1, per_class=per_class)
    history: dict[int, list[float]] = {0: [], 1: [], 2: []}
    tag = 0.0
    for labels in pushes:
        tags = [tag + row for row in range(len(labels))]
        tag += len(labels)
        for label, row in zip(labels, tags):
            history[label].append(row)
        buffer.push(tagged(*tags), torch.tensor([labels]))
    for label, rows in history.items():
        assert stored(buffer, 0, label) == rows[-per_class:]


def make_filled(sources: int = 3, classes: int = 4, per_class: int = 6) -> ReplayBuffer:
    """Row values say source and class: 100 * source + 10 * class + slot. Class 3 stays empty."""
    buffer = ReplayBuffer(sources, classes, 2, per_class)
    for source in range(sources):
        for label in range(classes - 1):
            slots = torch.arange(per_class, dtype=torch.float32).unsqueeze(1).expand(-1, 2)
            buffer.rows[source, label, :per_class] = 100.0 * (source + 1) + 10.0 * label + slots
    buffer.pushed[:, : classes - 1] = per_class
    return buffer


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_replaced_rows_come_from_the_same_source_and_class(share):
    buffer = make_filled()
    label = torch.randint(4, (3, 300), generator=make_generator())
    feature = -torch.ones(3, 300, 2)
    out = buffer.replace(feature, label, share, make_generator(1))
    swapped = (out != feature).any(-1)
    assert not swapped[label == 3].any(), "nothing is stored for class 3"
    origin = torch.div(out[..., 0], 10, rounding_mode="floor")
    expected = 10.0 * torch.arange(1, 4).unsqueeze(1) + label
    assert torch.equal(origin[swapped], expected[swapped])
    assert torch.equal(out[..., 0], out[..., 1]), "a row is swapped as a whole"
    if share == 1.0:
        assert swapped[label != 3].all()


def test_share_is_met_within_its_standard_error():
    buffer = make_filled()
    label = torch.zeros(3, 4000, dtype=torch.int64)
    out = buffer.replace(-torch.ones(3, 4000, 2), label, 0.3, make_generator())
    found = (out[..., 0] >= 0).double().mean().item()
    assert abs(found - 0.3) < 5 * math.sqrt(0.3 * 0.7 / 12_000)


def test_every_stored_row_is_drawn_alike():
    buffer = make_filled(per_class=6)
    label = torch.zeros(3, 4000, dtype=torch.int64)
    out = buffer.replace(-torch.ones(3, 4000, 2), label, 1.0, make_generator())
    share = (out[..., 0] % 10).long().flatten().bincount(minlength=6) / 12_000
    assert (share - 1 / 6).abs().max() < 5 * math.sqrt(1 / 6 * 5 / 6 / 12_000)


def test_a_ring_that_is_not_full_gives_only_what_it_holds():
    buffer = ReplayBuffer(1, 1, 1, per_class=500)
    buffer.push(tagged(5, 6), torch.tensor([[0, 0]]))
    out = buffer.replace(tagged(*[-1.0] * 200), torch.zeros(1, 200, dtype=torch.int64), 1.0, make_generator())
    assert set(out.flatten().tolist()) == {5.0, 6.0}


def test_share_zero_and_an_empty_buffer_change_nothing():
    feature = torch.randn(3, 20, 2, generator=make_generator())
    label = torch.randint(4, (3, 20), generator=make_generator())
    assert torch.equal(make_filled().replace(feature, label, 0.0, make_generator()), feature)
    assert torch.equal(ReplayBuffer(3, 4, 2).replace(feature, label, 1.0, make_generator()), feature)


def test_replacing_is_reproducible_and_leaves_the_input_alone():
    buffer = make_filled()
    feature = -torch.ones(3, 50, 2)
    label = torch.zeros(3, 50, dtype=torch.int64)
    out = buffer.replace(feature, label, 0.5, make_generator(1))
    assert torch.equal(out, buffer.replace(feature, label, 0.5, make_generator(1)))
    assert not torch.equal(out, buffer.replace(feature, label, 0.5, make_generator(2)))
    assert (feature == -1).all()


def test_stored_rows_carry_no_graph_and_travel_with_the_state():
    buffer, other = ReplayBuffer(1, 1, 1, 3), ReplayBuffer(1, 1, 1, 3)
    buffer.push(tagged(1, 2).requires_grad_(), torch.tensor([[0, 0]]))
    assert not buffer.rows.requires_grad
    assert not list(buffer.parameters())
    other.load_state_dict(buffer.state_dict())
    assert stored(other, 0, 0) == [1, 2]
    other.push(tagged(3), torch.tensor([[0]]))
    assert stored(other, 0, 0) == [1, 2, 3]
