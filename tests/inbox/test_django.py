"""Jobs that programs enqueue in Django's transactions. The programs name the database by its alias."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import django
import pytest
from django.conf import settings
from django.db import connections, transaction
from sqlalchemy import make_url

from rq_core import App, InboxMissing, InvalidOption, NotInTransaction
from tests.inbox.conftest import committed, orders

ALIAS = "shop"


def database_of(url: str) -> dict[str, Any]:
    at = make_url(url)
    if at.get_backend_name() == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": at.database}
    return {
        "ENGINE": "django.db.backends.postgresql", "NAME": at.database, "USER": at.username,
        "HOST": at.host, "PORT": at.port,
    }  # fmt: skip


@pytest.fixture
def alias() -> Iterator[Callable[[str], None]]:
    """Yield a function that lets the alias refer to the database at a URL."""
    if not settings.configured:
        memory = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
        settings.configure(DATABASES={"default": memory}, ALLOWED_HOSTS=["testserver"])
        django.setup()

    def named(url: str) -> None:
        default = connections.settings["default"]
        made = connections.configure_settings({"default": default, ALIAS: database_of(url)})
        connections.settings[ALIAS] = made[ALIAS]

    yield named
    connections[ALIAS].close()
    del connections[ALIAS]
    del connections.settings[ALIAS]


def execute(statement: str) -> None:
    with connections[ALIAS].cursor() as cursor:
        cursor.execute(statement)


@pytest.fixture
def woken(app: App, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(app, "wake_relay", lambda *queues: found.append(queues))
    return found


def test_a_row_is_committed_or_rolled_back_with_the_order_in_django(
    url: str, app: App, alias: Callable[[str], None], woken: list[Any]
) -> None:
    alias(url)
    send = app.tasks["send"]
    with transaction.atomic(ALIAS):
        execute("INSERT INTO orders VALUES (1)")
        handle = send.within(ALIAS).enqueue(order_id=1, text="% %s ?")
        with pytest.raises(ZeroDivisionError), transaction.atomic(ALIAS):
            send.within(ALIAS).enqueue(order_id=2)
            raise ZeroDivisionError
        ids = app.within(ALIAS).enqueue_many([send.job(3), send.job(4)])
        assert [] == committed(url)
        assert [] == woken
    with pytest.raises(ZeroDivisionError), transaction.atomic(ALIAS):
        send.within(ALIAS).enqueue(order_id=5)
        raise ZeroDivisionError

    rows = committed(url)
    assert [handle.id, *ids] == [row.job_id for row in rows]
    assert '{"order_id":1,"text":"% %s ?"}' == rows[0].args
    assert [1] == orders(url)
    # Django forgets what a savepoint that was rolled back has asked for.
    assert [("mail",), ("mail",)] == woken


def test_a_job_is_cancelled_within_a_django_transaction(
    url: str, app: App, alias: Callable[[str], None], woken: list[Any]
) -> None:
    alias(url)
    with transaction.atomic(ALIAS):
        handle = app.tasks["send"].within(ALIAS).enqueue(1)
        assert "cancelled" == app.within(ALIAS).cancel(handle)
        assert "gone" == app.within(ALIAS).cancel(handle)

    assert [] == committed(url)


def test_an_enqueue_outside_an_atomic_block_is_refused(
    url: str, app: App, alias: Callable[[str], None]
) -> None:
    alias(url)
    with pytest.raises(NotInTransaction):
        app.tasks["send"].within(ALIAS).enqueue(1)

    assert [] == committed(url)


def test_a_django_program_without_autocommit_commits_its_rows_itself(
    url: str, app: App, alias: Callable[[str], None], woken: list[Any]
) -> None:
    alias(url)
    connections[ALIAS].set_autocommit(False)
    app.tasks["send"].within(ALIAS).enqueue(1)
    connections[ALIAS].commit()

    assert 1 == len(committed(url))
    assert [] == woken


def test_missing_tables_and_an_unknown_alias_are_refused_in_django(
    sqlite_url: str, app: App, alias: Callable[[str], None]
) -> None:
    alias(sqlite_url)
    with pytest.raises(InboxMissing), transaction.atomic(ALIAS):
        app.tasks["send"].within(ALIAS).enqueue(1)
    with pytest.raises(InvalidOption, match="must be the alias of a database: default, shop"):
        app.within("nowhere")
