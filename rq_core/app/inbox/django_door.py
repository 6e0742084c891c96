"""Runs the SQL statements that insert jobs on a database of Django, which a program names by its alias. Wakes a relay,
the process that hands the jobs over to Redis, after the commit."""

from __future__ import annotations

import importlib
from typing import Any

from rq_core.app.inbox.doors import Wake, check_dialect
from rq_core.app.inbox.drivers import count_rows
from rq_core.app.inbox.rows import placeholders
from rq_core.errors import InboxMissing, InvalidOption, NotInTransaction


class InboxNotMigrated(InboxMissing):
    """the database {alias!r} has no inbox. Create its tables with `python manage.py migrate --database {alias}`;
    INSTALLED_APPS must have 'rq_core.contrib.django'. If the tables are there, the connection goes to another database,
    or on PostgreSQL to another schema (search_path)."""

    alias: str


class DjangoDoor:
    """Runs the statements that insert jobs on this thread's connection to a database in Django's DATABASES."""

    is_async = False

    def __init__(self, alias: str) -> None:
        try:
            self._database = importlib.import_module("django.db")
        except ModuleNotFoundError:
            must = "is text, the alias of a database of Django, and Django is not installed"
            raise InvalidOption.of("connection", alias, must) from None
        connections = self._database.connections
        if alias not in connections.settings:
            must = f"must be the alias of a database: {', '.join(connections.settings)}"
            raise InvalidOption.of("connection", alias, must)
        self._alias = alias
        self._connection: Any = connections[alias]

    def missing(self, url: str) -> InboxMissing:
        """Return the error for a database without an inbox, the tables for jobs. ``url`` is the URL of the App's inbox.
        The error has the URL as an attribute, but not in its message."""
        return InboxNotMigrated(alias=self._alias, url=url)

    @property
    def dialect(self) -> str:
        """The kind of the database, such as ``postgresql``."""
        return str(self._connection.vendor)

    def open(self) -> None:
        """Raise InvalidOption if the database can have no inbox, and NotInTransaction outside a transaction."""
        check_dialect(self.dialect)
        if not self._connection.in_atomic_block and self._connection.get_autocommit():
            raise NotInTransaction

    def run(self, text: str, values: tuple[str, ...]) -> int:
        """Run a statement. Return the number of rows that it returned or changed."""
        with self._connection.cursor() as cursor:
            cursor.execute(placeholders(text, "%s"), values)
            return count_rows(cursor)

    def after_commit(self, wake: Wake) -> None:
        """Call ``wake``, which wakes the process that reads the inbox (the relay), after the commit of
        ``transaction.atomic()``. Outside ``atomic()``, do nothing."""
        # Without atomic(), the program commits by itself, and Django calls nothing.
        if self._connection.in_atomic_block:
            self._database.transaction.on_commit(wake, using=self._alias, robust=True)
