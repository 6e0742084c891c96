"""Lets SQLAlchemy compile each statement once per process, and not once per engine.

Almost each test has engines of its own. They spent a third of their processor time on compiling the same statements.
"""

from __future__ import annotations

import functools
from typing import Any, Final
from weakref import WeakKeyDictionary

from sqlalchemy.engine import Dialect, Engine

_compiled: Final[dict[tuple[Any, ...], Any]] = {}
_types: Final[dict[type[Dialect], WeakKeyDictionary[Any, Any]]] = {}


class SharedCache:
    """A cache of compiled statements. It is shared by all engines of the same dialect and server version."""

    def get(self, key: tuple[Any, ...]) -> Any:
        return _compiled.get(_shared(key))

    def __setitem__(self, key: tuple[Any, ...], statement: Any) -> None:
        _compiled[_shared(key)] = statement

    def clear(self) -> None:
        _compiled.clear()


def _shared(key: tuple[Any, ...]) -> tuple[Any, ...]:
    dialect = key[0]
    version = getattr(dialect, "server_version_info", None)
    return (type(dialect), dialect.paramstyle, version, *key[1:])


def share() -> None:
    """Let all engines that this process makes later share compiled statements and types."""
    make = Engine.__init__

    @functools.wraps(make)
    def init(self: Engine, pool: Any, dialect: Dialect, *rest: Any, **options: Any) -> None:
        make(self, pool, dialect, *rest, **options)
        self._compiled_cache = SharedCache()  # type: ignore[assignment]
        memos = _types.setdefault(type(dialect), WeakKeyDictionary())
        dialect.__dict__["_type_memos"] = memos

    Engine.__init__ = init  # type: ignore[method-assign]
