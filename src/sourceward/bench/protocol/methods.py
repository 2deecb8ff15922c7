"""What a bench compares: adapters and controls by name, each with its own options.

none    ebtsa    ebtsa:num_steps=20:sampler=nesterov    tent:batch_size=16    linear
"""

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sourceward._util.errors import InputError, unknown_name
from sourceward._util.values import parse_assignments
from sourceward.adaptation import ADAPTERS, create_adapter

EBTSA, NONE, STREAM = "ebtsa", "none", "stream"
LINEAR, SINGLE_SAMPLE = "linear", "single_sample"
CONTROLS = (LINEAR, SINGLE_SAMPLE)
"""Classifiers trained on the same features by ordinary means."""

LABELS = {NONE: "no adaptation", LINEAR: "linear control", SINGLE_SAMPLE: "single-sample control"}

AUTO = "auto"
"""The number of steps that leave-one-domain-out validation chooses."""

TEST_TIME = ("num_steps", "step_size", "noise_std", "sampler", "aggregation", "num_draws")
"""Options of `ebtsa`: the estimator's settings of test time."""


@dataclass(frozen=True, order=True)
class Method:
    """An adapter or a control with its options."""

    name: str
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def key(self) -> str:
        """The method as it is typed.

        >>> Method("tent", (("batch_size", 16),)).key
        'tent:batch_size=16'
        """
        return ":".join([self.name, *(f"{name}={value}" for name, value in self.options)])

    @property
    def max_rows(self) -> int | None:
        """How many rows of each target are evaluated (option `rows`, for slow methods); all when None."""
        return dict(self.options).get("rows")

    @property
    def own(self) -> dict[str, Any]:
        """Options of the adapter itself."""
        return {name: value for name, value in self.options if name != "rows"}

    @property
    def auto(self) -> bool:
        """Whether this is the fitted model as users get it: steps and TTA chosen by validation."""
        return self.name == EBTSA and self.own.get("num_steps", AUTO) == AUTO

    @property
    def label(self) -> str:
        """The method as a table shows it.

        >>> Method("ebtsa", (("num_steps", 10),)).label, Method("ebtsa", (("num_steps", "auto"),)).label
        ('ebtsa, 10 steps', 'ebtsa (auto)')
        """
        own = {name: value for name, value in self.own.items() if (name, value) != ("num_steps", AUTO)}
        words = [
            f"{value} steps" if name == "num_steps" else f"{name} {value}" for name, value in own.items()
        ]
        words += [] if self.max_rows is None else [f"on {self.max_rows} rows of each target"]
        name = LABELS.get(self.name, self.name) + (" (auto)" if len(own) < len(self.own) else "")
        return ", ".join([name, *words])


def parse_methods(texts: Iterable[str], steps: Sequence[int | str] = ()) -> tuple[Method, ...]:
    """Return the methods that were typed, `none` first: every difference is taken to it.

    `ebtsa` without a number of steps stands for one method for each of `steps`.

    >>> [method.key for method in parse_methods(["ebtsa"], [0, 5])]
    ['none', 'ebtsa:num_steps=5']
    """
    found = [Method(NONE)]
    for text in texts:
        name, *assignments = text.split(":")
        options = parse_assignments(assignments)
        _check(name, options)
        if name == EBTSA and "num_steps" not in options and steps:
            found += [Method(name, tuple(({"num_steps": k} | options).items())) for k in steps if k != 0]
        else:
            found.append(Method(name, tuple(options.items())))
    return tuple(dict.fromkeys(found))


def _check(name: str, options: dict[str, Any]) -> None:
    if name not in (*ADAPTERS, *CONTROLS):
        raise unknown_name("adapter", name, [*ADAPTERS, *CONTROLS])
    known = adapter_options(name)
    for option, value in options.items():
        if option == "rows" and name not in (NONE, *CONTROLS):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"Expected `rows` of {name!r} to be 1 or more, but got {value!r}.")
            continue
        if not known:
            raise InputError(f"Adapter {name!r} takes no options, but got {option!r}.")
        if option not in known:
            raise unknown_name(f"option of adapter {name!r},", option, known)
        if option == "num_steps" and not (value == AUTO or (isinstance(value, int) and value >= 0)):
            raise InputError(f"Expected `num_steps` to be 0 or more, or auto, but got {value!r}.")
    own = {option: value for option, value in options.items() if option != "rows"}
    if own and name != EBTSA:
        create_adapter(name, **own)  # refuses a wrong value before the training, not after it


def adapter_options(name: str) -> list[str]:
    """Return the option names that may follow an adapter's name."""
    if name in (NONE, *CONTROLS):
        return []
    if name == EBTSA:
        return list(TEST_TIME)
    return [option for option in inspect.signature(ADAPTERS[name]).parameters if option != "settings"]
