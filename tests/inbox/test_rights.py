"""The rights that `rq-core acl` and `rq-core inbox grants` print. They suffice for the work of a role, and for nothing
else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from rq_core import App
from rq_core.cli.root import root
from rq_core.connections.client import Client
from rq_core.errors import ServerUnsuitable
from rq_core.model.keys import inbox_key
from sql_audit.inbox.database import inbox_url
from sql_audit.inbox.rights import ROLES
from sql_audit.inbox.schema import INBOX, PARKED, PLACE, RELAY
from sql_audit.inbox.service import run_relay
from tests.app.conftest import As
from tests.app.test_rights import denied
from tests.kit.command import audit, command
from tests.kit.inbox import Stage
from tests.kit.servers import engines

SCHEMA = "the shop"
AsSql = Callable[[str], str]
one_engine = pytest.mark.parametrize("engine", engines()[:1], ids=lambda each: each.name)
"""Run the test on one engine only: rights in PostgreSQL do not depend on the server of the queue."""


@pytest.fixture
def superuser(postgres_url: str) -> Iterator[psycopg.Connection]:
    """Yield a superuser's connection. The tables are in a separate schema, and PUBLIC has no right in the database."""
    with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f'CREATE SCHEMA "{SCHEMA}"')
        connection.execute(f'ALTER DATABASE {name} SET search_path = "{SCHEMA}"')
        connection.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
        connection.execute(f"REVOKE ALL ON DATABASE {name} FROM PUBLIC")
        yield connection


@pytest.fixture
def on_schema(superuser: psycopg.Connection, postgres_url: str, redis_url: str) -> Iterator[Stage]:
    made = Stage(postgres_url, redis_url)
    superuser.execute(f'SET search_path = "{SCHEMA}"')
    yield made
    made.close()


@pytest.fixture
def as_sql(on_schema: Stage, superuser: psycopg.Connection) -> Iterator[AsSql]:
    """Yield a function that makes a database role with the rights of `rq-core inbox grants`, and returns the role's
    URL."""
    made: list[str] = []

    def make(role: str) -> str:
        name = superuser.info.dbname
        user = f"rq-core-{role}-{name}"
        superuser.execute(f'CREATE ROLE "{user}" LOGIN')
        made.append(user)
        given = ("--user", user, "--database", name, "--schema", SCHEMA)
        superuser.execute(command("inbox", "grants", role, *given).stdout)
        address = inbox_url(on_schema.database_url).set(username=user)
        return address.render_as_string(hide_password=False)

    yield make
    for user in made:
        superuser.execute(f'DROP OWNED BY "{user}" CASCADE')
        superuser.execute(f'DROP ROLE "{user}"')


def relay(redis_url: str, url: str) -> None:
    run_relay(redis_url, "rqc", url, stop=threading.Event(), once=True)


@pytest.mark.parametrize("role", ["relay", "worker"])
def test_the_rights_of_a_relay_suffice_in_redis_and_in_postgresql(
    on_schema: Stage, as_sql: AsSql, as_: As, control: Any, role: str
) -> None:
    """Checks all work of a relay: to take over a batch, pack and park rows, and wait for a wake token."""
    stage, url, redis = on_schema, as_sql("relay"), as_(role)
    stage.insert("a", "b")
    stage.insert("bad", args="[")
    stage.insert("plain", packed=None)
    stage.insert("c", queue="other")
    relay(redis, url)
    stage.insert("d")
    stage.sql(
        "UPDATE rqc_relay SET ids = (SELECT '[' || id || ']' FROM rqc_inbox), number = number + 1,"
        " sent_at = sent_at - interval '10 seconds' WHERE queue = 'mail'"
    )
    relay(redis, url)
    with Client(redis) as client:
        assert not client.wait_token(inbox_key(), 0.01)

    assert stage.rows() == []
    assert stage.drain() == ["a", "b", "d", "plain"]
    assert stage.drain("other") == ["c"]
    assert "bad" in stage.parked()
    assert denied(control) == []
    result = command("doctor", "--inbox", url, "--redis", stage.redis_url, "--json")
    assert "inbox grants" not in result.stdout


@one_engine
def test_a_relay_has_no_right_that_it_does_not_need(
    on_schema: Stage, as_sql: AsSql, superuser: psycopg.Connection
) -> None:
    """Revokes each right in turn. The relay fails, and the doctor names the missing right."""
    stage, url = on_schema, as_sql("relay")
    user = inbox_url(url).username
    for table, rights in ROLES["relay"].rights.items():
        for right in rights:
            superuser.execute(f'REVOKE {right} ON "{SCHEMA}".{table} FROM "{user}"')
            stage.sql("DELETE FROM rqc_relay")
            stage.sql("UPDATE rqc_inbox_place SET place = NULL")
            stage.insert("bad", args="[")
            stage.insert("a", packed=None)
            ran = command("inbox", "run", url, "--redis", stage.redis_url, "--once")
            told = command("doctor", "--inbox", url, "--redis", stage.redis_url)
            superuser.execute(f'GRANT {right} ON "{SCHEMA}".{table} TO "{user}"')
            stage.sql("DELETE FROM rqc_inbox")

            assert "permission denied" in ran.stderr, (right, table)
            assert (ran.exit_code, ran.stderr.count("\n")) == (1, 1)
            assert f"lacks {right} ON {table}, which a relay needs" in told.stdout
            assert told.exit_code == 1


