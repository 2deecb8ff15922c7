"""The training loop: draw a batch, minimise the objective, average, and be able to stop and go on.

    train(network, feed, loop_settings, train_settings, seed=0, checkpoint="run/checkpoint.safetensors")

Killed anywhere and started again with the same arguments, it ends with the same bits.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sourceward._util.devices import ALONE, Processes
from sourceward._util.errors import InputError, TrainingError
from sourceward._util.storage import RESTART, load_tensors, save_tensors
from sourceward.algorithm import Batch, objective
from sourceward.functional import Loss, class_centers
from sourceward.functional.negatives import jitter
from sourceward.nn import Network, ReplayBuffer
from sourceward.settings import LoopSettings, TrainSettings
from sourceward.training.learner import CHECK_EVERY, Learner, flat, rate

CENTER_PULL = 0.1
"""How far a batch pulls the stored class centres toward its own while the backbone trains."""

Inputs = Tensor | dict[str, Tensor]
"""What a backbone takes: images, features, or tokens by name."""


class Feed(Protocol):
    """Where batches come from: every source's inputs and labels, and shifted samples when there are any."""

    def __call__(self, generator: torch.Generator) -> Batch: ...


class ResidentFeed:
    """Batches from tensors that live on the device: as many rows from each source, with replacement.

    Args:
        inputs: one tensor per source, (rows, ...).
        labels: one tensor per source, (rows,).
        batch_size: rows of each source.
        shifted: (inputs, labels) of no source, to practise on.
        prepare: turns drawn rows (sources x batch, ...) into what the backbone takes, e.g. augmented images.
    """

    def __init__(
        self,
        inputs: list[Tensor],
        labels: list[Tensor],
        batch_size: int,
        shifted: tuple[Tensor, Tensor] | None = None,
        prepare: Callable[[Tensor, torch.Generator], Inputs] | None = None,
    ) -> None:
        self.inputs, self.labels, self.batch_size = inputs, labels, batch_size
        self.shifted, self.prepare = shifted, prepare

    def __call__(self, generator: torch.Generator) -> Batch:
        rows = [self._rows(len(x), x.device, generator) for x in self.inputs]
        inputs: Any = torch.stack([x[i] for x, i in zip(self.inputs, rows)])
        labels = torch.stack([y[i] for y, i in zip(self.labels, rows)])
        if self.prepare is not None:
            inputs = unflatten(self.prepare(inputs.flatten(0, 1), generator), inputs.shape[:2])
        if self.shifted is None:
            return Batch(inputs, labels)
        i = self._rows(len(self.shifted[0]), inputs.device, generator)
        return Batch(inputs, labels, self.shifted[0][i], self.shifted[1][i])

    def _rows(self, length: int, device: torch.device, generator: torch.Generator) -> Tensor:
        return torch.randint(length, (self.batch_size,), generator=generator, device=device)


class Trainer(Learner):
    """Algorithm 1: everything that changes during it, so that all of it can be saved and restored.

    Args:
        network: initialised; trained in place.
        loop: optimisation settings.
        settings: of the objective.
        seed: of batches, noise and dropout.
        processes: those that train together; each draws its own batches, gradients are averaged.
        bf16: run the backbone in bfloat16; heads and energies stay in float32.
        compile: let torch.compile fuse what lies between convolutions, on CUDA; pays for long trainings.
    """

    modules = ("network", "average", "replay")

    def __init__(
        self,
        network: Network,
        loop: LoopSettings,
        settings: TrainSettings,
        seed: int = 0,
        *,
        processes: Processes = ALONE,
        bf16: bool = False,
        compile: bool = False,
    ) -> None:
        super().__init__(network, loop, seed, processes=processes, bf16=bf16)
        self.settings = settings
        self._encode: Callable[[Any], Tensor] = network.features
        if compile and self.device.type == "cuda" and network.backbone is not None:
            self._encode = torch.compile(network.features, dynamic=False)
        per_class = min(500, math.ceil(3500 / network.classes))  # 500 for the 7 classes of PACS
        self.replay = ReplayBuffer(network.sources, network.classes, network.dim, per_class).to(self.device)

    def step(self, feed: Feed) -> Loss:
        """One iteration."""
        batch = feed(self.generator)
        _, (loss, feature) = self.gradients(self._losses, batch, self.replay.buffers())
        loss = Loss(*(part.detach().clone() for part in loss))  # the next replay writes to the same place
        if self.iteration % CHECK_EVERY == 0:
            _check(loss, feature, self.iteration)
        self.apply_gradients()
        if self.iteration == self.loop.max_iter:
            _check_finite(self.average, self.iteration)
        return loss

    def _losses(self, batch: Batch) -> tuple[Tensor, tuple[Loss, Tensor]]:
        """What is minimised, its parts, and the features: everything between a batch and its gradients."""
        with self.autocast:
            shifted = self._noisy_inputs(batch) if batch.shifted is None else batch.shifted
            batch = batch._replace(feature=_features(self._encode, batch.feature))
            if shifted is not None:
                batch = self._practise(batch, shifted)
        if self.network.backbone is not None:
            self._refresh_centers(batch.feature.detach(), batch.label)
        loss = objective(self.network, self.replay, batch, self.settings, self.generator)
        return loss.total, (loss, batch.feature)

    def _noisy_inputs(self, batch: Batch) -> Tensor | None:
        """Inputs of a lone source under noise, for it to practise on; None unless that is asked for."""
        std, inputs = self.settings.input_noise, batch.feature
        if not std or self.network.backbone is None or len(batch.label) > 1:
            return None
        if not isinstance(inputs, Tensor):
            raise InputError("Expected images for `input_noise`, but got tokens, which take no noise.")
        return jitter(inputs.flatten(0, 1), std, self.generator)

    def _practise(self, batch: Batch, shifted: Tensor) -> Batch:
        """Features of shifted samples; those made of the source's own also get noise in feature space."""
        with torch.no_grad():
            feature = self.network.features(shifted).float()
        if batch.shifted is None:
            own = jitter(batch.feature.detach().flatten(0, 1), self.settings.shift_noise, self.generator)
            label = batch.label.flatten()
            return batch._replace(shifted=torch.cat([feature, own]), shifted_label=torch.cat([label, label]))
        return batch._replace(shifted=feature)

    @torch.no_grad()
    def _refresh_centers(self, feature: Tensor, label: Tensor) -> None:
        """Stored class centres follow a backbone that moves: they stand in where a batch lacks a class."""
        centers, count = class_centers(feature, label, self.network.classes)
        pull = CENTER_PULL * (count > 0).unsqueeze(-1)
        self.network.centers.lerp_(centers, pull.to(centers.dtype))


