"""Finds jobs that may have more events than SQL has: after the job's last event in SQL there is a gap, or a quarantined
entry that names the job.

If Redis lacks such a job, the job need not be lost, since it may have ended in the missing events. If Redis and SQL
have different ends of such a job, both may be true, since another job may have had the same id in the missing events.
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
    # Of the quarantined jobs of one entry, the first has the entry's bytes.
    "SELECT epoch, seq, raw FROM quarantine WHERE queue = :queue AND LENGTH(raw) > 0 ORDER BY epoch, seq"
)


_WORD: Final = re.compile("[A-Za-z0-9_.:-]+")
"""Matches words that may be ids. Most ids are one such word; other ids are searched for as a part of the text."""


class Places:
    """A queue's gaps and quarantined entries, in which a job may have ended without an event in SQL."""

    def __init__(self, connection: Connection, queue: str) -> None:
        self._gaps = gaps(connection, queue)
        self._quarantine = [
            (at := OutboxId(row.epoch, row.seq), "".join(_unpacked(row.raw, queue, at).values()))
            for row in connection.execute(_QUARANTINE, {"queue": queue})
        ]

    @cached_property
    def _by_word(self) -> dict[str, list[OutboxId]]:
        """An index of the quarantined entries: for each word, the numbers of the entries that contain it, in order.
        Without the index, look-ups would be slow: callers ask for thousands of jobs, and an entry may name
        thousands."""
        found: defaultdict[str, list[OutboxId]] = defaultdict(list)
        for at, told in self._quarantine:
            for word in set(_WORD.findall(told)):
                found[word].append(at)
        return found

    def _naming(self, job_id: str) -> list[OutboxId]:
        """Return the numbers of the quarantined entries that name a job, in order."""
        if _WORD.fullmatch(job_id):
            return self._by_word.get(job_id, [])
        return [at for at, told in self._quarantine if job_id in told]

    def of(self, job_id: str, last: OutboxId) -> str | None:
        """Return a sentence that names the gap or quarantined entry in which a job may have ended. ``last`` is the
        entry of the job's last event in SQL. Return None if no such gap or entry follows it."""
        gap = first_gap_after(self._gaps, last)
        if gap is not None:
            return f"its end may lie in the gap before {gap.at}"
        at = self.unread(job_id, last)
        return at and f"its end may lie in entry {at}, which is in quarantine"

    def unread(self, job_id: str, last: OutboxId) -> OutboxId | None:
        """Return the number of the first quarantined entry after ``last`` that names the job, or None."""
        return next((at for at in self._naming(job_id) if at > last), None)


def _unpacked(raw: bytes, queue: str, at: OutboxId) -> dict[str, str]:
    try:
        return unpack_entry(bytes(raw))
    except (ValueError, TypeError, RecursionError) as error:
        raise RowDamaged(queue=queue, number=str(at), part="quarantined entry") from error
