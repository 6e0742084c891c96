"""Unique names after a loss: if another job holds the name of a lost job, the lost job is listed and not restored."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from rq_core.connections.client import Client
from rq_core.model.job import NewJob, ties_of
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.audit import stand_again
from sql_audit.proof.result import LogVerdict
from sql_audit.store.connection.database import Database
from sql_audit.upkeep import windows
from sql_audit.upkeep.restore import restore_jobs
from sql_audit.upkeep.survey import survey
from sql_audit.upkeep.windows import name_restoration
from tests.audit.epochs.test_failover import Pair
from tests.audit.restore.jobs import (
    claim,
    complete,
    flush,
    give_back,
    invoke,
    job,
    lines,
    run_all,
)
from tests.kit.agreement import assert_agree, drain
from tests.kit.fleet import QUEUE
from tests.kit.servers import RedisServer

NAME = "task/user=7"
RULES: dict[str, dict[str, Any]] = {
    "unique": {"unique": "keep"},
    "throttle": {"unique": "keep", "window_ms": 3_600_000},
    "debounce": {"unique": "replace", "after_ms": 0, "most_ms": 0},
}
every_rule = pytest.mark.parametrize("rule", RULES)


def enqueue(client: Client, job_id: str, rule: str) -> Any:
    named = job(job_id, ties=ties_of(**RULES[rule]), name=NAME)
    return client.run(client.calls.enqueue.many([named]))


def lose_all(client: Client, database: Database) -> None:
    drain(client, database)
    flush(client)
    drain(client, database)


@every_rule
@pytest.mark.parametrize("ran", [False, True])
def test_restore_lists_a_lost_job_whose_unique_name_another_job_has_taken(
    client: Client, database: Database, rule: str, ran: bool
) -> None:
    """Checks that the lost job does not run. A producer has enqueued another job under the same name after the loss."""
    enqueue(client, "lost", rule)
    lose_all(client, database)
    assert ("other",) == enqueue(client, "other", rule).ids
    if ran:
        assert ["other"] == run_all(client)
    drain(client, database)

    (listed,) = survey(client, database, QUEUE).lost
    done = restore_jobs(client, database, QUEUE, by="ada")

    assert ("lost", "job other has taken its name since") == (listed.job_id, listed.over)
    assert (0, [("lost", listed.over)]) == (done.restored, [(o.job_id, o.over) for o in done.over])
    assert ([] if ran else ["other"]) == sorted(lines(client))
    assert_agree(client, database, LogVerdict.HOLDS)


@every_rule
def test_a_restored_job_holds_its_unique_name_again(
    client: Client, database: Database, rule: str
) -> None:
    enqueue(client, "lost", rule)
    lose_all(client, database)

    assert 1 == restore_jobs(client, database, QUEUE, by="ada").restored
    (held,) = client.run(client.calls.names.held(QUEUE))
    assert (NAME, "lost") == (held.name, held.job_id)
    assert_agree(client, database, LogVerdict.HOLDS)
    found = enqueue(client, "other", rule)
    if rule == "debounce":
        assert (("other", "lost"),) == found.replaced
    else:
        assert (("other", "lost"),) == found.held
    assert 1 == len(run_all(client))
    assert_agree(client, database, LogVerdict.HOLDS)


@every_rule
def test_only_the_job_that_holds_a_unique_name_is_restored_with_the_name(
    client: Client, database: Database, rule: str
) -> None:
    """Checks each rule for names. With debounce, the claim of the first job frees the name, and a second job takes
    it."""
    enqueue(client, "first", rule)
    held = claim(client, 1)
    second = enqueue(client, "second", rule).ids
    give_back(client, held)
    lose_all(client, database)

    done = restore_jobs(client, database, QUEUE, by="ada")

    assert 1 + len(second) == done.restored
    (name,) = client.run(client.calls.names.held(QUEUE))
    assert name.job_id == (second or ("first",))[0]
    assert_agree(client, database, LogVerdict.HOLDS)
    assert ["first", *second] == run_all(client)


def test_an_expired_throttle_window_does_not_prevent_the_restore_of_a_job(
    client: Client, database: Database
) -> None:
    short = ties_of(unique="keep", window_ms=1)
    for job_id in ("first", "second"):
        client.run(client.calls.enqueue.many([job(job_id, ties=short, name=NAME)]))
    lose_all(client, database)

    done = restore_jobs(client, database, QUEUE, by="ada")

    assert ([], []) == (done.over, done.held)
    assert sorted(lines(client)) == sorted(run_all(client))
    assert_agree(client, database, LogVerdict.HOLDS)


@pytest.mark.parametrize("ended", [False, True])
def test_a_unique_name_that_an_operator_freed_does_not_prevent_the_restore_of_a_job(
    client: Client, database: Database, ended: bool
) -> None:
    enqueue(client, "first", "throttle")
    if ended:
        complete(client, claim(client, 1))
    client.run(client.calls.names.free(QUEUE, [NAME], by="ada"))
    assert ("second",) == enqueue(client, "second", "throttle").ids
    assert_agree(client, database, LogVerdict.HOLDS)
    lose_all(client, database)

    assert 2 - ended == restore_jobs(client, database, QUEUE, by="ada").restored
    (name,) = client.run(client.calls.names.held(QUEUE))
    assert "second" == name.job_id
    assert_agree(client, database, LogVerdict.HOLDS)


def unique(job_id: str) -> NewJob:
    return job(job_id, ties=ties_of(**RULES["unique"]), name=NAME)


def holder(client: Client) -> str | None:
    return next((name.job_id for name in client.run(client.calls.names.held(QUEUE))), None)


def test_a_restored_job_takes_its_unique_name_back_from_an_ended_job_that_an_old_snapshot_brought_back(
    start_redis: Callable[..., RedisServer], database: Database
) -> None:
    """Checks the order: the restore removes the revived job before it gives the name to the lost job."""
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

        done = restore_jobs(client, database, QUEUE, by="ada")

        assert (done.restored, done.removed, done.held, done.over) == (1, 1, [], [])
        assert holder(client) == "second"
        assert lines(client).keys() == {"other", "second"}
        third = client.run(client.calls.enqueue.many([unique("third")]))
        assert third.held == (("third", "second"),)
        assert_agree(client, database, LogVerdict.HOLDS)
        assert run_all(client) == ["other", "second"]
        assert holder(client) is None


def throttle(client: Client, job_id: str, window_ms: int = 3_600_000) -> Any:
    named = job(job_id, ties=ties_of(unique="keep", window_ms=window_ms), name=NAME)
    return client.run(client.calls.enqueue.many([named]))


def end_dead(client: Client, job_id: str) -> None:
    record = (job_id, claim(client, 1)[job_id], "final", 0, "final", "null")
    client.run(claims.fail(QUEUE, "w-1", [record]))
    client.run(client.calls.admin.prune(QUEUE, [job_id]))


ENDS: dict[str, Callable[[Client, str], Any]] = {
    "succeeded": lambda client, _: run_all(client),
    "cancelled": lambda client, job_id: client.run(client.calls.admin.cancel(QUEUE, [job_id])),
    "pruned": end_dead,
}


@pytest.mark.parametrize("end", ENDS)
def test_a_throttle_window_is_in_force_after_a_restore(
    client: Client, database: Database, redis_url: str, end: str
) -> None:
    """Checks a throttled job that has ended. Until its window closes, no other job may take its name."""
    throttle(client, "first")
    ENDS[end](client, "first")
    assert throttle(client, "second").held == (("second", "first"),)
    (before,) = client.run(client.calls.names.held(QUEUE))
    lose_all(client, database)

    assert survey(client, database, QUEUE).names == 1
    assert "1 name of a job that has ended is still held" in invoke(database, redis_url).output
    done = invoke(database, redis_url, "--apply")
    assert "1 name of a job that has ended is held again" in done.output
    assert (done.exit_code, survey(client, database, QUEUE).names) == (0, 0)
    (after,) = client.run(client.calls.names.held(QUEUE))
    assert (after.job_id, after.until_ms) == (before.job_id, before.until_ms)
    assert throttle(client, "third").held == (("third", "first"),)
    assert restore_jobs(client, database, QUEUE, by="ada").named == 0
    assert_agree(client, database, LogVerdict.HOLDS)


def test_restore_puts_back_the_throttle_window_of_a_unique_name_that_a_failover_lost(
    start_redis: Callable[..., RedisServer], database: Database
) -> None:
    pair = Pair(start_redis)
    with Client(pair.first.url) as old, Client(pair.second.url) as new:
        old.run(old.calls.enqueue.many([job("plain")]))
        drain(old, database)
        pair.follow(pair.second, pair.first)
        pair.promote(pair.second)
        throttle(old, "first")
        run_all(old)
        drain(old, database)
        pair.first.kill()
        drain(new, database)

        done = restore_jobs(new, database, QUEUE, by="ada")

        assert (done.restored, done.named) == (0, 1)
        assert throttle(new, "second").held == (("second", "first"),)
        assert_agree(new, database, LogVerdict.HOLDS)


def test_if_a_unique_name_has_had_two_throttle_windows_the_later_window_is_restored(
    client: Client, database: Database
) -> None:
    """Checks a name that an operator freed after its first window. Another name, whose window has closed, is not
    restored.
    """
    throttle(client, "first")
    run_all(client)
    client.run(client.calls.names.free(QUEUE, [NAME], by="ada"))
    throttle(client, "second")
    short = job("short", ties=ties_of(unique="keep", window_ms=1), name="task/user=8")
    client.run(client.calls.enqueue.many([short]))
    run_all(client)
    lose_all(client, database)

    assert restore_jobs(client, database, QUEUE, by="ada").named == 1
    assert [name.job_id for name in client.run(client.calls.names.held(QUEUE))] == ["second"]


def test_restore_does_not_take_a_unique_name_from_a_newer_job(
    client: Client, database: Database
) -> None:
    throttle(client, "first")
    run_all(client)
    lose_all(client, database)
    throttle(client, "second")
    drain(client, database)

    assert survey(client, database, QUEUE).names == 0
    line = stand_again("first", NAME, 10**13 - 1)
    last = client.run(client.calls.delivery.ask([["HGET", f"rqc:{{{QUEUE}}}:meta", "restored"]]))[0]
    answer = client.run(client.calls.audit.restore(QUEUE, [line], after=last or "-"))
    assert answer.outcomes == {"first": "held"}
    assert holder(client) == "second"
    assert_agree(client, database, LogVerdict.HOLDS)


def test_restore_does_not_read_unique_names_that_have_expired(
    client: Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks that restore reads only names that are still held. One expiry has more digits than the present time."""
    windows_ms = {"over-1": 1, "over-2": 1, "hour": 3_600_000, "ages": 9_000_000_000_000}
    for job_id, window_ms in windows_ms.items():
        ties = ties_of(unique="keep", window_ms=window_ms)
        client.run(client.calls.enqueue.many([job(job_id, ties=ties, name=f"task/{job_id}")]))
    run_all(client)
    drain(client, database)
    read: list[str] = []

    def noted(job_id: str, *rest: Any) -> Any:
        read.append(job_id)
        return name_restoration(job_id, *rest)

    monkeypatch.setattr(windows, "name_restoration", noted)
    now_ms = int(time.time() * 1000) + 60_000
    with database.readers.connect() as connection:
        found = windows.names_in_force(connection, QUEUE, now_ms)
        every = windows.names_in_force(connection, QUEUE, 5)

    assert {"task/hour", "task/ages"} == found.keys()
    assert windows_ms.keys() == {each.id for each in every.values()}
    assert sorted(["hour", "ages"]) == sorted(read[: -len(windows_ms)])
