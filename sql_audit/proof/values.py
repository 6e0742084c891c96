"""I14, the values of kept results: what the log says of them is true of itself, and of what Redis keeps.

The event that ended a job last names its claim, and the digest of the value that the handler returned. Redis keeps that
value under the job's id, with the same claim. So four lies show: another value, the value of a job that did not
succeed, the value of the job that had the id before, and the value of a claim that was another job's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, bindparam, text

from rq_core.doctor.kept import End, wrong_outcome, wrong_value
from rq_core.doctor.view import View
from rq_core.model.effects import JOB_ENDS
from rq_core.model.events import OutboxId
from rq_core.model.machine import Event
from rq_core.model.names import digest_of
from rq_core.model.remembered import Result, read_result
from sql_audit.mirror.unseen import Places
from sql_audit.proof.details import facts_in
from sql_audit.proof.log import LAST_PRUNE
from sql_audit.store import orphans
from sql_audit.store.tables import QUARANTINED

IDS_CHUNK: Final = 500
"""Jobs that one statement reads."""
_ENDS: Final = text(
    # See refold: the cast keeps SQLite from reading all of the queue's events.
    "SELECT job_id, epoch, seq, type, at_ms, detail FROM job_event"
    " WHERE CAST(queue AS TEXT) = :queue AND job_id IN :ids"
    " AND type IN :types AND (epoch < :epoch OR epoch = :epoch AND seq <= :seq) ORDER BY epoch, seq, ordinal"
).bindparams(bindparam("ids", expanding=True), bindparam("types", expanding=True))
_ENTRY: Final = text(
    "SELECT type, job_id FROM job_event WHERE queue = :queue AND epoch = :epoch AND seq = :seq"
)


class _Mirrored(NamedTuple):
    """How a job left Redis, as SQL has it."""

    end: End
    at: OutboxId
    at_ms: int


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


def unlike(connection: Connection, queue: str, redis: View) -> Iterator[tuple[str, str]]:
    """The ids of which Redis keeps another result than that of their last job by the log, each with what is wrong.

    ``redis`` was read before; what SQL has by now of later entries is passed over. Nothing is said of a result that may
    be of a job which the log was never told of.
    """
    entries = [OutboxId.parse(at) for at, _ in redis.snapshot["outbox"]]
    if not entries:
        return
    kept = [
        result
        for job_id, line in sorted(redis.snapshot["results"].items())
        if (result := read_result(job_id, line)).until_ms is not None and job_id not in redis.jobs
    ]
    log, newest = _Log(connection, queue, redis), redis.log.ends
    for n in range(0, len(kept), IDS_CHUNK):
        chunk = kept[n : n + IDS_CHUNK]
        ids = [result.id for result in chunk if result.id not in newest]
        ends = log.ends(ids, max(entries))
        for result in chunk:
            mirrored = ends.get(result.id)
            end = newest.get(result.id) if mirrored is None else mirrored.end
            if end is None:
                if log.gives_to_others(result):
                    says = f"the result of claim {result.fence} is kept, and by the log that is not its claim"
                    yield result.id, says
                continue
            value = redis.snapshot["returned"].get(result.id)
            wrong = wrong_outcome(result, end) or wrong_value(result, value, end)
            if wrong is not None and not (mirrored and log.may_lack_its_end(result, mirrored)):
                yield result.id, wrong


def _claim_of(result: Result) -> OutboxId | None:
    """The entry of the claim that a result names; None if no script can have given it."""
    try:
        claim = OutboxId.parse(result.fence or "")
    except ValueError:
        return None
    return claim if claim.is_given else None


class _Log:
    """What SQL has of jobs whose results are kept."""

    def __init__(self, connection: Connection, queue: str, redis: View) -> None:
        self._connection = connection
        self._queue = queue
        self._will_lack = bool(redis.log.gaps)
        """Whether entries are missing that SQL does not have yet."""
        self._orphaned = orphans.ranges(connection, queue)
        cut = connection.execute(LAST_PRUNE, {"queue": queue}).one_or_none()
        self._pruned_to = OutboxId(0, -1) if cut is None else OutboxId(cut.epoch, cut.seq)

    @cached_property
    def _places(self) -> Places:
        return Places(self._connection, self._queue)

    def _may_lack(self, job_id: str, at: OutboxId) -> bool:
        """Whether SQL may have missed events of an id behind an entry."""
        return self._will_lack or self._places.of(job_id, at) is not None

    def may_lack_its_end(self, result: Result, mirrored: _Mirrored) -> bool:
        """Whether a result may be of another job of its id, which ended unseen behind this end: its claim, or else its
        time, lies behind it, too.
        """
        claim = _claim_of(result)
        if claim is None:
            is_later = result.fence is None and (result.at_ms or 0) >= mirrored.at_ms
        else:
            is_later = claim > mirrored.at
        return is_later and self._may_lack(result.id, mirrored.at)

    def ends(self, ids: Sequence[str], upto: OutboxId) -> dict[str, _Mirrored]:
        """How jobs of these ids last ended, up to an entry, without what Redis forgot."""
        if not ids:
            return {}
        asked = {
            "queue": self._queue, "ids": ids, "types": [*map(str, JOB_ENDS)], "epoch": upto.epoch, "seq": upto.seq,
        }  # fmt: skip
        found: dict[str, _Mirrored] = {}
        for job_id, epoch, seq, kind, at_ms, detail in self._connection.execute(_ENDS, asked):
            at = OutboxId(epoch, seq)
            if not orphans.in_any(at, self._orphaned):
                found[job_id] = _Mirrored(End.of(Event(kind), facts_in(detail)), at, at_ms)
        return found

    def gives_to_others(self, result: Result) -> bool:
        """Whether SQL has the entry of the claim that a result names, and it does not name the result's id.

        Not if a prune may have removed the part of its job, if another entry may have had that number (Redis forgot
        one of them, or one is in quarantine), or if entries are missing behind it.
        """
        claim = _claim_of(result)
        if claim is None or claim <= self._pruned_to or orphans.in_any(claim, self._orphaned):
            return False
        asked = {"queue": self._queue, "epoch": claim.epoch, "seq": claim.seq}
        told = [tuple(row) for row in self._connection.execute(_ENTRY, asked)]
        if not told or (str(Event.CLAIMED), result.id) in told:
            return False
        doubtful = any(kind == QUARANTINED for kind, _ in told)
        return not doubtful and not self._may_lack(result.id, claim)
