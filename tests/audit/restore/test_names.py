"""A restore and the names of unique jobs: what was lost never runs beside what took its name."""

from __future__ import annotations

from collections.abc import Callable

from rq_core.connections.client import Client
from rq_core.model.job import NewJob, ties_of
from sql_audit.proof.result import Verdict
from sql_audit.store.database import Database
from sql_audit.upkeep.restore import apply
from tests.audit.restore.jobs import claim, complete, flush, job, lines, run_all
from tests.kit.agreement import assert_agree, drain
from tests.kit.fleet import QUEUE
from tests.kit.servers import RedisServer

NAME = "task/tenant=acme"


def unique(job_id: str) -> NewJob:
    return job(job_id, ties=ties_of(unique="keep"), name=NAME)


def holder(client: Client) -> object:
    key = f"rqc:{{{QUEUE}}}:slots"
    return client.run(client.calls.delivery.ask([["HGET", key, f"unique|{NAME}"]]))[0]


def test_a_lost_job_gets_the_name_that_a_revived_one_had(
    start_redis: Callable[..., RedisServer], database: Database
) -> None:
    """Put back first, it would come without its name, or not at all; then a third job could take the name beside it."""
    server = start_redis()
    with Client(server.url) as client:
        client.run(client.calls.enqueue.many([unique("first"), job("other")]))
        drain(client, database)
        with server.client() as control:
            control.save()
        complete(client, claim(client, 1))
        assert client.run(client.calls.enqueue.many([unique("second")])).ids == ("second",)
        drain(client, database)
        server.kill()
        server.start()
        drain(client, database)
        assert holder(client) == "first"

        done = apply(client, database, QUEUE, by="ada")

        assert (done.restored, done.removed, done.held, done.over) == (1, 1, [], [])
        assert holder(client) == "second"
        assert lines(client).keys() == {"other", "second"}
        third = client.run(client.calls.enqueue.many([unique("third")]))
        assert third.held == (("third", "second"),)
        assert_agree(client, database, Verdict.HOLDS)
        assert run_all(client) == ["other", "second"]
        assert holder(client) is None


def test_a_lost_job_whose_name_was_taken_since_stays_away(
    client: Client, database: Database
) -> None:
    client.run(client.calls.enqueue.many([unique("lost"), job("other")]))
    drain(client, database)
    flush(client)
    client.run(client.calls.enqueue.many([unique("since")]))
    drain(client, database)

    done = apply(client, database, QUEUE, by="ada")

    assert [(each.job_id, each.over) for each in done.over] == [
        ("lost", "job since has taken its name since")
    ]
    assert lines(client).keys() == {"other", "since"}
    assert sorted(run_all(client)) == ["other", "since"]
    assert_agree(client, database, Verdict.HOLDS)
