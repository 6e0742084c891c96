"""Jobs that the baseline behind a gap did not name: each may have run to its end in the gap, or was lost there."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, text

from sql_audit.store.gaps import gaps, restated
from sql_audit.store.tables import GONE

_GONE: Final = text(
    "SELECT job_id FROM job WHERE queue = :queue AND state = :gone AND last_epoch >= :known "
    "AND (last_epoch, last_seq) < (:epoch, :seq) "
    "ORDER BY seq IS NULL, seq, enqueued_at_ms, job_id"
)


def ended_by_baselines(connection: Connection, queue: str) -> list[str]:
    """Ids of jobs that the baseline behind a gap did not name: they are gone, and nothing says whether they ran."""
    known = restated(connection, queue)
    found: dict[str, None] = {}
    for gap in gaps(connection, queue):
        if not gap.numbered:
            continue
        before = [epoch for epoch in known if epoch <= gap.at.epoch and (epoch, 0) < gap.at]
        values = {
            "queue": queue,
            "gone": GONE,
            "known": before[-1] if before else 0,
            "epoch": gap.at.epoch,
            "seq": gap.at.seq,
        }
        found.update(dict.fromkeys(connection.execute(_GONE, values).scalars()))
    return list(found)