def train(
    network: Network,
    feed: Feed,
    loop: LoopSettings,
    settings: TrainSettings,
    *,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 50,
    fingerprint: str = "",
    on_start: Callable[[int], None] | None = None,
    on_iteration: Callable[[int, Loss], None] | None = None,
) -> Network:
    """Train and return the averaged network.

    Args:
        network: initialised.
        feed: draws a batch of raw inputs from a generator.
        loop, settings: see `settings`.
        seed: of everything random.
        checkpoint: file to go on from when it exists, and to write every `checkpoint_every` iterations.
        fingerprint: of data and settings; a checkpoint of another one is refused.
        on_start: called with the number of iterations that the checkpoint has done.
        on_iteration: called with the number of iterations done and the loss.
    """
    trainer = Trainer(network, loop, settings, seed)
    if checkpoint is not None and Path(checkpoint).exists():
        _restore(trainer, checkpoint, fingerprint)
    network.train()
    if loop.freeze_batchnorm:
        freeze_batchnorm(network)
    if on_start is not None:
        on_start(trainer.iteration)
    while trainer.iteration < loop.max_iter:
        loss = trainer.step(feed)
        if on_iteration is not None:
            on_iteration(trainer.iteration, loss)
        done = trainer.iteration == loop.max_iter
        if checkpoint is not None and (done or trainer.iteration % checkpoint_every == 0):
            meta: dict[str, Any] = {"iteration": trainer.iteration, "fingerprint": fingerprint}
            save_tensors(checkpoint, trainer.state_dict(), meta)
    return trainer.current.eval()


def freeze_batchnorm(module: nn.Module) -> None:
    """Hold batch norm statistics: every batch norm in eval mode, whatever the mode around it."""
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.eval()


def _restore(trainer: Trainer, checkpoint: str | Path, fingerprint: str) -> None:
    state, meta = load_tensors(checkpoint, RESTART)
    if meta.get("fingerprint") != fingerprint:
        raise InputError(
            f"'{checkpoint}' belongs to other data or settings. Remove it to start anew, or name "
            "another file."
        )
    trainer.load_state_dict(state, meta["iteration"])


def unflatten(inputs: Inputs, shape: tuple[int, int]) -> Inputs:
    """(sources x batch, ...) to (sources, batch, ...)."""
    if isinstance(inputs, dict):
        return {name: value.unflatten(0, shape) for name, value in inputs.items()}
    return inputs.unflatten(0, shape)


def _features(encode: Callable[[Any], Tensor], inputs: Any) -> Tensor:
    """(sources, batch, ...) inputs to (sources, batch, dim): one backbone pass over all sources."""
    shape = (next(iter(inputs.values())) if isinstance(inputs, dict) else inputs).shape[:2]
    return encode(flat(inputs)).unflatten(0, shape)


@torch.no_grad()
def _check_finite(network: Network, iteration: int) -> None:
    """The last update may have broken what the last loss could not show."""
    if not all(bool(torch.isfinite(p).all()) for p in network.parameters()):
        raise TrainingError(
            f"Weights are no longer finite at iteration {iteration}. Lower `learning_rate` or `energy_learning_rate`."
        )


def _check(loss: Loss, feature: Tensor, iteration: int) -> None:
    """Stop with a reason rather than go on with nonsense."""
    norm = feature.detach().norm(dim=-1).mean().item() / feature.shape[-1] ** 0.5
    if not math.isfinite(norm) or not math.isfinite(loss.classify.item()):
        raise TrainingError(
            f"Features or classifier are no longer finite at iteration {iteration}. "
            "Lower `learning_rate` or `backbone_rate`, or look for extreme values in the features."
        )
    if norm < 0.01:
        raise TrainingError(
            f"Features collapsed to zero at iteration {iteration}: their norm is {norm:.1e} of what it was. "
            "Lower `backbone_rate`, or freeze the backbone."
        )
    if iteration >= 5 * CHECK_EVERY and abs(loss.contrast.item()) < 1e-8:
        raise TrainingError(
            f"Every sample has the same energy at iteration {iteration}: there is nothing to walk down. "
            "Lower `energy_learning_rate`, or train with a smaller step size."
        )
    if not math.isfinite(loss.total.item()):
        raise TrainingError(
            f"The energy diverged at iteration {iteration}. Lower `energy_learning_rate` or the training step size."
        )


__all__ = [
    "CHECK_EVERY",
    "Feed",
    "Inputs",
    "ResidentFeed",
    "Trainer",
    "freeze_batchnorm",
    "rate",
    "train",
    "unflatten",
]
