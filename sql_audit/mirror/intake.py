"""Checks raw outbox entries. A checked entry (an intake) has columns of values that SQL can store, or its raw bytes for
the quarantine table.

:func:`rq_core.model.events.decode` defines what an entry means. This module reads the same format, but many thousands
of entries a second. It collects each field of many jobs into a column (named in ``event_fields.JOB_EVENT_FIELDS``), and
checks the whole column at once.

An entry or a job that fails a check is never dropped. Its raw bytes go to quarantine. A row of type ``quarantined``
takes its place among the events.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final, NamedTuple, NoReturn

from rq_core.model.events import OutboxId
from rq_core.model.table.event_fields import JOB_EVENT_FIELDS, QUEUE_EVENT_FIELDS
from rq_core.model.table.machine import Event
from sql_audit.mirror.epochs import Beginning
from sql_audit.mirror.field_types import KINDS, NAME_LENGTH_MAX, Check, anything
from sql_audit.mirror.redis_access import RawFields
from sql_audit.store.storable_text import clean

COUNTED_FIELDS: Final = ("type", "jobs", "data", "why")
"""The fields of an outbox entry whose bytes Redis counts in the size of the backlog (the events that are not mirrored
yet)."""


class Quarantined(NamedTuple):
    """A row to insert into ``quarantine``: an entry, or one job of an entry, that failed a check."""

    at: OutboxId
    ordinal: int | None
    kind: str
    reason: str
    raw: bytes


@dataclass(slots=True)
class Intake:
    """A checked outbox entry: one event, with the fields of its jobs as columns. If the whole entry failed the check,
    the intake has its raw bytes for quarantine, and no columns.
    """

    id: OutboxId
    event: Event | None
    """The type of the event; None if the whole entry is in quarantine."""
    at_ms: int | None
    by: str
    why: str | None
    size: int
    """Number of bytes that are subtracted from the backlog's size when the entry is trimmed from Redis."""
    jobs: int = 0
    """Number of jobs in the entry as Redis counts them, jobs in quarantine included."""
    columns: dict[str, Sequence[Any]] = field(default_factory=dict)
    """The values of each field, one per job, by the field's name. Empty for an event about the queue."""
    ordinals: Sequence[int] = ()
    """The position in the entry (from 0) of each job in ``columns``. Jobs in quarantine are left out."""
    data: dict[str, Any] = field(default_factory=dict)
    """The event's fields by name, if the event is about the queue and not about jobs."""
    beginning: Beginning | None = None
    """If the event begins an epoch: the reason, and the last entry that Redis had before. Otherwise None."""
    quarantined: list[Quarantined] = field(default_factory=list)
    in_place: bool = True
    """False if SQL already has another entry with the same number, so that not even a ``quarantined`` row can be
    inserted."""

    @property
    def stubs(self) -> list[int]:
        """The positions (from 0) of the entry's jobs that are in quarantine. SQL gets a row of type ``quarantined`` in
        place of the event of each.
        """
        if not self.in_place:
            return []
        if self.event is None:
            return [0]
        return [q.ordinal for q in self.quarantined if q.ordinal is not None]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _size(raw: RawFields) -> int:
    """Return the number of bytes that Redis counts for the entry in the size of the backlog."""
    told = "".join([raw[name] for name in COUNTED_FIELDS if name in raw])
    return len(told) if told.isascii() else len(_bytes(told))


def fingerprint(raw: RawFields) -> str:
    """Return the SHA-256 (hex) of an entry's fields. It does not depend on the order of the fields."""
    sha = hashlib.sha256()
    for name, value in sorted((_bytes(name), _bytes(value)) for name, value in raw.items()):
        sha.update(b"%d:%b%d:%b" % (len(name), name, len(value), value))
    return sha.hexdigest()


def pack_entry(raw: RawFields) -> bytes:
    """Return an entry's fields, byte for byte, as a JSON array of pairs of base64 strings."""
    pairs = [[base64.b64encode(_bytes(part)).decode() for part in pair] for pair in raw.items()]
    return json.dumps(pairs).encode()


def unpack_entry(packed: bytes) -> dict[str, str]:
    """Return an entry's fields from the JSON text that :func:`pack_entry` made."""
    pairs = json.loads(packed)
    text = [
        [base64.b64decode(p).decode("utf-8", "surrogateescape") for p in pair] for pair in pairs
    ]
    return dict(text)


class _FieldsOf(NamedTuple):
    names: tuple[str, ...]
    checks: tuple[Check, ...]


_JOB_FIELDS: Final = {
    str(event): (
        event,
        _FieldsOf(
            tuple(f.name for f in fields), tuple(KINDS.get(f.name, anything) for f in fields)
        ),
    )
    for event, fields in JOB_EVENT_FIELDS.items()
}
_QUEUE_FIELDS: Final = {
    str(event): (event, tuple(f.name for f in fields))
    for event, fields in QUEUE_EVENT_FIELDS.items()
}


