"""Queries about many jobs that become ready together. A query reads a bounded number of claims, and says if it stops
there."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from sql_audit.queries import moments, waits
from sql_audit.store.connection.database import Database
from tests.kit.command import audit

QUEUE = "mail"
BEGAN_MS = 1_795_000_000_000
JOBS = 200
STEP_MS = 100
RAN_MS = 1_000
"""The running time of a job (ms). A job starts every STEP_MS, so ten jobs run at a time, as many as the cap allows."""
MOST = 50


@pytest.fixture
def batch(database: Database, monkeypatch: pytest.MonkeyPatch) -> Database:
    """Write many jobs to SQL that are ready at the same time. Lower the limit of the queries from 5,000 claims to
    MOST."""
    monkeypatch.setattr(moments, "COUNTED_MAX", MOST)
    monkeypatch.setattr(waits, "COUNTED_MAX", MOST)
    jobs = [
        {
            "id": f"b{n:03}", "at": BEGAN_MS, "n": n,
            "claimed": BEGAN_MS + n * STEP_MS, "ended": BEGAN_MS + n * STEP_MS + RAN_MS,
        }
        for n in range(JOBS)
    ]  # fmt: skip
    with database.writing() as connection:
        assert connection is not None
        connection.execute(
            text(
                "INSERT INTO job (queue, job_id, task, state, priority, complete, lane, seq, enqueued_at_ms, "
                "ready_at_ms, claimed_at_ms, since_ms, finished_at_ms, claims, failures, losses, unknown, "
                "last_epoch, last_seq) VALUES ('mail', :id, 'send', 'succeeded', 'normal', 1, '2+task=send', :n, "
                ":at, :at, :claimed, :claimed, :ended, 1, 0, 0, 0, 1, :n)"
            ),
            jobs,
        )
        connection.execute(
            text(
                "INSERT INTO job_attempt (queue, job_id, task, fence, claim, worker, ready_at_ms, claimed_at_ms, "
                "ended_at_ms, waited_ms, ran_ms, outcome, scopes) VALUES ('mail', :id, 'send', :id, 1, 'w-1', :at, "
                ":claimed, :ended, :claimed - :at, 1000, 'succeeded', '[[\"task=send\", 10]]')"
            ),
            jobs,
        )
        connection.execute(
            text(
                "INSERT INTO mirror_cursor (queue, epoch, seq, at_ms, batch, head, entries, events, bytes, "
                "quarantined, gaps, trim_jobs, trim_bytes) VALUES ('mail', 1, 0, :at, 0, '', 0, 0, 0, 0, 0, 0, 0)"
            ),
            {"at": BEGAN_MS + JOBS * STEP_MS + RAN_MS},
        )
        connection.commit()
    return database


def test_audit_at_says_that_more_jobs_waited_than_it_lists(
    batch: Database,
) -> None:
    moment = moments.at(batch.readers, QUEUE, BEGAN_MS + 50 * STEP_MS)

    assert {each.job_id for each in moment.running} == {f"b{n:03}" for n in range(41, 51)}
    assert (moment.waiting_count, moment.more_waited) == (MOST, True)
    assert [each.job_id for each in moment.waiting] == sorted(
        each.job_id for each in moment.waiting
    )
    assert all(each.lane == "2+task=send" for each in moment.waiting)
    assert moment.more_ran is False
    url = batch.address.render_as_string(hide_password=False)
    said = audit("at", str(BEGAN_MS + 50 * STEP_MS), "--queue", QUEUE, "--audit", url).output
    assert f"at least {MOST} waiting" in said
    assert f"  and at least {MOST - 20} more" in said


def test_audit_at_counts_few_waiting_jobs_exactly(batch: Database) -> None:
    moment = moments.at(batch.readers, QUEUE, BEGAN_MS + (JOBS - 31) * STEP_MS)

    assert (moment.waiting_count, moment.more_waited) == (30, False)
    assert [each.job_id for each in moment.waiting] == [f"b{n:03}" for n in range(JOBS - 30, JOBS)]


def test_audit_why_explains_a_long_wait_by_the_last_claims_before_its_end(
    batch: Database,
) -> None:
    (why,) = waits.why(batch.readers, "b150", QUEUE)

    (wait,) = why.waits
    (scope,) = wait.in_front
    assert wait.waited_ms == 150 * STEP_MS
    assert wait.judged_from_ms is not None
    assert wait.since_ms < wait.judged_from_ms < wait.until_ms
    assert wait.others_claimed >= MOST
    assert scope.named == [f"b{n:03}" for n in range(145, 150)]
    assert 0 < scope.full_ms <= wait.until_ms - wait.judged_from_ms
    assert wait.held_back_by == "task=send"
    url = batch.address.render_as_string(hide_password=False)
    said = audit("why", "b150", "--queue", QUEUE, "--audit", url).output
    assert f"at least {wait.others_claimed} claims of other jobs began meanwhile" in said


def test_audit_why_explains_a_short_wait_by_every_claim_during_the_wait(batch: Database) -> None:
    (why,) = waits.why(batch.readers, "b020", QUEUE)

    (wait,) = why.waits
    assert wait.judged_from_ms is None
    assert wait.others_claimed == 20
    assert wait.in_front[0].holders == 20
