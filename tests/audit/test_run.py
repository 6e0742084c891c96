"""The mirror as a service, which finds new queues, survives outages of Redis and SQL, and stops in order."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError, OperationalError

from rq_core.errors import ServerUnavailable, UnknownQueue
from sql_audit.errors import AuditUnavailable, QueuesElsewhere
from sql_audit.mirror import service as run
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.outbox import StreamSource, StreamWriter, enqueue
from tests.kit.processes import python
from tests.kit.wait import wait_until

ROOT = Path(__file__).parents[2]


@contextmanager
def serving(
    source: StreamSource, database: Database, **options: Any
) -> Iterator[Callable[[], None]]:
    """Run the service in a thread. Yield a function that stops the service and waits for its end."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            run.run_mirror(source, database, stop=stop, **options)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()

    def end() -> None:
        stop.set()
        thread.join(20)
        assert not thread.is_alive()
        assert failures == []

    try:
        yield end
    finally:
        end()


def mirrored(database: Database, writer: StreamWriter) -> bool:
    cursor = auditlog.rows(
        database, "SELECT entries FROM mirror_cursor WHERE queue = :q", q=writer.queue
    )
    return bool(cursor) and cursor[0]["entries"] == len(writer.log)


@pytest.mark.slow
def test_the_mirror_service_finds_new_queues_and_new_entries(
    source: StreamSource, valkey_url: str, database: Database
) -> None:
    mine = StreamSource(valkey_url)
    with serving(mine, database):
        writers = [StreamWriter(source, "first")]
        wait_until(lambda: mirrored(database, writers[0]), "the first queue is mirrored")
        writers.append(StreamWriter(source, "second"))
        for writer in writers:
            writer.life("a", "b")
        wait_until(
            lambda: all(mirrored(database, writer) for writer in writers), "both are mirrored"
        )
    mine.close()

    for writer in writers:
        assert auditlog.told_by_sql(database, writer.queue) == auditlog.told_by_stream(writer.log)


