"""The artefact: one folder that predicts anywhere, without its training data and without network.

config.json         classes, sources, backbone, preprocessing, settings, provenance, metrics
model.safetensors   backbone, heads, energies, class centres, feature scale
tokenizer/          where the model reads texts
README.md           the model card
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sourceward._util.devices import choose_device
from sourceward._util.errors import InputError
from sourceward._util.storage import save_tensors, write_whole
from sourceward.adaptation import AdaptationResult, EnergyAdaptation
from sourceward.adaptation.base import join, mean_answer
from sourceward.adaptation.tta import check_transforms, with_tta
from sourceward.data.loading import image_geometry, rows_per_pass
from sourceward.data.transforms import look
from sourceward.estimator.sources import source_numbers
from sourceward.model.file import (
    CARD,
    CONFIG,
    FORMAT_VERSION,
    OWN,
    WEIGHTS,
    describe_model,
    read_model_config,
    restore_network,
)
from sourceward.model.items import describe, is_matrix, items_of, read_images
from sourceward.model.prefetch import prefetch, send
from sourceward.nn import Network, folded
from sourceward.nn.backbones import Backbone, ImagePreprocessing
from sourceward.nn.encoder import ImageEncoder, StaleEncoder
from sourceward.nn.folded import forget
from sourceward.nn.projection import Projected
from sourceward.samplers import StepSettings
from sourceward.settings import AdaptSettings

PLURAL = {"image": "images", "text": "texts", "features": "features"}


@dataclass(frozen=True)
class Prediction:
    """The answer for one input, and what stands behind it."""

    label: str
    probability: float
    votes: dict[str, str]
    """Each source's own answer."""
    energy_before: dict[str, float]
    energy_after: dict[str, float]
    status: str
    """A name in `adapters.STATUS_TEXT`."""