class _NotDecodedError(ValueError):
    """Raised if this release cannot read the form of an entry."""


def _refuse_constant(name: str) -> NoReturn:
    raise _NotDecodedError(f"{name} is not JSON")


_decode_json = json.JSONDecoder(parse_constant=_refuse_constant).decode


# Taking an entry in.


def take(entry_id: OutboxId, raw: RawFields) -> Intake:
    """Check one raw outbox entry, and return the checked entry (an intake).

    An entry that cannot be read goes to quarantine; no entry raises an error.
    """
    try:
        return _take(entry_id, raw)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        return hold(entry_id, raw, "undecodable", f"{type(error).__name__}: {error}")


class _Unchecked(NamedTuple):
    """An outbox entry about jobs whose values are not checked yet: its index in the list of entries, its intake without
    columns, and a list of values for each job.
    """

    place: int
    intake: Intake
    arrays: list[list[Any]]


def take_all(entries: Sequence[tuple[OutboxId, RawFields]]) -> list[Intake]:
    """Check many raw outbox entries, and return the checked entries (intakes) in the same order.

    The result is the same as with :func:`take` for each entry. It is faster, because entries of one type are checked
    together.
    """
    intakes: list[Intake | None] = []
    waiting: dict[str, list[_Unchecked]] = {}
    for index, (entry_id, raw) in enumerate(entries):
        found = _begin(entry_id, raw)
        if found is None:
            intakes.append(take(entry_id, raw))
        else:
            intakes.append(None)
            waiting.setdefault(raw["type"], []).append(_Unchecked(index, *found))
    for kind, of_kind in waiting.items():
        if _take_together(_JOB_FIELDS[kind][1], of_kind):
            for each in of_kind:
                intakes[each.place] = each.intake
        else:
            for each in of_kind:
                intakes[each.place] = take(*entries[each.place])
    return [intake for intake in intakes if intake is not None]


def _begin(entry_id: OutboxId, raw: RawFields) -> tuple[Intake, list[list[Any]]] | None:
    """Parse an outbox entry about jobs. Return its intake, still without columns, and the list of values of each job.

    Return None for any other entry, such as an event about the queue, or an entry with unusual text: it needs
    :func:`take`, which is slower.
    """
    kind, by, body, at = raw.get("type"), raw.get("by"), raw.get("jobs"), raw.get("at", "")
    if kind not in _JOB_FIELDS or by is None or not body or "why" in raw or "data" in raw:
        return None
    told = body + by
    if not told.isascii() or "\0" in told or "\\u" in body or len(by) > NAME_LENGTH_MAX:
        return None
    at_ms = _time(at)
    try:
        arrays = _decode_json(body)
    except (ValueError, RecursionError):
        return None
    if at_ms is None or type(arrays) is not list or set(map(type, arrays)) != {list}:
        return None
    size = len(kind) + len(body)
    intake = Intake(entry_id, _JOB_FIELDS[kind][0], at_ms, by, None, size, len(arrays))
    return intake, arrays


def _take_together(spec: _FieldsOf, waiting: Sequence[_Unchecked]) -> bool:
    """Check the values of entries of one type, and set the columns of their intakes.

    If any value fails its check, set nothing and return False.
    """
    every = [array for each in waiting for array in each.arrays]
    (length, *others) = set(map(len, every))
    if others or length > len(spec.names):
        return False
    columns: list[Sequence[Any]] = list(zip(*every, strict=True))
    columns += [(None,)] * (len(spec.names) - length)
    try:
        if not all(check(column) for check, column in zip(spec.checks, columns, strict=True)):
            return False
    except TypeError:
        return False
    names, left_out = spec.names[:length], spec.names[length:]
    for _, intake, arrays in waiting:
        intake.columns = dict(zip(names, zip(*arrays, strict=True), strict=True))
        intake.columns |= dict.fromkeys(left_out, (None,) * len(arrays))
        intake.ordinals = range(len(arrays))
    return True


def hold(entry_id: OutboxId, raw: RawFields, kind: str, reason: str) -> Intake:
    """Return the intake of an outbox entry that goes to quarantine as a whole, with its raw bytes and ``reason``."""
    try:
        jobs = len(_decode_json(raw["jobs"])) if "jobs" in raw else 1
    except (ValueError, TypeError, RecursionError):
        jobs = 0
    return Intake(
        id=entry_id,
        event=None,
        at_ms=_time(raw.get("at", "")),
        by=clean(raw.get("by", ""))[:NAME_LENGTH_MAX],
        why=None,
        size=_size(raw),
        jobs=jobs,
        quarantined=[Quarantined(entry_id, None, kind, clean(reason)[:1000], pack_entry(raw))],
    )


def _time(raw: str) -> int | None:
    return int(raw) if raw.isascii() and raw.isdigit() and len(raw) < 19 else None


