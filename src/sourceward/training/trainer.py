"""`Trainer`: Algorithm 1, an iteration at a time."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from sourceward._util.devices import ALONE, Processes, tensor_cores
from sourceward._util.errors import InputError, TrainingError
from sourceward._util.graphs import each
from sourceward.algorithm import objective
from sourceward.data.feeds import Feed
from sourceward.functional import Loss, class_centers
from sourceward.functional.losses import Batch, jitter
from sourceward.nn import Network, ReplayBuffer
from sourceward.nn.heads import LinearHead
from sourceward.settings import PAPER, LoopSettings, TrainSettings, kl_weight_of
from sourceward.training.learner import CHECK_EVERY, Learner, flat

CENTER_RATE = 0.1
"""Rate at which the stored class centres follow those of a batch while the backbone trains."""


PATIENCE = 300
"""Iterations after which a joint training must have learned something."""

CHECKS = 5
"""Losses that are averaged for this, `CHECK_EVERY` iterations apart."""

CHANCE_SHARE, LEARNED_SHARE, LATENT_SHARE = 0.97, 0.5, 0.25
"""Shares of ln C, the cross-entropy of a uniform guess and the nats that tell C classes apart. Above the
first nothing was learned; above the second little, and if the KL is below the third it is the reason."""


class Trainer(Learner):
    """Trains a network by Algorithm 1, with everything that must survive a kill.

    Args:
        network: initialised; trained in place.
        loop: optimisation settings.
        settings: of the objective.
        kl_weight: weight of KL(q(z|d) || p(z|x)) in eq. 10, or `paper`: see `settings.kl_weight_of`.
        seed: of batches, noise and dropout.
        processes: that train together; each draws its own batches, gradients are averaged.
        bf16: run the backbone in bfloat16; products of heads and energies are then TF32 on CUDA.
        compile: let torch.compile fuse what lies between convolutions, on CUDA; pays for long trainings.
        per_source: update the weights once for each source in every iteration, as Algorithm 1 does, and not
            once for all together.
    """

    modules = ("network", "average", "replay")

    def __init__(
        self,
        network: Network,
        loop: LoopSettings,
        settings: TrainSettings,
        kl_weight: float | str,
        seed: int = 0,
        *,
        processes: Processes = ALONE,
        bf16: bool = False,
        compile: bool = False,
        per_source: bool = False,
    ) -> None:
        super().__init__(network, loop, seed, processes=processes, bf16=bf16)
        self._products = partial(tensor_cores, bf16 and self.device.type == "cuda")
        self.settings = settings
        self.coefficients = settings.coefficients(kl_weight_of(kl_weight, network.dim))
        self._terms: list[tuple[float, float]] = []
        self._encode: Callable[[Any], Tensor] = network.features
        if compile and self.device.type == "cuda" and network.backbone is not None:
            self._encode = torch.compile(network.features, dynamic=False)
        per_class = settings.replay_size or min(500, math.ceil(3500 / network.classes))  # 500 on PACS
        self.replay = ReplayBuffer(network.sources, network.classes, network.dim, per_class).to(self.device)
        self.per_source, self._objective = per_source, _Objective(network, self.replay)

    def step(self, feed: Feed) -> Loss:
        """One iteration: one update for all sources, or one for each."""
        batch, losses = feed(self.generator), []
        for source in range(self.network.sources) if self.per_source else (None,):
            function = partial(self._losses, source=source)
            with self._products():
                _, (loss, feature) = self.gradients(function, batch, self.replay.buffers(), source)
            losses.append(torch.stack([part.detach() for part in loss]))  # a copy: replays write there again
            if self.iteration % CHECK_EVERY == 0:
                _check(loss, feature, self.iteration)
            self.update()
        loss = Loss(*torch.stack(losses).mean(0).unbind())
        if self.iteration % CHECK_EVERY == 0 and self.network.backbone is not None:
            self._check_learning(loss)
        self.advance()
        if self.iteration == self.loop.max_iter:
            _check_finite(self.average, self.iteration)
        return loss

    def _check_learning(self, loss: Loss) -> None:
        """Stop a training whose classifier has learned nothing after `PATIENCE` iterations.

        A classifier near chance has the cross-entropy of a uniform guess, ln C. Where at the same time the KL
        is far below ln C, z cannot tell C classes apart: the KL weight is too large.
        """
        chance = math.log(self.network.classes)
        self._terms = [*self._terms[1 - CHECKS :], (loss.classify.item(), loss.kl.item())]
        if self.iteration < PATIENCE or len(self._terms) < CHECKS:
            return
        classify, kl = (sum(values) / CHECKS for values in zip(*self._terms))
        network, at = self.network, f"at iteration {self.iteration}"
        so_far = f"its cross-entropy is {classify:.2f}, that of a uniform guess {chance:.2f}"
        if network.latent and kl < LATENT_SHARE * chance and classify > LEARNED_SHARE * chance:
            raise TrainingError(
                f"The classifier learns almost nothing {at}: {so_far}. The KL left z {kl:.2f} nats, too few "
                f"to tell {network.classes} classes apart. Lower `kl_weight`, now {self.coefficients.kl:g}; "
                f"`paper` is {kl_weight_of(PAPER, network.dim):.1g} here."
            )
        if classify > CHANCE_SHARE * chance:
            raise TrainingError(
                f"The classifier has learned nothing {at}: {so_far}. Raise `learning_rate` or "
                "`backbone_learning_rate`, or check that labels and samples belong together."
            )

    def _losses(self, batch: Batch, source: int | None = None) -> tuple[Tensor, tuple[Loss, Tensor]]:
        """The loss of all sources or of one, its parts and the features of its samples."""
        if source is not None and self.network.sources > 1:
            batch = self._of_source(batch, source)
        with self.autocast:
            shifted = self._noisy_inputs(batch) if batch.shifted is None else batch.shifted
            batch = batch._replace(feature=_features(self._encode, batch.feature))
            if shifted is not None:
                batch = self._with_shifted(batch, shifted)
        part = slice(None) if source is None else slice(source, source + 1)
        if self.network.backbone is not None:
            self._refresh_centers(batch.feature.detach(), batch.label, self.network.centers[part])
        arguments = batch, self.settings, self.coefficients, self.generator
        if source is None:
            loss = self._objective(*arguments)
        else:
            own = {name: value[part] for name, value in self._objective.stacked().items()}
            loss = functional_call(self._objective, own, arguments)
        return loss.total, (loss, batch.feature)

    def _of_source(self, batch: Batch, source: int) -> Batch:
        """The batch of one source, with inputs of the others as its negatives, one for each chain."""
        sources, rows = batch.label.shape
        count = self.settings.chains or rows
        pick = torch.randint(
            (sources - 1) * rows, (count,), generator=self.generator, device=batch.label.device
        )
        pick = pick + rows * (pick >= source * rows)  # skip the source's own rows
        own, others = (
            each(choose, batch.feature)
            for choose in (lambda x: x[source : source + 1], lambda x: x.flatten(0, 1)[pick])
        )
        return Batch(own, batch.label[source : source + 1], others, batch.label.flatten()[pick])

    def _noisy_inputs(self, batch: Batch) -> Tensor | None:
        """Inputs of a single source under noise, as negatives; None unless `input_noise` is set."""
        std, inputs = self.settings.input_noise, batch.feature
        if not std or self.network.backbone is None or len(batch.label) > 1:
            return None
        if not isinstance(inputs, Tensor):
            raise InputError("Expected images for `input_noise`, but got tokens, which take no noise.")
        return jitter(inputs.flatten(0, 1), std, self.generator)

    def _with_shifted(self, batch: Batch, shifted: Tensor) -> Batch:
        """Add features of shifted samples; noisy inputs of a single source come with noisy features, too."""
        with torch.no_grad():
            feature = self.network.features(shifted).float()
        if batch.shifted is None:
            own = jitter(batch.feature.detach().flatten(0, 1), self.settings.shift_noise, self.generator)
            label = batch.label.flatten()
            return batch._replace(shifted=torch.cat([feature, own]), shifted_label=torch.cat([label, label]))
        return batch._replace(shifted=feature)

    @torch.no_grad()
    def _refresh_centers(self, feature: Tensor, label: Tensor, stored: Tensor) -> None:
        """Let the stored class centres follow a backbone in training: a batch may lack a class."""
        centers, count = class_centers(feature, label, self.network.classes)
        rate = CENTER_RATE * (count > 0).unsqueeze(-1)
        stored.lerp_(centers, rate.to(centers.dtype))

    def parts(self, loss: Loss) -> dict[str, float]:
        """Terms of the loss for the log, with the energy gap (negatives minus positives)."""
        parts = dict(zip(Loss._fields, torch.stack(list(loss)).tolist()))
        return parts | {"energy_gap": -parts["contrast"]}


class _Objective(nn.Module):
    """`objective` as a module: `functional_call` puts one source's part in the place of what is stacked."""

    def __init__(self, network: Network, replay: ReplayBuffer) -> None:
        super().__init__()
        self.network, self.replay = network, replay

    def forward(self, *arguments: Any) -> Loss:
        return objective(self.network, self.replay, *arguments)

    def stacked(self) -> dict[str, Tensor]:
        """Tensors with one part for each source, by name."""
        own = ("network.head.",) if isinstance(self.network.head, LinearHead) else ()
        prefixes = ("network.energy.", "network.centers", "replay.", *own)
        found = [*self.named_parameters(), *self.named_buffers()]
        return {name: value for name, value in found if name.startswith(prefixes)}


