"""Events of a job that SQL may lack: after an event of it lies a gap, or an entry in quarantine that names it.

That Redis lacks such a job does not show that it was lost, since it may have run to its end there; and that Redis has
another end of it than SQL shows no lie, since another job may have had its id there.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cached_property
from typing import Final

from sqlalchemy import Connection, text

from rq_core.model.events import OutboxId
from sql_audit.errors import RowDamaged
from sql_audit.mirror.intake import unpack_entry
from sql_audit.store.gaps import first_gap_after, gaps

_QUARANTINE: Final = text(
    # Of the jobs of one entry, the first has its bytes.
    "SELECT epoch, seq, raw FROM quarantine WHERE queue = :queue AND LENGTH(raw) > 0 ORDER BY epoch, seq"
)


_WORD: Final = re.compile("[A-Za-z0-9_.:-]+")
"""Ids are such words; those of foreign clients may not be, if they have 32 characters."""


class Places:
    """The places where a queue's jobs may have ended without an event in SQL."""

    def __init__(self, connection: Connection, queue: str) -> None:
        self._gaps = gaps(connection, queue)
        self._quarantine = [
            (at := OutboxId(row.epoch, row.seq), "".join(_unpacked(row.raw, queue, at).values()))
            for row in connection.execute(_QUARANTINE, {"queue": queue})
        ]

    @cached_property
    def _by_word(self) -> dict[str, list[OutboxId]]:
        """The entries that have a word, in order: thousands of jobs are asked for, and entries may name as many."""
        found: defaultdict[str, list[OutboxId]] = defaultdict(list)
        for at, told in self._quarantine:
            for word in set(_WORD.findall(told)):
                found[word].append(at)
        return found

    def _naming(self, job_id: str) -> list[OutboxId]:
        """The entries in quarantine that name a job, in order."""
        if _WORD.fullmatch(job_id):
            return self._by_word.get(job_id, [])
        return [at for at, told in self._quarantine if job_id in told]

    def of(self, job_id: str, last: OutboxId) -> str | None:
        """Return the place where a job whose last event is in the entry ``last`` may have ended; None if it cannot
        have."""
        gap = first_gap_after(self._gaps, last)
        if gap is not None:
            return f"its end may lie in the gap before {gap.at}"
        at = self.unread(job_id, last)
        return at and f"its end may lie in entry {at}, which is in quarantine"

    def unread(self, job_id: str, last: OutboxId) -> OutboxId | None:
        """Return the first entry in quarantine after ``last`` that names a job."""
        return next((at for at in self._naming(job_id) if at > last), None)


def _unpacked(raw: bytes, queue: str, at: OutboxId) -> dict[str, str]:
    try:
        return unpack_entry(bytes(raw))
    except (ValueError, TypeError, RecursionError) as error:
        raise RowDamaged(queue=queue, number=str(at), part="quarantined entry") from error
