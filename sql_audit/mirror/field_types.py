"""Checks the types of events' fields. Each check takes the values of one field in many jobs, and returns whether all of
them pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from rq_core.model.table.fields import FIELDS, WORD_LENGTH_MAX, FieldKind
from rq_core.model.table.machine import Priority, State
from sql_audit.store.storable_text import clean

INTEGER_MAX: Final = 2**63 - 1
NAME_LENGTH_MAX: Final = WORD_LENGTH_MAX
"""Maximum number of characters of a name or word."""

LANE_LENGTH_MAX: Final = 16 * 1024
"""Maximum number of characters of a lane's name (a priority and scopes). It may be longer than other names, because no
index has it."""

NESTING_MAX: Final = 32
"""Maximum number of levels of lists and objects nested in a value. The depth of JSON that Python can read and write
depends on the call stack at that moment: without this limit, the mirror could store a value that another program cannot
read.
"""

Check = Callable[[Sequence[Any]], bool]
_INT, _STR, _NONE = int, str, type(None)


def _integers(column: Sequence[Any]) -> bool:
    types = set(map(type, column))
    if types == {_NONE}:
        return True
    if not types <= {_INT, _NONE}:
        return False
    numbers: Sequence[int] = column if len(types) == 1 else [n for n in column if n is not None]
    return min(numbers) >= 0 and max(numbers) <= INTEGER_MAX


def _numbered(column: Sequence[Any]) -> bool:
    return None not in column and _integers(column)


def _words(column: Sequence[Any]) -> bool:
    types = set(map(type, column))
    if types == {_NONE}:
        return True
    if not types <= {_STR, _NONE}:
        return False
    words = column if len(types) == 1 else [word for word in column if word is not None]
    return max(map(len, words)) <= NAME_LENGTH_MAX


def _texts(column: Sequence[Any]) -> bool:
    return set(map(type, column)) <= {_STR, _NONE}


def _lanes(column: Sequence[Any]) -> bool:
    if not set(map(type, column)) <= {_STR, _NONE}:
        return False
    return all(lane is None or len(lane) <= LANE_LENGTH_MAX for lane in set(column))


def _names(column: Sequence[Any]) -> bool:
    return (
        set(map(type, column)) == {_STR}
        and min(map(len, column)) > 0
        and max(map(len, column)) <= NAME_LENGTH_MAX
    )


def _among(words: Iterable[str | None]) -> Check:
    allowed = {None if word is None else str(word) for word in words}

    def check(column: Sequence[Any]) -> bool:
        return set(map(type, column)) <= {_STR, _NONE} and allowed.issuperset(column)

    return check


_SCALARS: Final = frozenset({_STR, _INT, float, bool, _NONE})


def anything(column: Sequence[Any]) -> bool:
    return set(map(type, column)) <= _SCALARS or not _deeper_than(NESTING_MAX, column)


def _deeper_than(levels: int, values: Iterable[Any]) -> bool:
    """Return whether any of the values has more than ``levels`` levels of nested lists and objects."""
    for value in values:
        kind = type(value)
        if kind is list or kind is dict:
            inner = value if kind is list else value.values()
            if not levels or _deeper_than(levels - 1, inner):
                return True
    return False


def _scopes(column: Sequence[Any]) -> bool:
    """Return whether each value is null or a valid list of a claim's caps and rates, in the form that the views and
    ``audit at`` read.

    A cap is [scope, cap or null]. A rate is [scope, limit, window, burst] or [scope, limit, window, burst, cost]. A
    scope is what they count, such as ``tenant=acme``.
    """
    told = [scopes for scopes in column if scopes is not None]
    if not told:
        return True
    if set(map(type, told)) != {list}:
        return False
    every = list(chain.from_iterable(told))
    if not every:
        return True
    if set(map(type, every)) != {list} or not set(map(len, every)) <= {2, 4, 5}:
        return False
    # A name that is not a text counts as a text that SQL cannot keep.
    names = {scope[0] if type(scope[0]) is str else "\0" for scope in every}
    if clean(joined := "".join(names)) != joined:
        return False
    caps = [scope[1] for scope in every if len(scope) == 2]
    rates = [number for scope in every if len(scope) > 2 for number in scope[1:]]
    return (not caps or _integers(caps)) and (not rates or _numbered(rates))


_priorities: Final = _among((*Priority, None))

_OF_KIND: Final[dict[FieldKind, Check]] = {
    FieldKind.WORD: _words,
    FieldKind.NUMBER: _integers,
    FieldKind.PRIORITY: _priorities,
    FieldKind.LANE: _lanes,
    FieldKind.MESSAGE: _texts,
}

KINDS: Final[dict[str, Check]] = {field.name: _OF_KIND[field.kind] for field in FIELDS} | {
    "id": _names,
    "claim": _numbered,
    "state": _among((*State, None)),
    "target": _among((State.READY, State.SCHEDULED, State.DEAD)),
    "enqueued_ms": _integers,
    "old_due_ms": _integers,
    "old_priority": _among(Priority),
    "old_expires_ms": _integers,
    "outcome": _words,
    "scope": _words,
    "error": anything,
    "scopes": _scopes,
    "taken": _words,
    "cap": anything,
    "dead": _integers,
    "by_job": _words,
    "spec": _texts,
    "value_digest": _words,
    "value": _texts,
    "name": _names,
    "version": _numbered,
    "nominal_ms": _numbered,
    "next_ms": _integers,
    "missed": _numbered,
    "entry": _numbered,
    "bytes": _integers,
    "kind": _among(("wait", "sleep", None)),
    "until_ms": _integers,
    "message": _integers,
    "key": _words,
    "cause": _integers,
    "held_by": _words,
}
"""The check of each field, by the field's name. A field that is not listed may have any value that is not nested too
deeply."""

_NUMBER: Final = "(?:0|[1-9][0-9]{0,17})"
_CHARACTER: Final = r'[^"\\\x00-\x1f]'
"""Matches a character that JSON does not escape."""

PLAIN_JSON: Final[Mapping[Check | None, str]] = {
    _integers: _NUMBER,
    _numbered: _NUMBER,
    _words: f'"{_CHARACTER}{{0,{NAME_LENGTH_MAX}}}"',
    _names: f'"{_CHARACTER}{{1,{NAME_LENGTH_MAX}}}"',
    _lanes: f'"{_CHARACTER}{{0,{LANE_LENGTH_MAX}}}"',
    _texts: f'"{_CHARACTER}*"',
    _priorities: f'"(?:{"|".join(Priority)})"',
}
"""By check: a regular expression for the JSON of the commonest values that the check accepts. It matches no JSON of
another value, no null, and no other way to write a value. ``audit verify`` applies the check only to other texts."""
