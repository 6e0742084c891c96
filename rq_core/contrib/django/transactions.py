"""Finds out whether a transaction of a database is open, and warns of enqueues that do not wait for its commit."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from django.db import connections

from rq_core.app.handlers.outgoing import Outgoing

log = logging.getLogger(__name__)

_AT_ONCE: Final = ("enqueue", "enqueue_many")
"""The kinds of calls that enqueue a job in Redis at once, without the inbox."""
_by_backend: Final = ContextVar("_by_backend", default=False)


def is_in_transaction(alias: str) -> bool:
    """Return whether a transaction of this thread's connection to a database is open."""
    connection = connections[alias]
    # A connection that is not open has no transaction, and is not opened for the question.
    is_open = connection.connection is not None
    return connection.in_atomic_block or (is_open and not connection.get_autocommit())


@contextmanager
def at_once_by_backend() -> Iterator[None]:
    """Log no warnings within a block: the backend of Django's own tasks has decided to enqueue the job at once."""
    token = _by_backend.set(True)
    try:
        yield
    finally:
        _by_backend.reset(token)


class TransactionWarning:
    """Warns if a task of the project's App is enqueued at once while a transaction is open: ``app.outgoing`` calls it.

    A worker may then run the job before the commit, and a rollback does not take the job back. There is one warning for
    each task in a process, and none for Django's own tasks: their backend decides whether they are enqueued at once.
    """

    def __init__(self, alias: str) -> None:
        """Create the hook. ``alias`` is the alias in DATABASES of the database with the App's inbox."""
        self._alias = alias
        self._named: set[str] = set()

    def __call__(self, call: Outgoing) -> None:
        """Log a warning if ``call`` enqueues a job at once while a transaction is open. Adds no headers to the job."""
        if (
            call.way in _AT_ONCE
            and call.task not in self._named
            and not _by_backend.get()
            and self._is_in_program_transaction()
        ):
            self._named.add(call.task)
            log.warning(
                "task %s was enqueued at once inside a transaction of the database %r: a worker may run it before the"
                " commit, and a rollback does not take it back. Enqueue it with the transaction, by .within(%r), or"
                " after the commit, by transaction.on_commit",
                call.task,
                self._alias,
                self._alias,
            )

    def _is_in_program_transaction(self) -> bool:
        """Return whether a transaction is open that the program has begun. The transaction that Django's TestCase
        begins around each test does not count.
        """
        for each in connections.all(initialized_only=True):
            if each.alias == self._alias and is_in_transaction(self._alias):
                blocks = each.atomic_blocks
                return not blocks or not all(getattr(of, "_from_testcase", False) for of in blocks)
        return False
