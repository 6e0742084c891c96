"""A person changes rows or events in SQL, and Redis has the true job or result. `doctor --repair` keeps it.

The findings say that the log was changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rq_core.doctor import Finding, repair
from rq_core.doctor.finding import Kind
from rq_core.doctor.log import FoldedLog
from rq_core.doctor.snapshot import StateLines
from rq_core.model.events import JobRecord
from rq_core.model.result_encoding import pack_result
from rq_core.model.table.machine import State
from sql_audit.proof.compare import drift
from sql_audit.proof.compare.drift import compare
from sql_audit.proof.trusted_batches import TrustedBatches
from sql_audit.store.connection.database import Database
from tests.audit.test_forged_boxes import audited, durable, found_by_doctor, mirror
from tests.kit.liar import lying
from tests.kit.seed import Seed

HOUR = 3_600_000


@pytest.fixture
def seed(valkey_url: str, database: Database) -> Iterator[Seed]:
    """Yield a queue with jobs in several states and a kept result. Only SQL has their events."""
    with Seed(valkey_url) as made:
        mirror(made, database)
        made.enqueue("done", keep_ms=HOUR)
        made.complete(made.claim_one("done"), values={1: pack_result('"d"')})
        made.dead("dead")
        made.enqueue("late", delay_ms=HOUR, expires_in_ms=2 * HOUR)
        durable(made)
        made.enqueue("anchor", delay_ms=HOUR)
        mirror(made, database)
        made.edit("anchor", due=f"+{HOUR}")
        mirror(made, database)
        assert len(made.snapshot()["outbox"]) == 1
        yield made


def lie(database: Database, statement: str) -> None:
    with lying(database) as connection:
        assert connection.exec_driver_sql(statement).rowcount == 1


def contents(seed: Seed) -> dict[str, Any]:
    return {name: value for name, value in seed.snapshot().items() if name not in ("wake", "meta")}


def repaired(seed: Seed, database: Database) -> list[Finding]:
    found = found_by_doctor(seed, database)
    assert found
    return repair(seed.client, seed.queue, found, by="ada", audit=audited(seed, database))


@pytest.mark.parametrize(
    ("job_id", "change"),
    [
        ("dead", "state = 'ready'"),
        ("dead", "state = 'succeeded'"),
        ("a", "state = 'dead'"),
        ("a", "waits = '1'"),
        ("late", "due_ms = 1"),
        ("late", "expires_ms = 1"),
    ],
)
def test_the_doctor_copies_no_row_that_differs_from_the_events_of_its_job(
    seed: Seed, database: Database, job_id: str, change: str
) -> None:
    before = contents(seed)
    lie(database, f"UPDATE job SET {change} WHERE job_id = '{job_id}'")

    (left,) = repaired(seed, database)

    assert (Kind.LOG_DIFFERS, job_id, False) == (left.kind, left.job_id, left.mendable)
    assert "its row in SQL is not what its events say" in left.says
    assert "run `rq-core audit verify`" in left.says
    assert before == contents(seed)


def test_the_doctor_restores_no_state_line_from_a_changed_event(
    seed: Seed, database: Database
) -> None:
    """Checks a job whose row and event agree: both were changed."""
    before = contents(seed)
    lie(database, "UPDATE job SET due_ms = 1 WHERE job_id = 'late'")
    lie(
        database,
        "UPDATE job_event SET detail = json_set(detail, '$.due_ms', 1) "
        "WHERE type = 'enqueued' AND job_id = 'late'",
    )

    (left,) = repaired(seed, database)

    assert ("late", False) == (left.job_id, left.mendable)
    assert "is not as it was committed (I7)" in left.says
    assert before == contents(seed)


@pytest.mark.slow
def test_the_doctor_repairs_a_changed_state_line_though_the_row_of_another_job_in_sql_is_false(
    seed: Seed, database: Database
) -> None:
    before = contents(seed)
    lie(database, "UPDATE job SET state = 'ready' WHERE job_id = 'dead'")
    line = str(seed.state("late"))
    seed.control.hset(seed.keys("state"), "late", line.replace("expires=", "expires=9"))

    (left,) = repaired(seed, database)

    assert "dead" == left.job_id
    assert before | {"outbox": []} == contents(seed) | {"outbox": []}


@pytest.mark.slow
def test_an_undamaged_queue_costs_no_further_check(
    seed: Seed, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drift, "why_not_rows", None)

    assert ([], []) == compare(seed.client, database, seed.queue)
    assert [] == found_by_doctor(seed, database)


def test_a_job_that_changes_during_a_paged_read_is_not_checked(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line of such a job and its row may differ for a moment."""
    log = FoldedLog()
    for job_id in ("moving", "still"):
        log.records[job_id] = JobRecord(job_id, state=State.DEAD)
    log.moving.add("moving")
    monkeypatch.setattr(drift, "why_not_rows", lambda *args: dict.fromkeys(args[-1], "is false"))
    both: Any = SimpleNamespace(redis={"jobs": {}, "state": {}})
    lines = StateLines(both.redis)

    found = list(drift._false_rows(database, cast("Any", None), "mail", both, log, lines))

    assert ["still"] == [each.job_id for each in found]