@dataclass
class Model:
    """A trained network with everything it takes to use it.

    Args:
        network: in eval mode, backbone included.
        classes: names.
        sources: names of the source domains.
        settings: of test time.
        info: what else the folder tells: data, settings of the training, metrics, versions.
        views: looks at an image to ask about beside it, see `with_tta`.
    """

    network: Network
    classes: tuple[str, ...]
    sources: tuple[str, ...]
    settings: AdaptSettings = field(default_factory=AdaptSettings)
    info: dict[str, Any] = field(default_factory=dict)
    views: str = ""

    @property
    def backbone(self) -> Backbone | None:
        backbone = self.network.backbone
        inner = backbone.backbone if isinstance(backbone, Projected) else backbone
        assert inner is None or isinstance(inner, Backbone)
        return inner

    @property
    def projection(self) -> Projected | None:
        backbone = self.network.backbone
        return backbone if isinstance(backbone, Projected) else None

    @property
    def kind(self) -> str:
        """What it reads: `image`, `text` or `features`."""
        return "features" if self.backbone is None else self.backbone.kind

    @property
    def device(self) -> torch.device:
        return self.network.scale.device

    def to(self, device: str | torch.device) -> "Model":
        self.network.to(choose_device(device))
        self.__dict__.pop("_known_encoder", None)  # it keeps the weights of its graphs alive
        forget(self.network)
        return self

    def with_tta(self, names: str) -> "Model":
        """From now on answer for an image with the mean over it and these views of it.

        Costs a pass of the backbone for each, and for each source where `style` or `feature_statistics` are asked for;
        does nothing to features.

        Args:
            names: in `data.views`, joined by +, such as "flip+style"; "" for none.
        """
        if names and self.kind != "image":
            raise InputError(f"Views are looks at an image, but this model reads {PLURAL[self.kind]}.")
        check_transforms(names, self.network)
        self.views = names
        return self

    def predict(self, inputs: Any) -> list[Prediction]:
        """Labels with what stands behind them.

        Args:
            inputs: images (paths, PIL images, uint8 arrays or a uint8 tensor), texts, or a float matrix of
                features, whichever the model reads; features of its backbone are always welcome.
        """
        return self.explain(self.adapt(inputs))

    def predict_proba(self, inputs: Any) -> np.ndarray:
        """(n, classes)."""
        return self.adapt(inputs).probabilities

    def adapt(
        self,
        inputs: Any,
        *,
        num_steps: int | None = None,
        sources: Sequence[str] | None = None,
        trajectory: bool = False,
    ) -> AdaptationResult:
        """Predict, and show how.

        Args:
            inputs: see `predict`.
            num_steps: in place of the model's own; 0 predicts without adaptation.
            sources: the sources that vote; all when None.
            trajectory: keep every point of the walk.
        """
        by_pixels = self.kind == "image" and not is_matrix(inputs)
        if by_pixels and self.views and trajectory:
            raise InputError("A walk is of one image: with_tta('') before asking for its trajectory.")
        if by_pixels and (self.views or self.device.type == "cuda") and not trajectory:
            items = items_of(inputs)
            if len(items):
                return self._adapt_ahead(items, num_steps, sources)
        return self.adapt_features(self.features(inputs), num_steps, sources, trajectory)

    def adapt_images(
        self, images: Tensor, num_steps: int | None = None, sources: Sequence[str] | None = None
    ) -> AdaptationResult:
        """`adapt` from uint8 images (n, 3, height, width) that have the model's own size already.

        On CUDA everything from pixels to votes is one captured call.
        """
        answer = partial(self._adapt_images, num_steps=num_steps, sources=sources)
        asked = self.views if num_steps != 0 else ""  # no adaptation at all, then
        images = images.to(self.device)  # where the styles are
        voices = with_tta(asked, self.network, answer, images, look)
        return mean_answer([answer(images), *map(mean_answer, voices)])

    def _adapt_images(
        self, images: Tensor, num_steps: int | None, sources: Sequence[str] | None
    ) -> AdaptationResult:
        if self.device.type != "cuda" or self.network.moved:
            step = rows_per_pass(self.device)
            feature = torch.cat([self.image_features(part) for part in images.split(step)])
            return self.adapt_features(feature, num_steps, sources)
        adapter, known = self._adapter(num_steps, sources), self.__dict__.get("_known_encoder")
        if known is not None and self._describes(known):
            with suppress(StaleEncoder):  # it is looked at while the answer is computed
                return adapter.answer(self.network, images, known)
        return adapter.answer(self.network, images, self._encoder())

    def _adapt_ahead(
        self, items: Any, num_steps: int | None, sources: Sequence[str] | None
    ) -> AdaptationResult:
        """`adapt` from images, a chunk at a time: the next is decoded while this one is computed."""
        step = rows_per_pass(self.device)
        chunks = (items[i : i + step] for i in range(0, len(items), step))
        coming = prefetch(lambda chunk: send(self._pixels(chunk), self.device), chunks)
        return join([self.adapt_images(images, num_steps, sources) for images in coming])

    def adapt_features(
        self,
        feature: Tensor,
        num_steps: int | None = None,
        sources: Sequence[str] | None = None,
        trajectory: bool = False,
    ) -> AdaptationResult:
        """`adapt` from rescaled features (n, dim), as `features` returns them."""
        return self._adapter(num_steps, sources, trajectory)(self.network, feature)

    def asked(self, num_steps: int) -> AdaptSettings:
        """Settings of test time with another number of steps, as if nothing had been tuned."""
        if not num_steps:
            return self.settings.off()
        given = self.info.get("training", {}).get("settings", {})
        votes = {
            name: given[name] for name in ("aggregation", "stop", "blend", "top", "latent") if name in given
        }
        return replace(self.settings, num_steps=num_steps, **votes)

    def explain(self, adapted: AdaptationResult) -> list[Prediction]:
        """One `Prediction` for each row."""
        best = adapted.probabilities.argmax(1)
        votes = adapted.per_source.argmax(2)

        def named(values: np.ndarray) -> dict[str, float]:
            return {name: float(value) for name, value in zip(self.sources, values)}

        return [
            Prediction(
                self.classes[best[row]],
                float(adapted.probabilities[row, best[row]]),
                {name: self.classes[vote] for name, vote in zip(self.sources, votes[row])},
                named(adapted.energy_before[row]),
                named(adapted.energy_after[row]),
                str(adapted.status[row]),
            )
            for row in range(len(adapted))
        ]

    @torch.no_grad()
    def features(self, inputs: Any) -> Tensor:
        """Rescaled features (n, dim) of whatever `predict` takes."""
        self.network.eval()
        if is_matrix(inputs):
            return self._scaled(torch.as_tensor(np.asarray(inputs, dtype=np.float32)))
        if self.backbone is None:
            raise InputError(
                f"Expected a float matrix of features, a row for each sample, but got {describe(inputs)}."
            )
        items, step = items_of(inputs), rows_per_pass(self.device)
        parts = [self._encode(items[i : i + step]) for i in range(0, len(items), step)]
        return torch.cat(parts) if parts else torch.zeros(0, self.network.dim, device=self.device)

    @torch.no_grad()
    def image_features(self, images: Tensor) -> Tensor:
        """Rescaled features of uint8 images (n, 3, height, width) that have the model's own size already."""
        assert self.backbone is not None
        assert isinstance(self.backbone.preprocessing, ImagePreprocessing)
        return self.network.features(self.backbone.preprocessing.normalize(images.to(self.device)))

    def save(self, folder: str | Path, weights: dict[str, Tensor] | None = None) -> None:
        """Write the folder. `config.json` comes last: a folder that has one is whole."""
        from sourceward.model.card import model_card

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        state = self.network.state_dict() if weights is None else weights
        save_tensors(folder / WEIGHTS, state, {"format_version": FORMAT_VERSION})
        if self.backbone is not None:
            self.backbone.save_assets(folder)
        config = self.config()
        write_whole(folder / CARD, model_card(config))
        write_whole(folder / CONFIG, json.dumps(config, indent=2) + "\n")

    def config(self) -> dict[str, Any]:
        """Everything but tensors and tokenizer, as JSON values."""
        return describe_model(self)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        device: str | torch.device = "auto",
        *,
        weights: str = WEIGHTS,
        module: torch.nn.Module | None = None,
    ) -> "Model":
        """Read what `save` wrote.

        Args:
            folder: of the model.
            device: `cpu`, `cuda` or `auto`.
            weights: `last.safetensors` for those of the last iteration, where the folder has them.
            module: the network of a backbone that is the user's own `nn.Module`.
        """
        folder, place = Path(folder), choose_device(device)
        config = read_model_config(folder)
        network = restore_network(folder, config, weights, module)
        adapt = dict(config["adapt"])
        settings = AdaptSettings(**{**adapt, "step": StepSettings(**adapt["step"])})
        info = {key: value for key, value in config.items() if key not in OWN}
        network.eval().requires_grad_(False).to(place)
        names = tuple(config["classes"]), tuple(config["sources"])
        return cls(network, *names, settings, info, config.get("views", ""))

    @classmethod
    def from_pretrained(cls, name: str | Path, **options: Any) -> "Model":
        """From a folder or from the Hugging Face Hub; `options` are those of `load` and of the Hub."""
        from sourceward.model.hub import hub_class

        return hub_class().from_pretrained(name, **options).model

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload to the Hugging Face Hub; returns the address."""
        from sourceward.model.hub import hub_class

        return str(hub_class()(self).push_to_hub(repo_id, **options))

    def _scaled(self, raw: Tensor) -> Tensor:
        wanted = self.network.dim if self.projection is None else len(self.projection.projection)
        if raw.shape[1] != wanted:
            raise InputError(
                f"Expected features of width {wanted}, but got {raw.shape[1]}. "
                "Use the extractor that the model was trained with."
            )
        raw = raw.to(self.device)
        raw = raw if self.projection is None else self.projection.project(raw)
        return self.network.rescale(raw)

    def _encode(self, items: Any) -> Tensor:
        assert self.backbone is not None
        if self.kind == "image":
            return self.image_features(self._pixels(items))
        return self.network.features(self.backbone.prepare([*items]))

    def _pixels(self, items: Any) -> Tensor:
        """uint8 images of the model's own size, on the host."""
        assert self.backbone is not None
        assert isinstance(self.backbone.preprocessing, ImagePreprocessing)
        return read_images(items, image_geometry(self.backbone.preprocessing))

    def _encoder(self) -> ImageEncoder:
        known = self.__dict__.get("_known_encoder")
        if known is None or not self._describes(known) or not known.valid():
            assert self.backbone is not None
            assert isinstance(self.backbone.preprocessing, ImagePreprocessing)
            known = ImageEncoder(self.network, self.backbone.preprocessing)
            self.__dict__["_known_encoder"] = known
            folded(self.network).graphs.clear()
        return known

    def _describes(self, encoder: ImageEncoder) -> bool:
        """Whether it was made of this network and its preprocessing."""
        assert self.backbone is not None
        return encoder.network is self.network and encoder.preprocessing == self.backbone.preprocessing

    def _adapter(
        self, num_steps: int | None, sources: Sequence[str] | None, trajectory: bool = False
    ) -> EnergyAdaptation:
        settings = self.settings if num_steps is None else self.asked(num_steps)
        return EnergyAdaptation(settings, source_numbers(sources, self.sources), trajectory)


def load(folder: str | Path, device: str | torch.device = "auto", **options: Any) -> Model:
    """Load a model folder; see `Model.load`."""
    return Model.load(folder, device, **options)
