"""Outages: SQL is down, slow or restored from a backup, a mirror is suspended, or entries of the outbox are removed.

Workers continue, no event is mirrored twice, and missing events are recorded.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from rq_core.connections.client import Client
from rq_core.errors import AuditBacklogFull
from rq_core.model.ids import JobIds
from rq_core.model.job import NewJob, profile
from rq_core.model.keys import queue_keys
from rq_core.protocol.calls import claims
from sql_audit.mirror import service
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror, TurnOutcome
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.store.connection.database import IDLE_TIMEOUT_MS, STALLED_MS, Database
from tests.audit.conftest import QUEUE
from tests.kit import auditlog, stopped_mirror
from tests.kit.mirroring import mirroring
from tests.kit.outbox import StreamSource, StreamWriter
from tests.kit.processes import Child, python
from tests.kit.schemas import lay_schema
from tests.kit.servers import PostgresServer
from tests.kit.wait import wait_until

TASK = profile("task")
ids = JobIds()


def new_jobs(count: int) -> list[NewJob]:
    return [NewJob(ids(), "q", TASK, "{}") for _ in range(count)]


def finish(client: Client, count: int) -> int:
    """Claim up to ``count`` jobs, complete them, and return their number."""
    claimed = client.run(claims.claim("q", "w-1", count)).jobs
    client.run(claims.complete("q", "w-1", [(c.id, c.fence) for c in claimed]))
    return len(claimed)


def kinds(database: Database) -> list[str]:
    return [r["kind"] for r in auditlog.rows(database, "SELECT kind FROM mirror_epoch ORDER BY id")]


# Down.


def test_when_the_backlog_is_full_producers_are_refused_and_workers_continue(
    client: Client,
    valkey_url: str,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Checks that running jobs end while SQL is unreachable. Later the mirror copies all their events."""
    caplog.set_level(logging.INFO, "rq_core.audit")
    monkeypatch.setattr(service, "LAG_TOLD", 20)
    monkeypatch.setattr(service, "LAG_EVERY_S", 0.05)
    monkeypatch.setattr(service, "BACKOFF_S_MAX", 0.3)
    real, away = database.insert_events, threading.Event()

    def insert(*args: Any) -> Any:
        if away.is_set():
            raise OperationalError("COPY", (), Exception("the disk is full"))
        return real(*args)

    monkeypatch.setattr(database, "insert_events", insert)
    client.run(client.calls.delivery.handshake("q"))
    client.run(client.calls.admin.configure("q", {"backlog_max_jobs": 40}))
    with mirroring(valkey_url, database):
        wait_until(
            lambda: client.run(client.calls.reads.counts("q")).audit, "the mirror has attached"
        )
        wait_until(lambda: client.run(client.calls.reads.counts("q")).backlog == 0, "it is level")
        away.set()
        accepted = 0
        with pytest.raises(AuditBacklogFull):
            for _ in range(100):
                client.run(client.calls.enqueue.many(new_jobs(10)))
                accepted += 10
        assert finish(client, accepted) == accepted
        wait_until(lambda: "events behind" in caplog.text, "the lag is told")
        assert client.run(client.calls.reads.counts("q")).backlog >= 40
        away.clear()
        wait_until(
            lambda: client.run(client.calls.reads.counts("q")).backlog == 0,
            "it catches up",
            timeout=30,
        )
        wait_until(lambda: "has caught up" in caplog.text, "that is told")
        client.run(client.calls.enqueue.many(new_jobs(1)))

    assert verify(database).verdict is LogVerdict.HOLDS
    states = auditlog.rows(
        database, "SELECT state, COUNT(*) AS n FROM job GROUP BY state ORDER BY 1"
    )
    assert states == [{"state": "ready", "n": 1}, {"state": "succeeded", "n": accepted}]


# A mirror that stops in the middle.


