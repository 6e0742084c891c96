"""Workers under a supervisor, which also starts a mirror."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from rq_core.app.app import App
from rq_core.connections.client import Client
from rq_core.process import lease_guard
from rq_core.protocol.calls import claims
from rq_core.worker.liveness import lease_table
from tests.kit import crew
from tests.kit.command import command
from tests.kit.crew import worker_process
from tests.kit.processes import Child, command_of, lives
from tests.kit.refusing_postgres import FULL, STARTING, refusing_postgres
from tests.kit.wait import wait_until
from tests.worker.conftest import attached, event_types, gone, mirrored


@pytest.mark.slow
def test_the_mirror_of_a_killed_supervisor_ends(
    client: Client, witness: crew.Witness, app: App, sqlite_url: str
) -> None:
    """Checks that the database is free for the mirror of the next deploy."""
    with worker_process(app.redis_url, witness, "--audit", sqlite_url, "--grace", "1") as process:
        app.enqueue_many(crew.function.job(n=n) for n in range(5))
        wait_until(attached(client), "the mirror has attached", timeout=30)
        family = psutil.Process(process.pid).children(recursive=True)
        assert any("audit run" in command_of(each.pid) for each in family)
        process.kill()
        wait_until(
            lambda: not any(lives(each.pid) for each in family), "all have ended", timeout=20
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("audit", "status", "expected"),
    [
        ("nonsense://x", 2, "nonsense is not supported, only sqlite and postgresql"),
        ("postgresql://127.0.0.1:1/x", 1, "does not answer: connection failed"),
    ],
)
def test_an_unusable_audit_database_is_refused_at_the_start(
    app: App, client: Client, witness: crew.Witness, audit: str, status: int, expected: str
) -> None:
    """Checks that the supervisor exits. Otherwise it would restart the mirror forever, while jobs run without an audit
    log."""
    handle = crew.function.enqueue(1)
    with worker_process(app.redis_url, witness, "--audit", audit) as process:
        assert process.wait(30) == status

    said = witness.log()
    assert expected in said
    assert len(said.splitlines()) == 1, said
    assert handle.state() == "ready"


FOREIGN = ("CREATE TABLE job (id INTEGER)", "INSERT INTO job VALUES (1)")


def _foreign(url: str) -> None:
    """Make a database in which another program has a table with the name of one of the log's tables."""
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database:
        database.executescript(";".join(FOREIGN))


def _no_database(url: str) -> None:
    Path(url.removeprefix("sqlite:///")).write_text("a text\n" * 1000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (_foreign, "use another database or schema for the audit log"),
        (_no_database, "file is not a database"),
        (lambda _: None, "another audit database than"),
    ],
    ids=["foreign tables", "no database", "another log"],
)
def test_a_worker_is_refused_if_its_audit_database_is_not_the_one_that_mirrors_the_queue(
    app: App,
    client: Client,
    witness: crew.Witness,
    sqlite_url: str,
    tmp_path: Path,
    make: Callable[[str], None],
    expected: str,
) -> None:
    """Checks a queue that is mirrored into another database. This mirror does not count as the supervisor's mirror."""
    handle = crew.function.enqueue(1)
    mirror = ["audit", "run", "--once", "--redis", app.redis_url, "--audit", sqlite_url]
    assert command(*mirror).exit_code == 0
    other = f"sqlite:///{tmp_path}/other.db"
    make(other)
    with worker_process(app.redis_url, witness, "--audit", other, "--burst") as process:
        assert process.wait(30) == 1

    said = witness.log()
    assert expected in said
    assert len(said.splitlines()) == 1, said
    assert handle.state() == "ready"


@pytest.mark.slow
def test_a_worker_is_refused_if_postgresql_lacks_the_schema_of_its_audit_database(
    app: App, client: Client, witness: crew.Witness, postgres_url: str
) -> None:
    handle = crew.function.enqueue(1)
    url = postgres_url + ("&" if "?" in postgres_url else "?") + "options=-csearch_path%3Dnonesuch"
    with worker_process(app.redis_url, witness, "--audit", url, "--burst") as process:
        assert process.wait(30) == 1

    said = witness.log()
    assert "of its search path (nonesuch), no schema exists that the role may use" in said
    assert "CREATE SCHEMA" in said
    assert len(said.splitlines()) == 1, said
    assert handle.state() == "ready"


