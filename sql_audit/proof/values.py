"""I14, the values of kept results: what the log says of them is true of itself, and of what Redis keeps.

The event that ended a job last names its claim, and the digest of the value that the handler returned. Redis keeps that
value under the job's id, with the same claim. So three lies show: another value, the value of a job that did not
succeed, and the value of the job that had the id before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from sql_audit.store import orphans

IDS_CHUNK: Final = 500
"""Jobs that one statement reads."""
_ENDS: Final = text(
    # See refold: the cast keeps SQLite from reading all of the queue's events.
    "SELECT job_id, epoch, seq, type, at_ms, detail FROM job_event"
    " WHERE CAST(queue AS TEXT) = :queue AND job_id IN :ids"
    " AND type IN :types AND (epoch < :epoch OR epoch = :epoch AND seq <= :seq) ORDER BY epoch, seq, ordinal"
).bindparams(bindparam("ids", expanding=True), bindparam("types", expanding=True))


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
    orphaned = orphans.ranges(connection, queue)
    newest = redis.log.ends
    places: Places | None = None
    for n in range(0, len(kept), IDS_CHUNK):
        chunk = kept[n : n + IDS_CHUNK]
        ids = [result.id for result in chunk if result.id not in newest]
        ends = _ends(connection, queue, ids, max(entries), orphaned)
        for result in chunk:
            mirrored = ends.get(result.id)
            end = newest.get(result.id) if mirrored is None else mirrored.end
            if end is None:
                continue
            value = redis.snapshot["returned"].get(result.id)
            says = wrong_outcome(result, end) or wrong_value(result, value, end)
            if says is None:
                continue
            if mirrored is not None and _is_later(result, mirrored):
                places = places or Places(connection, queue)
                if redis.log.gaps or places.of(result.id, mirrored.at) is not None:
                    continue
            yield result.id, says


def _is_later(result: Result, mirrored: _Mirrored) -> bool:
    """Whether a result says that it is of a claim, or a moment, behind an end: of another job of the id, then."""
    if result.fence is None:
        return result.at_ms is not None and result.at_ms >= mirrored.at_ms
    try:
        return OutboxId.parse(result.fence) > mirrored.at
    except ValueError:
        return False


def _ends(
    connection: Connection,
    queue: str,
    ids: Sequence[str],
    upto: OutboxId,
    orphaned: Sequence[orphans.Range],
) -> dict[str, _Mirrored]:
    """How jobs of these ids last ended, up to an entry, without what Redis forgot."""
    if not ids:
        return {}
    asked = {
        "queue": queue, "ids": ids, "types": [*map(str, JOB_ENDS)], "epoch": upto.epoch, "seq": upto.seq,
    }  # fmt: skip
    found: dict[str, _Mirrored] = {}
    for job_id, epoch, seq, kind, at_ms, detail in connection.execute(_ENDS, asked):
        at = OutboxId(epoch, seq)
        if not orphans.in_any(at, orphaned):
            found[job_id] = _Mirrored(End.of(Event(kind), facts_in(detail)), at, at_ms)
    return found
