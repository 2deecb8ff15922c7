"""What the peers share: rows in batches, a copy to change, an answer in the house's form."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import tee
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sourceward._util.errors import InputError
from sourceward.adaptation.base import (
    ADAPTED,
    ADAPTERS,
    NONFINITE,
    NOT_ADAPTED,
    AdaptationResult,
    Inputs,
    Stream,
    Unsuitable,
)
from sourceward.adaptation.baselines.classifier import log_vote, voter_logits
from sourceward.algorithm import energy_target
from sourceward.functional import row_keys
from sourceward.nn import Network

NORMS = (_BatchNorm, nn.LayerNorm, nn.GroupNorm)
GATHERED = 256
"""Rows that leave the device together: one by one, each would make it wait."""


class Response(NamedTuple):
    """A peer's answer for one batch."""

    feature: Tensor
    """(batch, dim): what the classifier read."""
    vote: Tensor
    """(batch, classes) probabilities."""
    per_source: Tensor | None = None
    """(sources, batch, classes); the vote when None."""


@dataclass(frozen=True)
class Peer:
    """A method of others, behind our contract.

    A subclass says how a stream of batches is answered; this class does the rest. The energies it reports
    are the network's own, at the features that the answer was read from: a peer does not walk on them.

    Rates are those of the released code where a backbone learns. Those of the variants on features, and M of
    T3A, come from leaving out each source of two frozen-feature banks: the best there or close to it.
    """

    changes_weights: ClassVar[bool] = True
    keeps_state: ClassVar[bool] = True
    needs_batch: ClassVar[bool] = True
    reads: ClassVar[str] = "features"

    batch_size: int = 64

    def __post_init__(self) -> None:
        at_least(self, 1, "batch_size")

    def __call__(self, network: Network, inputs: Stream) -> AdaptationResult:
        parts = [
            _to_numpy(network, self._finite(network, batch, part), self._updates())
            for batch, part in _gathered(self.respond(network, inputs))
        ]
        if not parts:
            nothing = network.scale.new_zeros(0, network.dim)
            parts = [_to_numpy(network, (unadapted(network, nothing), nothing[:, 0] == 0), 0)]
        names = [name for name in AdaptationResult.__dataclass_fields__ if name != "trajectory"]
        return AdaptationResult(**{name: np.concatenate([getattr(p, name) for p in parts]) for name in names})

    def respond(self, network: Network, inputs: Stream) -> Iterator[tuple[Any, Response]]:
        """The method itself, batch by batch: what its cost is measured on."""
        network.eval()
        self.check(network)
        kept, read = tee(in_batches(inputs, self.batch_size))
        with torch.enable_grad():
            yield from zip(kept, self.stream(network, read))

    def check(self, network: Network) -> None:
        """Raise `Unsuitable` where the method has no meaning."""
        if self.reads == "inputs" and network.backbone is None:
            raise Unsuitable(
                f"{self._title()} adapts a backbone, but this model reads features.{self._hint()}"
            )

    def stream(self, network: Network, batches: Iterator[Any]) -> Iterator[Response]:
        raise NotImplementedError

    def _finite(self, network: Network, batch: Any, part: Response) -> tuple[Response, Tensor]:
        """Rows that left the finite numbers get the unadapted answer; and which those are not."""
        finite = part.vote.isfinite().all(-1)
        if bool(finite.all()):
            return part, finite
        with torch.no_grad():
            still = unadapted(network, batch if self.reads == "features" else encoder(network)(batch))
        keep = finite[:, None]
        assert still.per_source is not None
        per_source = part.vote.expand_as(still.per_source) if part.per_source is None else part.per_source
        return Response(
            torch.where(keep, part.feature, still.feature),
            torch.where(keep, part.vote, still.vote),
            torch.where(keep, per_source, still.per_source),
        ), finite

    def _updates(self) -> int:
        """Updates of weights that each sample takes part in."""
        return getattr(self, "steps", 1)

    def _title(self) -> str:
        """The name that users type."""
        own = type(self)
        return next((name for name in ADAPTERS if ADAPTERS[name] is own), own.__name__)

    def _hint(self) -> str:
        return ""


