"""Some jobs by all that is told of them: by SQL up to what was read of Redis, then by what only its outbox has yet."""

# ruff: noqa: S608 - a statement is joined from the schema's own names; values are bound

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Final

from sqlalchemy import Connection, bindparam, text

from rq_core.doctor.view import View
from rq_core.model.effects import CLEARS, EFFECTS
from rq_core.model.ends import End, Lives
from rq_core.model.events import Entry, JobEvent, OutboxId, Undecodable, decode
from rq_core.model.machine import Event
from sql_audit.mirror.refold import intake_of
from sql_audit.mirror.unseen import Places
from sql_audit.store import orphans
from sql_audit.store.gaps import restated
from sql_audit.store.tables import EVENT_COLUMNS
from sql_audit.store.text import clean

IDS_CHUNK: Final = 500
"""Jobs that one statement reads."""
_TYPES: Final = {*EFFECTS, *CLEARS} - {
    Event.RETRIED, Event.PROMOTED, Event.EDITED, Event.SETTLEMENT_REFUSED,
}  # fmt: skip
"""What changes how a job ends and what is kept of it, or who it is."""
_EVENTS: Final = text(
    # See refold: the cast keeps SQLite from reading all of the queue's events.
    f"SELECT {', '.join(EVENT_COLUMNS)} FROM job_event WHERE CAST(queue AS TEXT) = :queue AND job_id IN :ids "
    "AND type IN :types AND (epoch < :epoch OR epoch = :epoch AND seq <= :seq) ORDER BY epoch, seq, ordinal"
).bindparams(bindparam("ids", expanding=True), bindparam("types", expanding=True))


class Told:
    """What is told of the jobs of a queue. ``redis`` was read before, and what SQL has by now of later entries is
    passed over, as is what Redis forgot; ``position`` is the last entry that SQL has."""

    def __init__(self, connection: Connection, queue: str, redis: View, position: OutboxId) -> None:
        self._connection = connection
        self._queue = queue
        self._redis = redis
        self._position = position
        self.orphaned = orphans.ranges(connection, queue)

    @cached_property
    def places(self) -> Places:
        """Where SQL may have missed something."""
        return Places(self._connection, self._queue)

    @cached_property
    def _restated(self) -> OutboxId:
        """Where the last baseline begins that SQL has whole; before every entry if it has none."""
        epochs = restated(self._connection, self._queue)
        return OutboxId(epochs[-1], 0) if epochs else OutboxId(0, -1)

    @cached_property
    def _behind(self) -> dict[str, list[tuple[Entry, JobEvent]]]:
        """What the outbox has that SQL does not, by job. Where entries are missing, it does not follow what SQL has."""
        found: defaultdict[str, list[tuple[Entry, JobEvent]]] = defaultdict(list)
        for entry_id, raw in () if self._redis.log.gaps else self._redis.snapshot["outbox"]:
            if OutboxId.parse(entry_id) > self._position:
                with suppress(Undecodable):
                    entry = decode(entry_id, raw)
                    for event in entry.jobs:
                        found[event.job_id].append((entry, event))
        return found

    def lives(self, ids: Sequence[str]) -> Lives:
        """What became of some jobs. That nothing is missing behind a job's beginning is so for SQL, too."""
        found = Lives()
        # SQL keeps no other texts; Redis may have any, if a byte was damaged.
        ids = [job_id for job_id in ids if clean(job_id) == job_id]
        if not ids:
            return found
        upto = max(OutboxId.parse(at) for at, _ in self._redis.snapshot["outbox"])
        asked = {
            "queue": self._queue, "ids": [*ids], "types": [*map(str, _TYPES)], "epoch": upto.epoch, "seq": upto.seq,
        }  # fmt: skip
        last: dict[str, OutboxId] = {}
        for row in self._connection.execute(_EVENTS, asked):
            intake = intake_of(tuple(row))
            if intake is None or orphans.in_any(intake.id, self.orphaned):
                continue
            facts = {name: column[0] for name, column in intake.columns.items()}
            event = JobEvent(0, str(facts["id"]), facts)
            last[event.job_id] = intake.id
            assert isinstance(intake.event, Event)
            found.add(Entry(intake.id, intake.event, intake.at_ms or 0, intake.by or ""), event)
        for job_id in ids:
            for entry, event in self._behind.get(job_id, ()):
                if job_id not in last or entry.id > last[job_id]:
                    found.add(entry, event)
            began = found.began.get(job_id)
            if began is not None and self.places.of(job_id, began) is not None:
                del found.began[job_id]
                if job_id in found.ends:
                    found.ends[job_id] = _alone(found.ends[job_id])
        found.ends |= {i: e._replace(is_last=self.is_last(i, e)) for i, e in found.ends.items()}
        return found

    def is_last(self, job_id: str, end: End) -> bool:
        """Whether no job of an id can have ended behind an end."""
        return not self.orphaned and not self.may_lack(job_id, end.at)

    def unread(self, job_id: str) -> OutboxId | None:
        """The first entry in quarantine that names a job, since Redis last said what lives: SQL does not know what it
        says."""
        return self.places.unread(job_id, self._restated)

    def may_lack(self, job_id: str, at: OutboxId) -> bool:
        """Whether SQL may have missed events of an id behind an entry."""
        return bool(self._redis.log.gaps) or self.places.of(job_id, at) is not None


def _alone(end: End) -> End:
    """An end by its own entry alone: the job that began under its id may be another one."""
    return end._replace(asked=None, died_ms=None, died_of=None)
