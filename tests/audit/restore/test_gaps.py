"""A log with a gap: a job that may have ended in the gap runs again only if the operator consents.

The gap arises in a common way: SQL is restored from a backup that lacks events which Redis has trimmed.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator

import pytest

from rq_core.connections.client import Client
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.compare.drift import compare
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.store.connection.database import Database
from sql_audit.upkeep.survey import survey
from tests.audit.restore.jobs import claim, complete, flush, invoke, job, lines, mirroring, run_all
from tests.kit import auditlog
from tests.kit.agreement import drain, states
from tests.kit.fleet import QUEUE
from tests.kit.schemas import copied

FINISHED = [f"done-{n}" for n in range(7)]


@pytest.fixture
def engine() -> object:
    """Use one engine for all tests of gaps."""
    from tests.kit.servers import engines

    return engines()[0]


@contextlib.contextmanager
def behind_a_gap(client: Client, database: Database) -> Iterator[Database]:
    """Yield a database with a gap: it was restored from a backup, and lacks the ends of seven jobs."""
    client.run(client.calls.enqueue.many([job(each) for each in FINISHED]))
    drain(client, database)
    with copied(database) as backup:
        finish_unseen(client, database)
        drain(client, backup)
        yield backup


def finish_unseen(client: Client, database: Database) -> None:
    """Run seven jobs to their ends, and trim their events from Redis. The last mirrored entry stays, as the anchor."""
    assert complete(client, claim(client, len(FINISHED))) == {}
    client.run(client.calls.enqueue.many([job("anchor")]))
    drain(client, database)


def test_a_job_that_may_have_ended_in_a_gap_of_the_log_is_not_restored(
    client: Client, database: Database, redis_url: str
) -> None:
    with behind_a_gap(client, database) as backup:
        with mirroring(redis_url, backup):
            applied = invoke(backup, redis_url, "--apply")
        ran = run_all(client)
        drain(client, backup)

        assert ran == ["anchor"]
        assert applied.exit_code == 2
        assert "q: 0 jobs restored, 0 removed" in applied.output
        for each in FINISHED:
            said = f"uncertain: {each}  task  was ready; its end may lie in the gap before"
            assert said in applied.output
        assert "--accept-gaps" in applied.output
        assert {states(backup)[each] for each in FINISHED} == {"gone"}
        assert compare(client, backup, QUEUE) == ([], [])
        assert verify(backup).verdict is LogVerdict.UNKNOWN
        assert verify(backup).violations == []


def test_with_the_option_accept_gaps_jobs_that_may_have_ended_in_a_gap_of_the_log_are_restored(
    client: Client, database: Database, redis_url: str
) -> None:
    with behind_a_gap(client, database) as backup:
        with mirroring(redis_url, backup):
            applied = invoke(backup, redis_url, "--apply", "--accept-gaps")
        ran = run_all(client)
        drain(client, backup)

        assert applied.exit_code == 0
        assert sorted(ran) == ["anchor", *FINISHED]
        assert set(states(backup).values()) == {"succeeded"}
        assert verify(backup).violations == []
        assert compare(client, backup, QUEUE) == ([], [])


def test_restore_lists_separately_the_jobs_that_may_have_ended_in_a_gap_of_the_log(
    client: Client, database: Database, redis_url: str
) -> None:
    with behind_a_gap(client, database) as backup:
        client.run(client.calls.enqueue.many([job("lost")]))
        drain(client, backup)
        flush(client)
        drain(client, backup)

        listed = invoke(backup, redis_url)
        told = json.loads(invoke(backup, redis_url, "--json").stdout)["queues"][QUEUE]["lost"]

    assert "q: 2 jobs lost, 0 revived, 7 that may have ended in a gap" in listed.output
    assert "lost: lost  task  was ready\n" in listed.output
    assert {each["job_id"] for each in told if each["uncertain"] is None} == {"anchor", "lost"}


def test_the_loss_of_a_job_is_uncertain_after_a_gap_in_the_log_without_a_later_baseline_event(
    client: Client, database: Database
) -> None:
    """Checks a Redis that is flushed after the gap, before its baseline has listed the live jobs."""
    client.run(client.calls.enqueue.many([job("a")]))
    drain(client, database)
    with copied(database) as backup:
        assert complete(client, claim(client, 1)) == {}
        client.run(client.calls.enqueue.many([job("b")]))
        drain(client, database)
        client.run(client.calls.enqueue.many([job("c")]))
        # One batch with the gap, and no more.
        mirror = Mirror(Outbox(client), backup, QUEUE, on_step=_dies_after_commit())
        with pytest.raises(RuntimeError):
            mirror.turn()
        flush(client)
        drain(client, backup)
        found = {each.job_id: each.uncertain for each in survey(client, backup, QUEUE).lost}

    assert set(found) == {"a", "b", "c"}
    assert found["a"] is not None
    assert "in the gap before" in found["a"]
    assert (found["b"], found["c"]) == (None, None)


def _dies_after_commit():  # type: ignore[no-untyped-def]
    def die(step: str) -> None:
        if step == "committed":
            raise RuntimeError(step)

    return die


def test_a_restarted_mirror_requests_the_baseline_event_that_is_missing_after_a_gap_in_the_log(
    client: Client, database: Database
) -> None:
    client.run(client.calls.enqueue.many([job(each) for each in FINISHED]))
    drain(client, database)
    with copied(database) as backup:
        finish_unseen(client, database)
        mirror = Mirror(Outbox(client), backup, QUEUE, on_step=_dies_after_commit())
        client.run(client.calls.enqueue.many([job("new")]))
        with pytest.raises(RuntimeError):
            mirror.turn()

        violations, (note,) = compare(client, backup, QUEUE)
        drain(client, backup)

        assert violations == []
        assert "has a gap at" in note.says
        left = {**dict.fromkeys(FINISHED, "gone"), "anchor": "ready", "new": "ready"}
        assert states(backup) == left
        assert compare(client, backup, QUEUE) == ([], [])


def told_by_another_release(fields: list[str]) -> list[str]:
    assert "succeeded" in fields
    return ["news" if each == "succeeded" else each for each in fields]


def test_a_job_whose_end_may_be_in_quarantine_is_not_restored(
    client: Client, database: Database, redis_url: str
) -> None:
    client.run(client.calls.enqueue.many([job("order-42"), job("b")]))
    drain(client, database)
    held = claim(client, 2)
    drain(client, database)
    outbox = f"rqc:{{{QUEUE}}}:outbox"
    assert complete(client, {"order-42": held["order-42"]}) == {}
    # The same entry, as a release wrote it that this one cannot read.
    ((anchor, (number, fields)),) = client.run(
        client.calls.delivery.ask([["XRANGE", outbox, "-", "+"]])
    )
    client.run(client.calls.delivery.ask([["DEL", outbox]]))
    for at, told in (anchor, (number, told_by_another_release(fields))):
        client.run(client.calls.delivery.ask([["XADD", outbox, at, *told]]))
    drain(client, database)
    found = {each.job_id: each.uncertain for each in survey(client, database, QUEUE).lost}

    assert lines(client).keys() == {"b"}
    assert found == {"order-42": f"its end may lie in entry {number}, which is in quarantine"}


@pytest.mark.parametrize("lossy", [False, True], ids=["a gap", "a loss"])
def test_the_mirror_logs_a_gap_or_a_loss_in_one_line(
    client: Client, database: Database, caplog: pytest.LogCaptureFixture, lossy: bool
) -> None:
    caplog.set_level(logging.WARNING, "rq_core.audit")
    client.run(client.calls.enqueue.many([job("a")]))
    drain(client, database)
    outbox = f"rqc:{{{QUEUE}}}:outbox"
    if lossy:
        client.run(client.calls.delivery.ask([["DEL", outbox]]))
        client.run(client.calls.enqueue.many([job("b")]))
    else:
        client.run(client.calls.enqueue.many([job("b")]))
        (last,) = client.run(client.calls.delivery.ask([["XREVRANGE", outbox, "+", "-"]]))
        client.run(client.calls.delivery.ask([["XDEL", outbox, last[0][0]]]))
        client.run(client.calls.enqueue.many([job("c")]))
    drain(client, database)

    recorded = auditlog.rows(database, "SELECT kind FROM mirror_epoch WHERE kind <> 'started'")
    said = [record.message for record in caplog.records if "recorded at" in record.message]
    assert len(said) == len(recorded) == 1
    assert f"queue {QUEUE}: {recorded[0]['kind']} recorded at" in said[0]