@pytest.mark.slow
def test_the_mirror_service_logs_the_queues_that_it_mirrors_or_waits_for(
    source: StreamSource, valkey_url: str, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """Checks the log lines at a start without any queue, and at a start with a mistyped queue name."""
    caplog.set_level(logging.INFO, logger="rq_core.audit")

    def said(what: str) -> bool:
        return sum(what in message for message in caplog.messages) == 1

    mine = StreamSource(valkey_url)
    with serving(mine, database):
        wait_until(lambda: said("no queue is there yet"), "it says that there is none")
        StreamWriter(source, "late")
        wait_until(lambda: said(f"queue late: is mirrored into {database.url}"), "it is found")
    with serving(mine, database, queues=["lat", "late"]):
        wait_until(lambda: said("queue lat: not there yet; known are late"), "it is missed")
    mine.close()


def test_the_mirror_service_does_not_log_a_queue_of_another_database_as_mirrored(
    source: StreamSource, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """Checks that no log line says "is mirrored into" before the refusal."""
    caplog.set_level(logging.INFO, logger="rq_core.audit")
    writer = StreamWriter(source, "mail")
    source.attach("mail", "db-1", 0)

    with pytest.raises(QueuesElsewhere) as refused:
        run.Service(source, database).run(threading.Event(), once=True)

    assert "is mirrored into" not in " ".join(caplog.messages)
    says = str(refused.value)
    assert "mirrors queue mail (its id is db-1) of Redis" in says
    assert "`SELECT audit_id FROM audit_meta` shows it" in says
    assert says.endswith("events that were not mirrored may then be in no log.")
    assert writer.backlog()[0] > 0


def test_only_the_named_queues_are_mirrored(source: StreamSource, audit_url: str) -> None:
    writers = [StreamWriter(source, name) for name in ("a", "b")]

    done = run.run_mirror(source, audit_url, stop=threading.Event(), queues=["b"], once=True)

    assert (done.entries, done.failures) == (1, 0)
    assert [w.backlog()[0] for w in writers] == [1, 0]
    with pytest.raises(UnknownQueue, match="nonesuch"):
        run.run_mirror(source, audit_url, stop=threading.Event(), queues=["nonesuch"], once=True)


def test_run_once_mirrors_all_entries_of_all_queues(source: StreamSource, audit_url: str) -> None:
    """Checks a new database. The command creates its tables first."""
    writers = [StreamWriter(source, name) for name in ("a", "b", "c")]
    for writer in writers:
        for n in range(50):
            writer.life(f"{n}")

    done = run.run_mirror(source, audit_url, stop=threading.Event(), once=True)

    assert done.entries == 3 * 151
    assert [w.backlog() for w in writers] == [(0, 0)] * 3


def test_events_that_exist_when_the_mirror_is_stopped_are_still_mirrored(
    source: StreamSource, writer: StreamWriter, database: Database
) -> None:
    stop = threading.Event()
    stop.set()
    service = run.Service(source, database)
    service._find_queues(raise_errors=True)
    for n in range(20):
        enqueue(writer, f"{n}")

    done = service.run(stop)

    assert done.entries == 21


def test_the_mirror_service_tries_a_postponed_queue_again_before_it_stops(
    source: StreamSource, writer: StreamWriter, database: Database
) -> None:
    """Checks a queue whose server failed a moment ago and answers again. Its entries are mirrored before the service
    stops."""
    stop = threading.Event()
    stop.set()
    service = run.Service(source, database)
    service._find_queues(raise_errors=True)
    for queue in service._queues.values():
        queue.put_off(60)

    assert service.run(stop).entries == 1


class FailingSource(StreamSource):
    """A source whose calls fail while ``away`` is set, as if its server were unreachable."""

    away = False

    def queues(self) -> list[str]:
        self.check()
        return super().queues()

    def read_outbox(self, queue: str, start: str, count: int) -> Any:
        self.check()
        return super().read_outbox(queue, start, count)

    def trim(self, queue: str, audit_id: str, upto: str, jobs: int, size: int) -> None:
        self.check()
        super().trim(queue, audit_id, upto, jobs, size)

    def check(self) -> None:
        if self.away:
            raise ServerUnavailable(url="redis://here", why="Connection refused")


def test_the_mirror_service_continues_after_an_outage_of_redis(
    valkey_url: str,
    writer: StreamWriter,
    database: Database,
    caplog: pytest.LogCaptureFixture,
) -> None:
    mine = FailingSource(valkey_url)
    with serving(mine, database):
        wait_until(lambda: mirrored(database, writer), "it works")
        with caplog.at_level(logging.ERROR, "rq_core.audit"):
            mine.away = True
            writer.life("a")
            wait_until(lambda: "not mirrored" in caplog.text, "the outage is logged")
        mine.away = False
        wait_until(lambda: mirrored(database, writer), "it works again")
    mine.close()

    assert caplog.text.count("not mirrored: ServerUnavailable") == 1
    assert writer.backlog() == (0, 0)


def test_the_mirror_service_continues_after_an_outage_of_sql(
    valkey_url: str,
    writer: StreamWriter,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    mine = StreamSource(valkey_url)
    real = database.insert_events
    away = threading.Event()

    def insert(*args: Any) -> Any:
        if away.is_set():
            raise OperationalError("INSERT", (), Exception("the disk is full"))
        return real(*args)

    monkeypatch.setattr(database, "insert_events", insert)
    with serving(mine, database):
        wait_until(lambda: mirrored(database, writer), "it works")
        with caplog.at_level(logging.INFO, "rq_core.audit"):
            away.set()
            writer.life("a")
            wait_until(lambda: "the disk is full" in caplog.text, "the outage is logged")
            away.clear()
            wait_until(lambda: mirrored(database, writer), "it works again")
            wait_until(lambda: "mirrored again" in caplog.text, "that is logged too")
    mine.close()

    assert auditlog.told_by_sql(database, writer.queue) == auditlog.told_by_stream(writer.log)


@pytest.mark.slow
def test_the_mirror_service_replaces_a_connection_that_postgres_ended(
    valkey_url: str, writer: StreamWriter, postgres_url: str
) -> None:
    mine, database = StreamSource(valkey_url), Database(postgres_url)
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = "
    with serving(mine, database):
        wait_until(lambda: _exists(database) and mirrored(database, writer), "it works")
        for n in range(5):
            with database.engine.connect() as connection:
                connection.exec_driver_sql(f"{others}'rq-core audit' AND pid <> pg_backend_pid()")
            writer.life(f"{n}")
            wait_until(lambda: mirrored(database, writer), "it works again")
    mine.close()

    assert auditlog.told_by_sql(database, writer.queue) == auditlog.told_by_stream(writer.log)
    database.close()


def _exists(database: Database) -> bool:
    return bool(auditlog.rows(database, "SELECT to_regclass('mirror_cursor') AS t")[0]["t"])


def test_a_missing_directory_of_the_database_is_an_error_at_once(source: StreamSource) -> None:
    with pytest.raises(AuditUnavailable, match="/nonesuch"):
        run.run_mirror(source, "/nonesuch/dir/audit.db", stop=threading.Event())


@pytest.mark.slow
def test_a_stopped_mirror_process_first_mirrors_the_remaining_entries(
    valkey_url: str, writer: StreamWriter, audit_url: str, tmp_path: Path
) -> None:
    """Checks a separate process with the real client."""
    database = Database(audit_url)
    url = database.address.render_as_string(hide_password=False)
    command = ("rq_core.cli", "audit", "run", "--redis", valkey_url, "--audit", url, "--json")
    # The stand-in's queue has no meta of the real layout, so the real client makes one of its own.
    from rq_core.connections.client import Client

    with Client(valkey_url) as client:
        client.run(client.calls.delivery.handshake("real"))
    writer.source.redis.srem("rqc:queues", writer.queue)

    def there() -> bool:
        try:
            return bool(auditlog.rows(database, "SELECT * FROM mirror_cursor WHERE events > 0"))
        except DBAPIError:
            time.sleep(0.05)
            return False

    with python(*command, log=tmp_path / "mirror.log") as process:
        wait_until(there, "the process mirrors", timeout=30)
        said = process.end()

    assert '"failures":0' in said
    database.close()
