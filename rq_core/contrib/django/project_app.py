"""The project's App, made from the setting RQ_CORE.

    # settings.py
    RQ_CORE = {"redis": "redis://localhost:6379/0", "inbox": "default"}

    # shop/tasks.py
    from rq_core.contrib.django import app

    @app.task(queue="mail")
    def send(order_id: int) -> None: ...

The setting has the arguments of App by name. ``inbox`` may be the alias of a database in DATABASES.
"""

from __future__ import annotations

import inspect
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from rq_core.app.app import App
from rq_core.contrib.django.databases import ClosingConnections, check_inbox_setting, database_url
from rq_core.contrib.django.transactions import TransactionWarning


class _ProjectApp(App):
    """The project's App. An alias in DATABASES that names its inbox is resolved at each use. So tests use the test
    database."""

    _inbox: str | None = None

    @property
    def inbox_alias(self) -> str | None:
        """The alias in DATABASES that names the inbox; None if the setting names no alias."""
        return self._inbox if self._inbox in settings.DATABASES else None

    @property
    def inbox_url(self) -> str | None:
        """The URL of the inbox in which handles look for jobs. None for a database without a URL.

        A test database in memory has none: only this process can read it.
        """
        if self._inbox not in settings.DATABASES:
            return self._inbox
        assert self._inbox is not None
        try:
            return database_url(self._inbox)
        except ImproperlyConfigured:
            return None

    @inbox_url.setter
    def inbox_url(self, given: str | None) -> None:
        self._inbox = given


def _project_app() -> App:
    given: Any = getattr(settings, "RQ_CORE", {})
    if not isinstance(given, dict):
        raise ImproperlyConfigured("RQ_CORE must be a dict of the arguments of rq_core.App by name")
    known = list(inspect.signature(App).parameters)
    if unknown := sorted(map(str, given.keys() - set(known))):
        raise ImproperlyConfigured(
            f"RQ_CORE has the unknown key {unknown[0]!r}; it may have {', '.join(known)}"
        )
    inbox: Any = given.get("inbox")
    has_alias = inbox in settings.DATABASES
    if has_alias:
        database_url(inbox)  # raises ImproperlyConfigured if it can have no inbox
    elif isinstance(inbox, str):
        check_inbox_setting(inbox, "RQ_CORE['inbox']")
    made = _ProjectApp(**given)
    made.around(ClosingConnections)
    if has_alias:
        made.outgoing(TransactionWarning(inbox))
    return made


app = _project_app()