@pytest.fixture
def stopped(valkey_url: str, tmp_path: Path) -> Iterator[Callable[[str, str], Child]]:
    """Yield a function that starts a mirror, which suspends itself (SIGSTOP) at the given step.

    The mirror is killed after the test.
    """
    with contextlib.ExitStack() as stack:

        def start(url: str, step: str) -> Child:
            words = ("tests.kit.stopped_mirror", valkey_url, url, QUEUE, step)
            process = stack.enter_context(python(*words, log=tmp_path / "mirror.log"))
            wait_until(lambda: process.is_stopped, "it has stopped", timeout=30)
            return process

        yield start


@pytest.mark.parametrize("step", ["locked", "copying", "events", "advanced"])
@pytest.mark.slow
def test_postgres_ends_the_transaction_of_a_stopped_mirror(
    step: str,
    postgres_url: str,
    stopped: Callable[[str, str], Child],
    writer: StreamWriter,
    source: StreamSource,
) -> None:
    """Checks that a second mirror takes over within the stated timeouts.

    The first mirror does no damage when it resumes.
    """
    assert max(IDLE_TIMEOUT_MS, STALLED_MS) <= 60_000
    database = Database(postgres_url)
    lay_schema(database)
    mirror = Mirror(source, database, QUEUE)
    assert mirror.turn().outcome is TurnOutcome.MIRRORED
    writer.life("a", "b", "c")
    process = stopped(postgres_url, step)

    assert mirror.turn().outcome is TurnOutcome.HELD
    began = time.monotonic()

    def taken_over() -> bool:
        database.end_stalled(stopped_mirror.TIMEOUT_MS)  # as the service does
        return mirror.turn().outcome is TurnOutcome.MIRRORED

    wait_until(taken_over, "the other takes over", timeout=30)
    took = time.monotonic() - began
    writer.life("d")
    auditlog.drain(mirror)
    process.send_signal(signal.SIGCONT)

    # Its transaction has failed, once; then it goes on as one mirror among others.
    assert process.wait(30) == 11
    assert took < stopped_mirror.TIMEOUT_MS / 1000 + 5
    assert kinds(database) == ["started"]
    assert auditlog.told_by_sql(database, QUEUE) == auditlog.told_by_stream(writer.log)
    auditlog.assert_chain_holds(database, QUEUE)
    assert writer.backlog() == (0, 0)
    database.close()


@pytest.mark.parametrize("end", [signal.SIGCONT, signal.SIGKILL])
def test_a_stopped_mirror_holds_the_sqlite_file_until_it_resumes_or_dies(
    end: signal.Signals,
    sqlite_url: str,
    stopped: Callable[[str, str], Child],
    writer: StreamWriter,
    source: StreamSource,
) -> None:
    """Checks that another mirror waits for the lock, and logs no false message. Readers are not blocked."""
    database = Database(sqlite_url)
    lay_schema(database)
    writer.life("a", "b", "c")
    process = stopped(sqlite_url, "events")
    mirror = Mirror(source, database, QUEUE)

    assert [mirror.turn().outcome for _ in range(3)] == [TurnOutcome.HELD] * 3
    assert auditlog.rows(database, "SELECT * FROM job_event") == []
    os.kill(process.pid, end)
    process.wait(30)
    auditlog.drain(mirror)

    assert kinds(database) == ["started"]
    assert auditlog.told_by_sql(database, QUEUE) == auditlog.told_by_stream(writer.log)
    auditlog.assert_chain_holds(database, QUEUE)
    assert writer.backlog() == (0, 0)
    database.close()


# Older than it was.


@pytest.fixture
def restorable(
    audit_url: str, postgres_server: PostgresServer, tmp_path: Path
) -> Iterator[tuple[Database, Callable[[], None], Callable[[], Database]]]:
    """Yield a database, a function that makes its backup, and a function that restores the backup."""
    database = Database(audit_url)
    lay_schema(database)
    opened = [database]
    backups: list[str] = []

    def backup() -> None:
        database.close()
        if database.dialect == "sqlite":
            shutil.copy(database.path, tmp_path / "backup.db")
        else:
            backups.append(postgres_server.create_database(database.address.database))

    def restore() -> Database:
        database.close()
        if database.dialect == "sqlite":
            older = Database(str(tmp_path / "backup.db"))
        else:
            older = Database(postgres_server.url(backups[-1]))
        opened.append(older)
        return older

    yield database, backup, restore
    for each in opened:
        each.close()
    for name in backups:
        postgres_server.drop_database(name)


