"""Domain-specific optimized normalization (DSON; Seo et al., ECCV 2020).

Every batch norm layer gets statistics, scales and shifts for each source, and normalises by a mixture of the
statistics of batch norm and of instance norm, with a mixing weight w for each source:

    mean = w mean_batch + (1 - w) mean_instance,   var = w var_batch + (1 - w) var_instance.

A sample of an unknown domain takes the branches of all sources, and their logits are averaged. The branches
share every other layer, a linear classifier too, so the mean of the logits is that of the mean features.

The equations agree with public copies of the authors' layer (`OptimizedNorm2d`), which mix means and
variances by weights of their own, a softmax of two numbers that starts at one half, and follow statistics at
a rate of 0.1. A weight for each source and layer is also theirs; one version of the paper's abstract
(arXiv 1907.04275) shares it across layers.
"""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

START = 0.9
"""Share of batch norm before training: pretrained weights expect its statistics. Ours."""
ROWS = 64
"""Rows that are normalised at once where none affects another: a pass over all sources takes much memory."""
AFTER = "drop", "act"
"""Parts of a batch norm layer of timm that follow the normalisation."""


class MixedNorm(nn.BatchNorm2d):
    """Batch and instance norm, mixed, for inputs (batch, sources x channels, height, width).

    Args:
        norm: whose weights and statistics each source starts from.
        sources: number of sources.
    """

    def __init__(self, norm: _BatchNorm, sources: int) -> None:
        super().__init__(sources * norm.num_features, norm.eps, norm.momentum)
        assert norm.running_mean is not None
        for name in ("weight", "bias", "running_mean", "running_var"):
            getattr(self, name).data.copy_(getattr(norm, name).detach().repeat(sources))
        self.mix = nn.Parameter(torch.full((sources,), START))
        self.to(norm.running_mean.device)

    def forward(self, maps: Tensor) -> Tensor:
        together = self.training or self.running_mean is None  # rows share their statistics
        if together or torch.compiler.is_exporting() or len(maps) <= ROWS:
            return self._normalized(maps)
        return torch.cat([self._normalized(part) for part in maps.split(ROWS)])

    def _normalized(self, maps: Tensor) -> Tensor:
        values = maps.float()
        mean_i = values.mean((2, 3), keepdim=True)
        var_i = (values - mean_i).square().mean((2, 3), keepdim=True)  # var_mean takes far longer on a CPU
        var_b, mean_b = self.running_var, self.running_mean
        if mean_b is None or var_b is None or self.training:
            mean_b = mean_i.mean((0, 2, 3))
            var_b = (var_i + (mean_i - mean_b[:, None, None]).square()).mean((0, 2, 3))
            self._update(mean_b.detach(), var_b.detach())
        share = self.mix.clamp(0, 1).repeat_interleave(self.num_features // len(self.mix))
        share, mean_b, var_b, weight, bias = (
            value[:, None, None] for value in (share, mean_b, var_b, self.weight, self.bias)
        )
        mean, var = torch.lerp(mean_i, mean_b, share), torch.lerp(var_i, var_b, share)
        return ((values - mean) * ((var + self.eps).rsqrt() * weight) + bias).to(maps.dtype)

    @torch.no_grad()
    def _update(self, mean: Tensor, var: Tensor) -> None:
        if self.training and self.running_mean is not None and self.running_var is not None:
            self.running_mean.lerp_(mean, self.momentum or 0.0)
            self.running_var.lerp_(var, self.momentum or 0.0)


class DomainNorm(nn.Module):
    """`MixedNorm` for rows that take one branch each: row i takes branch i mod sources.

    Batch norm of timm may end with dropout and an activation; they stay.
    """

    def __init__(self, norm: _BatchNorm, sources: int) -> None:
        super().__init__()
        self.sources, self.norm = sources, MixedNorm(norm, sources)
        self.after = nn.Sequential(*(getattr(norm, name) for name in AFTER if hasattr(norm, name)))

    def forward(self, maps: Tensor) -> Tensor:
        shape = maps.shape
        beside = maps.reshape(shape[0] // self.sources, self.sources * shape[1], *shape[2:])
        return self.after(self.norm(beside).reshape(shape))


class DomainNormalized(nn.Module):
    """A network whose batch norm layers are `DomainNorm`.

    In training, rows come source by source, equally many of each. Otherwise every row takes all branches, and
    its features are their mean.
    """

    def __init__(self, network: nn.Module, sources: int) -> None:
        super().__init__()
        self.inner, self.sources = network, sources
        for parent in list(network.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.BatchNorm2d):
                    setattr(parent, name, DomainNorm(child, sources))

    def forward(self, images: Tensor) -> Tensor:
        if not self.training:
            branches = self.inner(images.repeat_interleave(self.sources, 0)).flatten(1)
            return branches.unflatten(0, (-1, self.sources)).mean(1)
        rows = images.unflatten(0, (self.sources, -1)).transpose(0, 1).flatten(0, 1)
        feature = self.inner(rows).flatten(1)
        return feature.unflatten(0, (-1, self.sources)).transpose(0, 1).flatten(0, 1)
