"""Every setting of training and of test time, as plain frozen dataclasses that refuse what makes no sense."""

from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from sourceward._util.errors import InputError, unknown_name
from sourceward.functional import AGGREGATIONS, Coefficients
from sourceward.samplers import ACCEPT_RULES, SAMPLERS, StepSettings


def _whole(settings: Any, least: int, *names: str, of: str = "") -> None:
    """Refuse what is no whole number of at least `least`."""
    for name in names:
        value = getattr(settings, name)
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


def _one_of(settings: Any, name: str, known: tuple[str, ...]) -> None:
    """Refuse what is none of the names."""
    if getattr(settings, name) not in known:
        raise unknown_name(name, getattr(settings, name), known)


OBJECTIVES = ("contrast", "dsm")
LATENTS = ("prior", "class")


@dataclass(frozen=True)
class TrainSettings:
    """How the objective is formed.

    Args:
        num_steps: length of the chains.
        step: settings of each step.
        coefficients: weights of the terms of eq. 10.
        chains: chains per source and iteration; as many as the batch has rows when None.
        replay_share: share of chain starts taken from the replay buffer (the paper's half).
        guide: supervise steps all along a chain (`all`, released code) or the `last` one (eq. 10 as printed).
        guided_steps: of those along the chain, this many at equal distances, the first at random: the same
            gradient on average, at a fraction of the cost; all of them when None.
        posterior_chain: also run chains whose z is the posterior of the sample's class (released code).
        pooled: weight of the pooled classification term of a head that has one.
        feature_noise: std of the noise added to features in training, where a feature's elements have
            root mean square 1.
        shift_noise: std of the noise that makes a lone source's negatives out of its own features.
        input_noise: std of the noise on a lone source's inputs, as the backbone takes them, that makes more
            negatives; 0 for none.
        objective: what the energy's second line is: `contrast` (eq. 10) or `dsm`, denoising score matching.
    """

    num_steps: int = 20
    step: StepSettings = field(default_factory=StepSettings)
    coefficients: Coefficients = field(default_factory=Coefficients)
    chains: int | None = None
    replay_share: float = 0.5
    guide: str = "all"
    guided_steps: int | None = 4
    posterior_chain: bool = False
    pooled: float = 0.3
    feature_noise: float = 0.0
    shift_noise: float = 1.0
    input_noise: float = 0.0
    objective: str = "contrast"

    def __post_init__(self) -> None:
        given = [name for name in ("chains", "guided_steps") if getattr(self, name) is not None]
        _whole(self, 1, "num_steps", *given, of="training ")
        _not_negative(self.coefficients, *Coefficients.__dataclass_fields__)
        _not_negative(self, "replay_share", "pooled", "feature_noise", "shift_noise", "input_noise")
        if self.guide not in ("all", "last"):
            raise InputError(f"Expected `guide` to be 'all' or 'last', but got {self.guide!r}.")
        _one_of(self, "objective", OBJECTIVES)

    def supervised(self, steps: Tensor, generator: torch.Generator | None) -> Tensor:
        """Those of a chain's steps (steps, ...) that are guided."""
        if self.guide == "last":
            return steps[-1:]
        stride = max(len(steps) // (self.guided_steps or len(steps)), 1)
        if stride == 1:
            return steps
        first = torch.randint(stride, (1,), generator=generator, device=steps.device)
        return steps[first + stride * torch.arange(len(steps) // stride, device=steps.device)]


@dataclass(frozen=True)
class AdaptSettings:
    """Test time.

    Args:
        num_steps: length of the chain; 0 moves nothing. `off` is no adaptation at all.
        step: settings of each step.
        sampler: a name in `SAMPLERS`.
        aggregation: a name in `AGGREGATIONS`.
        num_draws: draws of z to average over; 0 uses the mean of p(z|x) alone.
        seed: of the draws and the noise; each sample has its own stream.
        stop: a chain stops once its energy is at this quantile of the source's own samples; never when None.
        blend: weight of the unmoved sample's answer in the vote, from 0 to 1.
        top: only so many sources vote, those whose energy the sample surprises least; all when None.
        latent: z of a sample: the `prior` p(z|x), or the posterior of the `class` that the unmoved sample's
            vote names.
        source_weights: what a source's vote gains by each piece of evidence, for aggregation `learned`: see
            `functional.source_weights`.
    """

    num_steps: int = 20
    step: StepSettings = field(default_factory=StepSettings)
    sampler: str = "langevin"
    aggregation: str = "mean"
    num_draws: int = 0
    seed: int = 0
    stop: float | None = None
    blend: float = 0.0
    top: int | None = None
    latent: str = "prior"
    source_weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        _whole(self, 0, "num_steps", "num_draws")
        _whole(self, 1, *([] if self.top is None else ["top"]))
        _share(self, "blend", *([] if self.stop is None else ["stop"]))
        _one_of(self, "latent", LATENTS)
        if self.source_weights is not None:
            object.__setattr__(
                self, "source_weights", tuple(self.source_weights)
            )  # a list, where it comes from JSON

    def off(self) -> "AdaptSettings":
        """No adaptation, the control of every comparison: nothing moves, and energies have no say."""
        aggregation = "mean" if self.aggregation in ("energy", "learned") else self.aggregation
        return replace(
            self, num_steps=0, aggregation=aggregation, stop=None, blend=0.0, top=None, latent="prior"
        )

    def untaught(self) -> "AdaptSettings":
        """As far as a network goes that has no distilled yet and has not learned whom to source_weights."""
        sampler = "langevin" if self.sampler == "distilled" else self.sampler
        return replace(self.untaught_votes(), sampler=sampler)

    def untaught_votes(self) -> "AdaptSettings":
        """As far as it goes before it has learned whom to source_weights."""
        return replace(self, aggregation="energy") if self.aggregation == "learned" else self

    def check(self) -> None:
        """Look every name up now, so that a wrong one is refused before the work."""
        SAMPLERS[self.sampler], ACCEPT_RULES[self.step.accept], AGGREGATIONS[self.aggregation]
        if self.step.accept == "metropolis" and self.sampler != "textbook":
            raise InputError(
                f"Accept rule 'metropolis' needs the sampler 'textbook', but got {self.sampler!r}."
            )
        if self.aggregation == "learned" and self.top is not None:
            raise InputError(
                "Learned votes are learned of all sources: leave `top` out, or vote by 'energy'."
            )


@dataclass(frozen=True)
class LoopSettings:
    """The optimisation around the objective.

    Args:
        max_iter: iterations.
        batch_size: samples of each source per iteration.
        learning_rate: of latent network and head.
        energy_learning_rate: of the energies.
        backbone_rate: of the backbone, when there is one.
        weight_decay: decoupled (AdamW); the released code's value.
        schedule: `cosine` to 0, `step` (x 0.1 at 60 %, the released code) or `constant`.
        average: decay of the exponential moving average of everything learned; 0 keeps the last iterate, 1
            is the plain mean of all iterates from the hundredth on (Arpit et al., NeurIPS 2022).
        freeze_batchnorm: hold the backbone's batch norm statistics, so that results do not depend on
            batch make-up.
    """

    max_iter: int = 300
    batch_size: int = 128
    learning_rate: float = 3e-3
    energy_learning_rate: float = 1e-3
    backbone_rate: float = 1e-5
    weight_decay: float = 5e-4
    schedule: str = "cosine"
    average: float = 0.98
    freeze_batchnorm: bool = True

    def __post_init__(self) -> None:
        _whole(self, 1, "max_iter", "batch_size")
        _not_negative(self, "learning_rate", "energy_learning_rate", "backbone_rate", "weight_decay")
        if self.schedule not in ("cosine", "step", "constant"):
            raise InputError(
                f"Expected `schedule` to be 'cosine', 'step' or 'constant', but got {self.schedule!r}."
            )
        if not isinstance(self.average, Real) or not 0 <= float(self.average) <= 1:
            raise InputError(f"Expected `average` to be in [0, 1], but got {self.average}.")
