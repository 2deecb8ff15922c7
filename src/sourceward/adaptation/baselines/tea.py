"""TEA: test-time energy adaptation (Yuan et al., CVPR 2024).

The classifier defines an energy, E(x) = -log sum exp of its logits. Loss: contrastive divergence, the mean
energy of the test batch minus that of samples which Langevin dynamics draw from the model itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sourceward.adaptation.base import ADAPTERS, Unsuitable
from sourceward.adaptation.baselines.classifier import classifier_energy
from sourceward.adaptation.baselines.online import Loss, Online
from sourceward.adaptation.baselines.trainable import TrainableCopy


def langevin_samples(
    energy: Callable[[Tensor], Tensor],
    start: Tensor,
    num_steps: int,
    step_size: float,
    noise_std: float,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Iterate x <- x - step_size dE/dx + noise_std eps from `start`."""
    x = start.detach()
    for _ in range(num_steps):
        x = x.requires_grad_(True)
        (slope,) = torch.autograd.grad(energy(x).sum(), x)
        noise = torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
        x = (x - step_size * slope + noise_std * noise).detach()
    return x


@ADAPTERS.register("tea")
@dataclass(frozen=True)
class TEA(Online):
    """TEA: norm layers lower the classifier energy of test samples against its own samples (Yuan 2024).

    Values are the defaults of the released code unless noted.

    Args:
        num_steps: Langevin steps of each sample.
        step_size: of the Langevin steps; the released configuration of CIFAR-10 uses 0.1.
        noise_std: of the Langevin steps.
        buffer_size: replay buffer that chains start from; 10,000 in the released code, 1,000 here to save
            memory on large images.
        restart: share of chains that start from noise instead.
        seed: of the chains.
    """

    reads: ClassVar[str] = "inputs"
    trains: ClassVar[str] = "norm_layers"
    use_on_features: ClassVar[str] = "'tea_features'"
    predicts_after_update: ClassVar[bool] = True

    num_steps: int = 20
    step_size: float = 1.0
    noise_std: float = 0.01
    buffer_size: int = 1000
    restart: float = 0.05
    seed: int = 0

    def make_loss(self, model: TrainableCopy) -> Loss:
        generator: torch.Generator | None = None
        buffer: Tensor | None = None

        def energy(inputs: Tensor) -> Tensor:
            return classifier_energy(model.logits(model.encode(inputs)))

        def loss(inputs: Any, feature: Tensor, logits: Tensor) -> Tensor:
            nonlocal generator, buffer
            if not isinstance(inputs, Tensor):
                raise Unsuitable("TEA needs continuous inputs, but tokens are discrete. Use 'tea_features'.")
            if generator is None or buffer is None:
                generator = torch.Generator(inputs.device).manual_seed(self.seed)
                buffer = self.noise((self.buffer_size, *inputs.shape[1:]), inputs, generator)
            index = torch.randint(len(buffer), (len(inputs),), generator=generator, device=inputs.device)
            restarted = torch.rand(len(inputs), generator=generator, device=inputs.device) < self.restart
            fresh = self.noise(inputs.shape, inputs, generator)
            start = torch.where(restarted.view(-1, *[1] * (inputs.ndim - 1)), fresh, buffer[index])
            drawn = langevin_samples(energy, start, self.num_steps, self.step_size, self.noise_std, generator)
            buffer[index] = drawn
            return classifier_energy(logits).mean() - energy(drawn).mean()

        return loss

    def noise(self, shape: Any, like: Tensor, generator: torch.Generator) -> Tensor:
        """Draw starts of chains: uniform in [-1, 1]."""
        return torch.rand(shape, generator=generator, device=like.device, dtype=like.dtype) * 2 - 1


@ADAPTERS.register("tea_features")
@dataclass(frozen=True)
class TEAOnFeatures(TEA):
    """TEA on features: a scale and a shift of each feature are trained; chains run in feature space."""

    reads: ClassVar[str] = "features"
    trains: ClassVar[str] = "affine"

    def noise(self, shape: Any, like: Tensor, generator: torch.Generator) -> Tensor:
        """Draw starts of chains: standard normal, as source features have mean 0 and root mean square 1."""
        return torch.randn(shape, generator=generator, device=like.device, dtype=like.dtype)
