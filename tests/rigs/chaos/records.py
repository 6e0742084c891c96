"""Reads the records of a chaos run. All times are Unix milliseconds of one machine.

Three records are independent: the answers to producers, the lines that jobs wrote, and SQL. The module also reads the
live jobs in Redis and the times of the faults.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from sqlalchemy import text

from rq_core.model.schedule import tick_of
from rq_core.model.table.machine import Event, State
from sql_audit.store.connection.database import Database
from sql_audit.store.schema.tables import GONE, LOST
from tests.kit.witness import Witness
from tests.rigs.judge.told import Answers


class Line(NamedTuple):
    """A line that a job wrote into the witness file."""

    what: str
    """The kind of the line: start, end (the job came to its end) or failed (the job raised)."""
    job: str
    claim: int
    at_ms: float
    scopes: tuple[str, ...] = ()


class Logged(NamedTuple):
    """One event of a job, as SQL has it."""

    event: str
    job: str
    claim: int | None
    at_ms: int
    target: str | None = None
    """The state of a job after its lease expired: ready or dead."""
    orphaned: bool = False
    """True if Redis forgot the event, and the log says so."""


class Fault(NamedTuple):
    """One fault of the run, with its times (Unix ms)."""

    kind: str
    began_ms: float
    ended_ms: float
    held: tuple[str, ...] = ()
    """The jobs whose claims were in force in the process that the fault killed."""


class Told(NamedTuple):
    """A producer's call to enqueue one job: its queue, its time, and the time of Redis' answer (Unix ms)."""

    queue: str
    tried_ms: float
    acknowledged_ms: float | None = None


class Interval(NamedTuple):
    """A loss of Redis that the log reports. Events of the queue between the two times (Unix ms) may be missing."""

    queue: str
    after_ms: float
    """The time of the last event that was not lost."""
    until_ms: float
    """The time at which Redis continued without the lost events."""


class Progress(NamedTuple):
    """The last entry of a queue's outbox and the last entry in SQL, at one time. An entry is (epoch, number)."""

    at_ms: float
    queue: str
    written: tuple[int, int] | None
    """The last entry of the outbox, or None if Redis did not answer or has no entry."""
    mirrored: tuple[int, int] | None


@dataclass
class Records:
    """All records of a chaos run that the judge reads."""

    told: dict[str, Told] = field(default_factory=dict)
    witness: list[Line] = field(default_factory=list)
    events: list[Logged] = field(default_factory=list)
    """The events, in the order of the log."""
    live: dict[str, str] = field(default_factory=dict)
    """The jobs that Redis has, with their states."""
    named: set[str] = field(default_factory=set)
    """The jobs that SQL reports as lost, or as ended in an unknown way."""
    intervals: list[Interval] = field(default_factory=list)
    limits: Mapping[str, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)

    @property
    def answers(self) -> Answers:
        acknowledged = {i for i, told in self.told.items() if told.acknowledged_ms is not None}
        return Answers(set(self.told), acknowledged)


def read_told(paths: Iterable[Path]) -> dict[str, Told]:
    """Return the jobs that producers tried to enqueue, by id, with the times of their answers."""
    found: dict[str, Told] = {}
    for path in paths:
        for line in path.read_text().splitlines():
            word, job_id, queue, at_ms = line.split(" ")
            if word == "try":
                found[job_id] = Told(queue, float(at_ms))
            else:
                found[job_id] = found[job_id]._replace(acknowledged_ms=float(at_ms))
    return found


def told_of_ticks(records: Records, queues: Mapping[str, str]) -> dict[str, Told]:
    """Return the jobs that schedules enqueued, as if a producer had enqueued each job at its instant.

    A job counts as acknowledged if the log has its ``enqueued`` event and Redis did not lose it.
    """
    enqueued = {
        e.job: e.at_ms for e in records.events if e.event == Event.ENQUEUED and not e.orphaned
    }
    seen = {each.job for each in records.events} | {each.job for each in records.witness}
    seen |= set(records.live)
    return {
        job_id: Told(queues[tick.name], tick.instant_ms, enqueued.get(job_id))
        for job_id in seen
        if (tick := tick_of(job_id)) is not None
    }


