"""Leave-one-domain-out validation of an `EnergyAdapter`: its own procedure, once without each source."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sklearn.base import clone

from sourceward.estimator.network import Part, fit_network
from sourceward.settings import AUTO, AdaptSettings
from sourceward.validation.folds import Fold
from sourceward.validation.leave_one_domain_out import Choice, validate

if TYPE_CHECKING:
    from sourceward.estimator.estimator import EnergyAdapter


def choose_adaptation(
    estimator: "EnergyAdapter",
    folds: Sequence[Fold],
    settings: AdaptSettings,
    shifted: Part | None,
    tta: Sequence[str],
    kept_gain: float,
) -> Choice:
    """What validation chooses for an estimator; it is not changed."""
    twin = clone(estimator).set_params(verbose=False, checkpoint=None)
    twin.classes_, twin._seed = estimator.classes_, estimator._seed
    return validate(
        folds,
        lambda some: fit_network(twin, some, shifted),
        settings,
        choose_steps=estimator.num_steps == AUTO,
        tta=tta,
        kept_gain=kept_gain,
        progress=estimator.verbose,
    )
