"""Parts of the Django package that need no project: URLs of databases, and errors about missing packages."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import django
import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from rq_core.app.loading import PRELOAD_VARIABLE
from rq_core.contrib.django.databases import database_url
from rq_core.contrib.django.setting_up import SETTINGS_VARIABLE, set_up
from rq_core.errors import InvalidOption
from sql_audit.inbox.database import inbox_url
from tests.contrib.django_own_tests import DIFFERS
from tests.kit.processes import ROOT

POSTGRESQL = "django.db.backends.postgresql"
SQLITE = "django.db.backends.sqlite3"


@pytest.fixture
def databases(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Return Django's settings of databases, to which a test may add one."""
    if not settings.configured:
        memory = {"ENGINE": SQLITE, "NAME": ":memory:"}
        settings.configure(DATABASES={"default": memory}, ALLOWED_HOSTS=["testserver"])
        django.setup()
    found: dict[str, Any] = connections.settings
    yield found
    found.pop("shop", None)


URLS = [
    ({"ENGINE": SQLITE, "NAME": "/srv/shop.sqlite3"}, "sqlite:////srv/shop.sqlite3"),
    ({"ENGINE": SQLITE, "NAME": "/srv/100%?/shop"}, "sqlite:////srv/100%25%3F/shop"),
    ({"ENGINE": POSTGRESQL, "NAME": "shop"}, "postgresql:///shop"),
    ({"ENGINE": POSTGRESQL, "NAME": "shop", "PORT": 5433}, "postgresql:///shop?port=5433"),
    (
        {"ENGINE": POSTGRESQL, "NAME": "shop", "HOST": "::1", "PORT": "5433"},
        "postgresql://[::1]:5433/shop",
    ),
    (
        {"ENGINE": POSTGRESQL, "NAME": "shop", "USER": "me", "HOST": "db", "PORT": 5433},
        "postgresql://me@db:5433/shop",
    ),
    (
        {"ENGINE": POSTGRESQL, "NAME": "a/b", "USER": "m@e", "PASSWORD": "p:/?", "HOST": "db"},
        "postgresql://m%40e:p%3A%2F%3F@db/a%2Fb",
    ),
    (
        {"ENGINE": POSTGRESQL, "NAME": "shop", "HOST": "/run/pg", "PORT": "5433"},
        "postgresql:///shop?host=%2Frun%2Fpg&port=5433",
    ),
    (
        {
            "ENGINE": "django.contrib.gis.db.backends.postgis", "NAME": "shop", "HOST": "db",
            "OPTIONS": {"sslmode": "verify-full", "pool": True, "isolation_level": 4},
        },
        "postgresql://db/shop?sslmode=verify-full",
    ),
]  # fmt: skip


@pytest.mark.parametrize("facts, url", URLS)
def test_a_database_of_django_is_translated_into_a_url(
    facts: dict[str, Any], url: str, databases: dict[str, Any]
) -> None:
    databases["shop"] = facts

    assert url == database_url("shop")
    read = inbox_url(url)
    assert facts["NAME"] == read.database
    port = facts.get("PORT")
    assert (str(port) if port else None) == (read.query.get("port") or str(read.port or "") or None)


@pytest.mark.parametrize(
    "facts, why",
    [
        ({"ENGINE": "django.db.backends.mysql", "NAME": "shop"}, "must be PostgreSQL or SQLite"),
        ({"ENGINE": SQLITE, "NAME": ":memory:"}, "is no path of a file"),
    ],
)
def test_a_database_that_no_relay_can_read_is_refused(
    facts: dict[str, Any], why: str, databases: dict[str, Any]
) -> None:
    databases["shop"] = facts

    with pytest.raises(ImproperlyConfigured, match=why):
        database_url("shop")
    with pytest.raises(ImproperlyConfigured, match="DATABASES has no alias 'nowhere'; it has"):
        database_url("nowhere")


def test_the_migration_changes_nothing_in_a_database_that_can_have_no_inbox(
    databases: dict[str, Any],
) -> None:
    migration = importlib.import_module("rq_core.contrib.django.migrations.0001_inbox")
    # It has no `execute`: each statement would raise an AttributeError.
    editor = SimpleNamespace(connection=SimpleNamespace(vendor="mysql"))

    migration.create_tables(None, editor)

    editor.connection.vendor = "sqlite"
    with pytest.raises(AttributeError):
        migration.create_tables(None, editor)


def test_without_django_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTINGS_VARIABLE, os.environ.get(SETTINGS_VARIABLE, ""))
    monkeypatch.setenv(PRELOAD_VARIABLE, "")
    monkeypatch.setitem(sys.modules, "django", None)

    with pytest.raises(InvalidOption, match=r"django.*needs Django: pip install .*\[django\]"):
        set_up("shop.settings")


def test_the_error_about_a_django_without_tasks_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(django, "VERSION", (5, 2, 0, "final", 0))
    monkeypatch.setitem(sys.modules, "django_tasks", None)
    monkeypatch.delitem(sys.modules, "rq_core.contrib.django.django_tasks", raising=False)

    with pytest.raises(ImproperlyConfigured, match=r"install the package django-tasks.*\[django\]"):
        importlib.import_module("rq_core.contrib.django.django_tasks")


def test_the_django_page_lists_exactly_the_tests_of_django_that_do_not_pass() -> None:
    page = (ROOT / "docs" / "how-to" / "django.md").read_text()

    rows = [line for line in page.splitlines() if line.startswith("| `test_")]
    assert [f"| `{name}` | {why} |" for name, why in DIFFERS.items()] == rows
