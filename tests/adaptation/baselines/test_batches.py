"""Batches of token dictionaries, which differ in length."""

import torch

from sourceward.adaptation.baselines.batches import rebatch


def test_tokens_are_padded_to_the_longest_of_a_batch():
    pieces = [{"input_ids": torch.full((rows, width), width)} for rows, width in ((2, 3), (2, 5), (1, 4))]
    first, second = (batch["input_ids"] for batch in rebatch(iter(pieces), 3))
    assert first.tolist() == [[3, 3, 3, 0, 0], [3, 3, 3, 0, 0], [5, 5, 5, 5, 5]]
    assert second.tolist() == [[5, 5, 5, 5, 5], [4, 4, 4, 4, 0]]
