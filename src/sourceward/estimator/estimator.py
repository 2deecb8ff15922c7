"""`EnergyAdapter`: the method for feature matrices, with scikit-learn's conventions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from sourceward._util.storage import save_tensors
from sourceward.adaptation.base import AdaptationResult
from sourceward.adaptation.energy import EnergyAdaptation, keep_settings
from sourceward.adaptation.stream import AdaptationStream
from sourceward.estimator import input as given
from sourceward.estimator.classifier import DomainClassifier, warn_not_estimated
from sourceward.estimator.file import describe, read
from sourceward.estimator.network import choose_adaptation, fit_network, rescaled
from sourceward.functional.aggregation import BY_ENERGY
from sourceward.nn import Network
from sourceward.samplers import StepSettings
from sourceward.settings import (
    AUTO,
    HEAD,
    KL_WEIGHT,
    PAPER_ADAPTER,
    WHITEN,
    AdaptSettings,
    LoopSettings,
    TrainSettings,
    check_kl_weight,
)
from sourceward.training.loop import Log
from sourceward.validation.cascade import KEPT_GAIN
from sourceward.validation.folds import MIN_SOURCES, Fold, Source, feature_folds
from sourceward.validation.leave_one_domain_out import LENGTHS


class EnergyAdapter(DomainClassifier):
    """Classify samples of an unseen domain after adapting each one to the source domains.

    At prediction every sample takes Langevin steps down each source's energy, and the predictions of the
    source classifiers are aggregated. Test-time settings can be changed after fitting (`set_params`).

    Args:
        num_steps: Langevin steps at test time; 0 predicts without adaptation. `auto` chooses 5, 2 or 0 steps,
            or turns adaptation off, by leave-one-domain-out validation during `fit`, and states the
            `expected_gain_`. It needs three sources; with fewer, adaptation is off.
        step_size: what multiplies the clipped gradient.
        noise_std: noise of each step.
        sampler: `langevin`, `langevin_unchecked`, `mala`, `nesterov`, or `distilled`: one step that `fit`
            distils from long Langevin chains, refined by the rest of `num_steps`.
        aggregation: of the sources' predictions: `energy`, `mean`, `closest`, `cosine`, `confident` or
            `learned` (source weights learned on held-out sources; `energy` with fewer than three sources).
        num_draws: draws of the latent to average over; 0 uses its mean.
        head: `pooled`, `prototype` (the paper's), `concat` or `linear` (no latent: eq. 7).
        whiten: whiten features by the covariance within classes and between sources.
        max_iter: training iterations.
        batch_size: samples of each source per iteration.
        learning_rate: of latent network and head.
        energy_learning_rate: of the energies.
        kl_weight: weight of KL(q(z|d) || p(z|x)); `paper` is the released code's in our units, 0.1 / dim.
        train: other settings of training, `TrainSettings` or a dictionary of its fields.
        checkpoint: file to write during training and to go on from after a kill.
        device: `cpu`, `cuda` or `auto`.
        random_state: seed of everything random.
        verbose: progress bar: True, False, or None for a bar on a terminal, else a line every ten seconds.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> y = np.tile([0, 1], 60)
        >>> domain = np.repeat(["a", "b"], 60)
        >>> X = rng.normal(size=(120, 4)) + 3 * y[:, None] + (domain == "b")[:, None]
        >>> est = EnergyAdapter(num_steps=3, max_iter=20, learning_rate=0.03, train={"num_steps": 3})
        >>> est = est.fit(X, y, sample_domain=domain)
        >>> est.predict(X[:2]).tolist(), est.adapt(X[:2]).energy_after.shape
        ([0, 1], (2, 2))
    """

    def __init__(
        self,
        num_steps: int | str = AUTO,
        step_size: float = StepSettings.step_size,
        noise_std: float = StepSettings.noise_std,
        sampler: str = AdaptSettings.sampler,
        aggregation: str = AdaptSettings.aggregation,
        num_draws: int = AdaptSettings.num_draws,
        head: str = HEAD,
        whiten: bool = WHITEN,
        *,
        max_iter: int = LoopSettings.max_iter,
        batch_size: int = LoopSettings.batch_size,
        learning_rate: float = LoopSettings.learning_rate,
        energy_learning_rate: float = LoopSettings.energy_learning_rate,
        kl_weight: float | str = KL_WEIGHT,
        train: TrainSettings | Mapping[str, Any] | None = None,
        checkpoint: str | Path | None = None,
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = 0,
        verbose: bool | None = None,
    ) -> None:
        self.num_steps = num_steps
        self.step_size = step_size
        self.noise_std = noise_std
        self.sampler = sampler
        self.aggregation = aggregation
        self.num_draws = num_draws
        self.head = head
        self.whiten = whiten
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.energy_learning_rate = energy_learning_rate
        self.kl_weight = kl_weight
        self.train = train
        self.checkpoint = checkpoint
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    @classmethod
    def paper(cls, **settings: Any) -> "EnergyAdapter":
        """An adapter with the paper's configuration, `settings.PAPER_ADAPTER`, and further settings."""
        return cls(**PAPER_ADAPTER | settings)

    def fit(
        self,
        X: Any,
        y: Any,
        sample_domain: Any = None,
        *,
        X_shifted: Any = None,
        y_shifted: Any = None,
        allow_missing: bool = False,
    ) -> "EnergyAdapter":
        """Train on labelled features of the source domains.

        Args:
            X: (n, dim) features.
            y: (n,) labels of any kind.
            sample_domain: (n,) source of each row, names or integers; as in SKADA a negative integer marks a
                target row, which is left out. One source when None, or when it is one value.
            X_shifted: (m, dim) features of shifted samples that belong to no source, as more negatives.
                Without them a single source takes its own samples under noise.
            y_shifted: (m,) their labels.
            allow_missing: accept a class that a source has no samples of.
        """
        self._forget()
        X, y = given.validated(self, X, y, reset=True)
        X, y, names, source = given.encode_sources(X, y, sample_domain)
        missing, fix = "is missing, so all rows are one", "Pass the domain of each row, or set `num_steps`."
        found = f"`sample_domain` {missing if sample_domain is None else f'has {len(names)}'}"
        warn_not_estimated(self.num_steps, self.aggregation, len(names), found, fix)
        self.classes_, label = np.unique(y, return_inverse=True)
        parts = given.split_sources(X, label, source, names, self.classes_, allow_missing)
        return self.fit_sources(parts, names, self.classes_, given.shifted_part(self, X_shifted, y_shifted))

    def fit_sources(
        self,
        sources: Sequence[Source],
        names: Sequence[Any],
        classes: np.ndarray,
        shifted: tuple[Tensor, Tensor] | None = None,
        *,
        folds: Iterable[Fold] | None = None,
        tta: Sequence[str] = (),
        kept_gain: float = KEPT_GAIN,
        log: Log | None = None,
    ) -> "EnergyAdapter":
        """`fit` on one tensor per source, with folds and transforms of one's own.

        Args:
            sources: features and class numbers of each.
            names: of the sources.
            classes: labels by class number.
            shifted: features and class numbers that belong to no source.
            folds: of leave-one-domain-out validation; of the sources' own features when None.
            tta: sets of transforms for validation to choose from, where the folds have copies.
            kept_gain: share of the gain of test-time augmentation that its cascade must keep; 0 for none.
            log: where the training is logged.
        """
        self._forget()
        self.check_settings()
        self.start(names, classes, sources[0].feature.shape[1])
        network = fit_network(self, sources, shifted, checkpoint=self.checkpoint, log=log)
        auto = self.num_steps == AUTO
        settings = self._settings(LENGTHS[0] if auto else self.num_steps)
        settings = settings if self.num_steps else settings.off()
        chooses = auto or self.aggregation == "learned" or bool(tta)
        folds = feature_folds(sources, names) if folds is None else folds
        held = list(folds) if len(sources) >= MIN_SOURCES and chooses else []
        if held:
            choice = choose_adaptation(self, held, settings, shifted, tta, kept_gain)
            settings, self.tta_, self.tta_thresholds_, self.trust_, self.stream_ = choice[:5]
            self.expected_gain_ = choice.expected_gain if auto or tta else None
        elif auto:
            settings = settings.off()
        return self.set_network(network, settings)

    def start(self, names: Sequence[Any], classes: np.ndarray, dim: int) -> None:
        """Take names, classes, width of the features and the seed, before any training."""
        self.classes_, self.sources_, self.n_features_in_ = np.asarray(classes), list(names), dim
        self._seed = given.drawn_seed(self.random_state, self.checkpoint)
        self.tta_, self.tta_thresholds_ = "", ()
        self.expected_gain_, self.trust_, self.stream_ = [None] * 3

    def set_network(self, network: Network, settings: AdaptSettings) -> "EnergyAdapter":
        """Take a trained network and the test-time settings that were chosen for it."""
        if settings.aggregation == "learned" and settings.source_weights is None:
            settings = replace(settings, source_weights=BY_ENERGY)
        self.network_, self.n_iter_, self._head = network, self.max_iter, self.head
        self.num_steps_, self.adapts_ = settings.num_steps, not settings.is_off
        self.source_weights_ = settings.source_weights
        keep_settings(network, self.settings_)
        return self

    @property
    def settings_(self) -> AdaptSettings:
        """Test-time settings as they stand now, with what validation chose in place of `auto`."""
        check_is_fitted(self, "network_")
        auto = self.num_steps == AUTO
        settings = self._settings(self.num_steps_ if auto else self.num_steps)
        return settings if (self.adapts_ if auto else self.num_steps) else settings.off()

    def adapt(
        self, X: Any, *, sources: list[Any] | None = None, trajectory: bool = False
    ) -> AdaptationResult:
        """Predict with all details: adapted features, predictions of each source, energies, steps, status.

        Args:
            X: (n, dim) features.
            sources: names of the sources to aggregate over; all when None.
            trajectory: keep every point of the chain.
        """
        check_is_fitted(self, "network_")
        return self.adapt_features(
            self.rescale(given.validated(self, X)), sources=sources, trajectory=trajectory
        )

    def adapt_features(
        self,
        feature: Tensor,
        *,
        settings: AdaptSettings | None = None,
        sources: Sequence[Any] | None = None,
        trajectory: bool = False,
    ) -> AdaptationResult:
        """`adapt` for rescaled features (n, dim), with other test-time settings where they are given."""
        numbers = given.source_numbers(sources, self.sources_)
        adapter = EnergyAdaptation(settings or self.settings_, numbers, trajectory)
        return given.check_finite(adapter(self.network_, feature))

    def stream(self) -> AdaptationStream[np.ndarray]:
        """An object that predicts samples in order and keeps a state; the estimator itself never does."""
        check_is_fitted(self, "network_")
        temperature = getattr(self.stream_, "temperature", 1.0)
        return AdaptationStream(self.network_, self.adapt, lambda r: self.classes_[r.label], temperature)

    def rescale(self, X: Any) -> Tensor:
        """Features as the network takes them: projected, whitened and scaled, on its device."""
        return rescaled(self.network_, X)

    def save(self, path: str | Path) -> None:
        """Write the fitted estimator to one safetensors file."""
        check_is_fitted(self, "network_")
        save_tensors(path, self.network_.state_dict(), describe(self))

    @classmethod
    def load(cls, path: str | Path) -> "EnergyAdapter":
        """Read what `save` wrote."""
        return read(cls, path)

    def check_settings(self) -> None:
        """Refuse a wrong setting before training, not after it."""
        self._settings(LENGTHS[0] if self.num_steps == AUTO else self.num_steps)
        TrainSettings.of(self.train)
        check_kl_weight(self.kl_weight)

    def _settings(self, num_steps: Any) -> AdaptSettings:
        return AdaptSettings(
            num_steps,
            StepSettings(self.step_size, self.noise_std),
            self.sampler,
            self.aggregation,
            self.num_draws,
            getattr(self, "_seed", 0),
            getattr(self, "source_weights_", None),
            getattr(getattr(self, "trust_", None), "temperature", 1.0),
        )

    def _forget(self) -> None:
        """Leave nothing half fitted when a fit fails."""
        self.__dict__.pop("network_", None), self.__dict__.pop("source_weights_", None)
