"""Every setting of training and of test time, with its default: the one home of both.

`EnergyAdapter`, `create_adapter("ebtsa")`, `fit` and the command line take their defaults from here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from sourceward._util.errors import InputError, unknown_name
from sourceward.functional import AGGREGATIONS, Coefficients
from sourceward.samplers import SAMPLERS, StepSettings

AUTO = "auto"
"""Let leave-one-domain-out validation choose."""

HEAD = "pooled"
"""Default head, a name in `nn.heads.HEADS`."""

WHITEN = True
"""Whiten features by the covariance within classes and between sources."""

KL_WEIGHT = 0.02
"""Default weight of KL(q(z|d) || p(z|x)), for features of norm sqrt(dim)."""

PAPER, RELEASED_KL_WEIGHT = "paper", 0.1
"""The KL weight that is equivalent to the released code's: see `kl_weight_of`."""

PAPER_ADAPTER: dict[str, Any] = {
    "num_steps": 20,
    "aggregation": "mean",
    "head": "prototype",
    "whiten": False,
    "kl_weight": PAPER,
    "train": {"feature_noise": 0.0},
}
"""The paper's configuration for features, with our learning rates: its own are for a trained backbone."""

SCHEDULES, SUPERVISE, OPTIMIZERS = ("cosine", "step", "constant"), ("all", "last"), ("adamw", "adam")
CHAIN_LATENTS = ("prior", "posterior", "both")


def kl_weight_of(kl_weight: float | str, dim: int) -> float:
    """The weight of the KL for features of width `dim`: the number itself, or 0.1 / dim for `paper`.

    The released code has 0.1 with logits x . z and features of norm r. Our logits are x . z / sqrt(dim) with
    features of norm sqrt(dim): the same logits need means r times as long, whose KL is r^2 times as large at
    the same standard deviations, and r^2 is about dim for the paper's backbones.

    >>> kl_weight_of("paper", 2048) == 0.1 / 2048, kl_weight_of(0.02, 2048)
    (True, 0.02)
    """
    return RELEASED_KL_WEIGHT / dim if isinstance(kl_weight, str) else kl_weight


def check_kl_weight(kl_weight: Any) -> None:
    """Refuse what is neither a number of 0 or more nor `paper`."""
    if kl_weight != PAPER and not (isinstance(kl_weight, Real) and 0 <= float(kl_weight) < float("inf")):
        raise InputError(f"Expected `kl_weight` to be 0 or more, or 'paper', but got {kl_weight!r}.")


@dataclass(frozen=True)
class LoopSettings:
    """The optimisation around an objective.

    Args:
        max_iter: iterations.
        batch_size: samples of each source per iteration.
        learning_rate: of latent network and head.
        energy_learning_rate: of the energies.
        backbone_learning_rate: of the backbone, when it is trained.
        weight_decay: the released code's value.
        optimizer: `adamw` (decoupled weight decay) or `adam` (the paper).
        schedule: `cosine` to 0, `step` (x 0.1 at 60 %, the released code) or `constant`.
        energy_schedule: of the energies alone; as `schedule` when None.
        average: decay of the moving average of all trained weights; 0 keeps the last iterate, 1 is the mean
            of all from the hundredth on, or of the second half of a short training (Arpit et al., 2022).
        freeze_batchnorm: keep the backbone's batch norm statistics fixed, so that results do not depend on
            the composition of a batch.
    """

    max_iter: int = 300
    batch_size: int = 128
    learning_rate: float = 3e-3
    energy_learning_rate: float = 1e-3
    backbone_learning_rate: float = 1e-5
    weight_decay: float = 5e-4
    optimizer: str = "adamw"
    schedule: str = "cosine"
    energy_schedule: str | None = None
    average: float = 0.98
    freeze_batchnorm: bool = True

    def __post_init__(self) -> None:
        _whole(self, 1, "max_iter", "batch_size")
        _not_negative(self, "learning_rate", "energy_learning_rate", "backbone_learning_rate", "weight_decay")
        _one_of(self, "schedule", SCHEDULES)
        _one_of(self, "energy_schedule", (None, *SCHEDULES))
        _one_of(self, "optimizer", OPTIMIZERS)
        _share(self, "average")


