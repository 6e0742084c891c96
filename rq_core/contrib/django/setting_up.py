"""Sets Django up in a worker, and prepares the worker's app: ``rq-core worker --django SETTINGS``."""

from __future__ import annotations

import importlib
import os
from typing import Final

from rq_core.app.app import App
from rq_core.app.loading import PRELOAD_VARIABLE, broken_target, find_modules_here
from rq_core.errors import InvalidOption
from rq_core.installing import pip_install

SETTINGS_VARIABLE: Final = "DJANGO_SETTINGS_MODULE"
APP: Final = "rq_core.contrib.django:app"
"""The project's App, as the target of a worker."""


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
        raise broken_target(settings, error) from error


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
        raise broken_target(os.environ[SETTINGS_VARIABLE], error) from error


def _prepare_backends(app: App) -> None:
    from rq_core.contrib.django import django_tasks
    from rq_core.contrib.django.backend import Backend

    for backend in django_tasks.tasks.task_backends.all():
        if isinstance(backend, Backend) and backend.app is app:
            backend.prepare_worker()


def url_of_inbox(value: str) -> str:
    """Return the URL of the database with the inbox. ``value`` is that URL, or an alias in DATABASES.

    Django must be set up.
    """
    from django.conf import settings

    from rq_core.contrib.django.databases import database_url

    return database_url(value) if value in settings.DATABASES else value
