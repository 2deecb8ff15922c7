"""Settings from JSON files and `key=value` texts, converted to the declared types."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from sourceward._util.errors import InputError, unknown_name
from sourceward._util.schema import read_json


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
