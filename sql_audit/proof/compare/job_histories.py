"""Adds a queue's events in SQL to the history that ``rq-core doctor`` compares with Redis. Without them, this history
has only the events that are still in Redis' outbox.

Events in SQL are used up to the last outbox entry that was read from Redis. Then come the events of outbox entries that
SQL does not have. A line of the key ``results`` is not compared if the history may lack events of the line's job.
"""

# ruff: noqa: S608 - a statement is joined from the schema's own names; values are bound

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from operator import itemgetter
from typing import Any, Final

from sqlalchemy import Connection, bindparam, text

from rq_core.doctor.log import (
    RUNS,
    SCHEDULE_MARK,
    FoldedLog,
    Since,
    forget_queue,
    note,
    note_tick,
)
from rq_core.doctor.result_check import is_later
from rq_core.model.events import Entry, JobEvent, OutboxId, Undecodable, decode
from rq_core.model.idempotency import SAME, ResultLine, read_result
from rq_core.model.job_ends import End, Lives, claim_of
from rq_core.model.schedule import JOB_FIELD
from rq_core.model.table.effects import CLEARS, EFFECTS
from rq_core.model.table.event_fields import QUEUE_EVENT_FIELDS
from rq_core.model.table.machine import Event
from rq_core.model.table.reasons import Began
from rq_core.model.unique_names import until_instants
from sql_audit.mirror.possible_gaps import Places
from sql_audit.mirror.projection.rebuild import intake_of
from sql_audit.proof.event_details import facts_in
from sql_audit.proof.log import LAST_PRUNE
from sql_audit.store import orphans
from sql_audit.store.gaps import restated
from sql_audit.store.schema.tables import EVENT_COLUMNS, QUARANTINED, TICK_NAME
from sql_audit.store.storable_text import clean

TICKS_MAX: Final = 100
"""Maximum number of ``ticked`` events that are read to find when a schedule was last due. Events that Redis forgot, and
runs that an operator asked for, do not show this."""
IDS_CHUNK: Final = 500
"""Maximum number of jobs whose events one statement reads."""
TYPES: Final = {*EFFECTS, *CLEARS} - {
    Event.RETRIED, Event.PROMOTED, Event.EDITED, Event.SETTLEMENT_REFUSED,
}  # fmt: skip
"""Types of events that may change how a job ended, what its result is, or which job has its id."""
_OF_JOBS: Final = text(
    # Without the cast, SQLite would read all events of the queue (see rebuild.py).
    f"SELECT {', '.join(EVENT_COLUMNS)} FROM job_event WHERE CAST(queue AS TEXT) = :queue AND job_id IN :ids "
    "AND type IN :types AND (epoch < :epoch OR epoch = :epoch AND seq <= :seq) ORDER BY epoch, seq, ordinal"
).bindparams(bindparam("ids", expanding=True), bindparam("types", expanding=True))
_OF_QUEUE: Final = text(
    "SELECT epoch, seq, type, at_ms, detail FROM job_event "
    "WHERE job_id IS NULL AND queue = :queue ORDER BY epoch, seq, ordinal"
)
_LAST_TICKS: Final = text(
    # The index has them by time. The last by time is not always the last: Redis forgot it, its clock went back, two
    # have one millisecond, or an operator asked for a run.
    "SELECT epoch, seq, detail FROM job_event WHERE queue = :queue AND type = 'ticked' "
    f"AND {TICK_NAME} = :name AND (epoch, seq) <= (:epoch, :seq) ORDER BY at_ms DESC LIMIT {TICKS_MAX}"
)
_IN_ENTRY: Final = text(
    "SELECT type, job_id FROM job_event WHERE queue = :queue AND epoch = :epoch AND seq = :seq"
)
_FIRST: Final = text(
    "SELECT epoch, seq, at_ms FROM job_event WHERE queue = :queue ORDER BY epoch, seq, ordinal LIMIT 1"
)
_GAPS: Final = text(
    "SELECT epoch, seq FROM mirror_epoch WHERE queue = :queue AND kind IN ('gap', 'joined')"
)
_MISSES: Final = tuple(
    text(statement)
    for statement in (
        "SELECT 1 FROM mirror_epoch WHERE queue = :queue AND (kind <> 'started' OR reason = :lost) LIMIT 1",
        "SELECT 1 FROM mirror_loss WHERE queue = :queue AND kind <> 'restated' LIMIT 1",
        "SELECT 1 FROM quarantine WHERE queue = :queue LIMIT 1",
        "SELECT 1 FROM mirror_prune WHERE queue = :queue LIMIT 1",
    )
)


