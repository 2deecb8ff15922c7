"""Settings from JSON files and `key=value` texts, converted to the declared types; and the one check of JSON
that builds something: types, nested, with the path of what is wrong.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from sourceward._util.errors import InputError, unknown_name
from sourceward._util.reading import printable, read_regular


@dataclass(frozen=True)
class Optional:
    """A value that may be null, or may be absent from an object."""

    schema: Any


@dataclass(frozen=True)
class Each:
    """An object whose values have one schema, whatever their names."""

    schema: Any


@dataclass(frozen=True)
class Whole:
    """A whole number from `least` to `most`."""

    least: int = 0
    most: int = 2**31 - 1


def check(value: Any, schema: Any, path: str = "") -> None:
    """Raise a `ValueError` that names the first place where `value` does not match.

    A schema is a type (`float` takes whole numbers, too), `Whole`, a set of allowed values, a list with the
    schema of its items, a dictionary with those of its keys (others are not looked at), `Each` or `Optional`.

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
    elif isinstance(schema, Each):
        _expect(isinstance(value, dict), value, path, "an object")
        for key, item in value.items():
            check(item, schema.schema, f"{path}.{key}")
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
    return parse_json(read_regular(path, "config_bytes"))


def parse_json(text: str | bytes) -> Any:
    r"""Return the value of a JSON text of somebody else, or raise a `ValueError`.

    Half of a surrogate pair, which no file, page or terminal takes, is written as an escape.

    >>> parse_json(r'{"a": "\ud800"}')
    {'a': '\\ud800'}
    """
    try:
        value = json.loads(text)
        escapes = "\\" in text if isinstance(text, str) else b"\\" in text
        return _valid(value) if escapes else value  # without them nothing is to be looked at
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _valid(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_valid(item) for item in value]
    if isinstance(value, dict):
        return {printable(key): _valid(item) for key, item in value.items()}
    return value


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


def read_config(path: str | Path) -> dict[str, Any]:
    """Read settings from a JSON file."""
    try:
        values = read_json(path)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"Expected JSON in '{path}', but {error}.") from None
    if not isinstance(values, dict):
        raise InputError(f"Expected an object like {{\"max_iter\": 500}} in '{path}', but got {values!r}.")
    return values


def parse_assignments(texts: list[str], flag: str = "--set") -> dict[str, Any]:
    """Parse `key=value` texts given with `flag`.

    >>> parse_assignments(["max_iter=500", "sampler=nesterov"])
    {'max_iter': 500, 'sampler': 'nesterov'}
    """
    values = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError(f"Expected {flag} key=value, but got {text!r}.")
        values[key.strip()] = _literal(value)
    return values


def _literal(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None if text.lower() == "none" else text


def typed(owner: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert values to the types declared by the fields of `owner`, or raise an error."""
    hints = get_type_hints(owner)
    known = [f.name for f in fields(owner)]
    result = {}
    for name, value in values.items():
        if name not in known:
            raise unknown_name("setting", name, known)
        result[name] = _as_type(name, value, hints[name])
    return result


def differing(one: Any, other: Any) -> Iterator[str]:
    """Yield the names of fields in which two dataclasses differ, `finetune.max_iter` for nested ones."""
    for name in (field.name for field in fields(one)):
        mine, theirs = getattr(one, name), getattr(other, name)
        if mine != theirs and is_dataclass(mine):
            yield from (f"{name}.{inner}" for inner in differing(mine, theirs))
        elif mine != theirs:
            yield name


def _as_type(name: str, value: Any, hint: Any) -> Any:
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if isinstance(value, str) and (str not in options or isinstance(_literal(value), int)):
        value = _literal(value)
    if value is None and options == (str,):
        value = "none"  # the word, which `_literal` reads as nothing
    for option in options:
        wanted = get_origin(option) or option
        if wanted is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if wanted is tuple and isinstance(value, list | tuple):
            return tuple(value)
        if isinstance(value, wanted) and (wanted is not int or not isinstance(value, bool)):
            return value
    names = " or ".join(
        getattr(option, "__name__", str(option)).replace("NoneType", "null") for option in options
    )
    raise InputError(f"Expected setting `{name}` to be {names}, but got {value!r}.")