class Student:
    """What a peer may change: a way from inputs to features to votes, and the parameters it learns.

    Args:
        network: a copy, or the original where nothing of it is learned.
        encode: inputs to rescaled features.
        parameters: those that are learned.
    """

    def __init__(
        self, network: Network, encode: Callable[[Any], Tensor], parameters: list[nn.Parameter]
    ) -> None:
        self.network, self.encode, self.parameters = network, encode, parameters

    def logits(self, feature: Tensor) -> Tensor:
        return voter_logits(self.network, feature)

    def answer(self, inputs: Any) -> Response:
        with torch.no_grad():
            feature = self.encode(inputs)
            return response(feature, self.logits(feature))


class Affine(nn.Module):
    """A scale and a shift of each feature, at first 1 and 0: the affine part of a norm layer."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, feature: Tensor) -> Tensor:
        return feature * self.scale + self.shift


def affine_student(network: Network) -> Student:
    """Features through a scale and a shift: where a method learns those of norm layers."""
    layer = Affine(network.dim).to(network.scale)
    return Student(network, layer, list(layer.parameters()))


def linear_student(network: Network) -> Student:
    """Features through a linear map, at first the identity: where a method learns the whole extractor."""
    layer = nn.Linear(network.dim, network.dim).to(network.scale)
    nn.init.eye_(layer.weight)
    nn.init.zeros_(layer.bias)
    return Student(network, layer, list(layer.parameters()))


def latent_student(network: Network) -> Student:
    """The latent network, which makes z of samples and of class centres."""
    if network.latent is None:
        raise Unsuitable("This model has no latent z to adapt. Fit one with head='pooled' or 'prototype'.")
    clone = copy.deepcopy(network).requires_grad_(False)
    assert clone.latent is not None
    clone.latent.requires_grad_(True)
    return Student(clone, lambda feature: feature, list(clone.latent.parameters()))


def norm_student(network: Network) -> Student:
    """Scales and shifts of the backbone's norm layers; batch norm takes the batch's own statistics."""
    clone = batch_statistics(copy.deepcopy(network).requires_grad_(False))
    norms = [m for m in backbone_of(clone).modules() if isinstance(m, NORMS)]
    parameters = [p for m in norms for p in (m.weight, m.bias) if p is not None]
    if not parameters:
        raise Unsuitable("This backbone has no norm layer with a scale and a shift to adapt.")
    for parameter in parameters:
        parameter.requires_grad_(True)
    return Student(clone, encoder(clone), parameters)


def backbone_student(network: Network, own_statistics: bool = True) -> Student:
    """The whole backbone; batch norm takes the batch's statistics unless told otherwise."""
    clone = copy.deepcopy(network).requires_grad_(False)
    if own_statistics:
        batch_statistics(clone)
    parameters = list(backbone_of(clone).requires_grad_(True).parameters())
    return Student(clone, encoder(clone), parameters)


def encoder(network: Network) -> Callable[[Any], Tensor]:
    """Inputs to rescaled features, in the precision of every other answer: bfloat16 inside on CUDA."""
    kind = network.scale.device.type

    def encode(inputs: Any) -> Tensor:
        with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
            return network.features(inputs).float()

    return encode


def backbone_of(network: Network) -> nn.Module:
    assert network.backbone is not None
    return network.backbone


def batch_statistics(network: Network) -> Network:
    """Forget the sources' statistics: batch norm normalises each batch by its own."""
    for module in backbone_of(network).modules():
        if isinstance(module, _BatchNorm):
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
    return network


