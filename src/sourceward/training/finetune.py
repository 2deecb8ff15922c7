"""Fine-tuning: the backbone is trained as an ordinary classifier, all sources in one pass.

`finetune.method` names a method that is registered here:

    @FINETUNE_METHODS.register("mine")
    class Mine(Method):
        def loss(self, backbone, head, batch, generator):
            return cross_entropy(head(backbone(batch.inputs)), batch.label)
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from sourceward._util.devices import ALONE, Meter, Processes
from sourceward._util.errors import InputError, TrainingError, unknown_name
from sourceward._util.registry import Registry
from sourceward._util.storage import save_tensors
from sourceward.data.feeds import Feed
from sourceward.data.loading import SourceData, encode
from sourceward.nn.backbones import Backbone
from sourceward.settings import LoopSettings
from sourceward.training.learner import CHECK_EVERY, Learner, flat
from sourceward.training.loop import SELECT, Training, load_finished
from sourceward.training.needs import Needs
from sourceward.training.run_folder import LAST, Context


@dataclass(frozen=True)
class FineTuneSettings:
    """Settings of fine-tuning.

    Args:
        max_iter: iterations.
        batch_size: samples of each source per iteration; 32 is what DomainBed draws.
        head_learning_rate: learning rate of the linear head.
        backbone_learning_rate: of the backbone; the paper's for ResNet-18 on PACS, and DomainBed's.
        weight_decay: decoupled (AdamW).
        schedule: `cosine`, `step` (x 0.1 at 60 %) or `constant`.
        average: decay of the moving average of all weights; 0 keeps the last iterate, 1 is the plain mean of
            all iterates from the hundredth on, or of the second half of a short training.
        freeze_batchnorm: hold the statistics of batch norm; where they move, they are averaged, too.
        evaluate_every: iterations between validations; a tenth of the training when None.
        checkpoint_every: iterations between checkpoints.
        method: a name in `FINETUNE_METHODS`.
        label_smoothing: share of each label that is spread over all classes.
        select: which weights are handed on: the `best` on source validation; the `late`st that are within
            one standard error of the best, for an `average` of 1, whose iterates source validation cannot
            tell apart; or the `last`.
        members: fine-tunings whose weights are averaged into one backbone, see `training.members`.
        compile: let torch.compile fuse what lies between convolutions, on CUDA; pays for long trainings.
    """

    max_iter: int = 2000
    batch_size: int = 32
    head_learning_rate: float = 1e-3
    backbone_learning_rate: float = 5e-5
    weight_decay: float = 5e-4
    schedule: str = "cosine"
    average: float = 0.99
    freeze_batchnorm: bool = True
    evaluate_every: int | None = None
    checkpoint_every: int = 500
    method: str = "erm"
    label_smoothing: float = 0.0
    select: str = "best"
    members: int = 1
    compile: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.head_learning_rate < math.inf:
            raise InputError(
                f"Expected `finetune.head_learning_rate` to be 0 or more, but got {self.head_learning_rate}."
            )
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
        for name in ("evaluate_every", "checkpoint_every", "members"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InputError(
                    f"Expected `finetune.{name}` to be 1 or more, but got {getattr(self, name)}."
                )

    def loop(self) -> LoopSettings:
        return LoopSettings(
            self.max_iter,
            self.batch_size,
            self.head_learning_rate,
            backbone_learning_rate=self.backbone_learning_rate,
            weight_decay=self.weight_decay,
            schedule=self.schedule,
            average=self.average,
            freeze_batchnorm=self.freeze_batchnorm,
        )


class Rows(NamedTuple):
    """Samples of all sources, source by source, equally many of each.

    Args:
        inputs: what the backbone takes: augmented images (rows, 3, height, width), or tokens by name.
        label, domain: (rows,) class and source of each row.
    """

    inputs: Any
    label: Tensor
    domain: Tensor


class Method(nn.Module):
    """A fine-tuning method: from a batch to a loss.

    Its own weights are trained, averaged and saved with the rest; the model gets backbone and head only.

    Args:
        settings: of the stage.
        backbone: that will be trained, to look at or to put hooks on.
        sources, classes: sizes.
    """

    needs: ClassVar[Needs] = Needs()

    def __init__(self, settings: FineTuneSettings, backbone: nn.Module, sources: int, classes: int) -> None:
        super().__init__()
        self.settings = settings

    def loss(self, backbone: Any, head: nn.Module, batch: Rows, generator: Generator) -> Tensor:
        """A number to minimise.

        Args:
            backbone: inputs to features (rows, dim).
            head: features to logits (rows, classes).
            batch: of all sources.
            generator: on the device; the only randomness to use. Nothing here may wait for the device.
        """
        raise NotImplementedError


FINETUNE_METHODS: Registry[type[Method]] = Registry("finetune.method")


@FINETUNE_METHODS.register("erm")
class ERM(Method):
    """Cross-entropy, every source alike."""

    def loss(self, backbone: Any, head: nn.Module, batch: Rows, generator: Generator) -> Tensor:
        logits = head(backbone(batch.inputs))
        return cross_entropy(logits, batch.label, label_smoothing=self.settings.label_smoothing)


class Classifier(nn.Module):
    """Backbone, linear head, and the method's own weights where it has any."""

    def __init__(
        self, backbone: nn.Module, dim: int, sources: int, classes: int, settings: FineTuneSettings
    ) -> None:
        super().__init__()
        self.backbone, self.head = backbone, nn.Linear(dim, classes)
        self.method = FINETUNE_METHODS[settings.method](settings, backbone, sources, classes)

    def reset_head(self, generator: torch.Generator) -> None:
        """Initialise near zero: all classes alike before the first step."""
        with torch.no_grad():
            self.head.weight.copy_(0.01 * torch.randn(self.head.weight.shape, generator=generator))
            self.head.bias.zero_()

    def forward(self, inputs: Any) -> Tensor:
        return self.head(self.backbone(inputs))


