"""Stage 1 of a two-stage fit: the backbone learns as an ordinary classifier, all sources in one pass.

Method registered here under a name is what `finetune.method` chooses:

    @FINETUNE_METHODS.register("mine")
    class Mine(Method):
        def loss(self, backbone, head, inputs, label, domain, generator):
            return cross_entropy(head(backbone(inputs)), label)
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sourceward._util.devices import ALONE, Processes
from sourceward._util.errors import InputError, TrainingError, unknown_name
from sourceward._util.registry import Registry
from sourceward.settings import LoopSettings
from sourceward.training.learner import CHECK_EVERY, Learner, flat
from sourceward.training.loop import Feed
from sourceward.training.selection import SELECT


@dataclass(frozen=True)
class FineTuneSettings:
    """Stage 1.

    Args:
        max_iter: iterations.
        batch_size: samples of each source per iteration; 32 is what DomainBed draws.
        head_rate: learning rate of the linear head.
        backbone_rate: of the backbone; the paper's for ResNet-18 on PACS, and DomainBed's.
        weight_decay: decoupled (AdamW).
        schedule: `cosine`, `step` (x 0.1 at 60 %) or `constant`.
        average: decay of the moving average of all weights; 0 keeps the last iterate, 1 is the plain mean of
            all iterates from the hundredth on.
        freeze_batchnorm: hold the statistics of batch norm; where they move, they are averaged, too.
        evaluate_every: iterations between looks at source validation; a tenth of the training when None.
        checkpoint_every: iterations between checkpoints.
        method: a name in `FINETUNE_METHODS`.
        label_smoothing: share of each label that is spread over all classes.
        select: which weights are handed on: the `best` on source validation; the `late`st that are within
            one standard error of the best, for an `average` of 1, whose iterates source validation tells
            apart by luck alone; or the `last`.
        compile: let torch.compile fuse what lies between convolutions, on CUDA; pays for long trainings.
    """

    max_iter: int = 2000
    batch_size: int = 32
    head_rate: float = 1e-3
    backbone_rate: float = 5e-5
    weight_decay: float = 5e-4
    schedule: str = "cosine"
    average: float = 0.99
    freeze_batchnorm: bool = True
    evaluate_every: int | None = None
    checkpoint_every: int = 500
    method: str = "erm"
    label_smoothing: float = 0.0
    select: str = "best"
    compile: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.head_rate < math.inf:
            raise InputError(f"Expected `finetune.head_rate` to be 0 or more, but got {self.head_rate}.")
        try:
            self.loop()
        except InputError as error:  # by the name that it has here
            raise InputError(str(error).replace("`", "`finetune.", 1)) from None
        FINETUNE_METHODS[self.method]
        if self.select not in SELECT:
            raise unknown_name("finetune.select", self.select, SELECT)
        if not 0 <= self.label_smoothing < 1:
            raise InputError(
                f"Expected `finetune.label_smoothing` to be in [0, 1), but got {self.label_smoothing}."
            )
        for name in ("evaluate_every", "checkpoint_every"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InputError(
                    f"Expected `finetune.{name}` to be 1 or more, but got {getattr(self, name)}."
                )

    def loop(self) -> LoopSettings:
        return LoopSettings(
            self.max_iter,
            self.batch_size,
            self.head_rate,
            backbone_rate=self.backbone_rate,
            weight_decay=self.weight_decay,
            schedule=self.schedule,
            average=self.average,
            freeze_batchnorm=self.freeze_batchnorm,
        )


class Method(nn.Module):
    """How a batch becomes a loss. Parameters and buffers of a method are trained, averaged and saved with
    the rest; only backbone and head go into the model.

    Args:
        settings: of the stage.
        backbone: that will be trained, to look at or to put hooks on.
        sources, classes: sizes.
    """

    def __init__(self, settings: FineTuneSettings, backbone: nn.Module, sources: int, classes: int) -> None:
        super().__init__()
        self.settings = settings

    def loss(
        self,
        backbone: nn.Module,
        head: nn.Module,
        inputs: Any,
        label: Tensor,
        domain: Tensor,
        generator: torch.Generator,
    ) -> Tensor:
        """A number to minimise.

        Args:
            backbone: inputs to features (rows, dim).
            head: features to logits (rows, classes).
            inputs: what the backbone takes: augmented images, or tokens by name; rows source by source.
            label, domain: (rows,) class and source of each row.
            generator: on the device; the only randomness to use. Nothing here may wait for the device.
        """
        raise NotImplementedError


FINETUNE_METHODS: Registry[type[Method]] = Registry("finetune.method")


@FINETUNE_METHODS.register("erm")
class ERM(Method):
    """Cross-entropy, every source alike."""

    def loss(
        self,
        backbone: nn.Module,
        head: nn.Module,
        inputs: Any,
        label: Tensor,
        domain: Tensor,
        generator: torch.Generator,
    ) -> Tensor:
        return cross_entropy(head(backbone(inputs)), label, label_smoothing=self.settings.label_smoothing)


class Classifier(nn.Module):
    """What stage 1 trains: backbone, linear head, and the method's own weights where it has any."""

    def __init__(
        self, backbone: nn.Module, dim: int, sources: int, classes: int, settings: FineTuneSettings
    ) -> None:
        super().__init__()
        self.backbone, self.head = backbone, nn.Linear(dim, classes)
        self.method = FINETUNE_METHODS[settings.method](settings, backbone, sources, classes)

    def reset_head(self, generator: torch.Generator) -> None:
        """All classes alike before the first step, so that nothing depends on a lucky start."""
        with torch.no_grad():
            self.head.weight.copy_(0.01 * torch.randn(self.head.weight.shape, generator=generator))
            self.head.bias.zero_()

    def forward(self, inputs: Any) -> Tensor:
        return self.head(self.backbone(inputs))


class FineTuner(Learner):
    """Stage 1, an iteration at a time."""

    def __init__(
        self,
        network: Classifier,
        settings: FineTuneSettings,
        seed: int = 0,
        *,
        processes: Processes = ALONE,
        bf16: bool = False,
    ) -> None:
        super().__init__(network, settings.loop(), seed, processes=processes, bf16=bf16)
        self._backbone: Any = network.backbone
        if settings.compile and self.device.type == "cuda":
            self._backbone = torch.compile(network.backbone, dynamic=False)

    def step(self, feed: Feed) -> Tensor:
        """One iteration; the loss stays on the device."""
        batch = feed(self.generator)
        loss, _ = self.gradients(self._loss, (batch.feature, batch.label))
        if self.iteration % CHECK_EVERY == 0 and not math.isfinite(loss.item()):
            raise TrainingError(
                f"The loss is no longer finite at iteration {self.iteration} of fine-tuning. Lower "
                "`finetune.backbone_rate` or `finetune.head_rate`."
            )
        self.apply_gradients()
        return loss.detach().clone()  # the next replay writes to the same place

    def _loss(self, batch: tuple[Any, Tensor]) -> tuple[Tensor, None]:
        network: Classifier = self.network
        inputs, label = flat(batch[0]), batch[1].flatten()
        sources, rows = batch[1].shape
        domain = torch.arange(sources, device=self.device).repeat_interleave(rows)
        with self.autocast:
            loss = network.method.loss(self._backbone, network.head, inputs, label, domain, self.generator)
        return loss, None


from sourceward.training import methods as _others  # noqa: E402, F401  they register themselves
