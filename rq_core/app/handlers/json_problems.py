"""Finds the place in a value that has no JSON form, or does not fit an annotation, and describes the problem.

>>> json_problem({"items": [1, float("nan")]})
(('items', 1), 'holds NaN or an infinity, which JSON lacks')
>>> path_to("value", ("items", 1))
'value.items[1]'
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from rq_core.model.lib.text import excerpt, printable

DEPTH_MAX: Final = 100
"""Maximum number of parts (fields, keys and indexes) of the place of a problem. A problem that is nested more deeply is
reported at this depth."""
SHOWN_MAX: Final = 200
"""Maximum number of characters that a message shows of a place in a value, or of a text from another package."""
_NESTED: Final = re.compile("ircular reference|depth exceeded")
_UNKNOWN: Final = re.compile("unknown type: <class '(.+)'>")
Loc = tuple[Any, ...]
"""A place in a value: the fields, keys and indexes that lead to this place."""


def path_to(root: str, loc: Loc) -> str:
    """Convert a place in a value to text, such as ``value.items[3].when``."""
    parts = (
        f".{part}" if isinstance(part, str) and part.isidentifier() else f"[{part!r}]"
        for part in loc
    )
    return _shown(root + "".join(parts))


def words_of(error: BaseException) -> str:
    """Describe in words the error with which pydantic or json refused a value."""
    said = str(error).strip().partition("\n")[0].removeprefix("Error serializing to JSON: ")
    if isinstance(error, UnicodeEncodeError) or "surrogates not allowed" in said:
        return "is not valid Unicode text (it holds a lone surrogate)"
    if isinstance(error, RecursionError) or _NESTED.search(said):
        return "contains itself, or is nested too deeply"
    if "not JSON compliant" in said:
        return "holds NaN or an infinity, which JSON lacks"
    if found := _UNKNOWN.search(said):
        return f"is of type {_shown(found[1])}, which has no JSON form"
    return f"has no JSON form ({_shown(said)})"


def json_problem(value: Any) -> tuple[Loc, str] | None:
    """Return the first place in a value that has no JSON form, and the problem in words. None if there is no such
    place."""
    error = _error_of(value)
    if error is None:
        return None
    loc: list[Any] = []
    seen: set[int] = set()
    while len(loc) < DEPTH_MAX and id(value) not in seen:
        seen.add(id(value))
        parts = ((part, each, _error_of(each)) for part, each in _parts_of(value))
        bad = next((found for found in parts if found[2] is not None), None)
        if bad is None:
            break
        loc.append(bad[0])
        value, error = bad[1], bad[2] or error
    if isinstance(value, Mapping):
        for key in value:
            if (why := _error_of({key: None})) is not None:
                return tuple(loc), f"has a key that {words_of(why)}"
    return tuple(loc), words_of(error)


def misfit(error: Exception, value: Any = None) -> tuple[Loc, str]:
    """Return the place of the first problem in a validation error, and the problem in words.

    ``value`` is the object that was validated; None if JSON was validated.
    """
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        first = str(error).partition("\n")[0]
        return (), f"does not fit the annotation ({_shown(first)})"
    found: dict[Loc, list[str]] = {}
    for detail in error.errors(include_url=False, include_context=False, include_input=False):
        found.setdefault(_real(detail["loc"], value), []).append(_shown(detail["msg"]))
    # A union has one problem for each of its members, all of them at one place.
    loc, words = next(iter(found.items()))
    return loc, f"does not fit the annotation: {', or '.join(dict.fromkeys(words))}"


def _error_of(value: Any) -> BaseException | None:
    """Return the error that a value's conversion to JSON raises. Return None if it raises no error, and for an
    iterator, which this function does not read."""
    from pydantic_core import to_json

    if isinstance(value, Iterator):
        # To read it could take any time, and it may have been read already.
        return None
    try:
        found = to_json(value, bytes_mode="base64", inf_nan_mode="constants")
        if b"NaN" in found or b"Infinity" in found:
            json.loads(found, parse_constant=_refuse)
    except Exception as error:  # noqa: BLE001 - also an error of a model's own code
        return error
    return None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON compliant")


def _parts_of(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each part of a value, together with its field name, key or index."""
    if isinstance(value, Mapping):
        yield from value.items()
    elif names := getattr(value, "_fields", None) if isinstance(value, tuple) else None:
        yield from zip(names, value, strict=False)
    elif isinstance(value, Sequence | AbstractSet) and not isinstance(
        value, str | bytes | bytearray
    ):
        yield from enumerate(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield field.name, getattr(value, field.name, None)
    elif hasattr(type(value), "model_fields"):
        yield from vars(value).items()


def _real(loc: Loc, value: Any) -> Loc:
    """Return the place of a validation error as fields, keys and indexes of ``value``. Pydantic's own place also has
    parts that name the types of a union; these parts are left out."""
    if value is None:
        return loc
    found: list[Any] = []
    for part in loc:
        for name, each in _parts_of(value):
            if name == part:
                found.append(part)
                value = each
                break
    return tuple(found)


def _shown(text: str) -> str:
    return printable(excerpt(text, SHOWN_MAX).replace("\n", " "))
