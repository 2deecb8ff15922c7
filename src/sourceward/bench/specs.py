"""What a bench compares: adapters and controls by name, each with its own options.

none    ebtsa    ebtsa:num_steps=20:sampler=nesterov    tent:batch_size=16    linear
"""

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sourceward._util.errors import InputError, unknown_name
from sourceward.adaptation import ADAPTERS, create_adapter
from sourceward.estimator import EnergyAdapter
from sourceward.training.configuration import parse_assignments

OURS, NONE, LINEAR, SINGLE = "ebtsa", "none", "linear", "single_sample"
CONTROLS = (LINEAR, SINGLE)
"""Classifiers trained anew on the same features: what ordinary training makes of the same data."""

ROWS = "rows"
"""Option of every adapter: how many rows of each target it answers, for slow ones."""

AUTO = "auto"
"""As many steps as the sources, each playing the target, gain by."""

TEST_TIME = (
    "num_steps",
    "step_size",
    "noise_std",
    "sampler",
    "accept",
    "aggregation",
    "num_draws",
    "stop",
    "blend",
)
"""Options of our own adapter: the estimator's settings of test time."""


@dataclass(frozen=True, order=True)
class Spec:
    """One contestant."""

    name: str
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def key(self) -> str:
        """As it is typed.

        >>> Spec("tent", (("batch_size", 16),)).key
        'tent:batch_size=16'
        """
        return ":".join([self.name, *(f"{name}={value}" for name, value in self.options)])

    @property
    def rows(self) -> int | None:
        """How many rows of each target to answer; all when None."""
        return dict(self.options).get(ROWS)

    @property
    def own(self) -> dict[str, Any]:
        """Options of the adapter itself."""
        return {name: value for name, value in self.options if name != ROWS}

    @property
    def tuned(self) -> bool:
        """Whether the model itself says how far to walk, as it does where nobody else does."""
        return self.name == OURS and self.own.get("num_steps", AUTO) == AUTO

    @property
    def label(self) -> str:
        """As a person reads it in a table.

        >>> Spec("ebtsa", (("num_steps", 10),)).label
        'ebtsa, 10 steps'
        """
        steps = {AUTO: "self-tuned"}
        words = [steps.get(v, f"{v} steps") if k == "num_steps" else f"{k} {v}" for k, v in self.own.items()]
        words += [] if self.rows is None else [f"on {self.rows} rows of each target"]
        names = {NONE: "no adaptation", LINEAR: "linear control", SINGLE: "single-sample control"}
        name = names.get(self.name, self.name)
        return ", ".join([name, *words])


def parse_specs(texts: Iterable[str], steps: Sequence[int | str] = ()) -> tuple[Spec, ...]:
    """Contestants from what was typed, `none` first: it is what every difference is taken to.

    `ebtsa` without a number of steps stands for one contestant for each of `steps`.

    >>> [spec.key for spec in parse_specs(["ebtsa"], [0, 5])]
    ['none', 'ebtsa:num_steps=5']
    """
    found = [Spec(NONE)]
    for text in texts:
        name, *assignments = text.split(":")
        options = parse_assignments(assignments)
        _check(name, options)
        if name == OURS and "num_steps" not in options and steps:
            found += [_spec(name, {"num_steps": k} | options) for k in steps if k != 0]
        else:
            found.append(_spec(name, options))
    return tuple(dict.fromkeys(found))


def needs_tuning(specs: Iterable[Spec]) -> bool:
    """Whether a contestant takes as many steps as were found by tuning."""
    return any(spec.tuned for spec in specs)


def _spec(name: str, options: dict[str, Any]) -> Spec:
    return Spec(name, tuple(options.items()))


def _check(name: str, options: dict[str, Any]) -> None:
    if name not in (*ADAPTERS, *CONTROLS):
        raise unknown_name("adapter", name, [*ADAPTERS, *CONTROLS])
    known = adapter_options(name)
    for option, value in options.items():
        if option == ROWS and name not in (NONE, *CONTROLS):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"Expected `rows` of {name!r} to be 1 or more, but got {value!r}.")
            continue
        if option not in known:
            if not known:
                raise InputError(f"Adapter {name!r} takes no options, but got {option!r}.")
            raise unknown_name(f"option of adapter {name!r},", option, known)
        if option == "num_steps" and not (value == AUTO or (isinstance(value, int) and value >= 0)):
            raise InputError(f"Expected `num_steps` to be 0 or more, or auto, but got {value!r}.")
    own = {option: value for option, value in options.items() if option != ROWS}
    if own and "settings" not in inspect.signature(ADAPTERS[name]).parameters:
        create_adapter(name, **own)  # it refuses a wrong value: before the training, not after it


def adapter_options(name: str) -> list[str]:
    """Names that may follow an adapter's."""
    if name in (NONE, *CONTROLS):
        return []
    if name == OURS:
        return [option for option in TEST_TIME if option in EnergyAdapter().get_params()]
    return [option for option in inspect.signature(ADAPTERS[name]).parameters if option != "settings"]
