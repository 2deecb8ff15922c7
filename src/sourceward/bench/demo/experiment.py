"""The demo's experiment: a frozen backbone, five source angles, two target angles never seen.

The backbone is a small convolutional network with random, frozen weights, so that the other sources are real
shifts for the energies to train on. Classifiers and energies are fitted on its features of five source
angles. Targets are new digits at two new angles. The controls are ordinary training on the same data:
classifiers on the same frozen features, and the whole network.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from sourceward._util.errors import InputError
from sourceward._util.progress import progress_bar
from sourceward.adaptation import AdaptationResult
from sourceward.bench.demo.digits import (
    DigitNet,
    Digits,
    load_split,
    rotated,
    rotated_all,
    train_network,
    untrained_network,
)
from sourceward.estimator import EnergyAdapter

SOURCES, TARGETS = (15, 30, 45, 60, 75), (0, 90)
LINEAR, HIDDEN, WHOLE = "logistic regression", "two hidden layers", "whole network retrained"
CLOSEST = "closest source alone, no steps"
COMPONENTS = 128
ESTIMATOR: dict[str, Any] = {
    "max_iter": 200,
    "batch_size": 64,
    "head": "pooled",
    "whiten": False,
    "kl_weight": 0.01,
    "train": {"chains": 16, "num_steps": 10, "guide_weight": 3.0, "feature_noise": 0.5},
}
"""Chosen by holding out an outermost source (docs/notes.md). Without whitening adaptation gains most."""
CURVE = (0, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2)
"""Where the curves are measured, in units of the steps in use: up to twice as many."""


@dataclass(frozen=True)
class DemoSettings:
    """What the demo does; the defaults were chosen on held-out sources.

    Args:
        seed: of the split, of every network and of the energies.
        num_steps: steps of adaptation.
        train_size: digits to train on.
        test_size: digits of the targets; None takes the rest of the 1,797.
        whole_epochs, head_epochs: of the controls.
        estimator: settings of `EnergyAdapter`.
    """

    seed: int = 0
    num_steps: int = 20
    train_size: int = 1000
    test_size: int | None = None
    whole_epochs: int = 6
    head_epochs: int = 40
    estimator: dict[str, Any] = field(default_factory=lambda: dict(ESTIMATOR))

    def __post_init__(self) -> None:
        if self.num_steps < 0:
            raise InputError(
                f"Expected `--steps` to be 0 or more, but got {self.num_steps}. "
                "Use 0 to predict without adaptation."
            )
        if self.seed < 0:
            raise InputError(f"Expected `--seed` to be 0 or more, but got {self.seed}.")


def quick_settings(seed: int = 0, num_steps: int = 2) -> DemoSettings:
    """Return settings for a run of seconds; its numbers mean nothing."""
    estimator = {"max_iter": 10, "batch_size": 16, "train": {"chains": 4, "num_steps": 2}}
    return DemoSettings(seed, num_steps, 200, 150, 1, 2, estimator)


@dataclass(frozen=True)
class Target:
    """One target angle: its samples, and predictions without and with adaptation and of controls."""

    angle: int
    image: np.ndarray
    """(n, 16, 16) uint8, as the network sees them."""
    label: np.ndarray
    feature: np.ndarray
    before: AdaptationResult
    after: AdaptationResult
    controls: dict[str, np.ndarray]
    """Predicted labels of each control, (n,)."""
    curve: dict[int, tuple[float, float]]
    """Steps to (accuracy, mean energy)."""

    def right(self, adapted: AdaptationResult) -> np.ndarray:
        return adapted.probabilities.argmax(1) == self.label


@dataclass(frozen=True)
class Demo:
    """Everything that the report is made of."""

    settings: DemoSettings
    estimator: EnergyAdapter
    source_feature: np.ndarray
    targets: list[Target]
    seconds: float


def run(settings: DemoSettings, show: bool | None = None) -> Demo:
    """Train, adapt and measure; `show` switches progress bars on or off; None shows them in a terminal."""
    start = time.monotonic()
    train, test = load_split(settings.train_size, settings.seed, settings.test_size)
    source_inputs, label, source = rotated_all(train, SOURCES)

    encode = Frozen(untrained_network(settings.seed), source_inputs)
    feature = encode(source_inputs)

    # Controls: ordinary training on the same data.
    epochs = settings.whole_epochs
    with progress_bar(epochs, "control: whole network", show) as advance:
        whole = train_network(source_inputs, label, epochs=epochs, seed=settings.seed, on_epoch=advance)
    classifiers = fit_classifiers(feature, label.numpy(), settings.head_epochs, settings.seed)

    estimator = EnergyAdapter(
        settings.num_steps, random_state=settings.seed, verbose=show, **settings.estimator
    ).fit(feature, label.numpy(), sample_domain=source)

    targets = []
    with progress_bar(len(TARGETS), "adapting", show) as advance:
        for done, degrees in enumerate(TARGETS, 1):
            inputs = rotated(test, degrees)
            x = encode(inputs)
            controls = {name: model.predict(x) for name, model in classifiers.items()}
            controls[CLOSEST] = adapt(estimator, x, 0, aggregation="closest").probabilities.argmax(1)
            controls[WHOLE] = whole(inputs).argmax(1).numpy()
            targets.append(_measure(degrees, test, x, estimator, settings.num_steps, controls))
            advance(done)
    return Demo(settings, estimator, feature, targets, time.monotonic() - start)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread: small tensors gain nothing from more, and results do not depend on the cores."""
    from threadpoolctl import threadpool_limits

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(threads)


