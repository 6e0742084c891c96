"""Finds jobs that are still in an inbox, for the programs that enqueued them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rq_core.errors import InboxMissing
from sql_audit.errors import InboxRefused
from sql_audit.inbox.database import explaining, inbox_engine, inbox_url, shown
from sql_audit.inbox.schema import INBOX, PARKED, missing_tables

_IDS_MAX: Final = 500
"""Maximum number of ids in one statement."""


def find_in_inbox(url: str, queue: str, ids: Sequence[str]) -> dict[str, str]:
    """Return, by job id, the table that has the job's row: ``inbox`` or ``parked``. Jobs without a row are left out.

    Raise InboxUrlInvalid, InboxMissing, InboxRefused or InboxUnavailable.
    """
    address = inbox_url(url)
    engine = inbox_engine(address, writes=False)
    found: dict[str, str] = {}
    mark = "?" if engine.dialect.name == "sqlite" else "%s"
    try:
        with explaining(address), engine.connect() as connection:
            for at in range(0, len(ids), _IDS_MAX):
                some = tuple(ids[at : at + _IDS_MAX])
                marks = ", ".join([mark] * len(some))
                for table, state in ((PARKED, "parked"), (INBOX, "inbox")):
                    where = f"queue = {mark} AND job_id IN ({marks})"
                    rows = connection.exec_driver_sql(
                        f"SELECT job_id FROM {table} WHERE {where}",  # noqa: S608 - no value is in the text
                        (queue, *some),
                    )
                    found |= dict.fromkeys(rows.scalars(), state)
    except InboxRefused:
        with explaining(address), engine.connect() as connection:
            if missing_tables(connection):
                raise InboxMissing(url=shown(address)) from None
        raise
    finally:
        engine.dispose()
    return found
