"""A registry of named parts."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from sourceward._util.errors import unknown_name

T = TypeVar("T")


class Registry(Generic[T]):
    """An ordered mapping from names to parts of one kind.

    >>> shapes = Registry("shape")
    >>> @shapes.register("round")
    ... def circle(): ...
    >>> list(shapes), shapes["round"] is circle
    (['round'], True)
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._items: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        def add(item: T) -> T:
            if name in self._items:
                raise ValueError(f"A {self.kind} named {name!r} is registered already.")
            self._items[name] = item
            return item

        return add

    def __getitem__(self, name: str) -> T:
        try:
            return self._items[name]
        except (KeyError, TypeError):
            raise unknown_name(self.kind, name, self._items) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)
