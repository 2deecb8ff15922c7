"""`LeaveOneDomainOut`: a splitter for scikit-learn's searches that holds out whole domains."""

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from sklearn.model_selection import BaseCrossValidator

from sourceward._util.errors import InputError


class LeaveOneDomainOut(BaseCrossValidator):
    """Hold out each source domain once: the score of a search is then that of unseen domains.

    With metadata routing, as in SKADA, it requests `sample_domain`; without, pass the domains as `groups`.
    Rows of targets, which SKADA marks by negative integers, are in every training part and in no test part.

    Example:
        >>> domain = np.array([1, 1, 2, -3, 2])
        >>> folds = LeaveOneDomainOut().split(domain, groups=domain)
        >>> [(train.tolist(), test.tolist()) for train, test in folds]
        [([2, 3, 4], [0, 1]), ([0, 1, 3], [2, 4])]
    """

    __metadata_request__split: ClassVar = {"sample_domain": True}

    def split(
        self, X: Any, y: Any = None, groups: Any = None, sample_domain: Any = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield rows to train on and rows to test on, for each source domain in sorted order."""
        domain, sources = self._sources(groups, sample_domain)
        for name in sources:
            held = domain == name
            yield np.flatnonzero(~held), np.flatnonzero(held)

    def get_n_splits(
        self, X: Any = None, y: Any = None, groups: Any = None, sample_domain: Any = None
    ) -> int:
        """The number of source domains."""
        return len(self._sources(groups, sample_domain)[1])

    @staticmethod
    def _sources(groups: Any, sample_domain: Any) -> tuple[np.ndarray, np.ndarray]:
        given = groups if sample_domain is None else sample_domain
        if given is None:
            raise InputError(
                "Expected the domain of each row, but got none. Pass `sample_domain` with metadata routing, "
                "or `groups`."
            )
        domain = np.asarray(given)
        sources = np.unique(domain)
        if domain.dtype.kind in "if":
            sources = sources[sources >= 0]
        if len(sources) < 2:
            raise InputError(f"Expected 2 or more source domains to hold out one, but got {len(sources)}.")
        return domain, sources
