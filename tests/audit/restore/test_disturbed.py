"""A restore while other processes use the queue, and a restore that is killed half-way."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from rq_core import errors
from rq_core.connections.client import Client
from rq_core.model.keys import queue_keys
from rq_core.protocol.calls.admin import IDS_CHUNK
from sql_audit.errors import MirrorBehind
from sql_audit.proof.result import LogVerdict
from sql_audit.store.connection.database import Database
from sql_audit.upkeep import restore
from sql_audit.upkeep.restore import restore_jobs
from sql_audit.upkeep.survey import lost_jobs
from tests.audit.restore.jobs import (
    HOUR_MS,
    flush,
    job,
    lines,
    mirroring,
    restored,
    run_all,
)
from tests.kit.agreement import assert_agree, drain
from tests.kit.fleet import QUEUE


def test_restore_logs_a_baseline_event_for_a_job_whose_keys_were_deleted_by_hand(
    client: Client, database: Database
) -> None:
    """Checks deleted keys in an epoch that continues. The log still shows the job as alive."""
    client.run(client.calls.enqueue.many([job("deleted", delay_ms=HOUR_MS), job("other")]))
    drain(client, database)
    keys = queue_keys(QUEUE)
    commands = [["HDEL", keys(name), "deleted"] for name in ("state", "jobs")]
    client.run(client.calls.delivery.ask([*commands, ["ZREM", keys("scheduled"), "job|deleted"]]))

    done = restore_jobs(client, database, QUEUE, by="ada")

    assert (done.restored, done.complete) == (1, True)
    assert_agree(client, database, LogVerdict.HOLDS)
    assert lines(client)["deleted"].startswith("scheduled ")


def test_restore_refuses_arguments_that_do_not_match_their_digest(
    client: Client, database: Database
) -> None:
    call = client.calls.enqueue.chunk(QUEUE, [job("forged")])
    [(*others, spec)] = call.each
    client.run(replace(call, each=[(*others, spec.replace("forged", "FORGED"))]))
    drain(client, database)
    flush(client)
    drain(client, database)

    done = restore_jobs(client, database, QUEUE, by="ada")

    assert done.restored == 0
    assert [each.unknown for each in done.unknown] == [
        "the arguments in the log are not those that it was enqueued with"
    ]
    assert lines(client) == {}


def test_restore_waits_for_the_mirror_and_raises_mirror_behind(
    client: Client, database: Database
) -> None:
    """Checks a job that ended before the restore. If the mirror has not copied this end, the job looks lost."""
    client.run(client.calls.enqueue.many([job("a"), job("b")]))
    drain(client, database)
    assert run_all(client) == ["a", "b"]

    with pytest.raises(MirrorBehind, match=r"rq-core audit run"):
        restore_jobs(client, database, QUEUE, by="ada", wait_s=0)

    assert lines(client) == {}
    drain(client, database)
    assert restore_jobs(client, database, QUEUE, by="ada").restored == 0
    assert_agree(client, database, LogVerdict.HOLDS)


def test_restore_notices_by_itself_that_redis_was_emptied(
    client: Client, database: Database, redis_url: str
) -> None:
    """Checks a restore that is the first client to reach Redis after the loss, while a mirror runs."""
    client.run(client.calls.enqueue.many([job("a")]))
    drain(client, database)
    flush(client)

    with mirroring(redis_url, database), Client(redis_url) as other:
        done = restore_jobs(other, database, QUEUE, by="ada")

    assert done.restored == 1
    assert_agree(client, database, LogVerdict.HOLDS)


@pytest.mark.slow
def test_two_concurrent_restores_restore_each_job_once(
    client: Client, database: Database, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks a restore with an outdated list of lost jobs. Another restore has restored these jobs, and workers have
    run them."""
    names = [f"j-{n:04}" for n in range(2 * IDS_CHUNK)]
    client.run(client.calls.enqueue.many(job(name) for name in names))
    drain(client, database)
    flush(client)
    drain(client, database)
    ran: list[str] = []

    def meanwhile(done: int, of: int) -> None:
        if done < of and not ran:
            with Client(redis_url) as other:
                assert restore_jobs(other, database, QUEUE, by="eve").restored == len(names) - done
            ran.extend(run_all(client))

    # What the log says of the second chunk was read before: the worst case.
    read = list(lost_jobs(database, QUEUE, names))
    monkeypatch.setattr(
        restore,
        "lost_jobs",
        lambda _d, _q, ids: (each for each in read if each[0].job_id in set(ids)),
    )
    with mirroring(redis_url, database):
        done = restore_jobs(client, database, QUEUE, by="ada", on_progress=meanwhile)
    assert done.restored == IDS_CHUNK
    assert sorted(ran) == names
    assert run_all(client) == []
    assert_agree(client, database, LogVerdict.HOLDS)
    assert set(restored(database).values()) == {1}


