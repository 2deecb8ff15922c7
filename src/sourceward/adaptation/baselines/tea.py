"""TEA: test-time energy adaptation (Yuan et al., CVPR 2024).

The classifier is read as an energy, E(x) = -log sum exp of its logits. Contrastive divergence then lowers it
on the test batch and raises it on samples that Langevin dynamics draw from the classifier itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sourceward.adaptation.base import ADAPTERS, Unsuitable
from sourceward.adaptation.baselines.classifier import classifier_energy
from sourceward.adaptation.baselines.online import Online
from sourceward.adaptation.baselines.peer import Student, affine_student, at_least, norm_student
from sourceward.nn import Network


def langevin_samples(
    energy: Callable[[Tensor], Tensor],
    start: Tensor,
    steps: int,
    step_size: float,
    noise_std: float,
    generator: torch.Generator | None = None,
) -> Tensor:
    """x <- x - step_size dE/dx + noise_std eps, `steps` times."""
    x = start.detach()
    for _ in range(steps):
        x = x.requires_grad_(True)
        (slope,) = torch.autograd.grad(energy(x).sum(), x)
        noise = torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
        x = (x - step_size * slope + noise_std * noise).detach()
    return x


@ADAPTERS.register("tea")
@dataclass(frozen=True)
class TEA(Online):
    """TEA: norm layers learn to give test samples a lower classifier energy than its own (Yuan 2024).

    Args:
        num_steps, step_size, noise_std: of the Langevin dynamics; the released code's values.
        buffer_size: past samples that the dynamics start from.
        restart: share of starts that are noise instead.
        seed: of starts and noise.
    """

    reads: ClassVar[str] = "inputs"
    answers_after: ClassVar[bool] = True

    num_steps: int = 20
    step_size: float = 1.0
    noise_std: float = 0.01
    buffer_size: int = 1000
    restart: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "num_steps", "step_size", "noise_std", "restart")
        at_least(self, 1, "buffer_size")

    def student(self, network: Network) -> Student:
        return norm_student(network)

    def objective(self, student: Student) -> Callable[[Any, Tensor, Tensor], Tensor]:
        generator: torch.Generator | None = None
        buffer: Tensor | None = None

        def energy(inputs: Tensor) -> Tensor:
            return classifier_energy(student.logits(student.encode(inputs)))

        def loss(inputs: Any, feature: Tensor, logits: Tensor) -> Tensor:
            nonlocal generator, buffer
            if not isinstance(inputs, Tensor):
                raise Unsuitable("TEA walks on inputs, and tokens are no place to walk. Use 'tea_features'.")
            if generator is None or buffer is None:
                generator = torch.Generator(inputs.device).manual_seed(self.seed)
                buffer = self.noise((self.buffer_size, *inputs.shape[1:]), inputs, generator)
            at = torch.randint(len(buffer), (len(inputs),), generator=generator, device=inputs.device)
            anew = torch.rand(len(inputs), generator=generator, device=inputs.device) < self.restart
            fresh = self.noise(inputs.shape, inputs, generator)
            start = torch.where(anew.view(-1, *[1] * (inputs.ndim - 1)), fresh, buffer[at])
            own = langevin_samples(energy, start, self.num_steps, self.step_size, self.noise_std, generator)
            buffer[at] = own
            return classifier_energy(logits).mean() - energy(own).mean()

        return loss

    def noise(self, shape: Any, like: Tensor, generator: torch.Generator) -> Tensor:
        """Where the dynamics begin: uniform in [-1, 1]."""
        return torch.rand(shape, generator=generator, device=like.device, dtype=like.dtype) * 2 - 1

    def _hint(self) -> str:
        return " Use 'tea_features'."


@ADAPTERS.register("tea_features")
@dataclass(frozen=True)
class TEAOnFeatures(TEA):
    """TEA on features: a scale and a shift learn; the dynamics walk among features."""

    reads: ClassVar[str] = "features"

    def student(self, network: Network) -> Student:
        return affine_student(network)

    def noise(self, shape: Any, like: Tensor, generator: torch.Generator) -> Tensor:
        """Standard normal: source features have mean 0 and root mean square 1."""
        return torch.randn(shape, generator=generator, device=like.device, dtype=like.dtype)
