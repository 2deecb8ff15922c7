"""THE check of JSON that builds something: types, nested, with the path of what is wrong."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sourceward._util.errors import InputError
from sourceward._util.reading import read_regular


@dataclass(frozen=True)
class Optional:
    """A value that may be null, or may be absent from an object."""

    schema: Any


@dataclass(frozen=True)
class Whole:
    """A whole number from `least` to `most`."""

    least: int = 0
    most: int = 2**31 - 1


def check(value: Any, schema: Any, path: str = "") -> None:
    """Raise a `ValueError` that names the first place where `value` does not match.

    A schema is a type (`float` takes whole numbers, too), `Whole`, a set of allowed values, a list with the
    schema of its items, a dictionary with those of its keys (others are not looked at), or `Optional`.

    >>> check({"a": [1, 2], "more": None}, {"a": [Whole()]})
    >>> check({"a": [1, "2"]}, {"a": [Whole()], "b": Optional(str)})
    Traceback (most recent call last):
    ValueError: `a[1]` is '2', expected a whole number from 0 to 2147483647
    """
    if isinstance(schema, Optional):
        if value is not None:
            check(value, schema.schema, path)
    elif isinstance(schema, dict):
        _expect(isinstance(value, dict), value, path, "an object")
        for key, inner in schema.items():
            there = f"{path}.{key}" if path else key
            if key not in value and not isinstance(inner, Optional):
                raise ValueError(f"`{there}` is missing")
            check(value.get(key), inner, there)
    elif isinstance(schema, list):
        _expect(isinstance(value, list), value, path, "a list")
        for number, item in enumerate(value):
            check(item, schema[0], f"{path}[{number}]")
    elif isinstance(schema, set):
        known = isinstance(value, str) and value in schema
        _expect(known, value, path, f"one of {', '.join(sorted(schema))}")
    elif isinstance(schema, Whole):
        whole = isinstance(value, int) and not isinstance(value, bool)
        text = f"a whole number from {schema.least} to {schema.most}"
        _expect(whole and schema.least <= value <= schema.most, value, path, text)
    else:
        kinds = (int, float) if schema is float else schema
        fits = isinstance(value, kinds) and (schema is bool or not isinstance(value, bool))
        _expect(fits, value, path, schema.__name__)


def read_json(path: str | Path) -> Any:
    """Return the content of a JSON file, or raise a `ValueError`; an `InputError` for what is no file."""
    try:
        return json.loads(read_regular(path, "config_bytes"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def short(error: Exception) -> str:
    """Return the last line of an error, at most 200 characters.

    >>> short(ValueError("a\\nb"))
    'b'
    """
    line = (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
    return line if len(line) <= 200 else f"{line[:197]}..."


def _expect(fits: bool, value: Any, path: str, expected: str) -> None:
    if not fits:
        text = repr(value)
        text = text if len(text) <= 60 else f"{text[:57]}..."
        raise ValueError(f"`{path or 'it'}` is {text}, expected {expected}")


def damaged(path: str | Path, error: Exception) -> InputError:
    """Return the error for a JSON file that does not match its schema."""
    return InputError(f"'{path}' is damaged, or was written by another program: {short(error)}.")
