"""I14, the values of kept results: what the log says of them is true of itself, and of what Redis keeps.

The event that ended a job last names its claim, and the digest of the value that the handler returned. Redis keeps that
value under the job's id, with the same claim. So three lies show: another value, the value of a job that did not
succeed, and the value of the job that had the id before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, bindparam, text

from rq_core.doctor.kept import End, wrong_outcome, wrong_value
from rq_core.doctor.view import View
from rq_core.model.effects import JOB_ENDS
from rq_core.model.events import OutboxId
from rq_core.model.machine import Event
from rq_core.model.names import digest_of
from rq_core.model.remembered import read_result
from sql_audit.proof.details import facts_in
from sql_audit.store import orphans

IDS_CHUNK: Final = 500
"""Jobs that one statement reads."""
_ENDS: Final = text(
    # See refold: the cast keeps SQLite from reading all of the queue's events.
    "SELECT job_id, epoch, seq, type, detail FROM job_event WHERE CAST(queue AS TEXT) = :queue AND job_id IN :ids"
    " AND type IN :types AND (epoch < :epoch OR epoch = :epoch AND seq <= :seq) ORDER BY epoch, seq, ordinal"
).bindparams(bindparam("ids", expanding=True), bindparam("types", expanding=True))


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

    ``redis`` was read before; what SQL has by now of later entries is passed over.
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
    for n in range(0, len(kept), IDS_CHUNK):
        chunk = kept[n : n + IDS_CHUNK]
        ids = [result.id for result in chunk if result.id not in newest]
        ends = _ends(connection, queue, ids, max(entries), orphaned) | newest
        for result in chunk:
            if (end := ends.get(result.id)) is None:
                continue
            value = redis.snapshot["returned"].get(result.id)
            says = wrong_outcome(result, end) or wrong_value(result, value, end)
            if says is not None:
                yield result.id, says


def _ends(
    connection: Connection,
    queue: str,
    ids: Sequence[str],
    upto: OutboxId,
    orphaned: Sequence[orphans.Range],
) -> dict[str, End]:
    """How jobs of these ids last ended, up to an entry, without what Redis forgot."""
    if not ids:
        return {}
    asked = {
        "queue": queue, "ids": ids, "types": [*map(str, JOB_ENDS)], "epoch": upto.epoch, "seq": upto.seq,
    }  # fmt: skip
    found: dict[str, End] = {}
    for job_id, epoch, seq, kind, detail in connection.execute(_ENDS, asked):
        if not orphans.in_any(OutboxId(epoch, seq), orphaned):
            found[job_id] = End.of(Event(kind), facts_in(detail))
    return found
