"""Metrics of predicted probabilities: accuracy, likelihood, Brier score, calibration error."""

import torch
from torch import Tensor


def accuracy(probability: Tensor, label: Tensor) -> Tensor:
    """Share of rows whose most probable class is the label."""
    return (probability.argmax(-1) == label).to(probability.dtype).mean()


def negative_log_likelihood(probability: Tensor, label: Tensor) -> Tensor:
    """Mean of -log p(label)."""
    picked = probability.gather(-1, label.unsqueeze(-1)).squeeze(-1)
    return -picked.clamp_min(torch.finfo(probability.dtype).tiny).log().mean()


def brier_score(probability: Tensor, label: Tensor) -> Tensor:
    """Mean squared distance to the one-hot label, summed over classes (0 is best, 2 is worst)."""
    one_hot = torch.nn.functional.one_hot(label, probability.shape[-1]).to(probability.dtype)
    return (probability - one_hot).square().sum(-1).mean()


def expected_calibration_error(probability: Tensor, label: Tensor, bins: int = 15) -> Tensor:
    """Mean gap between confidence and accuracy over `bins` equal bins of confidence, weighted by their size.

    Example:
        >>> sure_and_right = torch.tensor([[1.0, 0.0]])
        >>> expected_calibration_error(sure_and_right, torch.tensor([0]))
        tensor(0.)
    """
    if bins < 1:
        raise ValueError(f"Expected `bins` to be 1 or more, but got {bins}.")
    confidence, predicted = probability.max(-1)
    correct = (predicted == label).to(probability.dtype)
    index = (confidence * bins).ceil().long().clamp(1, bins) - 1
    gap = torch.zeros(bins, dtype=probability.dtype, device=probability.device)
    gap.index_add_(0, index, correct - confidence)
    return gap.abs().sum() / len(label)
