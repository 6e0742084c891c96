"""From when on a log in SQL is whole, so that what is not in it did not happen."""

from __future__ import annotations

from typing import Final, NamedTuple

from sqlalchemy import Connection, text

from rq_core.model.events import OutboxId
from rq_core.model.reasons import Began
from sql_audit.proof.log import LAST_PRUNE

_FIRST: Final = text(
    "SELECT epoch, seq, at_ms FROM job_event WHERE queue = :queue ORDER BY epoch, seq, ordinal LIMIT 1"
)
_BREAKS: Final = tuple(
    text(statement)
    for statement in (
        "SELECT 1 FROM mirror_epoch WHERE queue = :queue AND (kind <> 'started' OR reason = :lost) LIMIT 1",
        "SELECT 1 FROM mirror_loss WHERE queue = :queue AND kind <> 'restated' LIMIT 1",
        "SELECT 1 FROM quarantine WHERE queue = :queue LIMIT 1",
        "SELECT 1 FROM mirror_prune WHERE queue = :queue LIMIT 1",
    )
)


class Since(NamedTuple):
    """Where a log begins of which nothing is missing."""

    at: OutboxId
    at_ms: int


def whole_since(connection: Connection, queue: str) -> Since | None:
    """The first entry of a log that has no gap, lost nothing and was never pruned; None if that is not so."""
    asked = {"queue": queue, "lost": str(Began.OUTBOX_LOST)}
    if any(connection.execute(each, asked).first() for each in _BREAKS):
        return None
    first = connection.execute(_FIRST, asked).one_or_none()
    return None if first is None else Since(OutboxId(first.epoch, first.seq), first.at_ms)


def pruned_to(connection: Connection, queue: str) -> OutboxId:
    """The last entry that a prune may have removed."""
    cut = connection.execute(LAST_PRUNE, {"queue": queue}).one_or_none()
    return OutboxId(0, -1) if cut is None else OutboxId(cut.epoch, cut.seq)