class FineTuner(Learner):
    """Fine-tunes a classifier, an iteration at a time."""

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
                "`finetune.backbone_learning_rate` or `finetune.head_learning_rate`."
            )
        self.apply_gradients()
        return loss.detach().clone()  # the next replay writes to the same place

    def parts(self, loss: Tensor) -> dict[str, float]:
        return {"total": loss.item()}

    def _loss(self, batch: tuple[Any, Tensor]) -> tuple[Tensor, None]:
        network: Classifier = self.network
        sources, count = batch[1].shape
        domain = torch.arange(sources, device=self.device).repeat_interleave(count)
        rows = Rows(flat(batch[0]), batch[1].flatten(), domain)
        with self.autocast:
            loss = network.method.loss(self._backbone, network.head, rows, self.generator)
        return loss, None


def finetune(
    data: SourceData, backbone: Backbone, context: Context, settings: FineTuneSettings
) -> tuple[Classifier, dict[str, Any]]:
    """Fine-tune a backbone on the sources; return the selected weights, and scores and cost of the training.

    A fine-tuning that has finished in the run's folder is loaded.
    """
    folder, device, sources = context.folder, context.device, len(data.train)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(context.seed)  # of a method's own weights
        network = Classifier(backbone, backbone.dim, sources, len(data.dataset.classes), settings)
    network.reset_head(torch.Generator().manual_seed(context.seed))
    network.to(device)
    fast = device.type == "cuda"
    if fast and backbone.kind == "image":
        backbone.to(memory_format=torch.channels_last)
    learner = FineTuner(network, settings, context.seed, processes=context.processes, bf16=fast)
    if folder.finetuned.exists():
        return learner.current.eval(), load_finished(learner.current, folder.finetuned)
    meter, size = Meter(device), max(1, settings.batch_size // context.processes.count)
    training = Training(
        learner,
        lambda start: data.samples.feed(data.train, data.labels, size, learner.seed, start),
        size * sources * context.processes.count,
        name="finetune",
        checkpoint=folder.checkpoint,
        checkpoint_every=settings.checkpoint_every,
        validate=lambda current: _scores(current, data, learner.iteration),
        evaluate_every=settings.evaluate_every,
        select=settings.select,
        log=context.log("finetune"),
        progress=context.progress if context.processes.is_main else False,
    )
    current = training.run()
    best, last = training.best_scores, learner.iteration
    if best["iteration"] != last:
        if context.processes.is_main:
            save_tensors(folder.path / f"finetuned-{LAST}", current.state_dict(), {"iteration": last})
        current.load_state_dict(training.best)
    cost = meter.read() | {"images_per_second": training.speed.steady()}
    info = {"scores": best | {"last_iteration": last}, "cost": cost}
    if context.processes.is_main:
        save_tensors(folder.finetuned, current.state_dict(), info)
        folder.checkpoint.unlink(missing_ok=True)
    return current.eval(), info


def _scores(network: Classifier, data: SourceData, iteration: int) -> dict[str, Any]:
    """Accuracy on the validation rows of each source, and their mean."""
    per_source = {}
    for name, rows in zip(data.dataset.domain_names, data.val):
        if rows.stop > rows.start:
            rows = data.first(rows)
            feature = encode(network.backbone, data.samples, rows)
            _check_alive(feature, iteration)
            correct = network.head(feature).argmax(1) == data.labels[rows]
            per_source[name] = {"accuracy": correct.float().mean().item(), "samples": len(correct)}
    mean = sum(scores["accuracy"] for scores in per_source.values()) / len(per_source)
    return {"accuracy": mean, "per_source": per_source}


def _check_alive(feature: Tensor, iteration: int) -> None:
    spread = feature.std(0).max().item() if len(feature) > 1 else 1.0
    if not spread > 0:  # NaN, too
        raise TrainingError(
            f"Every sample has the same features at iteration {iteration} of fine-tuning: they collapsed. "
            "Lower `finetune.backbone_learning_rate`, or pass --freeze."
        )


from sourceward.training import methods as _others  # noqa: E402, F401  they register themselves
