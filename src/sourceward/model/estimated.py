"""The gain of adaptation on a domain of which unlabeled samples are known."""

from typing import Any

from sourceward.adaptation import AdaptationResult
from sourceward.model.model import Model


def estimate_gain(model: Model, inputs: Any) -> dict[str, float] | None:
    """What adaptation gains on these unlabeled inputs, estimated from how many labels it changes.

    Predictions are not changed by it. See `ExpectedGain.on`, which it uses with the model's own choice.

    Args:
        model: see `load`.
        inputs: see `Model.predict`; a few hundred of one domain.

    Returns:
        `gain`, `low`, `high` (90 % interval) and the share of labels that are `changed`; None where
        adaptation is off, was not chosen by validation, or has been set otherwise since.
    """
    return estimated(model, model.adapt(inputs, num_steps=0), model.adapt(inputs))


def estimated(model: Model, before: AdaptationResult, after: AdaptationResult) -> dict[str, float] | None:
    """The same from predictions without and with adaptation."""
    expected = model.adapter.expected_gain_
    if expected is None or (expected.num_steps, expected.tta) != (model.settings.num_steps, model.tta):
        return None
    return expected.on(before.probabilities.argmax(1), after.probabilities.argmax(1))