def read_witness(witness: Witness) -> list[Line]:
    return [
        Line(each["what"], each["job"], each["claim"], each["at_ms"], tuple(each["scopes"]))
        for each in witness.lines()
    ]


_ORDER: Final = "ORDER BY queue, epoch, seq, ordinal"
_EVENTS: Final = text(
    "SELECT queue, epoch, seq, ordinal, type, job_id, claim, at_ms, detail FROM job_event "
    f"WHERE job_id IS NOT NULL {_ORDER}"
)
_ORPHANED: Final = text("SELECT queue, epoch, seq, ordinal FROM job_event_orphaned")
_NAMED: Final = text("SELECT job_id FROM job WHERE state IN (:lost, :gone)")
_MOMENT: Final = text(
    "SELECT MAX(at_ms) FROM job_event WHERE queue = :queue AND epoch = :epoch AND seq = :seq"
)
_GAPS: Final = text(
    "SELECT queue, epoch, seq, at_ms, (SELECT MAX(at_ms) FROM job_event e WHERE e.queue = g.queue "
    "AND e.epoch = g.old_epoch AND e.seq = g.old_seq) AS after FROM mirror_epoch g WHERE kind = 'gap'"
)
_CURSORS: Final = text("SELECT queue, epoch, seq FROM mirror_cursor")


def read_events(database: Database) -> list[Logged]:
    with database.readers.connect() as connection:
        orphaned = {tuple(row) for row in connection.execute(_ORPHANED)}
        return [
            Logged(
                row.type,
                row.job_id,
                row.claim,
                row.at_ms,
                json.loads(row.detail)["target"] if row.type == Event.LEASE_EXPIRED else None,
                (row.queue, row.epoch, row.seq, row.ordinal) in orphaned,
            )
            for row in connection.execute(_EVENTS)
        ]


def read_named(database: Database) -> set[str]:
    """Return the jobs that the log names as lost."""
    with database.readers.connect() as connection:
        return {row.job_id for row in connection.execute(_NAMED, {"lost": LOST, "gone": GONE})}


def read_intervals(database: Database, said: Mapping[str, Any]) -> list[Interval]:
    """Return the losses that ``audit verify`` reports."""
    with database.readers.connect() as connection:

        def moment(queue: str, epoch: int, seq: int) -> float:
            at = {"queue": queue, "epoch": epoch, "seq": seq}
            return float(connection.execute(_MOMENT, at).scalar() or 0)

        return [
            Interval(
                name,
                moment(name, loss["interval"]["epoch"], loss["interval"]["from"] - 1),
                loss["at_ms"],
            )
            for name, queue in said["queues"].items()
            for loss in queue["losses"]
        ]


def read_gaps(database: Database) -> dict[tuple[str, str], Interval]:
    """Return the gaps of the log, by queue and by the number of the first entry after the gap."""
    with database.readers.connect() as connection:
        return {
            (row.queue, f"{row.epoch}-{row.seq}"): Interval(
                row.queue, float(row.after or 0), row.at_ms
            )
            for row in connection.execute(_GAPS)
        }


def read_cursors(database: Database) -> dict[str, tuple[int, int]]:
    """Return how far each queue is mirrored."""
    with database.readers.connect() as connection:
        return {
            row.queue: (row.epoch, row.seq)
            for row in connection.execute(_CURSORS)
            if row.epoch is not None
        }


def states_of(lines: Mapping[str, str]) -> dict[str, str]:
    """Return the state of each job from the job's state line."""
    return {job_id: str(State(line.split(" ", 1)[0])) for job_id, line in lines.items()}
