"""A log that is switched off and on again while a mirror runs."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from click.testing import CliRunner

from rq_core.cli.root import root
from rq_core.connections.client import Client
from rq_core.model.ids import JobIds
from rq_core.model.job import NewJob, profile
from sql_audit.mirror import service
from sql_audit.mirror.reading import BatchLimits
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror, TurnOutcome
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.queries.history import audit_id
from sql_audit.store.connection.database import Database
from sql_audit.upkeep.switch_off import switch_off
from tests.kit import auditlog
from tests.kit.mirroring import mirroring
from tests.kit.wait import wait_until

ids = JobIds()


def add(client: Client, count: int = 1) -> list[str]:
    jobs = [NewJob(ids(), "q", profile("task"), "{}") for _ in range(count)]
    return list(client.run(client.calls.enqueue.many(jobs)).ids)


def cli(*words: str) -> str:
    done = CliRunner().invoke(root, words)
    assert done.exit_code == 0, done.output
    return done.output


def mirrored(database: Database, *ids: str) -> bool:
    rows = auditlog.rows(database, "SELECT job_id FROM job")
    return {row["job_id"] for row in rows}.issuperset(ids)


@pytest.mark.slow
@pytest.mark.parametrize("meanwhile", [1, 2_500], ids=["few", "more than the ring keeps"])
def test_a_running_mirror_continues_when_the_audit_log_is_switched_on_again(
    meanwhile: int,
    valkey_url: str,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Checks that the mirror continues without a restart, and stops reporting AuditOff."""
    caplog.set_level(logging.INFO, "rq_core.audit")
    monkeypatch.setattr(service, "OFF_WAIT_S", 0.1)
    at = ("q", "--redis", valkey_url, "--audit", database.address.render_as_string(False))
    with Client(valkey_url) as client:
        (before,) = add(client)
        with mirroring(valkey_url, database):
            wait_until(lambda: mirrored(database, before), "it mirrors", timeout=30)
            assert cli("audit", "off", *at) == "queue q: audit off\n"
            off = add(client, meanwhile)
            wait_until(lambda: "log is switched off" in caplog.text, "it is told", timeout=30)
            assert not client.run(client.calls.reads.counts("q")).audit
            assert cli("audit", "on", *at) == "queue q: audit on\n"
            (after,) = add(client)
            wait_until(lambda: mirrored(database, after), "it goes on", timeout=30)
            wait_until(
                lambda: client.run(client.calls.reads.counts("q")).backlog == 0, "it is level"
            )

    assert mirrored(database, *off)
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []
    assert caplog.text.count("log is switched off") == 1
    assert verify(database).verdict is LogVerdict.HOLDS


@pytest.mark.slow
def test_audit_off_also_mirrors_events_that_arrive_while_it_switches_the_log_off(
    valkey_url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks the events that producers add after the command has read the backlog. Redis has them until it is full
    again, so SQL must have them at the end of the command."""
    late: list[str] = []

    def add_then_detach(audit: Any, queue: str, holder: str) -> Any:
        for _ in range(3):
            late.extend(add(client, 2_500))
        return detach(audit, queue, holder)

    with Client(valkey_url) as client:
        add(client)
        auditlog.drain(Mirror(Outbox(client), database, "q"))
        add(client)
        calls = type(client.calls.audit)
        detach = calls.detach
        monkeypatch.setattr(calls, "detach", add_then_detach)
        switch_off(client, database, "q")

    assert len(late) > BatchLimits().events
    assert mirrored(database, *late)
    last = auditlog.rows(database, "SELECT type, detail FROM job_event ORDER BY epoch, seq")[-1]
    assert last["type"] == "policy_changed"
    assert verify(database).verdict is LogVerdict.HOLDS


@pytest.mark.parametrize("is_first", [True, False], ids=["the first epoch", "a later epoch"])
def test_audit_off_also_mirrors_an_epoch_that_no_mirror_has_read_yet(
    valkey_url: str, database: Database, is_first: bool
) -> None:
    """Checks a queue that a mirror has attached without reading it, and an epoch that began after the last turn."""
    with Client(valkey_url) as client:
        added, known = add(client), 0
        if not is_first:
            auditlog.drain(Mirror(Outbox(client), database, "q"))
            known = client.run(client.calls.delivery.handshake("q")).epoch + 1
        Mirror(Outbox(client), database, "q").attach(known)
        added += add(client)
        switch_off(client, database, "q")

    assert mirrored(database, *added)
    last = auditlog.rows(database, "SELECT type, detail FROM job_event ORDER BY epoch, seq")[-1]
    assert last["type"] == "policy_changed"
    assert verify(database).verdict is LogVerdict.HOLDS


def test_audit_off_succeeds_while_a_running_mirror_moves_the_cursor(
    valkey_url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks a running mirror that copies the last events before `audit off` can. Redis then refuses the trim of the
    command."""
    with Client(valkey_url) as client:
        added = add(client)
        running, ending = (Mirror(Outbox(client), database, "q") for _ in range(2))
        while running.turn().outcome is not TurnOutcome.IDLE:
            pass
        client.run(client.calls.audit.detach("q", audit_id(database)))
        late = ending.read

        def read() -> Any:
            monkeypatch.setattr(ending, "read", late)
            running.finish()
            return late()

        monkeypatch.setattr(ending, "read", read)
        ending.finish()

    assert mirrored(database, *added)
    assert verify(database).verdict is LogVerdict.HOLDS


def test_audit_on_refuses_a_queue_of_another_database(
    valkey_url: str, database: Database, sqlite_url: str
) -> None:
    with Client(valkey_url) as client:
        add(client)
        at = ("q", "--redis", valkey_url, "--audit")
        cli("audit", "on", *at, database.address.render_as_string(False))
        holder = client.run(client.calls.delivery.handshake("q")).audit_id

        done = CliRunner().invoke(root, ("audit", "on", *at, f"{sqlite_url}-other"))

        assert done.exit_code == 1
        assert f"mirrors queue q (its id is {holder})" in done.output
        assert client.run(client.calls.delivery.handshake("q")).audit_id == holder
