"""Checks whether a value stays the same when it is converted to JSON and back."""

from __future__ import annotations

import typing
from functools import cache
from itertools import starmap
from types import NoneType
from typing import Any

from rq_core.model.lib.text import printable


def is_open(hint: Any) -> bool:
    """Return whether an annotation allows a value of any type, or a container with values of any type."""
    bare = (Any, object, list, dict, set, frozenset, tuple)
    return hint in bare if not typing.get_args(hint) else any(map(is_open, typing.get_args(hint)))


def change(given: Any, loaded: Any, where: str) -> tuple[str, str] | None:
    """Compare a value with its copy that was converted to JSON and back. Return None if they are equal.

    Otherwise return the first place where they differ, and a message. ``given`` is the original value, ``loaded`` is
    the copy, and ``where`` is the place of both in the arguments.
    """
    if isinstance(given, dict) and isinstance(loaded, dict) and given.keys() == loaded.keys():
        inside = ((given[key], loaded[key], f"{where}.{printable(str(key))}") for key in given)
    elif type(given) is type(loaded) and isinstance(given, list | tuple):
        inside = (
            (a, b, f"{where}.{at}") for at, (a, b) in enumerate(zip(given, loaded, strict=True))
        )
    elif given == loaded:
        return None
    elif isinstance(given, dict) and isinstance(loaded, dict):
        return where, "has keys that are no texts, and JSON has no others: annotate its type"
    else:
        kinds = type(given).__name__, type(loaded).__name__
        return where, "is a {}, and would arrive as a {}: annotate its type".format(*kinds)
    return next(filter(None, starmap(change, inside)), None)


def is_plain(hint: Any) -> bool:
    """Return whether every value of the annotated type can certainly be read back from its JSON without a change."""
    origin = typing.get_origin(hint)
    if origin in (list, set, frozenset):
        return all(map(is_plain, typing.get_args(hint)))
    if origin is dict:
        key, value = typing.get_args(hint)
        return key is str and is_plain(value)
    return hint in _plain_types() if isinstance(hint, type) else False


@cache
def _plain_types() -> frozenset[type]:
    from datetime import date, datetime, time, timedelta
    from decimal import Decimal
    from uuid import UUID

    return frozenset({
        str, int, float, bool, bytes, NoneType, date, datetime, time, timedelta, Decimal, UUID
    })  # fmt: skip
