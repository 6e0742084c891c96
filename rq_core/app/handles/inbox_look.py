"""Looks for jobs in an inbox, a table of jobs in the user's database. A thread reads the database, so a database that
does not answer blocks no caller."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from rq_core.app.handles.log_reader import LogReading
from rq_core.model import plugins


def begin_look(
    inbox_url: str, queue: str, ids: Sequence[str], notify: Callable[[], None]
) -> LogReading:
    """Begin, in another thread, to look for the rows of jobs in the inbox, a table in the user's database. The thread
    calls ``notify`` when the read is done.

    Raises RuntimeError if the process can start no thread.
    """
    reading = LogReading()

    def look() -> None:
        try:
            reading.end(plugins.inbox_finder()(inbox_url, queue, ids))
        except Exception as error:  # noqa: BLE001 - it is raised where the look was begun
            reading.end(error=error)
        notify()

    threading.Thread(target=look, name="rq-core-inbox-look", daemon=True).start()
    return reading
