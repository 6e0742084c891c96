"""I14, the values of kept results: what the log says of them is true of itself, and of what Redis keeps.

The event that ended a job last names its claim, and the digest of the value that the handler returned. Redis keeps that
value under the job's id, with the same claim. So four lies show: another value, the value of a job that did not
succeed, the value of the job that had the id before, and the value of a claim that was another job's. What else the
line says, and what ids are remembered, follows from the events with which the job began and ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, text

from rq_core.doctor.kept import claim_of, is_later
from rq_core.doctor.kept import faults as faults_of
from rq_core.doctor.view import View
from rq_core.model.ends import End, Lives
from rq_core.model.machine import Event
from rq_core.model.names import digest_of
from rq_core.model.remembered import SAME, Result, read_result
from sql_audit.proof.lives import IDS_CHUNK, Told
from sql_audit.proof.whole import Since, pruned_to, whole_since
from sql_audit.store import orphans
from sql_audit.store.tables import QUARANTINED

_ENTRY: Final = text(
    "SELECT type, job_id FROM job_event WHERE queue = :queue AND epoch = :epoch AND seq = :seq"
)


class Unlike(NamedTuple):
    """What Redis keeps of an id that is not as the log has it."""

    id: str
    says: str
    line: str
    end: End | None
    """How the id's last job ended; None: no job of it can have left the line."""
    mendable: bool = True
    """Whether nothing that may be true is lost if the line becomes what the log says, or goes."""


def faults(facts: Mapping[str, Any], *, is_kept: bool | None) -> Iterator[str]:
    """What is wrong with what an event ``succeeded`` says of a value. ``is_kept``: whether the job's result is kept;
    None: that is not known."""
    digest, value = facts.get("value_digest"), facts.get("value")
    if digest is None and value is None:
        return
    if is_kept is False:
        yield "tells a value, and the job keeps no result"
    if value is not None and digest_of(value) != digest:
        yield f"its value has another digest than {digest}"


def unlike(connection: Connection, queue: str, redis: View, told: Told) -> Iterator[Unlike]:
    """The ids of which Redis keeps another result than that of their last job by the log, or remembers them otherwise.

    ``redis`` was read before; ``told`` tells of the queue's jobs up to then. Nothing is said of a line that may be of a
    job which the log was never told of.
    """
    if not redis.snapshot["outbox"]:
        return
    lines = redis.snapshot["results"]
    ids = sorted(lines.keys() - redis.jobs.keys() - redis.snapshot["jobs"].keys())
    log = _Log(connection, queue, redis, told)
    for n in range(0, len(ids), IDS_CHUNK):
        chunk = ids[n : n + IDS_CHUNK]
        lives = told.lives([i for i in chunk if not log.is_told_by_outbox(i)])
        for job_id in chunk:
            found = log.judge(job_id, lines[job_id], lives)
            if found is not None:
                yield found


class _Log:
    """What is told of jobs whose ids are remembered, or whose results are kept."""

    def __init__(self, connection: Connection, queue: str, redis: View, told: Told) -> None:
        self._told = told
        self._connection = connection
        self._queue = queue
        self._redis = redis
        self._pruned_to = pruned_to(connection, queue)

    @cached_property
    def _whole(self) -> Since | None:
        return None if self._redis.log.gaps else whole_since(self._connection, self._queue)

    def is_told_by_outbox(self, job_id: str) -> bool:
        """Whether the outbox has all of the last job of an id."""
        end = self._redis.log.ends.get(job_id)
        return end is not None and end.asked is not None

    def judge(self, job_id: str, line: str, lives: Lives) -> Unlike | None:
        """Say what is wrong with a line of ``results``; None: nothing that is known."""
        result = read_result(job_id, line)
        newest, end = self._redis.log.ends.get(job_id), lives.ends.get(job_id)
        if newest is not None and (end is None or end.at != newest.at):
            end = newest._replace(is_last=self._told.is_last(job_id, newest))
        if end is None:
            return self._of_nobody(result, line, lives)
        if newest is None and self._may_lack_its_end(result, end):
            return None
        value = self._redis.snapshot["returned"].get(job_id)
        wrong = faults_of(line, result, value, end)
        return Unlike(job_id, "; ".join(wrong), line, end) if wrong else None

    def _may_lack_its_end(self, result: Result, end: End) -> bool:
        """Whether a line may be of another job of its id, which ended unseen behind this end: its claim, or else its
        time, lies behind it, too.
        """
        same_ms = result.fence is None and result.at_ms == end.at_ms
        return (same_ms or is_later(result, end)) and self._told.may_lack(result.id, end.at)

    def _of_nobody(self, result: Result, line: str, lives: Lives) -> Unlike | None:
        """Say what is wrong with a line of an id no job of which ended, by the log."""
        if result.outcome == SAME and result.until_ms is None:
            return None  # Such a call is no event.
        is_made_up = self._is_made_up(result, lives)
        if self._gives_to_others(result):
            says = (
                f"the result of claim {result.fence} is kept, and by the log that is not its claim"
            )
            mendable = is_made_up or result.once_ms is None
            if not mendable:
                # Of a job that a prune has removed, only the claim may be false. Without the line, its id is free.
                says += "; whether its id is to be remembered cannot be told, so it stays"
            return Unlike(result.id, says, line, None, mendable)
        if is_made_up:
            says = f"kept as {result.outcome}, and by the log no job of this id has ended"
            return Unlike(result.id, says, line, None)
        return None

    def _is_made_up(self, result: Result, lives: Lives) -> bool:
        """Whether the log would have the end of the job that left this line. A job that lives by the log may be one
        that is lost, and a restore remembers the ids of such jobs, in lines without ``until``."""
        whole, claim = self._whole, claim_of(result)
        if whole is None or (result.id in lives.records and result.until_ms is None):
            return False
        return (result.at_ms or 0) > whole.at_ms and (claim is None or claim > whole.at)

    def _gives_to_others(self, result: Result) -> bool:
        """Whether SQL has the entry of the claim that a result names, and it does not name the result's id.

        Not if a prune may have removed the part of its job, if another entry may have had that number (Redis forgot
        one of them, or one is in quarantine), or if entries are missing behind it.
        """
        claim = claim_of(result)
        if claim is None or claim <= self._pruned_to or orphans.in_any(claim, self._told.orphaned):
            return False
        asked = {"queue": self._queue, "epoch": claim.epoch, "seq": claim.seq}
        told = [tuple(row) for row in self._connection.execute(_ENTRY, asked)]
        if not told or (str(Event.CLAIMED), result.id) in told:
            return False
        doubtful = any(kind == QUARANTINED for kind, _ in told)
        return not doubtful and not self._told.may_lack(result.id, claim)
