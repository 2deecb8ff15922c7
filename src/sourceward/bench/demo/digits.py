"""Rotated digits without a download: scikit-learn's 1,797 handwritten 8x8 digits, one domain per angle.

Digits are split before they are rotated, so a target has new digits at a new angle.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sourceward.data.known.mnist import rotate_arrays as rotate

PAD = 4
"""An 8x8 square rotated by 45 degrees is 11.3 pixels wide: padded to 16 first, no corner is cut."""

LEVELS = 16
"""scikit-learn's digits have grey levels 0 to 16."""


class Digits(NamedTuple):
    """Upright digits: images uint8 (n, 16, 16), labels (n,)."""

    image: np.ndarray
    label: np.ndarray

    def take(self, rows: np.ndarray) -> "Digits":
        return Digits(self.image[rows], self.label[rows])


def load_split(train_size: int, seed: int, test_size: int | None = None) -> tuple[Digits, Digits]:
    """Return disjoint digits for training and testing; all the others are for testing without `test_size`."""
    from sklearn.datasets import load_digits

    data = load_digits()
    pixels = (data.images * (255 // LEVELS)).astype(np.uint8)
    digits = Digits(np.pad(pixels, ((0, 0), (PAD, PAD), (PAD, PAD))), data.target)
    order = np.random.default_rng(seed).permutation(len(digits.label))
    return digits.take(order[:train_size]), digits.take(order[train_size:][:test_size])


def rotated(digits: Digits, angle: float) -> Tensor:
    """Return the network's input of one domain: float (n, 1, 16, 16) in [0, 1]."""
    return torch.from_numpy(rotate(digits.image, angle)).float().unsqueeze(1) / 255


def rotated_all(digits: Digits, angles: Sequence[float]) -> tuple[Tensor, Tensor, np.ndarray]:
    """Return inputs, labels and angle of every row, for all `angles`."""
    inputs = torch.cat([rotated(digits, angle) for angle in angles])
    label = torch.from_numpy(np.tile(digits.label, len(angles)))
    return inputs, label, np.repeat(np.asarray(angles), len(digits.label))


class DigitNet(nn.Module):
    """Three convolutions, then flatten: 512 features that keep the position of a stroke."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.head = nn.Linear(32 * 4 * 4, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.backbone(inputs))


def untrained_network(seed: int) -> DigitNet:
    """Return a network with random, frozen convolutions."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return DigitNet().eval().requires_grad_(False)


def train_network(
    inputs: Tensor,
    label: Tensor,
    *,
    epochs: int,
    seed: int,
    batch_size: int = 128,
    rate: float = 6e-3,
    on_epoch: Callable[[int], None] = lambda done: None,
) -> DigitNet:
    """Train by ordinary supervision: AdamW, one cycle of the learning rate."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = DigitNet()
        optimizer = torch.optim.AdamW(network.parameters(), rate, weight_decay=1e-2)
        batches = len(inputs) // batch_size
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=epochs * batches)
        for epoch in range(epochs):
            for rows in torch.randperm(len(inputs))[: batches * batch_size].split(batch_size):
                loss = cross_entropy(network(inputs[rows]), label[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
            on_epoch(epoch + 1)
    return network.eval().requires_grad_(False)
