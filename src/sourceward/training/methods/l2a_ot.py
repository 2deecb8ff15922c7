"""L2A-OT: learning to generate novel domains (Zhou, Yang, Hospedales & Xiang, ECCV 2020).

A generator G maps an image of source k to as many novel domains as there are sources. With D the features of
a domain classifier and d the Sinkhorn distance of two batches, G minimises

    - d(D(x), D(G(x))) - d(D(G(x)) of one novel domain, of another)           novel, and diverse
    + 10 |G(G(x, novel), k) - x|_1                                            cycle consistency
    + cross-entropy of the classifier on G(x), with the classifier held fixed.

The classifier minimises half the cross-entropy on x and half that on G(x), without a gradient to G. No code
of the authors was found, and of their text only the abstract could be read for this: the losses are as in a
reimplementation (mousecpn/L2A-OT). Its weights of distance, cycle and cross-entropy are 1, 2 and 1; a copy of
it for videos changes them to 1, 10 and 1, the values here, and calls them the paper's; a third one has 2, 10
and 1. In the paper the domain classifier and the classifier that G is tested by are trained beforehand; here
they are trained along, and G with them.
"""

import itertools
import math
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy, interpolate, normalize, one_hot

from sourceward.nn import frozen_call
from sourceward.nn.backbones import preprocessing
from sourceward.training.finetune import FINETUNE_METHODS, FineTuneSettings, Rows
from sourceward.training.methods.gradients import plain
from sourceward.training.methods.image_method import ImageMethod
from sourceward.training.methods.random_draws import permutation
from sourceward.training.needs import Needs

DOMAIN_WEIGHT, CYCLE_WEIGHT, CLASS_WEIGHT, NOVEL_SHARE = 1.0, 10.0, 1.0, 0.5
REGULARIZATION, SINKHORN_STEPS = 0.05, 20
"""Of the Sinkhorn distance; ours."""
WIDTH = 32
"""Channels of the generator's first layer; ours."""


def sinkhorn_distance(first: Tensor, second: Tensor) -> Tensor:
    """Return the cost of the entropic optimal transport between two batches of vectors, uniform weights.

    Args:
        first, second: (..., batch, dim); the cost of a pair is 1 - their cosine.
    """
    with torch.autocast(first.device.type, enabled=False):  # domains are a few hundredths apart
        cost = 1 - normalize(first, dim=-1) @ normalize(second, dim=-1).mT
    kernel = -cost / REGULARIZATION
    log_a, log_b = (-math.log(count) for count in cost.shape[-2:])
    u, v = torch.zeros_like(cost[..., 0]), torch.zeros_like(cost[..., 0, :])
    for _ in range(SINKHORN_STEPS):
        u = log_a - (kernel + v.unsqueeze(-2)).logsumexp(-1)
        v = log_b - (kernel + u.unsqueeze(-1)).logsumexp(-2)
    plan = (kernel + u.unsqueeze(-1) + v.unsqueeze(-2)).exp()
    return (plan * cost).sum((-2, -1))


class Residual(nn.Module):
    """Two convolutions with instance norm, and a connection around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = _block(width, width), _block(width, width)

    def forward(self, maps: Tensor) -> Tensor:
        return maps + self.second(self.first(maps))


class ImageGenerator(nn.Module):
    """(images in [0, 1], domain) to images: two strided layers, two residual blocks, and back up.

    Args:
        domains: sources and novel domains together; a domain enters as constant channels.
    """

    def __init__(self, domains: int) -> None:
        super().__init__()
        self.domains = domains
        self.down = nn.Sequential(
            _block(3 + domains, WIDTH, 2),
            _block(WIDTH, 2 * WIDTH, 2),
            Residual(2 * WIDTH),
            Residual(2 * WIDTH),
        )
        self.up, self.last = _block(2 * WIDTH, WIDTH), nn.Conv2d(WIDTH, 3, 3, padding=1)

    def forward(self, images: Tensor, domain: Tensor) -> Tensor:
        size = images.shape[-2:]
        channels = one_hot(domain, self.domains).to(images)[:, :, None, None].expand(-1, -1, *size)
        maps = self.down(torch.cat([2 * images - 1, channels], 1))
        maps = self.up(interpolate(maps, scale_factor=2.0))
        return self.last(interpolate(maps, size=size)).float().sigmoid()


class DomainNet(nn.Module):
    """A small domain classifier; D are the features before its last layer."""

    def __init__(self, sources: int) -> None:
        super().__init__()
        self.maps = nn.Sequential(*(_block(n, WIDTH, 2, norm=False) for n in (3, WIDTH, WIDTH)))
        self.last = nn.Linear(2 * WIDTH, sources)

    def forward(self, images: Tensor) -> Tensor:
        """Return mean and standard deviation of each channel: what tells domains apart."""
        maps = self.maps(2 * images - 1).float().flatten(2)
        return torch.cat([maps.mean(-1), (maps.var(-1, correction=0) + 1e-6).sqrt()], -1)


def _block(before: int, after: int, stride: int = 1, norm: bool = True) -> nn.Module:
    """Return a convolution, instance norm and leaky ReLU."""
    layers = [nn.InstanceNorm2d(after, affine=True)] if norm else []
    return nn.Sequential(nn.Conv2d(before, after, 3, stride, 1), *layers, nn.LeakyReLU(0.2))


@FINETUNE_METHODS.register("l2a_ot")
class L2AOT(ImageMethod):
    """L2A-OT: also train on images of novel domains, from a generator that moves far from the sources."""

    needs = Needs(images=True, sources=2, networks="an image generator and a domain classifier")

    def __init__(self, settings: FineTuneSettings, backbone: nn.Module, sources: int, classes: int) -> None:
        super().__init__(settings, backbone, sources, classes)
        self.sources = sources
        self.generate, self.domains = ImageGenerator(2 * sources), DomainNet(sources)

    def image_loss(self, backbone: Any, head: nn.Module, batch: Rows, generator: Generator) -> Tensor:
        images, label, domain = batch
        mean, std = backbone.preprocessing.mean, backbone.preprocessing.std
        real = preprocessing.denormalize(images, mean, std)
        target = self.sources + permutation(self.sources, generator)[domain]
        fake = self.generate(real, target)
        as_input = preprocessing.normalize(fake, mean, std).to(images)
        rows = torch.cat([images, as_input.detach()])
        plain_loss, novel_loss = self.cross_entropy(
            head(backbone(rows)), label.repeat(2), reduction="none"
        ).chunk(2)
        task = (1 - NOVEL_SHARE) * plain_loss.mean() + NOVEL_SHARE * novel_loss.mean()
        known = cross_entropy(self.domains.last(self.domains(real)), domain)
        keeps = self.cross_entropy(frozen_call(head, frozen_call(plain(backbone), as_input)), label)
        cycle = (self.generate(fake, domain) - real).abs().mean()
        far = self._distances(real, fake)
        return task + known + CLASS_WEIGHT * keeps + CYCLE_WEIGHT * cycle - DOMAIN_WEIGHT * far

    def _distances(self, real: Tensor, fake: Tensor) -> Tensor:
        """Return how far novel domains are from their sources, and from each other, on average."""
        with torch.no_grad():
            source = self.domains(real).unflatten(0, (self.sources, -1))
        novel = frozen_call(self.domains, fake).unflatten(0, (self.sources, -1))
        first, second = zip(*itertools.combinations(novel.unbind(), 2))
        diverse = sinkhorn_distance(torch.stack(first), torch.stack(second))
        return sinkhorn_distance(source, novel).mean() + diverse.mean()