@dataclass(frozen=True)
class TrainSettings:
    """How heads and energies are trained, beside what `EnergyAdapter` takes itself.

    Args:
        num_steps: length of the training chains.
        step_size: of the training chains.
        chains: chains per source and iteration; as many as the batch has rows when None.
        replay_share: share of chain starts taken from the replay buffer (the paper's half).
        replay_size: chain ends kept of each source and class; 500 for up to 7 classes, then fewer, when None.
        guide_weight: weight of the last line of eq. 10, which trains the chain to keep labels.
        guide_kl_weight: weight of the KL in that line: 1 in eq. 10 as printed, 0 in the released code.
        guide_prototypes: let that line train the class prototypes, too (released code); eq. 10 has them as
            constants there.
        supervise: which steps of a chain that line supervises: `all` (released code) or the `last` (eq. 10).
        supervised_steps: of all steps, this many at equal distances, the first at random: the same gradient
            on average, at a fraction of the cost; all of them when None.
        chain_latent: where z of lines 2 and 3 of eq. 10 comes from: `prior` p(z|x) as at test time,
            `posterior` q(z|d) of the sample's class (eq. 10), or `both`, a chain each (released code).
        num_draws: draws of z that line 1 of eq. 10 averages over.
        pooled_weight: weight of the classifier that a pooled head shares among the sources.
        feature_noise: std of the noise added to features in training, in units of their root mean square.
        shift_noise: std of the noise that makes the negatives of a single source out of its own features.
        input_noise: std of the noise on a single source's inputs that makes more negatives; 0 for none.
        weight_decay, optimizer, schedule, average: as in `LoopSettings`.
        distilled_steps: length of the chains that the distilled one-step sampler learns from.
        components: principal components to keep of wider features; all when None.
    """

    num_steps: int = 20
    step_size: float = StepSettings.step_size
    chains: int | None = 32
    replay_share: float = 0.5
    replay_size: int | None = None
    guide_weight: float = 1.0
    guide_kl_weight: float = 0.0
    guide_prototypes: bool = False
    supervise: str = "all"
    supervised_steps: int | None = 4
    chain_latent: str = "prior"
    num_draws: int = 1
    pooled_weight: float = 0.3
    feature_noise: float = 0.7
    shift_noise: float = 1.0
    input_noise: float = 0.0
    weight_decay: float = LoopSettings.weight_decay
    optimizer: str = LoopSettings.optimizer
    schedule: str = LoopSettings.schedule
    average: float = LoopSettings.average
    distilled_steps: int = 50
    components: int | None = 256

    def __post_init__(self) -> None:
        optional = ("chains", "supervised_steps", "components", "replay_size")
        given = [name for name in optional if getattr(self, name) is not None]
        _whole(self, 1, "num_steps", "num_draws", "distilled_steps", *given, of="training ")
        _not_negative(self, "step_size", "guide_weight", "guide_kl_weight", "pooled_weight", "weight_decay")
        _not_negative(self, "feature_noise", "shift_noise", "input_noise")
        _share(self, "replay_share", "average")
        _one_of(self, "supervise", SUPERVISE)
        _one_of(self, "chain_latent", CHAIN_LATENTS)
        _one_of(self, "schedule", SCHEDULES)
        _one_of(self, "optimizer", OPTIMIZERS)

    @classmethod
    def of(cls, given: "TrainSettings | Mapping[str, Any] | None") -> "TrainSettings":
        """The settings themselves, or the defaults with the values of a mapping.

        >>> TrainSettings.of({"chains": 8}).chains, TrainSettings.of(None).chains
        (8, 32)
        """
        if isinstance(given, TrainSettings):
            return given
        if given is not None and not isinstance(given, Mapping):
            raise InputError(f"Expected `train` to be TrainSettings or a dictionary, but got {given!r}.")
        known = [field.name for field in fields(cls)]
        for name in given or {}:
            if name not in known:
                raise unknown_name("training setting", name, known)
        return cls(**(given or {}))

    @property
    def step(self) -> StepSettings:
        """Settings of one step of a training chain."""
        return StepSettings(self.step_size)

    def coefficients(self, kl_weight: float) -> Coefficients:
        """Weights of the terms of eq. 10."""
        guide = self.guide_weight
        return Coefficients(
            kl=kl_weight, guide_energy=guide, guide_label=guide, guide_kl=self.guide_kl_weight
        )

    def supervised(self, steps: Tensor, generator: torch.Generator | None) -> Tensor:
        """Those of a chain's steps (steps, ...) that the last line of eq. 10 supervises."""
        if self.supervise == "last":
            return steps[-1:]
        stride = max(len(steps) // (self.supervised_steps or len(steps)), 1)
        if stride == 1:
            return steps
        first = torch.randint(stride, (1,), generator=generator, device=steps.device)
        return steps[first + stride * torch.arange(len(steps) // stride, device=steps.device)]


@dataclass(frozen=True)
class AdaptSettings:
    """Test time.

    Args:
        num_steps: length of the chain; with 0 steps the energies still weight the sources' predictions.
            `off` is no adaptation at all.
        step: settings of each step.
        sampler: a name in `SAMPLERS`.
        aggregation: a name in `AGGREGATIONS`.
        num_draws: draws of z to average over; 0 uses the mean of p(z|x) alone.
        seed: of the draws and the noise; each sample has its own stream.
        source_weights: what each piece of evidence adds to a source's weight, for aggregation `learned`: see
            `functional.aggregation`.
        temperature: of `AdaptationResult.trust`; the probabilities are not changed.
    """

    num_steps: int = 5
    step: StepSettings = field(default_factory=StepSettings)
    sampler: str = "langevin"
    aggregation: str = "energy"
    num_draws: int = 0
    seed: int = 0
    source_weights: tuple[float, ...] | None = None
    temperature: float = 1.0

    def __post_init__(self) -> None:
        _whole(self, 0, "num_steps", "num_draws")
        SAMPLERS[self.sampler], AGGREGATIONS[self.aggregation]
        if self.source_weights is not None:  # a list, where it comes from JSON
            object.__setattr__(self, "source_weights", tuple(self.source_weights))

    @property
    def is_off(self) -> bool:
        """Whether this is no adaptation: no steps, and energies that weight nothing."""
        return self == self.off()

    def off(self) -> "AdaptSettings":
        """No adaptation, the control of every comparison: no steps, and energies weight nothing."""
        aggregation = "mean" if self.aggregation in ("energy", "learned") else self.aggregation
        return replace(self, num_steps=0, aggregation=aggregation)

    def before_learning(self) -> "AdaptSettings":
        """The same for a network without a distilled sampler and without learned source weights."""
        sampler = "langevin" if self.sampler == "distilled" else self.sampler
        return replace(self.by_energy(), sampler=sampler)

    def by_energy(self) -> "AdaptSettings":
        """Weights by energy in place of learned ones."""
        return replace(self, aggregation="energy") if self.aggregation == "learned" else self


MOST = {"num_steps": 10_000, "num_draws": 1_000}
"""Largest numbers that are no slip of the pen."""


def _whole(settings: Any, least: int, *names: str, of: str = "") -> None:
    """Refuse what is no whole number of at least `least`."""
    for name in names:
        value = getattr(settings, name)
        if isinstance(value, Integral) and int(value) > (most := MOST.get(name, 2**31 - 1)):
            raise InputError(f"Expected {of}`{name}` to be at most {most:,}, but got {value!r}.")
        if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
            hint = ""
            if name == "num_steps" and not least:
                word = " or 'auto' to let `fit` choose" if isinstance(value, str) else ""
                hint = f" Use 0 to predict without adaptation{word}."
            raise InputError(f"Expected {of}`{name}` to be {least} or more, but got {value!r}.{hint}")


def _not_negative(settings: Any, *names: str) -> None:
    """Refuse what is no finite number of 0 or more."""
    for name in names:
        value = getattr(settings, name)
        if not isinstance(value, Real) or not 0 <= float(value) < float("inf"):
            raise InputError(f"Expected `{name}` to be 0 or more, but got {value!r}.")


def _share(settings: Any, *names: str) -> None:
    """Refuse what is not from 0 to 1."""
    for name in names:
        value = getattr(settings, name)
        if not isinstance(value, Real) or not 0 <= float(value) <= 1:
            raise InputError(f"Expected `{name}` to be from 0 to 1, but got {value!r}.")


def _one_of(settings: Any, name: str, known: tuple[Any, ...]) -> None:
    """Refuse what is none of the names."""
    if getattr(settings, name) not in known:
        raise unknown_name(name, getattr(settings, name), known)
