"""MEMO: test time robustness via adaptation and augmentation (Zhang, Levine & Finn, NeurIPS 2022).

Loss: the entropy of the mean prediction over augmented copies of one sample. The sample is predicted after
the update, and the weights are restored.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sourceward.adaptation.base import ADAPTERS, image_preprocessing
from sourceward.adaptation.baselines.base import BatchPrediction, unadapted
from sourceward.adaptation.baselines.classifier import ensemble_logits, mean_entropy
from sourceward.adaptation.baselines.episodic import Episodic
from sourceward.adaptation.baselines.trainable import TrainableCopy
from sourceward.data.augmix import augmix
from sourceward.functional import keyed_normal, row_keys
from sourceward.functional.aggregation import log_mixture
from sourceward.nn import Network
from sourceward.nn.backbones.preprocessing import denormalize, normalize


@ADAPTERS.register("memo")
@dataclass(frozen=True)
class MEMO(Episodic):
    """MEMO: for each sample alone, the backbone learns that AugMix copies agree (Zhang et al. 2022).

    Learning rate and number of updates are those of the released code for ResNet-50, which uses 64 copies.
    """

    use_on_features: ClassVar[str] = "'memo_features'"

    learning_rate: float = 2.5e-4

    def make_loss(
        self, model: TrainableCopy, image: Tensor, generator: torch.Generator
    ) -> Callable[[], Tensor]:
        inputs = image_preprocessing(model.network)
        plain = denormalize(image, inputs.mean, inputs.std).expand(self.num_copies, -1, -1, -1)
        copies = normalize(augmix(plain, generator=generator), inputs.mean, inputs.std)
        return lambda: mean_entropy(log_mixture(model.logits(model.encode(copies))))


@ADAPTERS.register("memo_features")
@dataclass(frozen=True)
class MEMOOnFeatures(MEMO):
    """MEMO on features: for each sample alone, a scale and a shift learn that noisy copies agree.

    Args:
        noise_std: of the noise on a copy; the root mean square of a feature is 1.
    """

    reads: ClassVar[str] = "features"

    batch_size: int = 64
    learning_rate: float = 0.1
    noise_std: float = 0.5

    def predict_batches(self, network: Network, batches: Iterator[Tensor]) -> Iterator[BatchPrediction]:
        # Every row has a scale and a shift of its own, so that a batch is many single samples in parallel.
        for feature in batches:
            keys = row_keys(feature.detach().cpu().numpy(), self.seed).to(feature.device)
            noise = keyed_normal(keys, 0, feature.shape[1], feature.dtype, self.num_copies)
            copies = feature + self.noise_std * noise
            scale = torch.ones_like(feature).requires_grad_(True)
            shift = torch.zeros_like(feature).requires_grad_(True)
            for _ in range(self.num_updates):
                logits = ensemble_logits(network, (copies * scale + shift).flatten(0, 1))
                log_probability = log_mixture(logits).unflatten(0, (self.num_copies, -1))
                gradients = torch.autograd.grad(mean_entropy(log_probability).sum(), (scale, shift))
                with torch.no_grad():
                    for parameter, gradient in zip((scale, shift), gradients):
                        parameter -= self.learning_rate * gradient
            with torch.no_grad():
                yield unadapted(network, feature * scale + shift)
