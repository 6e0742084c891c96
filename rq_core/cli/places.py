"""Finds the app, or the inbox's database, that a command line names. Both may belong to a Django project."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from rq_core.errors import InboxMissing, InvalidOption, RqCoreError, TargetBroken, UsageError

if TYPE_CHECKING:
    from rq_core.app.app import App

_TARGET: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*(:[^\W\d]\w*)?")
_SETTINGS_VARIABLE: Final = "DJANGO_SETTINGS_MODULE"
_DJANGO: Final = "rq_core.contrib.django"
_WORD: Final = re.compile(r"[\w-]+")
_ALIAS: Final = "rq_core.inbox_alias"
"""The key in ``click.Context.meta`` under which the Django alias of the inbox's database is kept."""


def check_target(target: str) -> str:
    """Return ``target`` if it has the form ``module:app`` or ``module``. Raises click.UsageError."""
    is_file = target.partition(":")[0].endswith(".py") or "/" in target
    if is_file or _TARGET.fullmatch(target) is None:
        hint = "; give the module's name, not the file's" if is_file else ""
        raise click.UsageError(f"{target!r} is not an app: give MODULE:APP, like tasks:app{hint}")
    return target


def app_at(target: str) -> App:
    """Import and return an app, for a command without the option ``--django``. Raises the errors of load_app.

    Raises UsageError if the app needs Django and Django is not set up.
    """
    from rq_core.app.loading import load_app

    with explaining_django(check_target(target)):
        return load_app(target)


@contextlib.contextmanager
def explaining_django(target: str, *, has_option: bool = False) -> Iterator[None]:
    """If importing ``target`` in the block fails because Django is not set up, raise a UsageError that says what to add
    to the command line.

    ``has_option``: True if the command has the option ``--django``.
    """
    if has_option and target.partition(":")[0] == _DJANGO:
        raise UsageError(_needs_django(target, has_option=True))
    try:
        yield
    except Exception as error:
        cause = error.__cause__ if isinstance(error, TargetBroken) else error
        if not _is_of_missing_setup(cause):
            raise
        raise UsageError(_needs_django(target, has_option=has_option)) from cause


def _needs_django(target: str, *, has_option: bool) -> str:
    settings = os.environ.get(_SETTINGS_VARIABLE)
    example = settings or "shop.settings"
    steps = []
    if has_option:
        steps.append(f"add `--django {example}`")
    elif target.partition(":")[0] != _DJANGO:
        steps.append(f"name the project's App as {_DJANGO}:app")
    if not has_option and not settings:
        steps.append(f"set {_SETTINGS_VARIABLE}={example}")
    yours = "" if settings else ", with the name of your settings"
    return f"{target} needs Django: {', and '.join(steps)}{yours}"


def _is_of_missing_setup(error: BaseException | None) -> bool:
    """Return whether Django raised ``error`` because it is not set up."""
    name = f"{type(error).__module__}.{type(error).__name__}"
    return name == "django.core.exceptions.AppRegistryNotReady" or (
        name == "django.core.exceptions.ImproperlyConfigured"
        and "settings are not configured" in str(error)
    )


def inbox_argument(ctx: click.Context, _: click.Parameter, given: str | None) -> str | None:
    """Return the URL or path of an inbox's database. ``given`` may also be an alias in Django's DATABASES.

    An alias needs the environment variable DJANGO_SETTINGS_MODULE. Raises InvalidOption for a single word that is
    neither an alias nor a file, because it would become the name of a new file.
    """
    if given is None or _WORD.fullmatch(given) is None:
        return given
    settings = os.environ.get(_SETTINGS_VARIABLE)
    if not settings:
        check_inbox(given, f"for an alias of Django's DATABASES set {_SETTINGS_VARIABLE}")
        return given
    from rq_core.contrib.django.setting_up import set_up, url_of_inbox

    set_up(settings)
    url = url_of_inbox(given)
    if url != given:
        ctx.meta[_ALIAS] = given
    return url


def check_inbox(given: str, alias: str) -> None:
    """Raise InvalidOption for a single word that is not a file. ``alias``: text for the error about aliases in Django's
    DATABASES."""
    if _WORD.fullmatch(given) is not None and not Path(given).exists():
        must = f"must be a URL, or the path of a file, such as ./{given}; {alias}"
        raise InvalidOption.of("inbox", given, must)


def inbox_alias(ctx: click.Context) -> str | None:
    """Return the alias in Django's DATABASES by which the command line named the inbox; None if it gave a URL or a
    path."""
    found: str | None = ctx.meta.get(_ALIAS)
    return found


def of_inbox(alias: str | None, error: RqCoreError) -> RqCoreError:
    """Return the error to show to the operator for an error of an inbox.

    ``alias``: the alias in Django's DATABASES that the command line gave, or None. With an alias, the error of a
    missing inbox or SQLite file advises ``manage.py migrate``.
    """
    if alias is None or not (
        isinstance(error, InboxMissing) or getattr(error, "lacks_file", False)
    ):
        return error
    from rq_core.app.inbox.django_door import InboxNotMigrated

    return InboxNotMigrated(alias=alias, url=getattr(error, "url", alias))
