"""Sets Django up in a worker, and prepares the worker's app: ``rq-core worker --django SETTINGS``."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
from pathlib import Path
from typing import Any, Final

from rq_core.app.app import App
from rq_core.app.loading import PRELOAD_VARIABLE, broken_target, find_modules_here
from rq_core.errors import InboxMissing, InvalidOption, RqCoreError, TargetBroken
from rq_core.installing import pip_install
from rq_core.model import plugins

log = logging.getLogger(__name__)

SETTINGS_VARIABLE: Final = "DJANGO_SETTINGS_MODULE"
APP: Final = "rq_core.contrib.django:app"
"""The project's App, as the target of a worker."""
_relays: Final[list[str]] = []
"""The inbox that ``note_relay`` was called with, as the only item; an empty text if no relay runs. The list is empty
without a call."""


def note_relay(inbox: str | None) -> None:
    """Note the inbox whose relay (the process that enqueues its jobs) runs beside the workers that this process is
    about to start. ``inbox`` is an alias or a URL, as on the command line; None if no relay runs. Only after this call,
    and only in this process, ``prepare_app`` logs what an inbox lacks.
    """
    _relays[:] = [inbox or ""]


def set_up(settings: str) -> None:
    """Set Django up with the settings module ``settings``, also in the processes of isolated handlers.

    Raises InvalidOption if Django is not installed, or the settings module does not exist. Raises TargetBroken if the
    settings or an installed app raise an exception.
    """
    find_modules_here()
    os.environ[SETTINGS_VARIABLE] = settings
    os.environ[PRELOAD_VARIABLE] = "rq_core.contrib.django.preloaded"
    try:
        import django
    except ModuleNotFoundError:
        must = f"needs Django: {pip_install('django')}"
        raise InvalidOption.of("django", settings, must) from None
    try:
        django.setup()
        importlib.import_module("rq_core.contrib.django.project_app")
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and (settings + ".").startswith(missing + "."):
            must = f"must be a module of settings, as shop.settings; there is no module {missing}"
            raise InvalidOption.of("django", settings, must) from None
        raise _broken(settings, error) from error


def _broken(settings: str, error: BaseException) -> TargetBroken:
    """Return the error for a module that ``settings`` or Django's setup imports. The error names the module that raised
    ``error``, for example a module of an installed app."""
    file = Path(broken_target(settings, error).where.rpartition(":")[0])
    module = settings
    trace = error.__traceback__
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__"))
        # An error that rq_core raises is one of the settings.
        if str(file) == trace.tb_frame.f_code.co_filename and name.partition(".")[0] != "rq_core":
            module = name
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and file.is_relative_to(Path.cwd()):
        # The module has no frame: nothing of it has run.
        module = ".".join(file.relative_to(Path.cwd()).with_suffix("").parts)
    return broken_target(module, error)


def prepare_app(app: App) -> None:
    """Prepare a worker's app for Django.

    The function imports the module ``tasks`` of each installed app, adds Django's tasks to the app, and makes the app
    close database connections around each handler. Raises TargetBroken if a module ``tasks`` or a backend in TASKS
    raises an exception.
    """
    from django.conf import settings
    from django.utils.module_loading import autodiscover_modules

    from rq_core.contrib.django.databases import ClosingConnections

    if all(around.function is not ClosingConnections for around in app.surroundings.arounds):
        app.around(ClosingConnections)
    try:
        autodiscover_modules("tasks")
        if getattr(settings, "TASKS", None):
            # A project of Django 5.2 without TASKS need not have the package django-tasks.
            _prepare_backends(app)
    except Exception as error:
        raise _broken(os.environ[SETTINGS_VARIABLE], error) from error
    if _relays:
        _warn_of_inboxes(app, _relays.pop())


def _prepare_backends(app: App) -> None:
    for backend in _backends(app):
        backend.prepare_worker()


def _backends(app: App) -> list[Any]:
    """Return the backends in TASKS that enqueue jobs of ``app``."""
    from rq_core.contrib.django import django_tasks
    from rq_core.contrib.django.backend import Backend

    every = django_tasks.tasks.task_backends.all()
    return [each for each in every if isinstance(each, Backend) and each.app is app]


def _warn_of_inboxes(app: App, relayed: str) -> None:
    """Log a warning if an inbox of ``app`` has no relay beside this worker, or if the inbox with a relay has no tables.

    ``relayed`` is the inbox with a relay, as on the command line; empty for none.
    """
    from django.conf import settings

    if not relayed:
        if inboxes := _inboxes(app):
            shown = " and ".join(f"the database {each!r}" for each in inboxes)
            log.warning(
                "no relay runs beside this worker: jobs in the inbox of %s wait until another process hands them over."
                " If no process does, add `--inbox %s`",
                shown,
                inboxes[0],
            )
    elif relayed in settings.DATABASES and _lacks_tables(relayed):
        log.warning(
            "the database %r has no inbox yet: create its tables with `python manage.py migrate --database %s`",
            relayed,
            relayed,
        )


def _inboxes(app: App) -> list[str]:
    """Return the aliases of the databases into whose inboxes this project enqueues jobs of ``app``."""
    from django.conf import settings

    found: list[Any] = [getattr(app, "inbox_alias", None)]
    if getattr(settings, "TASKS", None):
        found += [backend.database for backend in _backends(app)]
    return [each for each in dict.fromkeys(found) if each in settings.DATABASES]


def _lacks_tables(alias: str) -> bool:
    """Return whether a database lacks the tables of the inbox; also False if the database does not answer within some
    seconds.
    """
    from django.db import connections

    facts = connections.settings[alias]
    if facts["ENGINE"].endswith("sqlite3") and not Path(facts["NAME"]).exists():
        return True
    try:
        with contextlib.closing(plugins.inbox_reader_opener()(url_of_inbox(alias))) as reader:
            reader.look()
    except InboxMissing:
        return True
    except RqCoreError:
        return False
    return False


def url_of_inbox(value: str) -> str:
    """Return the URL of the database with the inbox. ``value`` is that URL, the path of a file, or an alias in
    DATABASES.

    Django must be set up. Raises InvalidOption for a single word that is neither an alias nor the name of a file.
    """
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured

    from rq_core.contrib.django.databases import database_url, is_bare_word

    if value not in settings.DATABASES:
        if is_bare_word(value) and not Path(value).exists():
            known = ", ".join(settings.DATABASES)
            must = f"must be a URL, a file, or an alias of DATABASES ({known})"
            raise InvalidOption.of("inbox", value, must)
        return value
    try:
        return database_url(value)
    except ImproperlyConfigured as error:
        raise InvalidOption.of("inbox", value, str(error)) from None
