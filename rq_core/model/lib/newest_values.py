"""A dict that keeps the newest values, up to a number of values and a total size."""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class NewestValues(Generic[K, V]):
    """Keeps the newest values, by key, up to a number of values and a total size. Threads may share the object, since
    each operation on Python's dict is atomic. The object has no lock, because a forked child could inherit a lock that
    is never released."""

    def __init__(self, most: int, size_max: int) -> None:
        self._most = most
        self._size_max = size_max
        self._kept: dict[K, tuple[V, int]] = {}

    def put(self, key: K, value: V, size: int) -> None:
        """Keep a value of this size. Remove the oldest values if there is no room."""
        self._kept.pop(key, None)
        self._kept[key] = (value, size)
        kept = list(self._kept.items())
        left, total = len(kept), sum(size for _, (_, size) in kept)
        for oldest, (_, its_size) in kept:
            if left <= self._most and total <= self._size_max:
                return
            self._kept.pop(oldest, None)
            left -= 1
            total -= its_size

    def take(self, key: K) -> V | None:
        """Remove the value of a key, and return it. Return None for an unknown key."""
        found = self._kept.pop(key, None)
        return None if found is None else found[0]
