"""ANT: adversarial noise training (Rusak et al., ECCV 2020).

A generator turns Gaussian noise at each pixel into noise that is as hard as it can be for the classifier;
both are trained together, min over the classifier, max over the generator, of the cross-entropy on
clip(x + s g(n)), where s is such that clip(x + s g(n)) - x has norm e. The generator has four 1x1
convolutions of width 20 and a connection around them. Half of a batch stays clean; the rest is noisy, two
fifths of it by earlier states of the generator (experience replay).

Norm, generator and shares are those of the released code (bethgelab/game-of-noise, commit 29625d2): e is 135
for images of 224 pixels with values in [0, 1], 0.35 at each value. There the replayed fifth comes from two
earlier states of one epoch each, here from one; the generator is trained by Adam with a rate of 1e-4, and
every ten epochs anew for 1,000 batches; here it has the rate of the head, and goes on.
"""

from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import conv2d, relu

from sourceward.nn.backbones.preprocessing import denormalize, normalize
from sourceward.training.finetune import FINETUNE_METHODS, FineTuneSettings, Rows
from sourceward.training.methods.gradients import reverse_gradient
from sourceward.training.methods.image_method import ImageMethod
from sourceward.training.needs import Needs

WIDTH, INIT = 20, 0.01
STRENGTH = 135 / (3 * 224 * 224) ** 0.5
"""Root mean square of the noise, for values in [0, 1]."""
NEWTON_STEPS, SMALLEST, LARGEST = 6, 1e-12, 1e6
"""Steps to the last digit; bounds where the pixels leave too little room, so that gradients stay finite."""
SHARES = (0.5, 0.3, 0.2)
"""Clean, noise of the present generator, noise of an earlier one: those of the released code."""
KEPT, EVERY = 10, 100
"""Earlier states that are kept, and iterations between them; ours."""


class NoiseGenerator(nn.Module):
    """Gaussian noise (batch, 3, height, width) to noise; its weights are one vector, so that states stack."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes = [(WIDTH, 3), (WIDTH, WIDTH), (WIDTH, WIDTH), (3, WIDTH)]
        count = sum(out * (into + 1) for out, into in self.shapes)
        weights, start = torch.zeros(count), 0
        for out, into in self.shapes:
            weights[start : start + out * into].normal_(std=INIT)
            start += out * (into + 1)
        self.weights = nn.Parameter(weights)

    def forward(self, noise: Tensor, weights: Tensor) -> Tensor:
        hidden, start = noise, 0
        for number, (out, into) in enumerate(self.shapes):
            weight = weights[start : start + out * into].view(out, into, 1, 1)
            start += out * into
            hidden = conv2d(hidden, weight, weights[start : start + out])
            hidden = relu(hidden) if number < len(self.shapes) - 1 else hidden + noise
            start += out
        return hidden


def with_noise(pixels: Tensor, noise: Tensor, strength: float = STRENGTH) -> Tensor:
    """Return clip(pixels + s noise), s such that it differs from the pixels by `strength` (root mean square).

    The mean square of what is added is the mean of min(t noise^2, room^2) with t = s^2, concave in t, so that
    Newton's method from 0 climbs to the solution: a step solves for t with the values fixed that are clipped.

    Args:
        pixels: (batch, 3, height, width) in [0, 1].
        noise: of the same shape and any size.
        strength: where the pixels leave less room, every value is clipped.
    """
    room, square = torch.where(noise >= 0, 1 - pixels, pixels).square(), noise.square()
    t = torch.zeros_like(noise[:, :1, :1, :1])
    for _ in range(NEWTON_STEPS):
        free = t.detach() * square < room
        fixed = torch.where(free, 0.0, room).mean((1, 2, 3), keepdim=True)
        growth = torch.where(free, square, 0.0).mean((1, 2, 3), keepdim=True)
        t = (strength**2 - fixed) / growth.clamp_min(SMALLEST)
    t = torch.where(t > 0, t, LARGEST).clamp_max(LARGEST)  # rounding makes it negative where all are clipped
    return (pixels + t.sqrt() * noise).clamp(0, 1)


@FINETUNE_METHODS.register("adversarial_noise")
class AdversarialNoise(ImageMethod):
    """Adversarial noise training: a generator of pixel noise is trained against the classifier."""

    needs = Needs(images=True, networks="a noise generator")
    earlier: Tensor
    taken: Tensor

    def __init__(self, settings: FineTuneSettings, backbone: nn.Module, sources: int, classes: int) -> None:
        super().__init__(settings, backbone, sources, classes)
        self.noise = NoiseGenerator()
        self.register_buffer("earlier", self.noise.weights.detach().repeat(KEPT, 1))
        self.register_buffer("taken", torch.zeros((), dtype=torch.long))

    def image_loss(self, backbone: Any, head: nn.Module, batch: Rows, generator: Generator) -> Tensor:
        images, (mean, std) = batch.inputs, (backbone.preprocessing.mean, backbone.preprocessing.std)
        self._remember()
        kind = torch.rand(len(images), 1, 1, 1, generator=generator, device=images.device)
        pixels = denormalize(images, mean, std)
        drawn = torch.randn(pixels.shape, generator=generator, device=images.device)
        state = torch.randint(KEPT, (1,), generator=generator, device=images.device)
        now = self.noise(drawn, reverse_gradient(self.noise.weights))
        before = self.noise(drawn, self.earlier[state][0])
        noise = torch.where(kind < SHARES[0] + SHARES[1], now, before).float()
        noisy = normalize(with_noise(pixels, noise), mean, std).to(images)
        return self.cross_entropy(head(backbone(torch.where(kind < SHARES[0], images, noisy))), batch.label)

    @torch.no_grad()
    def _remember(self) -> None:
        """Keep the generator's present state every `EVERY` iterations, in place of the oldest."""
        self.taken += 1
        slot = torch.arange(KEPT, device=self.taken.device) == self.taken // EVERY % KEPT
        kept = slot & (self.taken % EVERY == 0)
        self.earlier.copy_(torch.where(kept.unsqueeze(1), self.noise.weights, self.earlier))
