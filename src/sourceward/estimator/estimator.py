"""`EnergyAdapter`: the method for feature matrices, with scikit-learn's conventions."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.validation import check_is_fitted

from sourceward._util.devices import choose_device
from sourceward._util.errors import InputError
from sourceward._util.progress import progress_bar
from sourceward._util.storage import load_tensors, save_tensors
from sourceward.adaptation import AdaptationResult, EnergyAdaptation
from sourceward.estimator.file import describe, restore
from sourceward.estimator.input import drawn_seed, shifted_part, validated
from sourceward.estimator.sources import (
    encode_sources,
    fingerprint_of,
    held_out,
    source_numbers,
    split_sources,
)
from sourceward.functional import Coefficients, spread
from sourceward.functional.source_weights import BY_ENERGY
from sourceward.nn import Network
from sourceward.samplers import StepSettings
from sourceward.settings import AdaptSettings, LoopSettings, TrainSettings
from sourceward.training.distillation import distil
from sourceward.training.loop import ResidentFeed, train
from sourceward.training.monitor import Log, Watch
from sourceward.validation.leave_one_domain_out import (
    FEWEST_SOURCES,
    LENGTHS,
    ExpectedGain,
    Part,
    learn_votes,
    tune,
)


class EnergyAdapter(ClassifierMixin, BaseEstimator):
    """Classify samples of an unseen domain by moving each one toward the source domains first.

    Fit on features of several labelled source domains. At prediction every sample walks down each source's
    learned energy and the source classifiers vote: one sample at a time, no weight changes, no state.

    Settings of test time can be changed on a fitted estimator (`set_params`) and hold from the next
    prediction on.

    Args:
        num_steps: steps of the walk at test time; 0 predicts without adaptation. `auto` lets each source play
            the unseen domain during `fit`, takes the longest of 5, 2 and 0 steps that they gain by, or turns
            adaptation off, and says in `expected_gain_` what to expect. It needs three sources; with fewer it takes
            5 steps and promises nothing.
        step_size: what multiplies the clipped gradient.
        noise_std: noise of each step.
        sampler: `langevin`, `nesterov`, `textbook` or `distilled`: to where `distilled_steps` Langevin steps would end
            in one step, refined by the rest of `num_steps`. It is learned by `fit` when it is asked for.
        accept: `energy_not_higher`, `always` or `metropolis`.
        aggregation: how the sources vote: `energy`, `mean`, `closest`, `cosine`, `confident` or
            `learned`: from sources that play the unseen domain; with fewer than three it is `energy`.
        num_draws: draws of the latent to average over; 0 uses its mean.
        stop: end a walk once its energy is at this quantile of the source's own samples.
        blend: weight of the unmoved sample's answer, from 0 to 1.
        top: only so many sources vote, those whose energy the sample surprises least.
        latent: a sample's z: `prior`, or the posterior of the `class` that the unmoved sample's vote names.
        distilled_steps: length of the chains that the distilled is distilled from.
        head: `pooled`, `prototype` (the paper's), `concat` or `linear` (no latent: eq. 7).
        max_iter: training iterations.
        batch_size: samples of each source per iteration.
        learning_rate: of latent network and head.
        energy_learning_rate: of the energies.
        weight_decay: of all weights.
        average: decay of the moving average of the weights.
        train_steps: length of the training chains.
        chains: training chains per source and iteration.
        posterior_chain: run as many training chains again, with the posterior of the class as latent.
        kl: weight of KL(q(z|d) || p(z|x)).
        guide: weight of the last line of eq. 10, which trains the chain to keep labels.
        pooled: weight of the classifier that a pooled head shares among the sources.
        whiten: measure features in units of how a class differs within and between the sources.
        feature_noise: noise on the features in training, relative to their root mean square.
        objective: what teaches the energies: `contrast` (the paper's) or `dsm`, denoising score matching.
        allow_missing: accept a class that a source has no samples of.
        checkpoint: file to write during training and to go on from after a kill.
        device: `cpu`, `cuda` or `auto`.
        random_state: seed of everything random.
        verbose: progress bar: True, False, or None for when standard error is a terminal.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> y = np.tile([0, 1], 60)
        >>> domain = np.repeat(["a", "b"], 60)
        >>> X = rng.normal(size=(120, 4)) + 3 * y[:, None] + (domain == "b")[:, None]
        >>> est = EnergyAdapter(num_steps=3, max_iter=20, learning_rate=0.03, train_steps=3)
        >>> est = est.fit(X, y, sample_domain=domain)
        >>> est.predict(X[:2]).tolist(), est.adapt(X[:2]).energy_after.shape
        ([0, 1], (2, 2))
    """

    _log: Log | None = None
    """Where `fit` writes down how it goes; `clone` drops it: the models of pretend targets write nothing."""

    def __init__(
        self,
        num_steps: int | str = "auto",
        step_size: float = 50.0,
        noise_std: float = 0.001,
        sampler: str = "langevin",
        accept: str = "energy_not_higher",
        aggregation: str = "energy",
        num_draws: int = 0,
        stop: float | None = None,
        blend: float = 0.0,
        *,
        top: int | None = None,
        latent: str = "prior",
        distilled_steps: int = 50,
        head: str = "pooled",
        max_iter: int = 300,
        batch_size: int = 128,
        learning_rate: float = 3e-3,
        energy_learning_rate: float = 1e-3,
        weight_decay: float = 5e-4,
        average: float = 0.98,
        train_steps: int = 20,
        chains: int = 32,
        posterior_chain: bool = False,
        kl: float = 0.02,
        guide: float = 1.0,
        pooled: float = TrainSettings.pooled,
        whiten: bool = True,
        feature_noise: float = 0.7,
        objective: str = "contrast",
        allow_missing: bool = False,
        checkpoint: str | Path | None = None,
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = 0,
        verbose: bool | None = None,
    ) -> None:
        self.num_steps = num_steps
        self.step_size = step_size
        self.noise_std = noise_std
        self.sampler = sampler
        self.accept = accept
        self.aggregation = aggregation
        self.num_draws = num_draws
        self.stop = stop
        self.blend = blend
        self.top = top
        self.latent = latent
        self.distilled_steps = distilled_steps
        self.head = head
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.energy_learning_rate = energy_learning_rate
        self.weight_decay = weight_decay
        self.average = average
        self.train_steps = train_steps
        self.chains = chains
        self.posterior_chain = posterior_chain
        self.kl = kl
        self.guide = guide
        self.pooled = pooled
        self.whiten = whiten
        self.feature_noise = feature_noise
        self.objective = objective
        self.allow_missing = allow_missing
        self.checkpoint = checkpoint
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self,
        X: Any,
        y: Any,
        sample_domain: Any = None,
        *,
        X_shifted: Any = None,
        y_shifted: Any = None,
    ) -> "EnergyAdapter":
        """Learn from labelled features of the source domains.

        Args:
            X: (n, dim) features.
            y: (n,) labels of any kind.
            sample_domain: (n,) source of each row, names or integers; as in SKADA a negative integer marks a
                target row, which is left out. One source when None.
            X_shifted: (m, dim) features of shifted samples that belong to no source, to practise on. Without
                them a lone source practises on its own samples under noise.
            y_shifted: (m,) their labels.
        """
        for name in ("network_", "source_weights_"):
            self.__dict__.pop(name, None)  # a fit that fails leaves nothing half fitted
        X, y = validated(self, X, y, reset=True)
        self._check_settings()
        X, y, names, source = encode_sources(X, y, sample_domain)
        self.classes_, label = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"Expected 2 or more classes in `y`, but got 1 class: {self.classes_.tolist()}.")
        self.sources_ = names
        parts = split_sources(X, label, source, names, self.classes_, self.allow_missing)
        shifted = shifted_part(self, X_shifted, y_shifted)
        self._seed = drawn_seed(self.random_state, self.checkpoint)
        self.network_ = self._fit_network(parts, shifted, self.checkpoint)
        self.n_iter_, self._head = self.max_iter, self.head
        self.num_steps_, self.adapts_, self.source_weights_, self.expected_gain_ = self._tune(parts, shifted)
        return self

    def predict_proba(self, X: Any, sample_domain: Any = None) -> np.ndarray:
        """Probability of each class, (n, classes). `sample_domain` is accepted for SKADA and never used:
        a test sample's domain is unknown by assumption."""
        return self.adapt(X).probabilities

    def predict(self, X: Any, sample_domain: Any = None) -> np.ndarray:
        """The most probable class of each sample."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(1)]

    def adapt(
        self, X: Any, *, sources: list[Any] | None = None, trajectory: bool = False
    ) -> AdaptationResult:
        """Predict, and show how: features, votes, energies, steps and a status for each sample.

        Args:
            X: (n, dim) features.
            sources: names of the sources that vote; all when None.
            trajectory: keep every point of the walk.
        """
        check_is_fitted(self, "network_")
        X = validated(self, X)
        adapter = EnergyAdaptation(self._test_time(), source_numbers(sources, self.sources_), trajectory)
        with torch.no_grad():
            feature = self.network_.features(torch.from_numpy(X).to(self.network_.scale.device))
        adapted = adapter(self.network_, feature)
        finite = np.isfinite(adapted.probabilities).all(1)
        if not finite.all():
            raise InputError(
                f"Row {finite.argmin()} of X is so far from the sources that it has no finite answer. "
                "Check its units."
            )
        return adapted

    def save(self, path: str | Path) -> None:
        """Write the fitted estimator to one safetensors file."""
        check_is_fitted(self, "network_")
        save_tensors(path, self.network_.state_dict(), describe(self))

    @classmethod
    def load(cls, path: str | Path) -> "EnergyAdapter":
        """Read what `save` wrote."""
        tensors, meta = load_tensors(path)
        if meta.get("kind") != "EnergyAdapter":
            raise InputError(f"Expected an EnergyAdapter in '{path}', but it holds something else.")
        try:
            return restore(cls(**meta["params"]), tensors, meta)
        except (KeyError, TypeError, RuntimeError):
            raise InputError(
                f"'{path}' was written by sourceward {meta.get('version')}, which this version cannot read. "
                "Use that version, or fit again."
            ) from None

    def _fit_network(
        self, parts: list[Part], shifted: Part | None, checkpoint: str | Path | None = None
    ) -> Network:
        """A trained network with energies calibrated on samples that it was not trained on."""
        device = choose_device(self.device)
        parts = [(x.to(device), y.to(device)) for x, y in parts]
        split = [held_out(label) for _, label in parts]
        trained = [(x[~held], y[~held]) for (x, y), held in zip(parts, split)]
        network = self._train(trained, shifted, checkpoint)
        unseen = [(x[held], y[held]) if held.any() else (x, y) for (x, y), held in zip(parts, split)]
        for source, (x, _) in enumerate(unseen):
            network.fit_calibration(source, network.features(x))
        rows, label = (torch.cat(values) for values in zip(*unseen))
        network.fit_lda(network.features(rows), label)
        network.requires_grad_(False)
        if self.sampler == "distilled":
            feature = network.features(torch.cat([x for x, _ in trained]))
            network.distilled = distil(
                network, feature, self._step(), self.distilled_steps, self.max_iter, self._seed
            )
        return network

    def _tune(
        self, parts: list[Part], shifted: Part | None
    ) -> tuple[int, bool, tuple[float, ...] | None, ExpectedGain | None]:
        """How many steps to take, whether to adapt at all, whom to source_weights, and what to expect of it."""
        settings, expected_gain = self.self_tune(parts, self.sources_, self.classes_, shifted)
        adapts = self.num_steps != 0 if expected_gain is None else expected_gain.adapts
        return settings.num_steps, adapts, settings.source_weights, expected_gain

    def self_tune(
        self,
        parts: list[Part],
        names: list[Any],
        classes: np.ndarray,
        shifted: Part | None = None,
        watch: Callable[[int, Network], None] | None = None,
        teaches: Callable[[int, int], Part] | None = None,
    ) -> tuple[AdaptSettings, ExpectedGain | None]:
        """Settings of test time that pretend targets ask for, and what they gained; see `tuning`.

        Args:
            parts: features and class numbers of each source.
            names: of the sources.
            classes: all of them.
            shifted: samples of no source to practise on.
            watch, teaches: see `tune`.
        """
        asked, learns = self.num_steps != "auto", self.aggregation == "learned"
        settings = self._test_time(int(self.num_steps) if asked else LENGTHS[0])
        if len(parts) < FEWEST_SOURCES:
            return replace(settings, source_weights=BY_ENERGY if learns else None), None
        fit = partial(self.pretender(classes)._fit_network, shifted=shifted)
        if asked:
            return (learn_votes(parts, fit, settings) if learns and self.num_steps else settings), None
        return tune(parts, names, fit, settings, watch, teaches)

    def pretender(self, classes: np.ndarray) -> "EnergyAdapter":
        """An unfitted twin that trains the models of pretend targets, on class numbers of `classes`."""
        twin = clone(self).set_params(verbose=False)
        twin.classes_ = classes
        twin._seed = self._seed if hasattr(self, "_seed") else drawn_seed(self.random_state, None)
        return twin

    def _train(self, parts: list[Part], shifted: Part | None, checkpoint: str | Path | None) -> Network:
        device = parts[0][0].device
        network = self._network(len(parts), parts[0][0].shape[1]).to(device)
        network.reset_parameters(torch.Generator().manual_seed(self._seed))
        network.fit_scale(torch.cat([x for x, _ in parts]), spread(parts) if self.whiten else None)
        for source, (x, y) in enumerate(parts):
            network.fit_centers(source, network.features(x), y)
        network.fill_centers()
        feed = ResidentFeed([x for x, _ in parts], [y for _, y in parts], self.batch_size, shifted)
        loop = LoopSettings(
            self.max_iter,
            self.batch_size,
            self.learning_rate,
            self.energy_learning_rate,
            weight_decay=self.weight_decay,
            average=self.average,
        )
        settings = self._train_settings()
        fingerprint = ""
        if checkpoint is not None:
            fingerprint = fingerprint_of(
                parts, shifted, (self.head, self.whiten, device, loop, settings, self._seed)
            )
        with progress_bar(self.max_iter, "fitting", self.verbose) as advance:
            watch = Watch(self.max_iter, self.batch_size * len(parts), advance, self._log)
            return train(
                network,
                feed,
                loop,
                settings,
                seed=self._seed,
                checkpoint=checkpoint,
                fingerprint=fingerprint,
                on_start=watch.start,
                on_iteration=watch,
            )

    def _network(self, sources: int, dim: int) -> Network:
        return Network(sources, len(self.classes_), dim, self.head)

    def _test_time(self, num_steps: Any = None) -> AdaptSettings:
        """Settings of test time as they stand now, with what was tuned in place of `auto`."""
        adapts = self.num_steps != 0
        if num_steps is None:
            num_steps = self.num_steps
            if num_steps == "auto":
                num_steps, adapts = self.num_steps_, self.adapts_
        settings = AdaptSettings(
            num_steps,
            self._step(),
            self.sampler,
            self.aggregation,
            self.num_draws,
            getattr(self, "_seed", 0),
            self.stop,
            self.blend,
            self.top,
            self.latent,
            getattr(self, "source_weights_", None),
        )
        return settings if adapts else settings.off()

    def _step(self) -> StepSettings:
        return StepSettings(self.step_size, self.noise_std, accept=self.accept)

    def _train_settings(self) -> TrainSettings:
        weight = self.guide
        return TrainSettings(
            self.train_steps,
            StepSettings(),
            Coefficients(kl=self.kl, guide_energy=weight, guide_label=weight),
            chains=self.chains,
            posterior_chain=self.posterior_chain,
            pooled=self.pooled,
            feature_noise=self.feature_noise,
            objective=self.objective,
        )

    def _check_settings(self) -> None:
        """Refuse a wrong setting before an hour of training, not after it."""
        self._test_time(LENGTHS[0] if self.num_steps == "auto" else self.num_steps).check()
        self._train_settings()
        if not isinstance(self.distilled_steps, Integral) or self.distilled_steps < 1:
            raise InputError(f"Expected `distilled_steps` to be 1 or more, but got {self.distilled_steps!r}.")
