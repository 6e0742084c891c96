"""Finds jobs that may have ended without an event in SQL.

After the last event of such a job comes a gap in the log, or a quarantined entry that has the job's id.

If Redis lacks the job, the job need not be lost: it may have ended in the gap. If Redis and SQL record different ends,
both may be true: in the gap, another job may have had the same id.
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
"""Matches words that may be job ids. Most ids are one such word. For any other id, the whole text is searched."""


class Places:
    """The gaps and the quarantined entries of a queue's log, where a job may have ended without an event in SQL."""

    def __init__(self, connection: Connection, queue: str) -> None:
        self._gaps = gaps(connection, queue)
        self._quarantine = [
            (at := OutboxId(row.epoch, row.seq), "".join(_unpacked(row.raw, queue, at).values()))
            for row in connection.execute(_QUARANTINE, {"queue": queue})
        ]

    @cached_property
    def _by_word(self) -> dict[str, list[OutboxId]]:
        """An index of the quarantined entries: from each word to the entries that contain the word, in order.

        The index makes it fast to look up thousands of jobs in entries that name thousands.
        """
        found: defaultdict[str, list[OutboxId]] = defaultdict(list)
        for at, told in self._quarantine:
            for word in set(_WORD.findall(told)):
                found[word].append(at)
        return found

    def _naming(self, job_id: str) -> list[OutboxId]:
        """Return the numbers of the quarantined entries that contain a job's id, in order."""
        if _WORD.fullmatch(job_id):
            return self._by_word.get(job_id, [])
        return [at for at, told in self._quarantine if job_id in told]

    def of(self, job_id: str, last: OutboxId) -> str | None:
        """Return a sentence that names where a job may have ended without an event in SQL: a gap or a quarantined
        entry.

        ``last`` is the entry of the job's last event in SQL. Return None if neither a gap nor a quarantined entry with
        the job's id comes after ``last``.
        """
        gap = first_gap_after(self._gaps, last)
        if gap is not None:
            return f"its end may lie in the gap before {gap.at}"
        at = self.unread(job_id, last)
        return at and f"its end may lie in entry {at}, which is in quarantine"

    def unread(self, job_id: str, last: OutboxId) -> OutboxId | None:
        """Return the first quarantined entry after ``last`` that contains the job's id, or None."""
        return next((at for at in self._naming(job_id) if at > last), None)


def _unpacked(raw: bytes, queue: str, at: OutboxId) -> dict[str, str]:
    try:
        return unpack_entry(bytes(raw))
    except (ValueError, TypeError, RecursionError) as error:
        raise RowDamaged(queue=queue, number=str(at), part="quarantined entry") from error
