"""Changes an audit database as an attacker with all rights could. The schema stays the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import Connection, text

from sql_audit.proof.log import LAST_PRUNE
from sql_audit.store.chain import Link, found_digest, genesis, rows_digest
from sql_audit.store.connection.copy import copy_text
from sql_audit.store.connection.database import Database
from sql_audit.store.connection.statements import CHAIN_ID
from tests.kit import auditlog


@contextlib.contextmanager
def lying(database: Database) -> Iterator[Connection]:
    """Yield a transaction in which no trigger refuses a change. On SQLite, no CHECK refuses one either."""
    with database.writing(wait=True) as connection:
        assert connection is not None
        if database.dialect == "postgresql":
            connection.execute(text("SET LOCAL session_replication_role = replica"))
            yield connection
            connection.commit()
            return
        connection.exec_driver_sql("PRAGMA ignore_check_constraints = ON")
        triggers = connection.exec_driver_sql(
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' ORDER BY rowid"
        ).all()
        try:
            for name, _ in triggers:
                connection.exec_driver_sql(f"DROP TRIGGER {name}")
            yield connection
            for _, sql in triggers:
                connection.exec_driver_sql(sql)
            connection.commit()
        finally:
            connection.exec_driver_sql("PRAGMA ignore_check_constraints = OFF")


def forge_chain(database: Database) -> None:
    """Compute the chain and the cursor of each queue again from its rows, as an attacker could."""
    with database.readers.connect() as connection:
        chain_id = connection.execute(CHAIN_ID).scalar_one()
        batches: dict[str, list[Link]] = {}
        cuts = {}
        for cursor in connection.execute(text("SELECT queue FROM mirror_cursor")).scalars().all():
            of_queue = {"queue": cursor}
            cuts[cursor] = connection.execute(LAST_PRUNE, of_queue).one_or_none()
            rows = connection.execute(_BATCHES, of_queue).mappings().all()
            batches[cursor] = [Link.of(row) for row in rows]
    changed: list[tuple[str, dict[str, Any]]] = []
    for queue, links in batches.items():
        log, cut = auditlog.events(database, queue), cuts[queue]
        head = genesis(chain_id, queue) if cut is None else cut.head
        sums = [0, 0] if cut is None else [cut.through_entries, cut.through_events]
        for link in links:
            mine = auditlog.rows_of(link.row, log) if link.entries else []
            with database.readers.connect() as connection:
                found = found_digest(connection, queue, link.batch)
            digest = rows_digest(copy_text(mine))
            forged = link._replace(prev=head, events=len(mine), digest=digest, found=found)
            head = forged.head
            sums = [sums[0] + link.entries, sums[1] + len(mine)]
            changed.append((_FORGE_BATCH, forged.row))
        counted = {"queue": queue, "head": head, "entries": sums[0], "events": sums[1]}
        changed.append((_FORGE_CURSOR, counted))
    with lying(database) as connection:
        for statement, values in changed:
            connection.execute(text(statement), values)


_BATCHES: Final = text("SELECT * FROM mirror_batch WHERE queue = :queue ORDER BY batch")
_FORGE_BATCH: Final = (
    "UPDATE mirror_batch SET prev = :prev, events = :events, digest = :digest, found = :found, head = :head "
    "WHERE queue = :queue AND batch = :batch"
)
_FORGE_CURSOR: Final = (
    "UPDATE mirror_cursor SET head = :head, entries = :entries, events = :events, gaps = (SELECT COUNT(*) "
    "FROM mirror_epoch e WHERE e.queue = :queue AND e.kind IN ('gap', 'changed', 'lost')) WHERE queue = :queue"
)