def test_restore_skips_a_job_that_its_producer_has_enqueued_again(
    client: Client, database: Database
) -> None:
    client.run(client.calls.enqueue.many([job("a"), job("b")]))
    drain(client, database)
    flush(client)
    client.run(client.calls.enqueue.many([job("a", args_json='{"n":2}')]))
    drain(client, database)

    done = restore_jobs(client, database, QUEUE, by="ada")

    assert (done.restored, done.complete) == (1, True)
    assert client.run(client.calls.reads.snapshot(QUEUE))["jobs"]["a"].endswith('"args":{"n":2}}')
    assert_agree(client, database, LogVerdict.HOLDS)


@pytest.mark.slow
def test_restore_waits_while_the_backlog_is_full(
    client: Client, database: Database, redis_url: str
) -> None:
    """Checks that the restore continues each time after the mirror has emptied the backlog."""
    names = [f"j-{n:04}" for n in range(2 * IDS_CHUNK)]
    client.run(client.calls.enqueue.many(job(name) for name in names))
    drain(client, database)
    flush(client)
    drain(client, database)
    client.run(client.calls.admin.configure(QUEUE, {"backlog_max_jobs": 1}))
    drain(client, database)

    with pytest.raises(errors.AuditBacklogFull):
        restore_jobs(client, database, QUEUE, by="ada", wait_s=0)
    assert len(lines(client)) == IDS_CHUNK
    with mirroring(redis_url, database):
        assert restore_jobs(client, database, QUEUE, by="ada").restored == IDS_CHUNK

    # At twice the bound nothing is claimed.
    client.run(client.calls.admin.configure(QUEUE, {"backlog_max_jobs": 1_000_000}))
    assert run_all(client) == names
    assert_agree(client, database, LogVerdict.HOLDS)


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.slow
def test_a_second_run_of_a_killed_restore_restores_each_job_once(
    client: Client, database: Database, redis_url: str, calls: int
) -> None:
    """Checks a restore that is killed right after its first or second call has restored jobs in Redis."""
    names = [f"j-{n:04}" for n in range(2 * IDS_CHUNK + 50)]
    client.run(client.calls.enqueue.many(job(name) for name in names))
    drain(client, database)
    flush(client)
    drain(client, database)
    address = str(database.address.render_as_string(False))
    command = [sys.executable, "-m", "tests.kit.restore_child", redis_url, address, QUEUE]

    killed = subprocess.run([*command, str(calls)], check=False, timeout=60)

    assert killed.returncode == -signal.SIGKILL
    assert len(lines(client)) == calls * IDS_CHUNK
    ran = run_all(client)
    with mirroring(redis_url, database):
        done = restore_jobs(client, database, QUEUE, by="ada")
        assert done.restored == len(names) - calls * IDS_CHUNK
        assert restore_jobs(client, database, QUEUE, by="ada").restored == 0
    assert ran + run_all(client) == names
    assert_agree(client, database, LogVerdict.HOLDS)
    assert restored(database) == dict.fromkeys(names, 1)
