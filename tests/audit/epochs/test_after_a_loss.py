"""The time after a loss of Redis: jobs are restored, and a mirror dies while it records the loss.

In one test, the log was switched off.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rq_core.connections.client import Client
from rq_core.protocol.calls import claims
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import STEPS, Mirror
from sql_audit.proof.result import LogVerdict
from sql_audit.queries import history as queries
from sql_audit.store.connection.database import Database
from sql_audit.upkeep.survey import Survey, survey
from tests.audit.epochs.forgetting import enqueue
from tests.kit import auditlog
from tests.kit.agreement import assert_agree, drain, states
from tests.kit.command import audit
from tests.kit.fleet import QUEUE, Fleet
from tests.kit.servers import RedisServer


def test_restore_lists_jobs_that_redis_lost_and_ended_jobs_that_an_old_snapshot_brought_back(
    start_redis: Callable[..., RedisServer], database: Database
) -> None:
    server = start_redis()
    with Client(server.url) as client:
        enqueue(client, "done-before", "waits")
        with server.client() as control:
            control.save()
        enqueue(client, "unheard-of", "done-and-forgotten", "runs")
        drain(client, database)
        (claimed,) = {c.fence for c in client.run(claims.claim(QUEUE, "w-1", 5)).jobs}
        done = [(job_id, claimed) for job_id in ("done-before", "done-and-forgotten")]
        client.run(claims.complete(QUEUE, "w-1", done))
        drain(client, database)
        assert survey(client, database, QUEUE) == Survey()
        server.kill()
        server.start()
        client.run(claims.complete(QUEUE, "w-1", [("runs", claimed)]))
        drain(client, database)

        found = survey(client, database, QUEUE)
        command = ["restore", "--audit", str(database.address.render_as_string(False))]
        shown = audit(*command, "--redis", server.url)

    assert {job.job_id: (job.was, job.finished, job.ran_on) for job in found.lost} == {
        "unheard-of": ("running", None, False),
        "done-and-forgotten": ("succeeded", "succeeded", False),
        "runs": ("running", None, True),
    }
    assert [(job.job_id, job.finished, job.state) for job in found.revived] == [
        ("done-before", "succeeded", "ready")
    ]
    assert shown.exit_code == 0
    assert "q: 3 jobs lost, 1 revived" in shown.output
    assert "revived: done-before  ready, succeeded at" in shown.output


class Stopped(Exception):
    """Raised in a step of a mirror, so that the mirror stops there."""


@pytest.mark.parametrize("step", STEPS)
def test_a_mirror_killed_while_recording_a_loss_records_the_loss_once(
    start_redis: Callable[..., RedisServer], database: Database, step: str
) -> None:
    server = start_redis()
    with Client(server.url) as client:
        enqueue(client, "kept", "claimed")
        drain(client, database)
        with server.client() as control:
            control.save()
        client.run(claims.claim(QUEUE, "w-1", 1))
        enqueue(client, "forgotten")
        drain(client, database)
        server.kill()
        server.start()
        enqueue(client, "afterwards")

        def stop(done: str) -> None:
            if done == step:
                raise Stopped

        with pytest.raises(Stopped):
            auditlog.drain(Mirror(Outbox(client), database, QUEUE, on_step=stop))
        result = assert_agree(client, database, LogVerdict.HOLDS)

    assert result.orphans == 2
    assert len(auditlog.rows(database, "SELECT 1 FROM mirror_loss")) == 1
    expected = {"kept": "ready", "claimed": "ready", "forgotten": "lost", "afterwards": "ready"}
    assert states(database) == expected
    assert auditlog.rows(database, "SELECT 1 FROM job_attempt") == []


@pytest.mark.parametrize("trimmed", [False, True])
def test_an_audit_log_that_is_switched_on_again_continues_from_a_baseline(
    start_redis: Callable[..., RedisServer], database: Database, *, trimmed: bool
) -> None:
    server = start_redis()
    with Client(server.url) as client:
        fleet = Fleet(client, 5)
        fleet.run(60)
        enqueue(client, "ended-meanwhile")
        drain(client, database)
        client.run(client.calls.audit.detach(QUEUE, queries.audit_id(database)))
        client.run(client.calls.admin.cancel(QUEUE, ["ended-meanwhile"]))
        fleet.run(40)
        if trimmed:
            # As the ring does after enough events.
            with server.client() as control:
                control.xtrim(f"rqc:{{{QUEUE}}}:outbox", maxlen=3, approximate=False)

        result = assert_agree(client, database, LogVerdict.UNKNOWN if trimmed else LogVerdict.HOLDS)

    assert states(database)["ended-meanwhile"] == ("gone" if trimmed else "cancelled")
    assert result.orphans == 0
