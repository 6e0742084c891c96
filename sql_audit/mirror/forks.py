"""Finds a fork: the last entry that Redis' history and SQL's history of a queue share.

Redis may lose the end of a queue's history. It may load an old snapshot, or an append-only file without its end; or a
replica that lagged is promoted. Redis then continues with a new epoch.

:func:`find_fork` compares the entries of Redis with those of SQL, backwards from the new epoch's beginning.
:mod:`sql_audit.mirror.losses` applies the result to SQL.
"""

# ruff: noqa: S608 - statements are joined from the schema's own names; values are bound

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, text

from rq_core.model.events import OutboxId
from rq_core.model.table.machine import Event
from rq_core.model.table.reasons import Began
from sql_audit.mirror.epochs import Beginning, last_known
from sql_audit.mirror.field_types import INTEGER_MAX
from sql_audit.mirror.intake import Quarantined, pack_entry, take
from sql_audit.mirror.projection.fold import Folder
from sql_audit.mirror.reading import RawEntry, Reader, Tail
from sql_audit.mirror.redis_access import OutboxSource, RawFields
from sql_audit.store.job_rows import EventRow
from sql_audit.store.log_queues import says_deleted
from sql_audit.store.schema.tables import EVENT_COLUMNS, QUARANTINED
from sql_audit.store.storable_text import read_details

PAGE: Final = 200
"""Number of entries that are read from Redis and compared with SQL at once."""
LAST_NUMBER: Final = str(OutboxId(INTEGER_MAX, 0))
"""An entry number that is higher than the number of any entry, to read the outbox from its end."""
_COLUMNS: Final = ", ".join(EVENT_COLUMNS)

_EVENTS_OF_ENTRIES: Final = text(
    f"SELECT {_COLUMNS} FROM job_event WHERE queue = :queue AND (epoch, seq) >= (:epoch, :seq) "
    "AND (epoch, seq) <= (:to_epoch, :to_seq) ORDER BY epoch, seq, ordinal"
)
_FIRST: Final = text(
    "SELECT epoch, seq, type, detail FROM job_event WHERE queue = :queue ORDER BY epoch, seq LIMIT 1"
)


class Behind(Exception):
    """Raised if the mirror cannot continue until Redis begins a new epoch. The new epoch must have a higher number than
    ``known``.

    The mirror catches the error and makes Redis begin this epoch (see OutboxSource.attach).
    """

    def __init__(self, known: int, why: str) -> None:
        super().__init__(why)
        self.known = known


@dataclass(frozen=True, slots=True)
class Fork:
    """The last entry that Redis' history and SQL's history share, and Redis' entries from there to the new epoch."""

    beginning: Beginning
    """The first entry of the epoch with which Redis continued."""
    survivor: OutboxId | None
    """The last entry that Redis and SQL share; None if Redis has lost everything. The entry may already be trimmed from
    Redis."""
    passed: Sequence[Quarantined] = ()
    """Redis' entries between the last shared entry and the new epoch, oldest first. SQL lacks these entries, and the
    mirror cannot copy them, because SQL already has higher numbers."""
    changed: OutboxId | None = None
    """The first entry number under which Redis and SQL have different entries; None if there is no such number."""


def rejoin(reader: Reader, tail: Tail) -> Tail:
    """Choose the entries from which the mirror continues after Redis has lost or changed the last mirrored entry (the
    anchor). Return them as a Tail.

    If Redis lacks the anchor but has later entries, ``tail`` already has these entries. Otherwise, the mirror continues
    from the entries of later epochs. Raise Behind if Redis has no later epoch.
    """
    assert tail.anchor is not None
    before = tail.anchor.at
    changed = bool(tail.entries) and tail.entries[0][0] == before
    if tail.entries and not changed:
        return tail
    entries = reader.read_from(OutboxId(before.epoch + 1, 0))
    if not entries:
        found = "another entry under that number" if changed else "no entry from that number on"
        raise Behind(before.epoch + 1, f"SQL has {before}, Redis has {found}")
    return tail._replace(entries=entries)


def find_fork(
    connection: Connection,
    source: OutboxSource,
    queue: str,
    tail: Tail,
    beginning: Beginning,
    restated_from: int,
) -> Fork | None:
    """Find the last entry that Redis and SQL share, after Redis has begun the epoch ``beginning``. Return it as a Fork.

    Return None if the new epoch continues SQL's history, if Redis lost only its outbox, or if an operator had deleted
    the queue. Raise Behind if Redis must first list all live jobs in a new epoch. Epochs before ``restated_from`` never
    raise Behind, because a later epoch has such a list.
    """
    assert tail.anchor is not None
    # Redis may assign a number twice: if the anchor is missing or changed, an equal number proves nothing.
    if beginning.last == tail.anchor.at and not tail.detached:
        return None
    if beginning.last is None and beginning.reason not in ("created", "behind"):
        return None  # Only the log is lost, and a baseline follows.
    if made_again(beginning) and says_deleted(connection, queue, tail.anchor.at):
        return None
    fork = _compare(connection, source, queue, beginning, tail.anchor.at)
    if fork.passed and not beginning.is_restated and beginning.id.epoch >= restated_from:
        # The entries that follow do not have the changes of the entries whose numbers SQL had passed.
        last, _ = source.read_outbox_back(queue, LAST_NUMBER, 1)[0]
        why = f"{len(fork.passed)} entries before {beginning.id} have numbers that SQL had passed"
        raise Behind(OutboxId.parse(last).epoch + 1, why)
    return fork


