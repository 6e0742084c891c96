"""Closes Django's database connections around handlers, and makes the URL of a database in DATABASES."""

from __future__ import annotations

import re
from pathlib import Path
from types import TracebackType
from typing import Any, Final
from urllib.parse import quote, urlencode

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections, connections

from rq_core.app.handlers.context import JobContext

_SCHEMES: Final = {"postgresql": "postgresql", "sqlite3": "sqlite", "postgis": "postgresql"}
"""The scheme of a database's URL, by the last word of its ENGINE."""
_OF_DJANGO: Final = frozenset({"assume_role", "isolation_level", "pool", "server_side_binding"})
"""The OPTIONS of a database that Django itself uses; the others are parameters of libpq."""
_WORD: Final = re.compile(r"[\w-]+")


class ClosingConnections:
    """Closes Django's database connections around a handler: ``app.around(ClosingConnections)``.

    Django keeps the connections of each thread open. Before and after a ``def`` handler, this closes the connections of
    the handler's thread that are unusable, or older than CONN_MAX_AGE. After the handler, it also closes a connection
    on which the handler left a transaction open. For an ``async def`` handler, Django's ORM runs in a thread of its
    own; all connections of that thread are closed after the handler.
    """

    def __init__(self, _: JobContext) -> None:
        self._thread: Any = None
        self._outer: set[str] = set()

    def __enter__(self) -> None:
        close_old_connections()
        self._outer = _in_transaction()

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        for alias in _in_transaction() - self._outer:
            # A later handler of this thread would be in the transaction, which nothing commits.
            connections[alias].close()
            del connections[alias]
        close_old_connections()

    async def __aenter__(self) -> None:
        self._thread = ThreadSensitiveContext()
        await self._thread.__aenter__()

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        try:
            await sync_to_async(connections.close_all)()
        finally:
            await self._thread.__aexit__(None, None, None)


def _in_transaction() -> set[str]:
    """Return the aliases of this thread's connections that are inside ``transaction.atomic()``."""
    open_ones = connections.all(initialized_only=True)
    return {connection.alias for connection in open_ones if connection.in_atomic_block}


def is_bare_word(text: str) -> bool:
    """Return whether a text is a single word, such as an alias in DATABASES. A URL is not, nor is a path with ``/`` or
    ``.``."""
    return _WORD.fullmatch(text) is not None


def check_inbox_setting(given: str, of: str) -> None:
    """Raise ImproperlyConfigured if ``given`` is a single word and not the name of a file. Call this if ``given``, the
    setting for the inbox, is not an alias in DATABASES.

    Such a word is more often a misspelt alias than the name of a new file. ``of`` is the name of the setting, for the
    message.
    """
    if is_bare_word(given) and not Path(given).exists():
        known = ", ".join(connections.settings)
        raise ImproperlyConfigured(
            f"{of} is {given!r}: that is no URL, no file, and no alias of DATABASES, which has {known}"
        )


def database_url(alias: str) -> str:
    """Return the URL of a database in DATABASES, in the form that the commands ``rq-core inbox`` take.

    Raises ImproperlyConfigured if DATABASES lacks the alias, or the database can have no inbox: it must be PostgreSQL,
    or SQLite in a file.
    """
    if alias not in connections.settings:
        known = ", ".join(connections.settings)
        raise ImproperlyConfigured(f"DATABASES has no alias {alias!r}; it has {known}")
    facts = connections.settings[alias]
    name, scheme = str(facts["NAME"]), _SCHEMES.get(facts["ENGINE"].rpartition(".")[2])
    if scheme is None:
        raise ImproperlyConfigured(
            f"the database {alias!r} can have no inbox: it must be PostgreSQL or SQLite, not {facts['ENGINE']}"
        )
    if scheme == "sqlite":
        if not name or ":memory:" in name or name.startswith("file:"):
            raise ImproperlyConfigured(
                f"the database {alias!r} can have no relay: {name!r} is no path of a file"
            )
        return f"sqlite:///{quote(name)}"
    user, password, host = (str(facts.get(key) or "") for key in ("USER", "PASSWORD", "HOST"))
    parameters = {
        key: str(value)
        for key, value in facts.get("OPTIONS", {}).items()
        if key not in _OF_DJANGO and isinstance(value, str | int)
    }
    port = str(facts.get("PORT") or "")
    if host.startswith("/"):
        # The directory of a socket.
        parameters, host = {"host": host, **parameters}, ""
    elif ":" in host:
        host = f"[{host}]"  # an IPv6 address
    if port and not host:
        parameters["port"] = port
    at = f"{host}:{port}" if host and port else host
    who = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    query = f"?{urlencode(parameters)}" if parameters else ""
    return f"postgresql://{who}{'@' if who else ''}{at}/{quote(name, safe='')}{query}"