@pytest.mark.slow
def test_workers_of_a_logged_queue_start_though_its_database_does_not_answer(
    app: App, client: Client, witness: crew.Witness, sqlite_url: str
) -> None:
    """Checks a deploy during an outage of SQL. Redis keeps the events until the mirror can write again."""
    handle = crew.function.enqueue(1)
    mirror = ["audit", "run", "--once", "--redis", app.redis_url, "--audit", sqlite_url]
    assert command(*mirror).exit_code == 0
    away = "postgresql://127.0.0.1:1/x"
    with worker_process(app.redis_url, witness, "--audit", away, "--burst") as process:
        assert process.wait(60) == 0

    said = witness.log()
    assert "does not answer: connection failed" in said
    assert "the mirror is not ready yet; the workers start without it" in said
    assert handle.state() == "gone"
    assert "succeeded" in event_types(client, handle.id)


@pytest.mark.parametrize("refusal", [STARTING, FULL], ids=["starting up", "too many clients"])
def test_workers_start_though_postgresql_refuses_connections_for_a_while(
    app: App, client: Client, witness: crew.Witness, sqlite_url: str, refusal: tuple[str, str]
) -> None:
    handle = crew.function.enqueue(1)
    mirror = ["audit", "run", "--once", "--redis", app.redis_url, "--audit", sqlite_url]
    assert command(*mirror).exit_code == 0
    with (
        refusing_postgres(*refusal) as away,
        worker_process(app.redis_url, witness, "--audit", away, "--burst") as process,
    ):
        assert process.wait(60) == 0

    assert refusal[1] in witness.log()
    assert "the mirror is not ready yet; the workers start without it" in witness.log()
    assert handle.state() == "gone"


@pytest.mark.slow
def test_the_supervisor_replaces_a_mirror_that_dies(
    app: App, client: Client, witness: crew.Witness, sqlite_url: str
) -> None:
    with worker_process(app.redis_url, witness, "--audit", sqlite_url, "--grace", "1") as process:
        wait_until(lambda: "worker started" in witness.log(), "the mirror is ready", timeout=30)
        os.kill(_mirror(process).pid, signal.SIGKILL)
        wait_until(
            lambda: "the mirror ended with status -9, restarting" in witness.log(), "it is noticed"
        )
        app.enqueue_many(crew.function.job(n=n) for n in range(5))
        wait_until(lambda: len(witness.lines()) == 5, "the jobs are done", timeout=20)
        wait_until(mirrored(client), "all is mirrored", timeout=20)
        process.terminate()
        assert process.wait(30) == 0