def made_again(beginning: Beginning) -> bool:
    """Return whether the epoch begins with a newly created queue: Redis had no entry of the queue before."""
    return beginning.last is None and beginning.reason == Began.CREATED


def _compare(
    connection: Connection, source: OutboxSource, queue: str, beginning: Beginning, cursor: OutboxId
) -> Fork:
    """Read Redis' entries backwards from an epoch's beginning, until SQL has the same entry. Return the result as a
    Fork.

    If Redis no longer has a shared entry, the last shared entry is the one before Redis' earliest epoch: the beginning
    of this epoch names it.
    """
    earlier = _before_the_log(connection, queue)
    last = beginning.last
    passed: list[Quarantined] = []
    changed: OutboxId | None = None
    whole = True
    """True if the last compared entry begins an epoch, and so names the entry before the epoch. Also true before the
    first comparison."""
    before = beginning.id
    while True:
        page = source.read_outbox_back(queue, str(before), PAGE)
        entries = [(OutboxId.parse(entry_id), raw) for entry_id, raw in page]
        ours = _rows_of(connection, queue, entries)
        for entry_id, raw in entries:
            rows = ours.get(entry_id, [])
            known = earlier is not None and earlier.epoch == entry_id.epoch and entry_id <= earlier
            if known or _same(entry_id, raw, rows):
                return Fork(beginning, entry_id, passed[::-1], changed)
            if rows:
                changed = entry_id
            reason = (
                "SQL has another entry under its number" if rows else "SQL had passed its number"
            )
            passed.append(Quarantined(entry_id, None, "conflict", reason, pack_entry(raw)))
            whole = raw.get("type") == Event.EPOCH_STARTED
            if whole:
                earliest = take(entry_id, raw).beginning
                last = None if earliest is None else earliest.last
        if len(page) < PAGE:
            break
        before = entries[-1][0]
    # Redis has no entry that SQL has. The beginning of Redis' earliest epoch names the entry before that epoch.
    return Fork(beginning, last if whole else cursor, passed[::-1], changed)


def _before_the_log(connection: Connection, queue: str) -> OutboxId | None:
    """Return the last entry that Redis had before the first entry in SQL: the mirror never copied it.

    Return None if SQL has no entry, or if there was no earlier entry.
    """
    row = connection.execute(_FIRST, {"queue": queue}).one_or_none()
    if row is None:
        return None
    if row.type != Event.EPOCH_STARTED:
        return OutboxId(row.epoch, row.seq - 1)
    return last_known(read_details(row.detail, queue, OutboxId(row.epoch, row.seq)))


def _rows_of(
    connection: Connection, queue: str, entries: Sequence[RawEntry]
) -> dict[OutboxId, list[EventRow]]:
    """Return the rows of ``job_event`` that SQL has for some outbox entries, by entry. ``entries`` are newest first."""
    found: dict[OutboxId, list[EventRow]] = {}
    if not entries:
        return found
    first, last = entries[-1][0], entries[0][0]
    bounds = {
        "queue": queue, "epoch": first.epoch, "seq": first.seq,
        "to_epoch": last.epoch, "to_seq": last.seq,
    }  # fmt: skip
    for row in connection.execute(_EVENTS_OF_ENTRIES, bounds):
        found.setdefault(OutboxId(row.epoch, row.seq), []).append(tuple(row))
    return found


_OF_ENTRY: Final = tuple(
    EVENT_COLUMNS.index(name) for name in ("ordinal", "type", "at_ms", "job_id", "worker", "detail")
)
"""Indexes of the columns of ``job_event`` whose values come from the outbox entry alone. (The mirror takes task and
claim from the job's row.)"""
_TYPE: Final = EVENT_COLUMNS.index("type")
_DETAIL: Final = EVENT_COLUMNS.index("detail")


def _same(entry_id: OutboxId, raw: RawFields, rows: Sequence[EventRow]) -> bool:
    """Return whether SQL has an outbox entry unchanged: its rows equal the rows that the mirror would now make of the
    entry.
    """
    if not rows:
        return False
    if len(rows) == 1 and rows[0][_TYPE] == QUARANTINED:
        sha = hashlib.sha256(pack_entry(raw)).hexdigest()
        return sha in (rows[0][_DETAIL] or "")
    folder = Folder(str(rows[0][0]), ())
    folder.add(take(entry_id, raw))
    said, ours = (
        [tuple(row[place] for place in _OF_ENTRY) for row in each] for each in (folder.events, rows)
    )
    return said == ours
