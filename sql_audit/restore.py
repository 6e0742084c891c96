"""What a loss left to be done: jobs that SQL knows and Redis does not, and jobs that came back to life.

    for job in survey(client, database, "mail").lost:
        print(job.job_id, job.was)

It only looks. To enqueue a lost job again takes its arguments, and SQL has a digest of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import text

from rq_core.client import Client
from rq_core.keys import queue_keys
from rq_core.machine import State
from sql_audit.database import Database

CHUNK: Final = 1_000
"""Jobs that Redis is asked about at once."""

_LIVE: Final = ", ".join(repr(str(state)) for state in State)

_LOST: Final = text(
    "SELECT job_id, task, state, reason, digest, enqueued_at_ms FROM job "  # noqa: S608 - states
    f"WHERE queue = :queue AND state IN ('lost', {_LIVE}) ORDER BY enqueued_at_ms, job_id"
)
_FINISHED: Final = text(
    "SELECT job_id, type, epoch, seq, at_ms FROM job_event_orphaned WHERE queue = :queue "
    "AND type IN ('succeeded', 'cancelled', 'pruned') ORDER BY epoch, seq, ordinal"
)
_REFUSED: Final = text(
    "SELECT job_id, detail FROM job_event WHERE queue = :queue AND type = 'settlement_refused' "
    "AND job_id IN (SELECT job_id FROM job WHERE queue = :queue AND state = 'lost')"
)


@dataclass(frozen=True, slots=True)
class LostJob:
    """A job that SQL knows as live or lost, and that Redis does not have."""

    job_id: str
    task: str | None
    was: str
    """The state that it was in when it was last heard of."""
    enqueued_at_ms: int | None
    digest: str | None
    finished: str | None
    """The event that ended it in what Redis forgot, if one did: then it needs no other run."""
    ran_on: bool
    """A worker went on with it and was refused when it reported how that ended."""


@dataclass(frozen=True, slots=True)
class RevivedJob:
    """A job that SQL saw finish, and that Redis, which forgot it, has alive: it will run again."""

    job_id: str
    finished: str
    """The event that ended it."""
    number: str
    """The outbox id of that event's entry."""
    state: str
    """Where it stands in Redis now."""


@dataclass(slots=True)
class Survey:
    """What :func:`survey` found."""

    lost: list[LostJob] = field(default_factory=list)
    revived: list[RevivedJob] = field(default_factory=list)


def survey(client: Client, database: Database, queue: str) -> Survey:
    """Compare what SQL knows of a queue's jobs with what Redis has now.

    A job that was enqueued or ended since the last mirrored entry may be missing, or be one too many:
    ask when the mirror is level. Raises what Redis and SQL raise when they do not answer.
    """
    of_queue = {"queue": queue}
    with database.readers.connect() as connection:
        known = connection.execute(_LOST, of_queue).all()
        ended = {row.job_id: row for row in connection.execute(_FINISHED, of_queue)}
        refused = {row.job_id for row in connection.execute(_REFUSED, of_queue)}
    found = Survey()
    lines = dict(_lines(client, queue, [row.job_id for row in known]))
    for row in known:
        if lines[row.job_id] is None:
            end = ended.get(row.job_id)
            was = row.reason if row.state == "lost" else row.state
            finished = None if end is None else str(end.type)
            job = row.job_id, row.task, was or "unknown", row.enqueued_at_ms, row.digest
            found.lost.append(LostJob(*job, finished, row.job_id in refused))
    for job_id, line in _lines(client, queue, list(ended)):
        if line is not None:
            end = ended[job_id]
            number = f"{end.epoch}-{end.seq}"
            found.revived.append(RevivedJob(job_id, end.type, number, line.partition(" ")[0]))
    return found


def _lines(client: Client, queue: str, ids: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Jobs and their state lines in Redis, None for those that it does not have."""
    operations = client.operations
    key = queue_keys(queue, operations.prefix)("state")
    for begin in range(0, len(ids), CHUNK):
        chunk = ids[begin : begin + CHUNK]
        replies: list[Any] = client.run(operations.ask([["HMGET", key, *chunk]], queue))
        yield from zip(chunk, replies[0], strict=True)
