"""A person changes events of a durable job in SQL. The doctor and the restore copy no changed event into Redis.

Their messages name the remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection

from rq_core.doctor import repair
from rq_core.model.unique_names import digest_of
from sql_audit.proof import trusted_batches
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.store.connection.database import Database
from sql_audit.upkeep.restore import restore_jobs
from tests.audit.pruning import DAY, prune_at
from tests.audit.test_forged_boxes import audited, boxes, durable, found_by_doctor, mirror, text_of
from tests.kit.liar import lying
from tests.kit.seed import LIFE, Seed

Change = Callable[[Connection], None]


@pytest.fixture
def seed(valkey_url: str, database: Database) -> Iterator[Seed]:
    with Seed(valkey_url) as made:
        mirror(made, database)
        made.enqueue("first")
        mirror(made, database)
        made.complete(*made.claim().jobs)
        yield made


def change_value(connection: Connection) -> None:
    connection.exec_driver_sql(
        "UPDATE job_event SET detail = REPLACE(REPLACE(detail, ?, ?), 'ch_1', 'ch_2') WHERE type = 'step_saved'",
        (digest_of('"ch_1"'), digest_of('"ch_2"')),
    )


def change_signal(connection: Connection) -> None:
    connection.exec_driver_sql(
        "UPDATE job_event SET detail = REPLACE(REPLACE(detail, ?, ?), '\"7\"', '\"8\"') WHERE type = 'signalled'",
        (digest_of("7"), digest_of("8")),
    )


def remove_last_step(connection: Connection) -> None:
    connection.exec_driver_sql(
        "DELETE FROM job_event WHERE type = 'step_saved' AND detail LIKE '%receipt%'"
    )


def give_last_step_to_another(connection: Connection) -> None:
    connection.exec_driver_sql(
        "UPDATE job_event SET job_id = 'first' WHERE type = 'step_saved' AND detail LIKE '%receipt%'"
    )


def change_head(connection: Connection) -> None:
    """Change an event, and compute the digest and the head of its batch again."""
    from sql_audit.store.chain import Link, rows_digest
    from sql_audit.store.connection.copy import copy_text

    change_value(connection)
    row: Any = (
        connection.exec_driver_sql(
            "SELECT b.* FROM mirror_batch b JOIN job_event e ON (e.epoch, e.seq) >= (first_epoch, first_seq) "
            "AND (e.epoch, e.seq) <= (last_epoch, last_seq) WHERE e.type = 'step_saved' ORDER BY batch LIMIT 1"
        )
        .mappings()
        .one()
    )
    link = Link.of(row)
    rows = connection.exec_driver_sql(
        "SELECT * FROM job_event WHERE (epoch, seq) >= (?, ?) AND (epoch, seq) <= (?, ?) ORDER BY epoch, seq, ordinal",
        (*link.first, *link.last),
    ).all()
    changed = link._replace(digest=rows_digest(copy_text([tuple(row) for row in rows])))
    connection.exec_driver_sql(
        "UPDATE mirror_batch SET digest = ?, head = ? WHERE batch = ?",
        (changed.digest, changed.head, changed.batch),
    )


CHANGES: dict[Change, str] = {
    change_value: "of the log is not as it was committed (I7)",
    change_signal: "of the log is not as it was committed (I7)",
    remove_last_step: "events since batch",
    give_last_step_to_another: "of the log is not as it was committed (I7)",
    change_head: "of the log does not follow from the batch before (I7)",
}


def logged(seed: Seed, database: Database) -> Any:
    """Let a job save two steps, receive a signal, and park. Return all fields of its box."""
    claim = seed.running("a")
    seed.save(claim, value='"ch_1"', kept="full")
    seed.signal("a", value="7", key="k", value_max=100)
    mirror(seed, database)
    seed.wait(claim, "+50000", name="cool-off", what="sleep", entry=2)
    mirror(seed, database)
    seed.save(claim, entry=3, name="receipt", value='"r"', kept="full")
    mirror(seed, database)
    seed.park(claim, waits="2")
    mirror(seed, database)
    return seed.control.hgetall(boxes(seed))


@pytest.mark.parametrize("change", CHANGES, ids=lambda each: each.__name__)
def test_the_doctor_copies_nothing_to_redis_from_a_batch_of_events_that_was_changed_in_sql(
    seed: Seed, database: Database, change: Change
) -> None:
    true = logged(seed, database)
    with lying(database) as connection:
        change(connection)
    assert LogVerdict.VIOLATED is verify(database).verdict

    found = found_by_doctor(seed, database)
    left = repair(seed.client, seed.queue, found, by="ada", audit=audited(seed, database))

    assert true == seed.control.hgetall(boxes(seed))
    assert any(CHANGES[change] in each.says and "audit verify" in each.says for each in left), left


@pytest.mark.parametrize(
    "change",
    # The batch of the last step has no other event of the job, so a restore does not read it.
    [each for each in CHANGES if each is not give_last_step_to_another],
    ids=lambda each: each.__name__,
)
def test_a_restore_does_not_put_back_the_steps_of_a_job_whose_events_were_changed_in_sql(
    seed: Seed, database: Database, change: Change
) -> None:
    logged(seed, database)
    seed.control.delete(boxes(seed))
    with lying(database) as connection:
        change(connection)

    done = restore_jobs(seed.client, database, seed.queue, by="ada")

    assert (["a"], False) == (done.steps_lost, done.complete)
    assert {} == seed.control.hgetall(boxes(seed))
    assert CHANGES[change] in done.why_lost["a"]


def test_the_doctor_copies_no_signal_to_redis_if_its_event_was_changed_in_sql(
    seed: Seed, database: Database
) -> None:
    logged(seed, database)
    rests = (">1", ">approval", "=k")
    seed.control.hdel(boxes(seed), *(f"{LIFE}{rest}" for rest in rests))
    with lying(database) as connection:
        change_signal(connection)

    found = found_by_doctor(seed, database)
    left = repair(seed.client, seed.queue, found, by="ada", audit=audited(seed, database))

    (says,) = [each.says for each in left]
    assert says.startswith("job a has lost signals; batch ")
    assert f"{LIFE}>1" not in seed.control.hgetall(boxes(seed))


def test_the_doctor_does_not_repair_saved_steps_if_the_log_has_too_many_events_to_check(
    seed: Seed, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable(seed)
    mirror(seed, database)
    true = text_of(seed, "|1")
    seed.control.hset(boxes(seed), f"{LIFE}|1", true.replace("charge", "refund"))
    monkeypatch.setattr(trusted_batches, "EVENTS_MAX", 1)
    monkeypatch.setattr(trusted_batches.TrustedBatches.__init__, "__defaults__", (1,))

    found = found_by_doctor(seed, database)
    (left,) = repair(seed.client, seed.queue, found, by="ada", audit=audited(seed, database))

    assert "was not checked, since there are too many events to read" in left.says
    monkeypatch.undo()
    found = found_by_doctor(seed, database)
    assert [] == repair(seed.client, seed.queue, found, by="ada", audit=audited(seed, database))
    assert true == text_of(seed, "|1")


def test_after_a_prune_the_doctor_repairs_steps_from_the_remaining_events_only_if_the_events_are_unchanged(
    seed: Seed, database: Database
) -> None:
    true = logged(seed, database)
    (done,) = prune_at(database, seed.now + 200 * DAY)
    assert done.jobs == 1
    text = text_of(seed, "|1")
    seed.control.hset(boxes(seed), f"{LIFE}|1", text.replace("charge", "refund"))
    found = found_by_doctor(seed, database)
    assert [] == repair(seed.client, seed.queue, found, by="ada", audit=audited(seed, database))
    assert true == seed.control.hgetall(boxes(seed))

    with lying(database) as connection:
        change_value(connection)
    found = found_by_doctor(seed, database)
    (left,) = repair(seed.client, seed.queue, found, by="ada", audit=audited(seed, database))

    assert "the events that the last prune has left are not those that it left (I7)" in left.says
    assert true == seed.control.hgetall(boxes(seed))