class History:
    """A queue's history in SQL, to be added to ``log``, the history that ``rq-core doctor`` compares with Redis.

    ``redis`` are the queue's keys, read before SQL. ``log`` has the events of the outbox at first. ``position`` is the
    last entry that SQL has. A row in SQL is ignored if its entry comes after the last outbox entry in ``redis``, or
    if Redis forgot its entry.
    """

    def __init__(
        self,
        connection: Connection,
        queue: str,
        redis: Mapping[str, Any],
        log: FoldedLog,
        position: OutboxId,
    ) -> None:
        self._connection = connection
        self._queue = {"queue": queue}
        self._redis = redis
        self._log = log
        self._ends = dict(log.ends)
        self._position = position
        since = getattr(redis, "since", None)
        self._begun = None if since is None else OutboxId.parse(since)
        self._upto = max(OutboxId.parse(at) for at, _ in redis["outbox"])
        self._orphaned = orphans.ranges(connection, queue)
        self._places = Places(connection, queue)
        cut = connection.execute(LAST_PRUNE, self._queue).one_or_none()
        self._pruned_to = OutboxId(0, -1) if cut is None else OutboxId(cut.epoch, cut.seq)
        epochs = restated(connection, queue)
        self._restated = OutboxId(epochs[-1], 0) if epochs else OutboxId(0, -1)
        """The beginning of the last epoch in which the log lists all live jobs (a complete baseline). Without such an
        epoch, a number before every entry."""

    def tell(self) -> Iterator[str]:
        """Add the queue's history in SQL to the doctor's history. Yield a sentence for each fault that cannot be
        repaired.
        """
        log = self._log
        self._tell_of_queue()
        if not log.gaps:
            log.whole, log.since, log.may_be_restored = True, self._since(), False
        results, slots = self._redis["results"], self._redis["slots"]
        holders = {holder.job_id for holder in until_instants(slots).values()} - log.began.keys()
        # Of an id with a value or a time and no line, the log may know the line.
        known = results.keys() | self._redis["returned"].keys() | self._redis["kept"].keys()
        gone = known - self._redis["jobs"].keys() - self._redis["state"].keys()
        ended = {i for i in gone if (end := self._ends.get(i)) is None or end.asked is None}
        ids = sorted(holders | ended)
        for n in range(0, len(ids), IDS_CHUNK):
            chunk = ids[n : n + IDS_CHUNK]
            lives = self._lives([i for i in chunk if clean(i) == i])
            if not log.gaps:
                log.began.update(lives.began)
            for job_id, record in lives.records.items():
                log.records.setdefault(job_id, record)
            for job_id in filter(ended.__contains__, chunk):
                yield from self._tell_of_end(
                    job_id, results.get(job_id, ""), lives.ends.get(job_id)
                )
        for job_id in gone - ended:
            log.ends[job_id] = self._judged(job_id, self._ends[job_id])

    def unread(self, job_id: str) -> OutboxId | None:
        """Return the first quarantined outbox entry with the job's id after the last baseline, which lists all live
        jobs.

        Return None if there is no such entry.
        """
        return self._places.unread(job_id, self._restated)

    def _may_lack(self, job_id: str, at: OutboxId) -> bool:
        """Return whether SQL may lack events of the job ``job_id`` after the entry ``at``."""
        return bool(self._log.gaps) or self._places.of(job_id, at) is not None

    def _since(self) -> Since | None:
        """Return the first entry of the log, or None if the log is not complete.

        A gap, a loss, a quarantined entry or a prune makes the log incomplete.
        """
        asked = self._queue | {"lost": str(Began.OUTBOX_LOST)}
        if any(self._connection.execute(each, asked).first() for each in _MISSES):
            return None
        first = self._connection.execute(_FIRST, asked).one_or_none()
        return None if first is None else Since(OutboxId(first.epoch, first.seq), first.at_ms)

    # The queue itself.

    def _tell_of_queue(self) -> None:
        """Add the queue's current settings and limits to the doctor's history, from the last event about each of them.

        After a gap in the log, a setting is unknown until its next event.
        """
        log = self._log
        forget_queue(log)
        log.at_beginning = True
        breaks = sorted(OutboxId(*row) for row in self._connection.execute(_GAPS, self._queue))
        for epoch, seq, kind, at_ms, detail in self._connection.execute(_OF_QUEUE, self._queue):
            at = OutboxId(epoch, seq)
            if at > self._upto:
                break
            while breaks and breaks[0] <= at:
                forget_queue(log, breaks.pop(0))
            if orphans.in_any(at, self._orphaned):
                continue
            if kind in QUEUE_EVENT_FIELDS:
                note(log, Entry(at, Event(kind), at_ms, "", data=dict(facts_in(detail))))
            else:
                forget_queue(log, at)  # It is in quarantine.
            if kind == Event.SCHEDULE_CHANGED and self._begun is not None and at > self._begun:
                log.moving.add(f"{SCHEDULE_MARK}{facts_in(detail)['name']}")
        for at in breaks:
            if at <= self._upto:
                forget_queue(log, at)
        self._tell_of_ticks()
        for entry in self._entries_behind():
            note(log, entry)

    def _tell_of_ticks(self) -> None:
        """Add the last time at which each schedule was due to the doctor's history, unless a later event has changed
        the schedule.
        """
        log, stored = self._log, self._redis["schedules"]
        since = log.schedules_since or OutboxId(0, -1)
        for name in log.schedules.keys() | {n for n in stored if not n.endswith(JOB_FIELD)}:
            asked = self._queue | self._upto._asdict() | {"name": name}
            rows = self._connection.execute(_LAST_TICKS, asked).all()
            for epoch, seq, detail in sorted(rows, key=itemgetter(0, 1), reverse=True):
                at, facts = OutboxId(epoch, seq), facts_in(detail)
                if at > since and not orphans.in_any(at, self._orphaned):
                    note_tick(log, at, facts)
                    if facts["outcome"] not in RUNS:
                        break
            else:
                if len(rows) == TICKS_MAX:
                    # An earlier one may say what is next: nothing is known of this schedule.
                    log.schedules.pop(name, None)
                    log.all_schedules = False

    def _entries_behind(self) -> Iterator[Entry]:
        """Yield the outbox entries that the mirror has not copied to SQL yet."""
        for entry_id, raw in self._redis["outbox"]:
            if OutboxId.parse(entry_id) > self._position:
                with suppress(Undecodable):
                    yield decode(entry_id, raw)

    # Jobs that have ended.

    @cached_property
    def _behind(self) -> dict[str, list[tuple[Entry, JobEvent]]]:
        """The events that the mirror has not copied to SQL yet, by job id. Empty if the outbox has a gap."""
        found: defaultdict[str, list[tuple[Entry, JobEvent]]] = defaultdict(list)
        for entry in () if self._log.gaps else self._entries_behind():
            for event in entry.jobs:
                found[event.job_id].append((entry, event))
        return found

    def _lives(self, ids: Sequence[str]) -> Lives:
        """Compute the states and the ends of the jobs ``ids`` from their events in SQL and in the outbox.

        If SQL may lack later events of a job, the result does not say with which entry the job began.
        """
        found = Lives()
        asked = {
            **self._queue, **self._upto._asdict(), "ids": [*ids], "types": [*map(str, TYPES)],
        }  # fmt: skip
        last: dict[str, OutboxId] = {}
        for row in self._connection.execute(_OF_JOBS, asked) if ids else ():
            intake = intake_of(tuple(row))
            if intake is None or orphans.in_any(intake.id, self._orphaned):
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
            if began is not None and self._places.of(job_id, began) is not None:
                del found.began[job_id]
                if job_id in found.ends:
                    # The job that ended may not be the job that began under this id.
                    alone = found.ends[job_id]._replace(asked=None, died_ms=None, died_of=None)
                    found.ends[job_id] = alone
        return found

    def _judged(self, job_id: str, end: End) -> End:
        """Return ``end``, the end of a job, with its field ``is_last`` set: True if no later job with this id can have
        ended.
        """
        return end._replace(is_last=not self._orphaned and not self._may_lack(job_id, end.at))

    def _tell_of_end(self, job_id: str, line: str, by_sql: End | None) -> Iterator[str]:
        """Add how the last job with an id ended to the doctor's history. ``line`` is the id's line in Redis' key
        ``results``, and ``by_sql`` is the end according to SQL.

        Yield a sentence for a fault of the line that cannot be repaired.
        """
        log, result, newest, end = (
            self._log,
            read_result(job_id, line),
            self._ends.get(job_id),
            by_sql,
        )
        if newest is not None and (end is None or end.at != newest.at):
            end = newest
        if end is not None:
            if newest is not None or not self._may_lack_its_end(result, end):
                log.ends[job_id] = self._judged(job_id, end)
        elif (result.outcome != SAME or result.until_ms is not None) and self._is_anothers(result):
            says = (
                f"the result of claim {result.fence} is kept, and by the log that is not its claim"
            )
            if result.once_ms is None or log.is_made_up(result):
                log.made_up[job_id] = says
            else:
                # Of a job that a prune has removed, only the claim may be false. Without the line, its id is free.
                yield f"id {job_id!r}: {says}; whether its id must be remembered is unknown, so it stays"

    def _may_lack_its_end(self, result: ResultLine, end: End) -> bool:
        """Return whether a line of Redis' key ``results`` may be about a later job with the same id, whose end SQL
        lacks.

        ``end`` is the end that SQL has. The answer is True if SQL may lack events after ``end``, and the line is not
        older than ``end``. A line with a claim is as old as the claim. A line without a claim is judged by its time.
        """
        same_ms = result.fence is None and result.at_ms == end.at_ms
        return (same_ms or is_later(result, end)) and self._may_lack(result.id, end.at)

    def _is_anothers(self, result: ResultLine) -> bool:
        """Return True if SQL proves that a line of Redis' key ``results`` names a claim of another job.

        The proof is the claim's outbox entry in SQL: it does not claim the line's job. There is no proof if a prune may
        have removed the job's event, if later entries may be missing, or if two entries may have had this number.
        """
        claim = claim_of(result.fence)
        if claim is None or claim <= self._pruned_to or orphans.in_any(claim, self._orphaned):
            return False
        asked = self._queue | {"epoch": claim.epoch, "seq": claim.seq}
        told = [tuple(row) for row in self._connection.execute(_IN_ENTRY, asked)]
        if not told or (str(Event.CLAIMED), result.id) in told:
            return False
        doubtful = any(kind == QUARANTINED for kind, _ in told)
        return not doubtful and not self._may_lack(result.id, claim)
