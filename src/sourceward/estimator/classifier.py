"""What scikit-learn and SKADA expect of `EnergyAdapter`: prediction, score, transform, metadata requests."""

import inspect
import warnings
from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, OneToOneFeatureMixin, TransformerMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from sourceward.adaptation.base import AdaptationResult
from sourceward.settings import AUTO
from sourceward.validation.folds import MIN_SOURCES

AT_TEST_TIME = {"sample_domain": True, "allow_source": True}


class DomainClassifier(ClassifierMixin, OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """A classifier and transformer that requests `sample_domain` when metadata routing is on.

    `sample_domain` is read by `fit` alone. The other methods accept it, and SKADA's `allow_source`, and do
    not use them: a prediction depends on its own sample and on nothing else.
    """

    __metadata_request__fit: ClassVar = {"sample_domain": True}
    __metadata_request__predict: ClassVar = AT_TEST_TIME
    __metadata_request__predict_proba: ClassVar = AT_TEST_TIME
    __metadata_request__score: ClassVar = AT_TEST_TIME
    __metadata_request__transform: ClassVar = AT_TEST_TIME

    classes_: np.ndarray

    @abstractmethod
    def fit(self, X: Any, y: Any, sample_domain: Any = None) -> Any:
        """Train on labelled features of the source domains."""

    @abstractmethod
    def adapt(self, X: Any) -> AdaptationResult:
        """Predict with all details."""

    def predict_proba(self, X: Any, sample_domain: Any = None, *, allow_source: bool = True) -> np.ndarray:
        """Probability of each class, (n, classes)."""
        return self.adapt(X).probabilities

    def predict(self, X: Any, sample_domain: Any = None, *, allow_source: bool = True) -> np.ndarray:
        """The most probable class of each sample."""
        check_is_fitted(self, "network_")
        return self.classes_[self.predict_proba(X).argmax(1)]

    def score(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        sample_domain: Any = None,
        allow_source: bool = True,
    ) -> float:
        """Accuracy on labelled samples."""
        return accuracy_score(y, self.predict(X), sample_weight=sample_weight)

    def transform(self, X: Any, sample_domain: Any = None, *, allow_source: bool = True) -> np.ndarray:
        """Adapted features, (n, dim) in the units of X: the mean over the sources' adapted samples."""
        return self.adapt(X).features.mean(1)

    def fit_transform(
        self, X: Any, y: Any = None, sample_domain: Any = None, **fit_params: Any
    ) -> np.ndarray:
        """`fit`, then `transform` of the same rows; rows of a target are transformed too."""
        return self.fit(X, y, sample_domain=sample_domain, **fit_params).transform(X)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = []  # features are float32 throughout
        return tags


NOT_ESTIMATED = (
    "adaptation is off and its expected gain is not estimated, nor are the expected accuracy on an unseen "
    "domain and thresholds of trust"
)


def warn_not_estimated(num_steps: Any, aggregation: str, sources: int, found: str, fix: str) -> None:
    """Warn when too few sources leave out what the settings require of validation.

    Args:
        num_steps, aggregation: of test time.
        sources: number of source domains.
        found: where they come from, for the sentence.
        fix: what to do.
    """
    left_out = [
        *([NOT_ESTIMATED] if num_steps == AUTO else []),
        *(["source weights are not learned (`energy` is used)"] if aggregation == "learned" else []),
    ]
    if sources >= MIN_SOURCES or not left_out:
        return
    warnings.warn(
        f"Leave-one-domain-out validation needs {MIN_SOURCES} source domains, but {found}: "
        f"{'; '.join(left_out)}. {fix}",
        UserWarning,
        stacklevel=_outside(),
    )


def _outside() -> int:
    """Stack level of the first caller that is neither this package nor scikit-learn."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in (
        "sourceward",
        "sklearn",
    ):
        level, frame = level + 1, frame.f_back
    return max(level - 1, 1)
