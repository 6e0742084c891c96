"""Commands in a Django project. An alias may name an inbox, and errors say what the command line lacks."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from rq_core.app.loading import PRELOAD_VARIABLE
from rq_core.contrib.django.setting_up import SETTINGS_VARIABLE, url_of_inbox
from rq_core.errors import InvalidOption
from tests.contrib.test_django_parts import SQLITE, databases
from tests.kit.command import command
from tests.kit.servers import RedisServer

__all__ = ["databases"]

PARKED = (
    "INSERT INTO rqc_inbox_parked (queue, id, job_id, task, args, created_at, why, parked_at)"
    " VALUES ('mail', 1, 'j-1', 'send', '{}', '2026-01-01', 'why', '2026-01-01')"
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let commands run in an empty directory, without Django's variable. Return the directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv(SETTINGS_VARIABLE, raising=False)
    monkeypatch.setenv(PRELOAD_VARIABLE, "")
    return tmp_path


@pytest.fixture
def shop(here: Path, databases: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let commands run in a Django project that has the database "shop". Return the path of its file."""
    databases["shop"] = {"ENGINE": SQLITE, "NAME": str(here / "shop.sqlite3")}
    monkeypatch.setenv(SETTINGS_VARIABLE, "shop.settings")
    return here / "shop.sqlite3"


@pytest.mark.parametrize(
    "words",
    [
        ("inbox", "status", "default"),
        ("inbox", "migrate", "default"),
        ("doctor", "--inbox", "default"),
        ("web", "--inbox", "default"),
        ("worker", "jobs:app", "--inbox", "default"),
    ],
)
def test_without_django_settings_an_alias_is_refused_and_creates_no_file(
    words: tuple[str, ...], here: Path
) -> None:
    done = command(*words)

    assert 2 == done.exit_code, done.output
    (line,) = done.stderr.splitlines()
    assert "inbox='default' is not valid: must be a URL, or the path of a file" in line
    how = "add `--django SETTINGS`" if "worker" in words else f"set {SETTINGS_VARIABLE}"
    assert f"for an alias of Django's DATABASES {how}" in line
    assert [] == list(here.iterdir())


def test_without_django_settings_an_inbox_may_be_given_as_a_path_a_file_name_or_a_url(
    here: Path,
) -> None:
    for place in ("./default", "inbox.db", f"sqlite:///{here}/third.db"):
        assert 0 == command("inbox", "migrate", place).exit_code
    assert 0 == command("inbox", "status", "default").exit_code
    assert ["default", "inbox.db", "third.db"] == sorted(each.name for each in here.iterdir())


def test_with_django_settings_commands_accept_an_alias_of_a_database(
    shop: Path, valkey: RedisServer
) -> None:
    migrate = "the database 'shop' has no inbox. Create its tables with `python manage.py migrate --database shop`"
    for exists in (False, True):
        if exists:
            shop.touch()
        missing = command("inbox", "status", "shop")
        seen = command("doctor", "--inbox", "shop", "--redis", valkey.url)
        for said in (missing.stderr, seen.stdout):
            assert migrate in said
            assert "rq-core inbox migrate" not in said

    assert "created rqc_inbox" in command("inbox", "migrate", "shop").stdout
    with sqlite3.connect(shop) as connection:
        connection.execute(PARKED)
    connection.close()
    told = command("doctor", "--inbox", "shop", "--redis", valkey.url).stdout
    (line,) = [each for each in told.splitlines() if "parked" in each]
    assert (
        "inbox: queue mail: 1 row of the inbox is parked: `rq-core inbox parked shop` says why"
        == line
    )

    done = command("inbox", "status", "sohp")
    assert (
        "inbox='sohp' is not valid: must be a URL, a file, or an alias of DATABASES" in done.stderr
    )
    assert "shop)" in done.stderr
    assert not (shop.parent / "sohp").exists()


def test_an_alias_of_a_database_that_can_have_no_inbox_is_refused(
    databases: dict[str, Any],
) -> None:
    databases["shop"] = {"ENGINE": "django.db.backends.mysql", "NAME": "shop"}

    with pytest.raises(InvalidOption, match="must be PostgreSQL or SQLite"):
        url_of_inbox("shop")


NOT_READY = """
from django.core.exceptions import AppRegistryNotReady

raise AppRegistryNotReady("Apps aren't loaded yet.")
"""
NOT_CONFIGURED = """
from django.conf import LazySettings

LazySettings().DATABASES
"""
WRONG = """
from django.core.exceptions import ImproperlyConfigured

raise ImproperlyConfigured("no secret key")
"""


@pytest.mark.parametrize(
    "code, settings", [(NOT_READY, None), (NOT_READY, "own.settings"), (NOT_CONFIGURED, None)]
)
def test_the_error_of_a_worker_whose_app_needs_django_names_the_option_django(
    code: str, settings: str | None, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if settings is not None:
        monkeypatch.setenv(SETTINGS_VARIABLE, settings)
    (here / "orders_tasks.py").write_text(code)
    found = "shop.settings`, with the name of your settings" if settings is None else f"{settings}`"
    for target in ("orders_tasks:app", "rq_core.contrib.django:app"):
        done = command("worker", target)
        assert f"rq-core: {target} needs Django: add `--django {found}" == done.stderr.strip()


def test_the_errors_of_web_and_enqueue_say_how_to_name_an_app_that_needs_django(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "orders_page.py").write_text(NOT_READY)
    done = command("web", "orders_page:app")
    says = (
        f"orders_page:app needs Django: name the project's App as rq_core.contrib.django:app, and set"
        f" {SETTINGS_VARIABLE}=shop.settings, with the name of your settings"
    )
    assert f"rq-core: {says}" == done.stderr.strip()

    monkeypatch.setenv(SETTINGS_VARIABLE, "own.settings")
    done = command("enqueue", "mail", "send", "--app", "orders_page:app")
    says = "orders_page:app needs Django: name the project's App as rq_core.contrib.django:app"
    assert f"rq-core: {says}" == done.stderr.strip()


def test_an_import_error_of_an_app_that_has_another_cause_is_shown_unchanged(here: Path) -> None:
    (here / "orders_wrong.py").write_text(WRONG)
    done = command("worker", "orders_wrong:app")

    assert (
        "module 'orders_wrong' cannot be imported: ImproperlyConfigured: no secret key"
        in done.stderr
    )