def _features(encode: Callable[[Any], Tensor], inputs: Any) -> Tensor:
    """(sources, batch, ...) inputs to (sources, batch, dim): one backbone pass over all sources."""
    shape = (next(iter(inputs.values())) if isinstance(inputs, dict) else inputs).shape[:2]
    return encode(flat(inputs)).unflatten(0, shape)


@torch.no_grad()
def _check_finite(network: Network, iteration: int) -> None:
    """The last update may have broken what the last loss could not show."""
    if not all(bool(torch.isfinite(p).all()) for p in network.parameters()):
        raise TrainingError(
            f"Weights are no longer finite at iteration {iteration}. Lower `learning_rate` or "
            "`energy_learning_rate`."
        )


def _check(loss: Loss, feature: Tensor, iteration: int) -> None:
    """Stop with a reason rather than go on with nonsense."""
    norm = feature.detach().norm(dim=-1).mean().item() / feature.shape[-1] ** 0.5
    if not math.isfinite(norm) or not math.isfinite(loss.classify.item()):
        raise TrainingError(
            f"Features or classifier are no longer finite at iteration {iteration}. "
            "Lower `learning_rate` or `backbone_learning_rate`, or look for extreme values in the features."
        )
    if norm < 0.01:
        raise TrainingError(
            f"Features collapsed to zero at iteration {iteration}: their norm is {norm:.1e} of what it was. "
            "Lower `backbone_learning_rate`, or freeze the backbone."
        )
    if iteration >= 5 * CHECK_EVERY and abs(loss.contrast.item()) < 1e-8:
        raise TrainingError(
            f"Every sample has the same energy at iteration {iteration}: there is no gradient to follow. "
            "Lower `energy_learning_rate`, or train with a smaller step size."
        )
    if not math.isfinite(loss.total.item()):
        raise TrainingError(
            f"The energy diverged at iteration {iteration}. Lower `energy_learning_rate` or the training "
            "step size."
        )
