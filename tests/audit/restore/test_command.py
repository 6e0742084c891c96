"""The command `audit restore`, and an app whose lost jobs the command restores."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rq_core import errors
from rq_core.app.app import App
from rq_core.connections.client import Client
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.store.connection.database import Database
from sql_audit.upkeep.restore import restore_jobs
from sql_audit.upkeep.survey import survey
from tests.audit.restore.jobs import (
    flush,
    invoke,
    job,
)
from tests.kit import auditlog, crew
from tests.kit.agreement import drain
from tests.kit.fleet import QUEUE
from tests.kit.secrets import SECRET
from tests.kit.wait import wait_until


def test_the_restore_command_reports_restored_jobs_and_jobs_that_cannot_be_restored(
    client: Client, database: Database, redis_url: str
) -> None:
    client.run(client.calls.enqueue.many([job("full"), job("digest", spec_max=0)]))
    drain(client, database)
    flush(client)
    drain(client, database)

    listed = invoke(database, redis_url)
    applied = invoke(database, redis_url, "--apply")
    drain(client, database)
    again = invoke(database, redis_url, "--apply", "--json")

    assert listed.exit_code == 0
    assert "q: 2 jobs lost, 0 revived" in listed.output
    refusal = (
        "lost: digest  task  was ready; cannot be put back: the log does not keep its arguments"
    )
    assert refusal in listed.output
    assert "lost: full  task  was ready\n" in listed.output
    assert applied.exit_code == 2
    assert "q: 1 job restored, 0 removed" in applied.output
    assert refusal in applied.output
    assert 'App(audit_payload="full")' in applied.output
    assert again.exit_code == 2
    (of_queue,) = json.loads(again.stdout)["queues"].values()
    assert (of_queue["restored"], of_queue["complete"]) == (0, False)
    assert [each["job_id"] for each in of_queue["unknown"]] == ["digest"]
    told = auditlog.one(database, "SELECT worker, detail FROM job_event WHERE type = 'restored'")
    assert (told["worker"], json.loads(told["detail"])["why"]) == ("ada", "audit restore")


def test_the_restore_command_exits_with_0_when_no_lost_job_is_left(
    client: Client, database: Database, redis_url: str
) -> None:
    client.run(client.calls.enqueue.many([job("full")]))
    drain(client, database)
    flush(client)
    drain(client, database)

    assert invoke(database, redis_url, "--apply", "--queue", QUEUE).exit_code == 0
    drain(client, database)
    assert invoke(database, redis_url, "--apply").exit_code == 0
    assert survey(client, database, QUEUE).lost == []


def test_the_restore_command_exits_with_1_when_the_mirror_is_behind_redis(
    client: Client, database: Database, redis_url: str
) -> None:
    client.run(client.calls.enqueue.many([job("full")]))
    drain(client, database)
    client.run(client.calls.enqueue.many([job("new")]))

    shown = invoke(database, redis_url, "--apply", "--wait", "0")

    assert shown.exit_code == 1
    assert "rq-core: queue q: Redis has entries up to" in shown.output


@pytest.mark.slow
def test_a_worker_runs_a_restored_job_with_its_original_arguments(
    redis_url: str, database: Database, tmp_path: Any
) -> None:
    """Checks that the arguments are the producer's, and that no redactor has changed an argument."""
    seen = crew.Witness(tmp_path / "witness.jsonl")
    with App(redis_url, redact="tests.kit.secrets:redact", audit_payload="full") as app:
        app.queue("digest", audit_payload="digest")
        mirror = Mirror(Outbox(app.client), database, "crew")
        mirror.attach()
        ran = app.enqueue("crew", "function", {"n": 7})
        later = app.enqueue("crew", "failing", {"message": SECRET}, delay=3600)
        other = app.enqueue("digest", "function", {"n": 8})
        auditlog.drain(mirror)
        auditlog.drain(Mirror(Outbox(app.client), database, "digest"))
        flush(app.client)
        auditlog.drain(mirror)

        done = restore_jobs(app.client, database, "crew", by="ada")

        assert done.restored == 2
        specs = app.client.run(app.client.calls.reads.snapshot("crew"))["jobs"]
        assert json.loads(specs[later.id])["args"] == {"message": SECRET}
        with crew.worker_process(redis_url, seen) as process:
            wait_until(lambda: ran.state() == "gone", "it has run", timeout=30)
            process.terminate()
            assert process.wait(60) == 0
        auditlog.drain(mirror)
        auditlog.drain(Mirror(Outbox(app.client), database, "digest"))
        lost = survey(app.client, database, "digest").lost

    assert [(line["job"], line["n"]) for line in seen.lines("function")] == [(ran.id, 7)]
    assert auditlog.one(database, "SELECT state FROM job WHERE job_id = :i", i=ran.id) == {
        "state": "succeeded"
    }
    assert [(each.job_id, each.unknown) for each in lost] == [
        (other.id, "the log does not keep its arguments")
    ]


@pytest.mark.parametrize("said", ["all", "", None, True])
def test_an_app_refuses_an_invalid_value_of_audit_payload(said: Any) -> None:
    with pytest.raises(errors.InvalidOption, match="audit_payload"):
        App(audit_payload=said)
