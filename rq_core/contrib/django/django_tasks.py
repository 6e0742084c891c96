"""Imports Django's own tasks: ``django.tasks`` of Django 6.0 and later, or the package ``django_tasks`` for Django 5.2.

The names in the two packages are equal, except the names of two errors.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

import django
from django.core.exceptions import ImproperlyConfigured

from rq_core.installing import pip_install

PACKAGE: Final = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"


def _part(name: str) -> Any:
    try:
        return importlib.import_module(PACKAGE + name)
    except ModuleNotFoundError as error:
        if error.name != PACKAGE:
            raise
        raise ImproperlyConfigured(
            f"Django before 6.0 has no tasks of its own: install the package django-tasks, as the extra `django` does"
            f" with Python 3.11: {pip_install('django')}"
        ) from None


tasks: Final[Any] = _part("")
base: Final[Any] = _part(".base")
exceptions: Final[Any] = _part(".exceptions")
InvalidTask: Final[type[Exception]] = (
    getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError
)
InvalidTaskBackend: Final[type[Exception]] = (
    getattr(exceptions, "InvalidTaskBackend", None) or exceptions.InvalidTaskBackendError
)
BaseTaskBackend: Final[Any] = _part(".backends.base").BaseTaskBackend


def signals() -> Any:
    """Import and return the module of the signals. The module imports Django's models, so no code imports it
    earlier."""
    return _part(".signals")


def register_app_parts() -> None:
    """Let ``manage.py check`` check TASKS, and let ``override_settings`` replace TASKS in tests.

    Django 6.0 does so by itself. For an older Django, the app ``django_tasks`` does so if INSTALLED_APPS has it; many
    projects have only the package. Call this when Django's apps are ready.
    """
    if PACKAGE == "django_tasks":
        _part(".checks")
        _part(".signals")
