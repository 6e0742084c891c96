"""What several commands have in common: options, what they take, the database, how errors are told."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from rq_core.cli.text import one_line
from rq_core.errors import RqCoreError
from rq_core.model.keys import DEFAULT_PREFIX

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from sql_audit.store.database import Database

audit_option = click.option(
    "--audit",
    "url",
    envvar="RQ_CORE_AUDIT_URL",
    show_envvar=True,
    metavar="URL",
    help="The audit database: a path, sqlite:///path or postgresql://user@host/database.",
)
redis_option = click.option(
    "--redis",
    "redis_url",
    envvar="RQ_CORE_REDIS_URL",
    default="redis://localhost:6379/0",
    show_envvar=True,
    show_default=True,
    metavar="URL",
    help="The Redis or Valkey server; embedded:// for the one that comes with rq-core.",
)
prefix_option = click.option(
    "--prefix", default=DEFAULT_PREFIX, show_default=True, help="What the queue's keys begin with."
)
queue_option = click.option("--queue", "-q", default=None, help="Only this queue.")
json_option = click.option(
    "--json", "as_json", is_flag=True, help="One JSON document, for programs."
)


_MS_DIGITS: Final = 15
"""Of the last year that has a name, 9999."""


class Moment(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A time as people write it, as Unix ms: ``2026-11-21 10:00`` (UTC, if no zone is given)."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from datetime import UTC, datetime

        text = str(value)
        if text.isascii() and text.isdigit() and len(text) <= _MS_DIGITS:
            return int(text)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self.fail(f"{text!r} is no time: write 2026-11-21 10:00, or Unix ms", param, ctx)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return int(moment.timestamp() * 1000)


@contextlib.contextmanager
def telling_errors(status: int = 1) -> Iterator[None]:
    """Errors become one line on standard error and a non-zero exit."""
    try:
        yield
    except RqCoreError as error:
        fail(str(error), status)
    except BrokenPipeError:
        # Whoever read our output has gone; there is nobody left to tell.
        sys.stderr.close()
        raise SystemExit(1) from None
    except Exception as error:
        from sqlalchemy.exc import SQLAlchemyError

        if not isinstance(error, SQLAlchemyError):
            raise
        from sql_audit.store.driver_errors import describe

        fail(f"the audit database refuses: {describe(error)}", status)


def fail(message: str, status: int = 1) -> NoReturn:
    click.echo(f"rq-core: {one_line(message)}", err=True)
    raise SystemExit(status)


def required(url: str | None, status: int = 1) -> str:
    if not url:
        fail("no audit database: pass --audit URL or set RQ_CORE_AUDIT_URL", status)
    return url


@contextlib.contextmanager
def current(url: str | None, status: int = 1) -> Iterator[Database]:
    """A database whose schema is current."""
    address = required(url, status)
    with telling_errors(status):
        from sql_audit.store import migrate
        from sql_audit.store.database import Database

        database = Database(address)
        try:
            migrate.check_current(database)
            yield database
        finally:
            database.close()


@contextlib.contextmanager
def asking(url: str | None) -> Iterator[Engine]:
    """A reading engine of a database whose schema is current."""
    with current(url) as database:
        yield database.readers


def unknown_queue(engine: Engine, queue: str | None, status: int = 1) -> NoReturn:
    from sql_audit.queries import history

    if queue is None:
        fail("nothing is mirrored yet: start `rq-core audit run`", status)
    known = ", ".join(mark.queue for mark in history.watermarks(engine)) or "none"
    fail(f"the audit database knows no queue {queue!r}: known are {known}", status)
