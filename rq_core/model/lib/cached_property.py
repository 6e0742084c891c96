"""A ``cached_property`` without a lock, as Python 3.12 has it.

In Python 3.11, ``functools.cached_property`` holds one lock per class while it computes a value. A child that is forked
at this moment would wait for the lock for ever. Without the lock, two threads may both compute the value, and one of
the two values stays.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property as cached_property  # noqa: PLC0414 - for those who import it here
else:

    class cached_property(functools.cached_property):  # noqa: N801 - the name that it has everywhere else
        """A property whose value is computed once for each object."""

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            value = instance.__dict__[self.attrname] = self.func(instance)
            return value
