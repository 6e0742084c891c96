"""The point at which Redis' history left the history in SQL.

A queue's history may go back: to an old snapshot, to a log without its tail, to a replica that lagged. It then goes
on with a new epoch. Where it left, :func:`find_fork` sees by comparing what Redis still has with what SQL has, entry by
entry, back from the new epoch's beginning. What follows from that is :mod:`sql_audit.mirror.losses`.
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
"""Entries of Redis that are compared at once."""
LAST_NUMBER: Final = str(OutboxId(INTEGER_MAX, 0))
"""Behind every entry."""
_COLUMNS: Final = ", ".join(EVENT_COLUMNS)

_EVENTS_OF_ENTRIES: Final = text(
    f"SELECT {_COLUMNS} FROM job_event WHERE queue = :queue AND (epoch, seq) >= (:epoch, :seq) "
    "AND (epoch, seq) <= (:to_epoch, :to_seq) ORDER BY epoch, seq, ordinal"
)
_FIRST: Final = text(
    "SELECT epoch, seq, type, detail FROM job_event WHERE queue = :queue ORDER BY epoch, seq LIMIT 1"
)


class Behind(Exception):
    """Redis must begin an epoch after ``known`` before anything of it can be mirrored."""

    def __init__(self, known: int, why: str) -> None:
        super().__init__(why)
        self.known = known


@dataclass(frozen=True, slots=True)
class Fork:
    """The point at which Redis' history left the history in SQL."""

    beginning: Beginning
    """With this epoch Redis' history went on."""
    survivor: OutboxId | None
    """The last entry that both have; None: Redis remembered nothing."""
    passed: Sequence[Quarantined] = ()
    """The entries of Redis whose numbers SQL had passed, oldest first. They cannot be mirrored."""
    changed: OutboxId | None = None
    """The first number under which both have an entry, and not the same."""


def rejoin(reader: Reader, tail: Tail) -> Tail:
    """Return the entries with which Redis went on, if it does not have the anchor, or not as it was.

    Raises Behind if it has nothing that can be mirrored.
    """
    assert tail.anchor is not None
    before = tail.anchor.at
    changed = bool(tail.entries) and tail.entries[0][0] == before
    if tail.entries and not changed:
        return tail
    entries = reader.read_from(OutboxId(before.epoch + 1, 0))
    if not entries:
        found = "another entry under that number" if changed else "nothing from there on"
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
    """Find the point at which Redis' history left SQL's, if the epoch after the anchor does not go on from it.

    Raises Behind if Redis must say again what lives before that can be mirrored; not of an epoch before
    ``restated_from``, since one with a baseline follows.
    """
    assert tail.anchor is not None
    # Numbers may be given twice: without the anchor it does not count that they match.
    if beginning.last == tail.anchor.at and not tail.detached:
        return None
    if beginning.last is None and beginning.reason not in ("created", "behind"):
        return None  # Only the log is lost, and a baseline follows.
    if made_again(beginning) and says_deleted(connection, queue, tail.anchor.at):
        return None
    fork = _compare(connection, source, queue, beginning, tail.anchor.at)
    if fork.passed and not beginning.is_restated and beginning.id.epoch >= restated_from:
        # What it had under passed numbers is missing from what follows.
        last, _ = source.read_outbox_back(queue, LAST_NUMBER, 1)[0]
        why = f"{len(fork.passed)} entries before {beginning.id} have numbers that SQL had passed"
        raise Behind(OutboxId.parse(last).epoch + 1, why)
    return fork


def made_again(beginning: Beginning) -> bool:
    """Whether Redis knew nothing of the queue when it began the epoch."""
    return beginning.last is None and beginning.reason == Began.CREATED


def _compare(
    connection: Connection, source: OutboxSource, queue: str, beginning: Beginning, cursor: OutboxId
) -> Fork:
    """Look for the last entry that both have, back from the epoch's beginning."""
    earlier = _before_the_log(connection, queue)
    last = beginning.last
    passed: list[Quarantined] = []
    changed: OutboxId | None = None
    whole = True
    """Whether it is known what came before the last entry that was looked at."""
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
    # Redis has nothing left that SQL has. Its earliest epoch says what it went on from.
    return Fork(beginning, last if whole else cursor, passed[::-1], changed)


def _before_the_log(connection: Connection, queue: str) -> OutboxId | None:
    """Return the last entry that Redis had before the first that SQL has, as the first one names it."""
    row = connection.execute(_FIRST, {"queue": queue}).one_or_none()
    if row is None:
        return None
    if row.type != Event.EPOCH_STARTED:
        return OutboxId(row.epoch, row.seq - 1)
    return last_known(read_details(row.detail, queue, OutboxId(row.epoch, row.seq)))


def _rows_of(
    connection: Connection, queue: str, entries: Sequence[RawEntry]
) -> dict[OutboxId, list[EventRow]]:
    """Return the rows that SQL has of entries, newest first."""
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
"""The columns that the entry alone fills; the task, and the claim that it ends, come from the job."""
_TYPE: Final = EVENT_COLUMNS.index("type")
_DETAIL: Final = EVENT_COLUMNS.index("detail")


def _same(entry_id: OutboxId, raw: RawFields, rows: Sequence[EventRow]) -> bool:
    """Whether SQL's rows are what this entry says."""
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
