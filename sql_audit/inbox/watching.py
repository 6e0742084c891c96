"""Reads the state of an inbox for metrics, for ``rq-core top`` and for the web page."""

from __future__ import annotations

import threading
from typing import Any, Final

from rq_core.model.plugins import InboxFinding, InboxOverview, InboxQueue
from rq_core.protocol.reads.overview import QUEUES_MAX
from sql_audit.inbox.admin import look
from sql_audit.inbox.session import Session, require_tables

ROWS_MAX: Final = 10_000
"""Maximum number of rows of a queue that one read counts. There may be a read each second."""
PARKED_MAX: Final = 100
"""Maximum number of parked rows of a queue that one read counts. Parked rows may stay for ever, so they must not make a
read slower. ``rq-core inbox status`` counts more."""


class InboxWatch:
    """Reads one inbox. Threads may share the object. See rq_core.model.plugins.InboxReader."""

    def __init__(self, url: str) -> None:
        """Prepare the reader; nothing is read yet. Raise InboxUrlInvalid if ``url`` is not valid, and InboxUnavailable
        if the driver is not installed.
        """
        self._session = Session(url, writes=False)
        self._lock = threading.Lock()
        self._checked = False

    def look(self) -> InboxOverview:
        """Return the state of the inbox: its queues, with the numbers of their rows.

        Raise InboxMissing if the tables are missing, and InboxRefused or InboxUnavailable for an error of the driver.
        """
        with self._lock:
            try:
                if not self._checked:
                    require_tables(self._session)
                    self._checked = True
                found = look(
                    self._session,
                    rows_max=ROWS_MAX,
                    parked_max=PARKED_MAX,
                    queues_max=QUEUES_MAX,
                )
            finally:
                if self._session.engine.dialect.name == "sqlite":
                    # The next look opens the file that the path names then.
                    self._session.close()
        queues = (
            InboxQueue(
                queue=each.queue,
                rows=each.rows,
                rows_exact=each.rows < ROWS_MAX,
                oldest_ms=each.oldest_ms,
                parked=each.parked,
                parked_exact=each.parked < PARKED_MAX,
                relayed=each.relayed,
                sent_ms=each.sent_ms,
                damage=each.damage,
            )
            for each in found.queues
        )
        return InboxOverview(tuple(queues), found.left_out)

    def examine(self, client: Any) -> list[InboxFinding]:
        """Return a finding for everything that is wrong with the inbox. See rq_core.model.plugins.InboxReader."""
        from sql_audit.inbox.doctor import examine_inbox

        with self._lock:
            return examine_inbox(self._session, client)

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            self._session.close()


def open_inbox_reader(url: str) -> InboxWatch:
    """Return a reader of the inbox in the database at ``url``. rq_core finds this function by an entry point.

    Nothing is read yet. Raise InboxUrlInvalid, or InboxUnavailable if the driver is not installed.
    """
    return InboxWatch(url)
