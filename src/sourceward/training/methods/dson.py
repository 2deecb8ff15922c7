"""The training of DSON: domain-specific optimized normalization (Seo et al., ECCV 2020).

Loss: cross-entropy. Batch norm becomes that of `nn.domain_norm`: statistics, scales and shifts of each
source, and a learned mixture of batch and instance statistics. Test samples average over the sources.
"""

from typing import Any

from torch import Generator, Tensor, nn

from sourceward._util.errors import InputError
from sourceward.nn.domain_norm import DomainNorm
from sourceward.training.finetune import FINETUNE_METHODS, FineTuneSettings, Rows
from sourceward.training.methods.image_method import ImageMethod
from sourceward.training.needs import Needs


@FINETUNE_METHODS.register("dson")
class DSON(ImageMethod):
    """DSON: batch and instance norm, mixed for each source; predictions average over the sources."""

    needs = Needs(
        images=True,
        sources=2,
        backbone="batch norm",
        networks="norm layers of each source",
        settings={"finetune.freeze_batchnorm": False},
    )

    def __init__(self, settings: FineTuneSettings, backbone: Any, sources: int, classes: int) -> None:
        super().__init__(settings, backbone, sources, classes)
        backbone.use_domain_norm(sources)
        if not any(isinstance(module, DomainNorm) for module in backbone.modules()):
            raise InputError("Fine-tuning by 'dson' needs batch norm, but this backbone has none. Use 'erm'.")

    def image_loss(self, backbone: Any, head: nn.Module, batch: Rows, generator: Generator) -> Tensor:
        return self.cross_entropy(head(backbone(batch.inputs)), batch.label)