@pytest.mark.slow
def test_a_job_whose_handler_holds_the_gil_for_two_leases_keeps_its_lease(
    app: App, client: Client, witness: crew.Witness
) -> None:
    """Checks that the supervisor extends the leases of all jobs of the worker, in which no thread can run."""
    beside = crew.sleeping.enqueue(1.0)
    with worker_process(app.redis_url, witness, "--processes", "2") as process:
        wait_until(lambda: witness.lines("begin"), "the worker works", timeout=20)
        handle = crew.gripping.enqueue(4)
        wait_until(gone(client, handle.id, beside.id), "both are done", timeout=30)
        process.terminate()
        assert process.wait(20) == 0

    for job in (handle, beside):
        assert event_types(client, job.id) == ["enqueued", "claimed", "succeeded"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
@pytest.mark.slow
def test_a_signal_to_the_supervisor_and_its_workers_counts_once_for_each_worker(
    app: App, client: Client, witness: crew.Witness, number: signal.Signals
) -> None:
    """Checks signals from terminals and from systemd. A worker gets the signal itself, and again from its
    supervisor."""
    handle = crew.sleeping.enqueue(2.0)
    with worker_process(app.redis_url, witness, "--processes", "2", "--grace", "20") as process:
        wait_until(lambda: witness.lines("begin"), "it runs", timeout=20)
        os.killpg(process.pid, number)
        assert process.wait(30) == 0

    assert event_types(client, handle.id) == ["enqueued", "claimed", "succeeded"]


@pytest.mark.slow
def test_a_worker_that_ignores_signals_is_killed_after_the_grace(
    app: App, client: Client, witness: crew.Witness
) -> None:
    """Checks that the supervisor also stops extending the worker's leases."""
    handle = crew.gripping.enqueue(100)
    with worker_process(app.redis_url, witness, "--processes", "2", "--grace", "0") as process:
        (line,) = wait_until(lambda: witness.lines("begin"), "it runs", timeout=20)
        process.terminate()
        assert process.wait(40) == 0

    assert not psutil.pid_exists(line["pid"])
    assert "does not end, killing it" in witness.log()
    assert event_types(client, handle.id) == ["enqueued", "claimed"]


@pytest.mark.parametrize("beyond", [False, True])
def test_the_supervisor_kills_a_stuck_worker_only_if_a_claim_has_passed_its_time_limit(
    client: Client, app: App, monkeypatch: pytest.MonkeyPatch, *, beyond: bool
) -> None:
    monkeypatch.setattr(lease_guard, "STUCK_S_MIN", 0.05)
    context = multiprocessing.get_context("spawn")
    table = lease_table.LeaseTable(context, 2)
    client.run(client.calls.delivery.handshake("crew"))
    client.run(client.calls.enqueue.many([crew.sleeping.job(1.0)]))
    (claim,) = client.run(claims.claim("crew", "w-stuck", 1)).jobs
    before = _deadline(client, claim.id)
    stuck = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    guard = lease_guard.LeaseGuard(Client(app.redis_url), ["crew"], lambda: {stuck.pid: table})
    try:
        table.hold(claim, time.monotonic() - 1 if beyond else None)
        table.beat("w-stuck", 0.02)
        time.sleep(0.1)
        guard.look()
        if beyond:
            assert stuck.wait(5) == -signal.SIGKILL
        else:
            assert stuck.poll() is None
        assert (_deadline(client, claim.id) > before) is not beyond
        table.drop(claim)
        assert table.held() == []
    finally:
        stuck.kill()
        stuck.wait()
        guard._client.close()


def _deadline(client: Client, job_id: str) -> float:
    deadline: float = client.run(client.calls.reads.snapshot("crew"))["leases"][job_id]
    return deadline


@pytest.mark.slow
def test_the_supervisor_does_not_extend_the_leases_of_a_suspended_worker(
    app: App, client: Client, witness: crew.Witness
) -> None:
    """Checks that other workers run the jobs of the suspended worker, which may never resume."""
    handle = crew.stopping.enqueue()
    with worker_process(app.redis_url, witness, "--processes", "2"):
        (line,) = wait_until(lambda: witness.lines("begin"), "it runs", timeout=20)
        try:
            wait_until(gone(client, handle.id), "it ran elsewhere", timeout=20)
        finally:
            os.kill(line["pid"], signal.SIGCONT)

    assert "lease_expired" in event_types(client, handle.id)


@pytest.mark.slow
def test_workers_that_are_replaced_after_max_jobs_give_back_no_job(
    app: App, client: Client, witness: crew.Witness
) -> None:
    jobs = [crew.sleeping.job(0.1) for _ in range(20)]
    app.enqueue_many(jobs)
    options = ("--processes", "2", "--max-jobs", "5", "--concurrency", "3")
    with worker_process(app.redis_url, witness, *options) as process:
        wait_until(lambda: len(witness.lines("end")) == 20, "all ran", timeout=60)
        process.terminate()
        assert process.wait(20) == 0

    by_process = Counter(line["pid"] for line in witness.lines("end"))
    assert max(by_process.values()) == 5
    assert len(by_process) >= 4
    assert "restarting" not in witness.log()
    for job in jobs:
        assert event_types(client, job.id) == ["enqueued", "claimed", "succeeded"]


@pytest.mark.slow
def test_a_worker_that_exceeds_its_memory_limit_is_replaced(
    app: App, client: Client, witness: crew.Witness
) -> None:
    with worker_process(app.redis_url, witness, "--max-memory", "1", "--concurrency", "1") as it:
        for n in range(3):
            handle = crew.function.enqueue(n=n)
            wait_until(gone(client, handle.id), "it is done", timeout=30)
        it.terminate()
        assert it.wait(20) == 0

    assert "bytes of memory" in witness.log()
    assert len({line["pid"] for line in witness.lines("function")}) >= 2


def _mirror(process: Child) -> psutil.Process:
    family = psutil.Process(process.pid).children(recursive=True)
    return next(each for each in family if "audit run" in command_of(each.pid))
