"""MEMO: test time robustness via adaptation and augmentation (Zhang, Levine & Finn, NeurIPS 2022).

One sample at a time: its augmented views should agree and be sure, so the entropy of their mean answer is
lowered by one step; the sample is answered, and the weights go back to what they were.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sourceward.adaptation.base import ADAPTERS, Unsuitable
from sourceward.adaptation.baselines.classifier import log_vote, voter_logits
from sourceward.adaptation.baselines.peer import (
    Peer,
    Response,
    at_least,
    backbone_student,
    response,
    sample_generators,
)
from sourceward.data.augmix import augmix
from sourceward.functional import keyed_normal, row_keys
from sourceward.nn import Network
from sourceward.nn.backbones import Backbone, ImagePreprocessing
from sourceward.nn.backbones.preprocessing import denormalize as pixels
from sourceward.nn.backbones.preprocessing import normalize as normalise


def marginal_entropy(log_probability: Tensor) -> Tensor:
    """Entropy of the mean answer over views: (views, ..., classes) to (...).

    >>> views = torch.tensor([[0.9, 0.1], [0.1, 0.9]]).log()  # sure, but not of the same
    >>> round(marginal_entropy(views).item(), 4)
    0.6931
    """
    mean = log_probability.exp().mean(0)
    return -(mean * mean.clamp_min(torch.finfo(mean.dtype).tiny).log()).sum(-1)


@ADAPTERS.register("memo")
@dataclass(frozen=True)
class MEMO(Peer):
    """MEMO: for each sample alone, AugMix views learn to agree; then back to the old weights (Zhang 2022).

    Args:
        views: augmented copies of the sample.
        rate: of plain gradient descent on the backbone; the released code's for ResNet-50.
        steps: updates for each sample; 0 learns nothing.
        seed: of the views.
    """

    keeps_state: ClassVar[bool] = False
    needs_batch: ClassVar[bool] = False
    reads: ClassVar[str] = "inputs"

    batch_size: int = 1
    views: int = 32
    rate: float = 2.5e-4
    steps: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "views")
        at_least(self, 0, "rate", "steps")

    def check(self, network: Network) -> None:
        super().check(network)
        if self.reads == "inputs":
            image_preprocessing(network)

    def stream(self, network: Network, batches: Iterator[Any]) -> Iterator[Response]:
        student = backbone_student(network, own_statistics=False)
        original = [parameter.detach().clone() for parameter in student.parameters]
        optimizer = torch.optim.SGD(student.parameters, lr=self.rate)
        looks = image_preprocessing(network)
        for batch in batches:
            answers = []
            for sample, generator in zip(batch.split(1), sample_generators(batch, self.seed)):
                plain = pixels(sample, looks.mean, looks.std).expand(self.views, -1, -1, -1)
                views = normalise(augmix(plain, generator=generator), looks.mean, looks.std)
                for _ in range(self.steps):
                    loss = marginal_entropy(log_vote(student.logits(student.encode(views))))
                    optimizer.zero_grad(set_to_none=True)
                    loss.backward()
                    optimizer.step()
                answers.append(student.answer(sample))
                with torch.no_grad():
                    torch._foreach_copy_(list(student.parameters), original)
            feature, vote, per_source = zip(*answers)
            yield Response(torch.cat(feature), torch.cat(vote), torch.cat(per_source, dim=1))

    def _hint(self) -> str:
        return " Use 'memo_features'."


@ADAPTERS.register("memo_features")
@dataclass(frozen=True)
class MEMOOnFeatures(MEMO):
    """MEMO on features: for each sample alone, a scale and a shift learn that noisy views agree.

    Args:
        noise: standard deviation of a view's noise; the root mean square of a feature is 1.
    """

    reads: ClassVar[str] = "features"

    batch_size: int = 64
    rate: float = 0.1
    noise: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "noise")

    def stream(self, network: Network, batches: Iterator[Any]) -> Iterator[Response]:
        # Every row has a scale and a shift of its own, so that a batch is many single samples side by side.
        for feature in batches:
            keys = row_keys(feature.detach().cpu().numpy(), self.seed).to(feature.device)
            eps = keyed_normal(keys, 0, feature.shape[1], feature.dtype, self.views)
            views = feature + self.noise * eps
            scale = torch.ones_like(feature).requires_grad_(True)
            shift = torch.zeros_like(feature).requires_grad_(True)
            for _ in range(self.steps):
                moved = (views * scale + shift).flatten(0, 1)
                answer = log_vote(voter_logits(network, moved)).unflatten(0, (self.views, -1))
                slopes = torch.autograd.grad(marginal_entropy(answer).sum(), (scale, shift))
                with torch.no_grad():
                    for parameter, slope in zip((scale, shift), slopes):
                        parameter -= self.rate * slope
            with torch.no_grad():
                adapted = feature * scale + shift
                yield response(adapted, voter_logits(network, adapted))


def image_preprocessing(network: Network) -> ImagePreprocessing:
    """Of the backbone; refused where it reads no images."""
    for module in network.modules():
        if isinstance(module, Backbone) and isinstance(module.preprocessing, ImagePreprocessing):
            return module.preprocessing
    raise Unsuitable("This adapter augments images, but the backbone reads none.")
