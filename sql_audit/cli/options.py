"""The option ``--audit`` of the audit commands, and the database that the option names. Further options are in
rq_core.cli.options.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from rq_core.errors import AuditNotConfigured
from rq_core.model.lib.url import AUDIT_URL_VARIABLE
from sql_audit.errors import NothingMirrored, QueueNotMirrored

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from sql_audit.queries.history import Watermark
    from sql_audit.store.connection.database import Database

audit_option = click.option(
    "--audit",
    "url",
    envvar=AUDIT_URL_VARIABLE,
    show_envvar=True,
    metavar="URL",
    help="The audit database: a path, sqlite:///path or postgresql://user@host/database.",
)


def required(url: str | None) -> str:
    """Return the database's URL. Raises AuditNotConfigured if none is given."""
    if not url:
        raise AuditNotConfigured(
            f"no audit database: pass --audit URL or set {AUDIT_URL_VARIABLE}. `rq-core queues` says which queues have"
            " an audit log"
        )
    return url


@contextlib.contextmanager
def current(url: str | None) -> Iterator[Database]:
    """Yield the audit database, after a check that its schema is current. Raises AuditNotConfigured or AuditError."""
    from sql_audit.store import migrate
    from sql_audit.store.connection.database import Database

    with contextlib.closing(Database(required(url))) as database:
        migrate.check_current(database)
        yield database


@contextlib.contextmanager
def asking(url: str | None) -> Iterator[Engine]:
    """Yield an SQLAlchemy engine that reads the audit database, after a check that its schema is current.

    Raises AuditNotConfigured or AuditError.
    """
    with current(url) as database:
        yield database.readers


def known_watermarks(engine: Engine, queue: str | None) -> list[Watermark]:
    """Return the watermark of ``queue``, or without ``queue`` the watermark of every queue. A watermark is the last
    event that the mirror has copied from Redis to SQL.

    Raises QueueNotMirrored if the log has no such queue, and NothingMirrored if the log is empty.
    """
    from sql_audit.queries import history

    marks = history.watermarks(engine, queue)
    if not marks:
        raise not_mirrored(engine, queue)
    return marks


def not_mirrored(engine: Engine, queue: str | None) -> QueueNotMirrored | NothingMirrored:
    """Return QueueNotMirrored, the error that the audit database lacks ``queue``. Without ``queue``, return
    NothingMirrored.
    """
    from sql_audit.queries import history

    if queue is None:
        return NothingMirrored()
    known = ", ".join(mark.queue for mark in history.watermarks(engine)) or "none"
    return QueueNotMirrored(queue=queue, known=known)