@pytest.mark.slow
def test_a_repair_reads_as_many_events_as_the_damaged_jobs_need(
    seed: Seed, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other readers of the log stop after a number of events. A repair of many jobs would then leave most of them."""
    monkeypatch.setattr(TrustedBatches, "_may_read", lambda batches, _: batches._left is None)
    before = contents(seed)
    line = str(seed.state("late"))
    seed.control.hset(seed.keys("state"), "late", line.replace("expires=", "expires=9"))

    assert [] == repaired(seed, database)
    assert before | {"outbox": []} == contents(seed) | {"outbox": []}


def false_digest(seed: Seed, database: Database) -> None:
    del seed
    lie(
        database,
        "UPDATE job_event SET detail = json_set(detail, '$.value_digest', 'x') "
        "WHERE type = 'succeeded' AND job_id = 'done'",
    )


def false_end(seed: Seed, database: Database) -> None:
    del seed
    lie(
        database,
        "UPDATE job_event SET type = 'cancelled' WHERE type = 'succeeded' AND job_id = 'done'",
    )


def removed_end(seed: Seed, database: Database) -> None:
    del seed
    lie(database, "DELETE FROM job_event WHERE type = 'succeeded' AND job_id = 'done'")


def end_of_another_job(seed: Seed, database: Database) -> None:
    del seed
    lie(
        database,
        "UPDATE job_event SET job_id = 'anchor' WHERE type = 'succeeded' AND job_id = 'done'",
    )


@pytest.mark.slow
@pytest.mark.parametrize("forge", [false_digest, false_end, removed_end, end_of_another_job])
def test_the_doctor_keeps_a_result_that_differs_from_a_changed_log(
    seed: Seed, database: Database, forge: Callable[[Seed, Database], None]
) -> None:
    before = contents(seed)
    forge(seed, database)

    left = repaired(seed, database)

    (says,) = [each.says for each in left]
    assert "run `rq-core audit verify`" in says
    assert before == contents(seed)


@pytest.mark.slow
def test_the_doctor_keeps_the_expiry_of_a_name_that_differs_from_a_changed_event(
    seed: Seed, database: Database
) -> None:
    seed.enqueue("slow", name="t/user=7", unique="keep", window_ms=HOUR)
    until = seed.now + HOUR
    seed.complete(seed.claim_one("slow"))
    mirror(seed, database)
    seed.edit("anchor", due=f"+{2 * HOUR}")
    mirror(seed, database)
    before = contents(seed)
    lie(
        database,
        f"UPDATE job_event SET detail = REPLACE(detail, '{until}', '{until + 1}') "
        "WHERE type = 'enqueued' AND job_id = 'slow'",
    )

    (left,) = repaired(seed, database)

    assert ("name", "t/user=7") == left.owner
    assert f"it is held until {until + 1} by the log" in left.says
    assert "run `rq-core audit verify`" in left.says
    assert before == contents(seed)
