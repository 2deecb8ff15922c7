"""`ExportGraph`: the whole prediction of a model as one module that `torch.export` can trace.

It calls the same functions as prediction does, with the reference loop `samplers.run` in place of the fused
chains, and without noise: every step takes the gradient at the sample itself, and z is the mean of p(z|x).
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sourceward._util.errors import InputError
from sourceward.adaptation.copies import CopyEncoder, Statistics
from sourceward.adaptation.tta import levels
from sourceward.algorithm import aggregate, draw_latent
from sourceward.functional.distilled import StartPoint, distilled_step
from sourceward.functional.energy import latent_bias, swish
from sourceward.model import Model
from sourceward.nn import folded
from sourceward.nn.backbones.preprocessing import TextPreprocessing
from sourceward.samplers import Chain, Noise, Target, energy_target, run
from sourceward.samplers.distilled import concatenate

OUTPUTS = ("probabilities", "per_source", "energy_before", "energy_after", "trust", "agreement")
"""(batch, classes), (batch, sources, classes), (batch, sources) twice, (batch,) twice."""

INPUTS = {"image": ("images",), "text": ("input_ids", "attention_mask"), "features": ("features",)}
"""Names of the inputs, by what the model reads."""


def noise_off(model: Model) -> Model:
    """A copy of the model on the host, without noise in the steps and with the mean of p(z|x) for draws."""
    settings = model.settings
    if settings.sampler == "mala" and settings.num_steps:
        raise InputError(
            "Expected a sampler that works without noise, but got 'mala', whose accept rule is random. "
            "Fit with sampler='langevin'."
        )
    copied = Model(copy.deepcopy(model.adapter), model.tta, model.info, model.cascade).to("cpu")
    copied.adapter.set_params(noise_std=0.0, num_draws=0)
    return copied


def agreement(per_source: Tensor, probabilities: Tensor) -> Tensor:
    """Share of the sources whose most probable class is the predicted one: (batch,).

    Args:
        per_source: ([copies,] batch, sources, classes).
        probabilities: (batch, classes).

    >>> agreement(torch.tensor([[[0.9, 0.1], [0.4, 0.6]]]), torch.tensor([[0.7, 0.3]]))
    tensor([0.5000])
    """
    same = per_source.argmax(-1) == probabilities.argmax(-1, keepdim=True)
    return same.to(probabilities.dtype).mean(-1)


class ExportGraph(nn.Module):
    """Backbone, rescaling, Langevin steps, heads, aggregation and test-time augmentation of a model.

    Transformed copies are further rows of the batch, in one chain.

    Args:
        model: from `noise_off`.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.kind, self.settings = model.kind, model.settings
        self.tta, self.thresholds = model.tta, model.tta_thresholds
        self.network = network = model.network.eval().requires_grad_(False)
        if model.kind == "text":
            assert model.backbone is not None
            assert isinstance(model.backbone.preprocessing, TextPreprocessing)
            self.longest = model.backbone.preprocessing.max_length  # tokens; position embeddings have an end
        if model.kind == "image":
            assert network.backbone is not None
            statistics = Statistics.of(network)
            self.copies = CopyEncoder(network.backbone, model.preprocessing, model.tta, statistics)
        self.fold, self.energy = folded(self.network), self.network.energy.weights().detach()

    def forward(self, inputs: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the tensors that `OUTPUTS` names.

        Args:
            inputs: uint8 images (batch, 3, height, width) of the model's own size, token ids
                (batch, length), or float32 features (batch, dim).
            attention_mask: of token ids, (batch, length).
        """
        if self.kind == "image":
            return self._averaged(inputs)
        tokens = {"input_ids": inputs, "attention_mask": attention_mask}
        given = tokens if self.kind == "text" else inputs
        probabilities, per_source, before, after = self._predict(self.network.features(given))  # type: ignore[arg-type]
        same = agreement(per_source, probabilities)
        return probabilities, per_source, before, after, self._trust(probabilities), same

    def _averaged(self, images: Tensor) -> tuple[Tensor, ...]:
        """Predict the images and their copies together, and average the probabilities."""
        rows = self._predict(self.network.rescale(self.copies(images)))
        copies = [values.unflatten(0, (len(self.copies.weights), -1)) for values in rows]
        probability, sources, before, after = copies
        *early, last = levels(self.tta, self.thresholds)
        probabilities, per_source, same = self._average(probability, sources, last)
        for level, threshold in reversed([*zip(early, self.thresholds)]):  # see `stop_early`
            here = self._average(probability, sources, level)
            first, second = here[0].topk(2).values.unbind(-1)
            stops = first / (first + second) >= threshold  # `tta.lead`
            probabilities = torch.where(stops[:, None], here[0], probabilities)
            per_source = torch.where(stops[:, None, None], here[1], per_source)
            same = torch.where(stops, here[2], same)
        return probabilities, per_source, before[0], after[0], self._trust(probabilities), same

    def _average(
        self, probability: Tensor, sources: Tensor, level: Sequence[str]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Probabilities, those of each source, and agreement, over the copies of some transforms."""
        places = [place for place, name in enumerate(self.copies.names) if name in level]
        probability, sources = (torch.stack([v[place] for place in places]) for v in (probability, sources))
        weights = torch.tensor([self.copies.weights[place] for place in places], dtype=torch.float32)
        shares = (weights / weights.sum()).view(-1, 1, 1)
        probabilities, per_source = (probability * shares).sum(0), (sources * shares.unsqueeze(-1)).sum(0)
        return probabilities, per_source, (agreement(sources, probabilities) * shares[..., 0]).sum(0)

    def _trust(self, probabilities: Tensor) -> Tensor:
        """`functional.calibration.trust` as tensors."""
        log = probabilities.clamp_min(torch.finfo(torch.float32).tiny).log() / self.settings.temperature
        return log.softmax(-1).amax(-1)

    def _predict(self, feature: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Probabilities, those of each source, and energies, the first axis the row."""
        settings, fold = self.settings, self.fold
        z = draw_latent(fold, feature, None, feature, 0)  # keys are not read without draws
        chain = self._chain(feature.expand(self.network.sources, -1, -1), z)
        per_source = fold.classify(chain.feature, z)
        energies = chain.energy_before, chain.energy_after
        probabilities = aggregate(fold, feature, per_source, energies, settings)
        return probabilities, per_source.transpose(0, 1), energies[0].T, energies[1].T

    def _chain(self, start: Tensor, z: Tensor | None) -> Chain:
        settings, target = self.settings, energy_target(self.energy, z)
        none = Noise(torch.zeros(()), torch.ones(()))
        if settings.sampler != "distilled" or not settings.num_steps:
            return run(settings.sampler, start, target, settings.step, settings.num_steps, lambda _: none)
        first = run("distilled", start, self._distilled(target, z), settings.step, 1, lambda _: none)
        rest = settings.num_steps - 1
        refined = run("langevin", first.feature, target, settings.step, rest, lambda _: none)
        return concatenate(first, refined)

    def _distilled(self, target: Target, z: Tensor | None) -> Target:
        weights, bias = self.fold.distilled, latent_bias(self.energy, z)
        assert weights is not None

        def step(x: Tensor) -> Tensor:
            a0 = x @ self.energy.feature.mT + bias
            return distilled_step(weights, StartPoint(x, swish(a0), target.energy_and_grad(x)[1]))

        return target._replace(distilled=step)
