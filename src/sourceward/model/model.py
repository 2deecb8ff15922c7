"""`Model`: one folder that predicts anywhere, without its training data and without a network.

config.json         classes, sources, backbone, preprocessing, settings, provenance, metrics
model.safetensors   backbone, heads, energies, class centres, feature scale
tokenizer/          where the model reads texts
README.md           the model card
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sourceward._util.devices import choose_device, without_autocast
from sourceward._util.errors import InputError
from sourceward._util.storage import open_folder
from sourceward.adaptation.base import AdaptationResult, inner_backbone, join
from sourceward.adaptation.copies import Statistics, check_transforms
from sourceward.adaptation.energy import EnergyAdaptation
from sourceward.adaptation.stream import AdaptationStream
from sourceward.data.loading import image_geometry, rows_per_chunk, rows_per_pass
from sourceward.estimator import EnergyAdapter
from sourceward.estimator.input import check_finite, feature_matrix, source_numbers
from sourceward.model.captured import adapt_images, forget_encoders
from sourceward.model.file import WEIGHTS, read_folder, write_folder
from sourceward.model.items import PLURAL, describe, encode_texts, is_matrix, items_of, prefetch, read_images
from sourceward.model.prediction import Prediction, explain
from sourceward.model.summary import summary, summary_html
from sourceward.nn import Network
from sourceward.nn.alone import encode_alone
from sourceward.nn.backbones import Backbone, ImagePreprocessing
from sourceward.nn.folded import clear_folded
from sourceward.settings import AdaptSettings


@dataclass
class Model:
    """A fitted `EnergyAdapter` with its backbone and everything it takes to use it.

    Args:
        adapter: fitted; its network holds the backbone.
        tta: transforms of test-time augmentation, joined by +, see `with_tta`.
        info: what else the folder records: data, settings of the training, metrics, versions.
        cascade: see `with_tta`.
    """

    adapter: EnergyAdapter
    tta: str = ""
    info: dict[str, Any] = field(default_factory=dict)
    cascade: bool = True

    __repr__ = summary
    _repr_html_ = summary_html

    @property
    def network(self) -> Network:
        return self.adapter.network_

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(map(str, self.adapter.classes_.tolist()))

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(map(str, self.adapter.sources_))

    @property
    def settings(self) -> AdaptSettings:
        return self.adapter.settings_

    @property
    def backbone(self) -> Backbone | None:
        return inner_backbone(self.network)

    @property
    def kind(self) -> str:
        """What it reads: `image`, `text` or `features`."""
        return "features" if self.backbone is None else self.backbone.kind

    @property
    def device(self) -> torch.device:
        return self.network.scale.device

    def to(self, device: str | torch.device) -> "Model":
        self.network.to(choose_device(device))
        forget_encoders(self)  # it keeps the weights of its graphs alive
        clear_folded(self.network)
        return self

    def with_tta(self, transforms: str, cascade: bool = True) -> "Model":
        """The same model with other transforms of test-time augmentation.

        Every copy is a row of the backbone's batch; `fourier` and `adain` make one copy per source.

        Args:
            transforms: names in `list_transforms()`, joined by +, such as "hflip+adain"; "" for none.
            cascade: whether samples that are predicted with confidence do without copies, see
                `tta_thresholds`.
        """
        if transforms and self.kind != "image":
            raise InputError(f"Transforms change images, but this model reads {PLURAL[self.kind]}.")
        check_transforms(transforms, Statistics.of(self.network))
        return replace(self, tta=transforms, cascade=cascade)

    @property
    def tta_thresholds(self) -> tuple[float, ...]:
        """Confidences (`adaptation.tta.lead`) from which a prediction is the answer: without copies, then
        with those of the first transform. Without thresholds every sample gets all copies. Validation chooses
        them for the model's own transforms.
        """
        return self.adapter.tta_thresholds_ if self.cascade and self.tta == self.adapter.tta_ else ()

    def predict(self, inputs: Any) -> list[Prediction]:
        """Predict a label for every input, with its details.

        Args:
            inputs: images (paths, PIL images, uint8 arrays or a uint8 tensor), texts, or a float matrix of
                features, whichever the model reads; features of its backbone are accepted, too.
        """
        return self.explain(check_finite(self.adapt(inputs)))

    def predict_proba(self, inputs: Any) -> np.ndarray:
        """Probability of each class, (n, classes)."""
        return check_finite(self.adapt(inputs)).probabilities

    def adapt(
        self,
        inputs: Any,
        *,
        num_steps: int | None = None,
        sources: Sequence[str] | None = None,
        trajectory: bool = False,
    ) -> AdaptationResult:
        """Predict, with adapted features, predictions of each source, energies, steps and status. Unlike
        `predict`, it does not refuse a sample without a finite prediction: its status is `nonfinite`.

        Args:
            inputs: see `predict`.
            num_steps: in place of the chosen number; 0 predicts without adaptation and without TTA.
            sources: names of the sources to aggregate over; all when None.
            trajectory: keep every point of the chain.
        """
        by_pixels = self.kind == "image" and not is_matrix(inputs)
        if by_pixels and self.tta and trajectory:
            raise InputError(
                "Trajectories are recorded without test-time augmentation: call `with_tta('')` first."
            )
        if by_pixels and (self.tta or self.device.type == "cuda") and not trajectory:
            items = items_of(inputs)
            if len(items):
                return self._adapt_chunks(items, num_steps, sources)
        return self.adapt_features(self.features(inputs), num_steps, sources, trajectory)

    def adapt_images(
        self, images: Tensor, num_steps: int | None = None, sources: Sequence[str] | None = None
    ) -> AdaptationResult:
        """`adapt` for uint8 images (n, 3, height, width) that have the model's own size already."""
        names = self.tta if num_steps != 0 else ""  # no adaptation at all, then
        adapter, thresholds = self.adapter_for(num_steps, sources), self.tta_thresholds
        found = adapt_images(self, adapter, images, names, thresholds)
        return found.with_trust(self.settings.temperature)

    def adapt_features(
        self,
        feature: Tensor,
        num_steps: int | None = None,
        sources: Sequence[str] | None = None,
        trajectory: bool = False,
    ) -> AdaptationResult:
        """`adapt` for rescaled features (n, dim), as `features` returns them."""
        return self.adapter_for(num_steps, sources, trajectory)(self.network, feature)

    def adapter_for(
        self, num_steps: int | None = None, sources: Sequence[str] | None = None, trajectory: bool = False
    ) -> EnergyAdaptation:
        """The adapter with the model's settings, or with another number of steps."""
        settings = self.settings if num_steps is None else self.settings_for(num_steps)
        return EnergyAdaptation(settings, source_numbers(sources, self.sources), trajectory)

    def settings_for(self, num_steps: int) -> AdaptSettings:
        """Test-time settings with another number of steps, whatever validation chose."""
        aggregation = self.adapter.aggregation
        settings = replace(self.settings, num_steps=num_steps, aggregation=aggregation)
        return settings if num_steps else settings.off()

    def stream(self) -> AdaptationStream[list[Prediction]]:
        """An object that predicts inputs in order and keeps a state; the model itself never does."""
        temperature = getattr(self.adapter.stream_, "temperature", 1.0)
        return AdaptationStream(self.network, self.adapt, self.explain, temperature)

    def calibrate(self, coverage: float) -> float:
        """The trust below which to abstain so that this share of the held-out sources' samples is answered.
        On an unseen domain the share differs: a harder one has less trust."""
        if self.adapter.trust_ is None:
            raise InputError("This model has no thresholds: `fit` estimates them with three or more sources.")
        return self.adapter.trust_.threshold(coverage)

    def explain(self, result: AdaptationResult, probabilities: bool = False) -> list[Prediction]:
        """One `Prediction` for each row, with the probabilities of all classes on request."""
        return explain(result, self.classes, self.sources, probabilities)

    @without_autocast()
    @torch.no_grad()
    def features(self, inputs: Any) -> Tensor:
        """Rescaled features (n, dim) of whatever `predict` takes."""
        self.network.eval()
        if is_matrix(inputs):
            return self.adapter.rescale(feature_matrix(inputs, self.adapter.n_features_in_))
        if self.backbone is None:
            raise InputError(
                f"Expected a float matrix of features, a row for each sample, but got {describe(inputs)}."
            )
        items, step = items_of(inputs), rows_per_chunk(self.device)
        parts = [self._encode(items[i : i + step]) for i in range(0, len(items), step)]
        return torch.cat(parts) if parts else torch.zeros(0, self.network.dim, device=self.device)

    @torch.no_grad()
    def image_features(self, images: Tensor) -> Tensor:
        """Rescaled features of uint8 images (n, 3, height, width) that have the model's own size already."""
        parts = self.preprocessing.normalize(images.to(self.device)).split(rows_per_pass(self.device))
        if self.device.type == "cpu":
            return torch.cat(encode_alone([(self.network.features, part) for part in parts]))
        return torch.cat([self.network.features(part) for part in parts])

    def save(self, folder: str | Path) -> None:
        """Write the folder. `config.json` comes last: a folder that has one is complete."""
        write_folder(self, open_folder(folder))

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
        adapter, tta, info = read_folder(Path(folder), weights, module)
        adapter.network_.to(choose_device(device))
        return cls(adapter, tta, info)

    @classmethod
    def from_pretrained(cls, name: str | Path, **options: Any) -> "Model":
        """From a folder or from the Hugging Face Hub; `options` are those of `load` and of the Hub."""
        from sourceward.model.hub import hub_class

        return hub_class().from_pretrained(name, **options).model

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload to the Hugging Face Hub, with a Gradio `app.py` for a Space; returns the address."""
        from sourceward.model.hub import hub_class

        return str(hub_class()(self).push_to_hub(repo_id, **options))

    def export(self, path: str | Path, *, samples: Any = None) -> dict[str, Any]:
        """Write the whole prediction to an .onnx or .pt2 file; see `sourceward.export`."""
        import sourceward

        return sourceward.export(self, path, samples=samples)

    @property
    def preprocessing(self) -> ImagePreprocessing:
        """How images are prepared."""
        assert self.backbone is not None
        assert isinstance(self.backbone.preprocessing, ImagePreprocessing)
        return self.backbone.preprocessing

    def _encode(self, items: Any) -> Tensor:
        assert self.backbone is not None
        if self.kind == "image":
            return self.image_features(self._pixels(items))
        return encode_texts(self.network.features, self.backbone.prepare, [*items])

    def _pixels(self, items: Any) -> Tensor:
        """uint8 images of the model's own size, on its device."""
        return read_images(items, image_geometry(self.preprocessing), self.device)

    def _adapt_chunks(
        self, items: Any, num_steps: int | None, sources: Sequence[str] | None
    ) -> AdaptationResult:
        """`adapt` for images, a chunk at a time: the next is decoded while this one is computed."""
        step = rows_per_chunk(self.device)
        chunks = (items[i : i + step] for i in range(0, len(items), step))
        coming = prefetch(self._pixels, chunks)
        return join([self.adapt_images(images, num_steps, sources) for images in coming])


load = Model.load
