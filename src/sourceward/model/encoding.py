"""Features of texts whose bits do not depend on the other texts of a call.

Padding, and the number of rows, change the kernels of a library and the last bits of a feature, and with them
the noise of a chain. So a text is never padded. On a CPU it is alone; on an accelerator texts of one length
go together, in batches of one size.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

TEXTS = 32
"""Texts of a batch on an accelerator, the first repeated where there are fewer."""


def encode_texts(
    encode: Callable[[Any], Tensor],
    prepare: Callable[[list[str]], Mapping[str, Tensor]],
    texts: Sequence[str],
) -> Tensor:
    """Features (n, dim) of one or more texts, each as if it were the only one.

    Args:
        encode: from token tensors (rows, length) by name to features.
        prepare: from texts to token tensors, padded to the longest.
        texts: one or more.
    """
    tokens = [prepare([text]) for text in texts]
    shapes = [next(iter(row.values())).shape for row in tokens]
    alone = next(iter(tokens[0].values())).device.type == "cpu"
    size = 1 if alone else TEXTS
    by_length: dict[int, list[int]] = defaultdict(list)
    for row, shape in enumerate(shapes):
        by_length[shape[-1]].append(row)
    order, parts = [], []
    for rows in by_length.values():
        for start in range(0, len(rows), size):
            some = rows[start : start + size]
            filled = some + some[:1] * (size - len(some))
            batch = {name: torch.cat([tokens[row][name] for row in filled]) for name in tokens[0]}
            parts.append(encode(batch)[: len(some)])
            order += some
    return torch.cat(parts)[torch.tensor(order).argsort().to(parts[0].device)]
