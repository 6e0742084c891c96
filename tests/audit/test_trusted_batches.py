"""A restore checks each batch of the log once, however many batches have the results that it puts back.

Whatever was checked before, the answer about an entry must be the same as that of a judge that checks only this entry.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, text

from rq_core.model.events import OutboxId
from sql_audit.mirror.turn import Mirror
from sql_audit.proof import trusted_batches
from sql_audit.proof.trusted_batches import TrustedBatches
from sql_audit.store.connection.database import Database
from tests.kit.auditlog import drain
from tests.kit.liar import lying
from tests.kit.outbox import StreamWriter

BATCHES = 12
QUEUE = "mail"


@pytest.fixture
def successes(writer: StreamWriter, mirror: Mirror) -> list[OutboxId]:
    """Write a log of one batch per job. Return the entry of each job's success."""
    drain(mirror)
    found = []
    for n in range(BATCHES):
        writer.life(f"j-{n}")
        drain(mirror)
        found.append(OutboxId.parse(writer.log[-1][0]))
    return found


def delete_an_event(connection: Connection, at: OutboxId) -> None:
    connection.execute(
        text("DELETE FROM job_event WHERE epoch = :epoch AND seq = :seq"), at._asdict()
    )


def change_an_event(connection: Connection, at: OutboxId) -> None:
    connection.execute(
        text("UPDATE job_event SET worker = 'eve' WHERE epoch = :epoch AND seq = :seq"),
        at._asdict(),
    )


def change_a_head(connection: Connection, at: OutboxId) -> None:
    connection.execute(
        text(
            "UPDATE mirror_batch SET head = '0' WHERE (first_epoch, first_seq) <= (:epoch, :seq) "
            "AND (last_epoch, last_seq) >= (:epoch, :seq)"
        ),
        at._asdict(),
    )


def delete_a_batch(connection: Connection, at: OutboxId) -> None:
    connection.execute(
        text(
            "DELETE FROM mirror_batch WHERE (first_epoch, first_seq) <= (:epoch, :seq) "
            "AND (last_epoch, last_seq) >= (:epoch, :seq)"
        ),
        at._asdict(),
    )


def change_nothing(_connection: Connection, _at: OutboxId) -> None:
    """Leave the log as it is."""


@pytest.mark.parametrize(
    "change",
    [change_nothing, delete_an_event, change_an_event, change_a_head, delete_a_batch],
    ids=lambda each: each.__name__,
)
def test_the_judgement_about_a_batch_does_not_depend_on_batches_that_were_checked_before(
    successes: list[OutboxId], database: Database, change: Callable[[Connection, OutboxId], None]
) -> None:
    with lying(database) as connection:
        change(connection, successes[BATCHES // 2])
    with database.readers.connect() as connection:
        alone = [TrustedBatches(database, connection, QUEUE).why_not([at]) for at in successes]
        for seed in range(3):
            order = list(range(BATCHES))
            random.Random(seed).shuffle(order)
            judge = TrustedBatches(database, connection, QUEUE)
            told = {n: judge.why_not([successes[n]]) for n in order}

            assert alone == [told[n] for n in range(BATCHES)], f"order {seed}"
    assert (None in alone, set(alone) == {None}) == (True, change is change_nothing)


@pytest.mark.parametrize("is_backwards", [False, True], ids=["forwards", "backwards"])
def test_each_batch_is_read_once_and_its_events_are_counted_once(
    successes: list[OutboxId], database: Database, is_backwards: bool
) -> None:
    """Checks entries one after another, as a restore does. The rows that are read grow with the log, not with its
    square."""
    ways = {
        trusted_batches._BATCH.text: "batches",
        trusted_batches._LINKS.text: "links",
        trusted_batches._THERE.text: "counts of events to the end",
        trusted_batches._ROWS.text: "reads of a batch's events",
    }
    asked: Counter[str] = Counter()

    class Noting:
        """A connection that counts the statements."""

        def execute(self, statement: Any, values: Any = None) -> Any:
            asked[ways.get(str(statement), "others")] += 1
            return connection.execute(statement, values)

    with database.readers.connect() as connection:
        judge = TrustedBatches(database, Noting(), QUEUE)  # type: ignore[arg-type]
        for at in reversed(successes) if is_backwards else successes:
            assert judge.why_not([at]) is None

    assert asked["counts of events to the end"] == 1
    assert asked["links"] <= (BATCHES if is_backwards else 1)
    assert asked["reads of a batch's events"] == BATCHES
    assert asked["batches"] <= BATCHES + 2