def response(feature: Tensor, logits: Tensor) -> Response:
    """The vote of the unadapted kind, on logits however they were made."""
    feature, logits = feature.detach(), logits.detach()
    return Response(feature, log_vote(logits).exp(), logits.softmax(-1).mean(0))


@torch.no_grad()
def unadapted(network: Network, feature: Tensor) -> Response:
    return response(feature, voter_logits(network, feature))


def in_batches(inputs: Stream, size: int) -> Iterator[Any]:
    """Rows in order, `size` at a time.

    >>> [len(batch) for batch in in_batches([torch.zeros(3, 1), torch.zeros(4, 1)], 5)]
    [5, 2]
    """
    rest: Any = None
    for piece in [inputs] if isinstance(inputs, Tensor | dict) else inputs:
        rest = piece if rest is None else _join(rest, piece)
        while rows(rest) >= size:
            yield _take(rest, slice(None, size))
            rest = _take(rest, slice(size, None))
    if rest is not None and rows(rest):
        yield rest


def sample_generators(batch: Tensor, seed: int) -> Iterator[torch.Generator]:
    """Randomness of each sample's own: its answer does not depend on its place."""
    keys = row_keys(batch.detach().flatten(1).cpu().numpy(), seed) & torch.iinfo(torch.int64).max
    for key in keys.tolist():
        yield torch.Generator(batch.device).manual_seed(key)


def rows(inputs: Inputs) -> int:
    return len(next(iter(inputs.values())) if isinstance(inputs, dict) else inputs)


def _take(inputs: Any, part: slice) -> Any:
    return {k: v[part] for k, v in inputs.items()} if isinstance(inputs, dict) else inputs[part]


def _join(first: Any, second: Any) -> Any:
    """Tokens are padded to the longest."""
    if not isinstance(first, dict):
        return torch.cat([first, second])
    width = max(v.shape[1] for part in (first, second) for v in part.values())

    def wide(value: Tensor) -> Tensor:
        return nn.functional.pad(value, (0, width - value.shape[1]))

    return {name: torch.cat([wide(first[name]), wide(second[name])]) for name in first}


def _gathered(answers: Iterator[tuple[Any, Response]]) -> Iterator[tuple[Any, Response]]:
    """The same rows, many at a time."""
    held: list[tuple[Any, Response]] = []
    for one in answers:
        held.append(one)
        if sum(len(part.vote) for _, part in held) >= GATHERED:
            yield _together(held)
            held = []
    if held:
        yield _together(held)


def _together(held: list[tuple[Any, Response]]) -> tuple[Any, Response]:
    batch = reduce(_join, (batch for batch, _ in held))
    feature, vote, per_source = zip(*(part for _, part in held))
    sources = None if per_source[0] is None else torch.cat(per_source, dim=1)
    return batch, Response(torch.cat(feature), torch.cat(vote), sources)


@torch.no_grad()
def _to_numpy(network: Network, answer: tuple[Response, Tensor], steps: int) -> AdaptationResult:
    """One batch in the house's form."""
    part, finite = answer
    per_source = part.vote.expand(network.sources, *part.vote.shape)
    per_source = per_source if part.per_source is None else part.per_source
    start = part.feature.expand(network.sources, *part.feature.shape)
    prior = network.prior(start)
    value = energy_target(network.energy.weights(), None if prior is None else prior.mean).energy(start)
    energies = value.T.cpu().numpy()
    return AdaptationResult(
        network.raw(start).transpose(0, 1).cpu().numpy(),
        part.vote.cpu().numpy(),
        per_source.transpose(0, 1).cpu().numpy(),
        energies,
        energies,
        np.full((len(part.vote), network.sources), steps),
        np.where(finite.cpu().numpy(), ADAPTED if steps else NOT_ADAPTED, NONFINITE),
    )


def at_least(settings: Any, least: float, *names: str) -> None:
    """Refuse options below their least value."""
    for name in names:
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
            raise InputError(f"Expected `{name}` to be {least:g} or more, but got {value!r}.")