def adapt(
    estimator: EnergyAdapter, feature: np.ndarray, num_steps: int, aggregation: str = "mean"
) -> AdaptationResult:
    """Adapt with another number of steps and another aggregation than the estimator's own."""
    settings = replace(estimator.settings_, num_steps=num_steps, aggregation=aggregation)
    return estimator.adapt_features(estimator.rescale(feature), settings=settings)


class Frozen:
    """A frozen backbone and the principal components of its source features: inputs to (n, COMPONENTS)."""

    def __init__(self, network: DigitNet, source_inputs: torch.Tensor) -> None:
        from sklearn.decomposition import PCA

        self.network = network
        self.components = PCA(COMPONENTS, random_state=0).fit(network.backbone(source_inputs).numpy())

    def __call__(self, inputs: torch.Tensor) -> np.ndarray:
        return self.components.transform(self.network.backbone(inputs).numpy())


def fit_classifiers(feature: np.ndarray, label: np.ndarray, epochs: int, seed: int) -> dict[str, Any]:
    """Fit the controls on frozen features: scikit-learn classifiers on all sources together. Their settings
    were chosen as ours were."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    linear = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=300)).fit(feature, label)
    return {LINEAR: linear, HIDDEN: fit_hidden(feature, label, epochs, seed)}


def fit_hidden(feature: np.ndarray, label: np.ndarray, epochs: int, seed: int, noise: float = 0.0) -> Any:
    """Fit a network of two hidden layers; every epoch draws new noise of `noise` times the features' rms."""
    from sklearn.neural_network import MLPClassifier

    rng = np.random.default_rng(seed)
    std = noise * np.sqrt((feature - feature.mean(0)).var())
    model = MLPClassifier((256, 256), alpha=1e-2, random_state=seed)
    for _ in range(epochs):
        order = rng.permutation(len(feature))
        noisy = feature[order] + std * rng.normal(size=feature.shape).astype(feature.dtype)
        model.partial_fit(noisy, label[order], classes=np.unique(label))
    return model


def _measure(
    angle: int,
    test: Digits,
    feature: np.ndarray,
    estimator: EnergyAdapter,
    num_steps: int,
    controls: dict[str, np.ndarray],
) -> Target:
    curve = {}
    for steps in sorted({round(share * num_steps) for share in CURVE}):
        result = adapt(estimator, feature, steps)
        right = result.probabilities.argmax(1) == test.label
        curve[steps] = (float(right.mean()), float(result.energy_after.mean()))
    before, after = (adapt(estimator, feature, steps) for steps in (0, num_steps))
    image = (rotated(test, angle)[:, 0].numpy() * 255).round().astype(np.uint8)
    return Target(angle, image, test.label, feature, before, after, controls, curve)
