"""Jobs whose end SQL may have missed: behind a job's last event lies a gap, or an entry in quarantine that names it.

That Redis lacks such a job does not show that it was lost: it may have run to its end.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, text

from rq_core.model.events import OutboxId
from sql_audit.store.gaps import gaps, restated, since
from sql_audit.store.tables import GONE

_GONE: Final = text(
    "SELECT job_id FROM job WHERE queue = :queue AND state = :gone AND last_epoch >= :known "
    "AND (last_epoch, last_seq) < (:epoch, :seq) "
    "ORDER BY seq IS NULL, seq, enqueued_at_ms, job_id"
)
_QUARANTINE: Final = text(
    "SELECT epoch, seq, raw FROM quarantine WHERE queue = :queue ORDER BY epoch, seq"
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


class Places:
    """Where the end of a queue's jobs may lie unseen."""

    def __init__(self, connection: Connection, queue: str) -> None:
        self._gaps = gaps(connection, queue)
        self._quarantine = [
            (OutboxId(row.epoch, row.seq), bytes(row.raw))
            for row in connection.execute(_QUARANTINE, {"queue": queue})
        ]

    def of(self, job_id: str, last: OutboxId) -> str | None:
        """Where the end of a job may lie whose last event is in the entry ``last``; None if it lies nowhere."""
        gap = since(self._gaps, last)
        if gap is not None:
            return f"its end may lie in the gap before {gap.at}"
        name = job_id.encode()
        for at, raw in self._quarantine:
            if at > last and name in raw:
                return f"its end may lie in entry {at}, which is in quarantine"
        return None