def _take(entry_id: OutboxId, raw: RawFields) -> Intake:
    kind, by, why = raw["type"], raw["by"], raw.get("why")
    at_ms = _time(raw["at"])
    if at_ms is None:
        raise _NotDecodedError(f"at is {raw['at']!r}")
    if len(by) > NAME_LENGTH_MAX:
        raise _NotDecodedError(f"by has {len(by)} characters")
    body = raw.get("jobs") or raw.get("data") or ""
    altered = False
    if not (why is None and (told := body + by).isascii() and "\0" not in told):
        # A byte that is not UTF-8 is a lone surrogate in the text.
        plain = clean(body), clean(by), None if why is None else clean(why)
        altered = plain != (body, by, why)
        body, by, why = plain

    if kind in _QUEUE_FIELDS:
        event, names = _QUEUE_FIELDS[kind]
        values = _decode_json(body) if body else []
        if type(values) is not list or len(values) > len(names):
            raise _NotDecodedError(f"{kind} has {len(names)} fields")
        if not anything(values):
            raise _NotDecodedError(f"{kind} is nested too deep")
        data = dict(zip_longest(names, values))
        intake = Intake(entry_id, event, at_ms, by, why, _size(raw), jobs=1, data=data)
        if event is Event.EPOCH_STARTED:
            intake.beginning = Beginning.of(entry_id, at_ms, data)
    elif kind in _JOB_FIELDS:
        event, spec = _JOB_FIELDS[kind]
        arrays = _decode_json(body)
        if type(arrays) is not list or not arrays:
            raise _NotDecodedError("no jobs")
        intake = Intake(entry_id, event, at_ms, by, why, _size(raw), jobs=len(arrays))
        if "\\u" in body and _clean_names(arrays, spec.names):
            altered = True
        _take_columns(intake, arrays, spec, raw)
    else:
        raise _NotDecodedError(f"{kind!r} is not an event that this release knows")
    if altered:
        reason = "text that SQL cannot keep was replaced by U+FFFD"
        intake.quarantined.append(Quarantined(entry_id, None, "sanitised", reason, pack_entry(raw)))
    return intake


def _clean_names(arrays: list[Any], names: tuple[str, ...]) -> bool:
    """Replace characters that SQL cannot store in the texts of the jobs. Return whether a text changed.

    Values of any type, which are stored as JSON, such as an error, stay unchanged: JSON can escape every character.
    """
    changed = False
    for array in arrays:
        if type(array) is not list:
            continue
        for index, (name, value) in enumerate(zip(names, array, strict=False)):
            if type(value) is str and KINDS.get(name, anything) is not anything:
                cleaned = clean(value)
                if cleaned != value:
                    array[index] = cleaned
                    changed = True
    return changed


def _take_columns(intake: Intake, arrays: list[Any], spec: _FieldsOf, raw: RawFields) -> None:
    count = len(spec.names)
    columns: list[Sequence[Any]] | None = None
    if set(map(type, arrays)) == {list}:
        lengths = set(map(len, arrays))
        if max(lengths) <= count:
            if lengths != {count}:
                arrays = [array + [None] * (count - len(array)) for array in arrays]
            columns = list(zip(*arrays, strict=True))
            if all(check(column) for check, column in zip(spec.checks, columns, strict=True)):
                intake.columns = dict(zip(spec.names, columns, strict=True))
                intake.ordinals = range(len(arrays))
                return
    _take_one_by_one(intake, arrays, spec, raw)


def _take_one_by_one(intake: Intake, arrays: list[Any], spec: _FieldsOf, raw: RawFields) -> None:
    """Check the jobs of one entry one by one. Set the columns of the jobs that pass, and put each other job into
    quarantine.
    """
    good: list[list[Any]] = []
    ordinals: list[int] = []
    packed = pack_entry(raw)
    for ordinal, array in enumerate(arrays):
        problem = _problem(array, spec)
        if problem is None:
            good.append(array + [None] * (len(spec.names) - len(array)))
            ordinals.append(ordinal)
        else:
            # The first quarantined job has the bytes of the whole entry; the others have none.
            kept = packed if not intake.quarantined else b""
            intake.quarantined.append(Quarantined(intake.id, ordinal, "undecodable", problem, kept))
    intake.columns = {
        name: [array[index] for array in good] for index, name in enumerate(spec.names)
    }
    intake.ordinals = ordinals


def _problem(array: Any, spec: _FieldsOf) -> str | None:
    if type(array) is not list:
        return "the job is not an array"
    if not 0 < len(array) <= len(spec.names):
        return f"{len(array)} values for {len(spec.names)} fields"
    padded = array + [None] * (len(spec.names) - len(array))
    for name, check, value in zip(spec.names, spec.checks, padded, strict=True):
        if not check((value,)):
            return clean(f"{name} is {value!r}"[:200])
    return None
