"""The three independent records that a chaos run is judged by, and how they are read.

What producers were told, what the jobs wrote themselves, and SQL; beside them which jobs Redis still has, and when
each fault was applied. All times are Unix milliseconds of one machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from sqlalchemy import text

from rq_core.machine import Event, State
from sql_audit.database import Database


class Line(NamedTuple):
    """What a job wrote."""

    what: str
    """start, end (it came to its end) or failed (it raised)."""
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
    """Of a lease that expired: what the job is then, ready or dead."""
    orphaned: bool = False
    """Redis forgot it, and the log says so."""


class Fault(NamedTuple):
    """One fault that was applied."""

    kind: str
    began_ms: float
    ended_ms: float


class Progress(NamedTuple):
    """At a moment: the last entry of a queue's outbox, and the last one that SQL has (epoch, number)."""

    at_ms: float
    queue: str
    written: tuple[int, int] | None
    """None: Redis did not answer, or has none."""
    mirrored: tuple[int, int] | None


@dataclass
class Records:
    """All that the judge may look at."""

    attempted: set[str] = field(default_factory=set)
    acknowledged: set[str] = field(default_factory=set)
    witness: list[Line] = field(default_factory=list)
    events: list[Logged] = field(default_factory=list)
    """In the log's order."""
    live: dict[str, str] = field(default_factory=dict)
    """The jobs that Redis has, with their states."""
    limits: Mapping[str, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)


def read_told(paths: Iterable[Path]) -> tuple[set[str], set[str]]:
    """The ids that producers attempted and those that were acknowledged to them."""
    said: dict[str, set[str]] = {"try": set(), "ack": set()}
    for path in paths:
        for line in path.read_text().splitlines():
            word, job_id = line.split(" ")
            said[word].add(job_id)
    return said["try"], said["ack"]


def read_witness(path: Path) -> list[Line]:
    if not path.exists():
        return []
    found: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    return [Line(**{**each, "scopes": tuple(each["scopes"])}) for each in found]


_ORDER: Final = "ORDER BY queue, epoch, seq, ordinal"
_EVENTS: Final = text(
    "SELECT queue, epoch, seq, ordinal, type, job_id, claim, at_ms, detail FROM job_event "
    f"WHERE job_id IS NOT NULL {_ORDER}"
)
_ORPHANED: Final = text("SELECT queue, epoch, seq, ordinal FROM job_event_orphaned")
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


def read_cursors(database: Database) -> dict[str, tuple[int, int]]:
    """How far each queue is mirrored."""
    with database.readers.connect() as connection:
        return {
            row.queue: (row.epoch, row.seq)
            for row in connection.execute(_CURSORS)
            if row.epoch is not None
        }


def states_of(lines: Mapping[str, str]) -> dict[str, str]:
    """The state of each job of a snapshot's state lines."""
    return {job_id: str(State(line.split(" ", 1)[0])) for job_id, line in lines.items()}
