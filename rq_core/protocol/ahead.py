"""An iterator whose next item can be made before it is asked for, at a moment when there is nothing else to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """Iterates over ``items``, at most one of them ahead. What making an item raises comes when it is its turn."""

    def __init__(self, items: Iterable[T]) -> None:
        self._items = iter(items)
        self._made: list[T] = []
        self._error: BaseException | None = None

    def prepare(self) -> None:
        """Make the next item, unless that has been done. Does not raise."""
        if self._made or self._error is not None:
            return
        try:
            self._made.append(next(self._items))
        except BaseException as error:  # noqa: BLE001 - also StopIteration; __next__ raises it
            self._error = error

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        self.prepare()
        if self._error is not None:
            raise self._error
        return self._made.pop()