def test_a_relay_has_no_right_to_do_anything_but_its_work(
    on_schema: Stage,
    as_sql: AsSql,
    superuser: psycopg.Connection,
    as_: As,
) -> None:
    url, redis = as_sql("relay"), as_("relay")
    superuser.execute(f'CREATE TABLE "{SCHEMA}".orders (id int)')
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        for statement in (
            "INSERT INTO rqc_inbox (queue, task) VALUES ('mail', 't')",
            "DELETE FROM rqc_inbox_parked",
            "UPDATE rqc_inbox_parked SET args = '{}'",
            "DELETE FROM rqc_relay",
            "DELETE FROM rqc_inbox_place",
            "SELECT * FROM orders",
            f'CREATE TABLE "{SCHEMA}".more (id int)',
            "CREATE TEMPORARY TABLE more (id int)",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)
    on_schema.insert("a")
    on_schema.hand_over()
    with Client(redis) as client:
        for words in (
            ["HGETALL", "rqc:{mail}:leases"],
            ["LPUSH", "rqc:inbox", "1"],
            ["SMEMBERS", "rqc:queues"],
            ["DEL", "rqc:{mail}:jobs"],
        ):
            with pytest.raises(ServerUnsuitable):
                client.run(client.calls.delivery.ask([words], "mail"))


def test_the_rights_of_a_producer_suffice_to_enqueue_and_cancel_in_an_inbox(
    on_schema: Stage,
    as_sql: AsSql,
    as_: As,
) -> None:
    stage, url = on_schema, as_sql("producer")
    with App(as_("producer"), inbox=url) as app:

        @app.task(queue="mail")
        def send(n: int) -> None: ...

        with psycopg.connect(url.replace("+psycopg", "")) as connection:
            first = send.within(connection).enqueue(1)
            second = send.within(connection).enqueue(2)
            app.within(connection).enqueue_many([send.job(3)])
        with psycopg.connect(url.replace("+psycopg", "")) as connection:
            assert app.within(connection).cancel(second) == "cancelled"
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("UPDATE rqc_relay SET ids = NULL")
        assert first.state() == "inbox"
        stage.hand_over()
        assert first.state() == "ready"


@one_engine
def test_a_program_with_only_the_right_to_insert_can_enqueue(
    on_schema: Stage, superuser: psycopg.Connection, as_sql: AsSql
) -> None:
    url = as_sql("producer")
    user = inbox_url(url).username
    for table in (INBOX, PARKED, RELAY):
        superuser.execute(f'REVOKE ALL ON "{SCHEMA}".{table} FROM "{user}"')
    superuser.execute(f'GRANT INSERT ON "{SCHEMA}".{INBOX} TO "{user}"')
    app = App("redis://127.0.0.1:1")

    @app.task(queue="mail")
    def send(n: int) -> None: ...

    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        handle = send.within(connection).enqueue(1)
    assert on_schema.rows() == [handle.id]


@one_engine
def test_an_operator_and_a_viewer_can_do_their_work(
    on_schema: Stage, as_sql: AsSql, tmp_path: Any
) -> None:
    stage, operator, viewer = on_schema, as_sql("operator"), as_sql("viewer")
    log = str(tmp_path / "log.db")
    assert audit("migrate", RQ_CORE_AUDIT_URL=log).exit_code == 0
    stage.insert("bad", "worse", args="[")
    stage.hand_over()
    for words in (
        ("inbox", "status", viewer),
        ("inbox", "parked", viewer),
        ("inbox", "verify", viewer, "--audit", log),
        ("metrics", "--once", "--inbox", viewer, "--redis", stage.redis_url),
        ("inbox", "retry", operator, "bad"),
        ("inbox", "drop", operator, "worse"),
        ("inbox", "settle", operator, "--moved"),
        ("inbox", "settle", operator, "--copy", "--same-place"),
        ("inbox", "parked", operator),
    ):
        result = CliRunner().invoke(root, words)
        assert result.exit_code == 0, (words, result.output)
    assert command("inbox", "drop", viewer, "bad").exit_code == 1
    assert list(stage.parked()) == ["bad"], "copied rows are parked"

    result = command("doctor", "--inbox", viewer, "--redis", stage.redis_url)
    for right in ("UPDATE ON rqc_inbox", "INSERT ON rqc_inbox_parked", f"UPDATE ON {PLACE}"):
        assert right in result.stdout