def test_a_mirror_on_a_restored_sql_backup_copies_the_missing_events_that_redis_still_has(
    restorable: Any, writer: StreamWriter, source: StreamSource
) -> None:
    database, backup, restore = restorable
    writer.life("a")
    auditlog.drain(Mirror(source, database, QUEUE))
    backup()
    writer.life("b")

    class Died(Exception):
        pass

    def die(step: str) -> None:
        if step == "committed":
            raise Died

    with pytest.raises(Died):
        Mirror(source, database, QUEUE, on_step=die).turn()
    older = restore()
    writer.life("c")

    auditlog.drain(Mirror(source, older, QUEUE))

    assert kinds(older) == ["started"]
    assert auditlog.told_by_sql(older, QUEUE) == auditlog.told_by_stream(writer.log)
    assert verify(older).verdict is LogVerdict.HOLDS
    assert writer.backlog() == (0, 0)


def test_events_that_a_restored_sql_backup_cannot_get_again_are_recorded(
    restorable: Any, writer: StreamWriter, source: StreamSource
) -> None:
    database, backup, restore = restorable
    writer.life("a")
    auditlog.drain(Mirror(source, database, QUEUE))
    backup()
    writer.life("b", "c")
    auditlog.drain(Mirror(source, database, QUEUE))
    older = restore()
    writer.life("d")

    auditlog.drain(Mirror(source, older, QUEUE))

    gap = auditlog.one(older, "SELECT * FROM mirror_epoch WHERE kind = 'gap'")
    # All of b and c but their last entry, which was the anchor.
    assert (gap["old_seq"], gap["seq"], gap["missing"]) == (3, 6, 2)
    result = verify(older)
    assert result.verdict is LogVerdict.UNKNOWN
    assert result.violations == []
    assert [e["job_id"] for e in auditlog.events(older, QUEUE) if e["job_id"]][-1] == "d"


# Cut by an operator.


@pytest.mark.parametrize("cut", ["XTRIM", "XDEL", "XTRIM all", "DEL"])
def test_entries_that_an_operator_removed_are_recorded_and_work_continues(
    cut: str, client: Client, database: Database
) -> None:
    mirror = Mirror(Outbox(client), database, "q")
    client.run(client.calls.enqueue.many(new_jobs(3)))
    auditlog.drain(mirror)
    finish(client, 3)
    for _ in range(3):
        client.run(client.calls.enqueue.many(new_jobs(2)))
    outbox = queue_keys("q")("outbox")
    entries = client.run(client.calls.audit.read_outbox("q", "-", 100))
    commands = {
        "XTRIM": ["XTRIM", outbox, "MAXLEN", "1"],
        "XDEL": ["XDEL", outbox, entries[2][0], entries[3][0]],
        "XTRIM all": ["XTRIM", outbox, "MAXLEN", "0"],
        "DEL": ["DEL", outbox],
    }
    client.run(client.calls.delivery.ask([commands[cut]]))

    auditlog.drain(mirror)
    client.run(client.calls.enqueue.many(new_jobs(1)))
    assert finish(client, 100) == 7
    auditlog.drain(mirror)

    found = set(kinds(database))
    assert found & {"gap", "lost"}
    result = verify(database)
    if cut in ("XTRIM all", "DEL"):
        # Nothing is left to tell that anything is missing: Redis began anew, and the loss is named as such.
        assert result.verdict is LogVerdict.HOLDS
        assert [loss.says for loss in result.queues["q"].losses]
    else:
        assert result.verdict is LogVerdict.UNKNOWN
    assert result.violations == []
    # What was taken unmirrored was counted when it was added: it must not count for ever.
    assert client.run(client.calls.reads.counts("q")).backlog == 0
