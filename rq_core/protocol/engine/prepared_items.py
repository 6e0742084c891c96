"""Iterates over a series, and makes the next item while the server works on the item before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class PreparedItems(Generic[T]):
    """An iterator over ``items``. Its method :meth:`prepare` makes the next item in advance.

    If making an item fails, the error is raised when the iterator reaches this item.
    """

    def __init__(self, items: Iterable[T]) -> None:
        self._items = iter(items)
        self._made: list[T] = []
        self._error: BaseException | None = None

    def prepare(self) -> None:
        """Make the next item, unless it has been made already. If this fails, the iterator raises the error later."""
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
