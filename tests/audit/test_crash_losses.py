"""Mirrors that die while they copy a history with losses and gaps. SQL has the rows that a run without a crash
writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sql_audit.mirror.reading import BatchLimits
from sql_audit.mirror.turn import STEPS, Mirror, TurnOutcome
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.outbox import StreamSource, StreamWriter, enqueue

LIMITS = BatchLimits(events=7)
TABLES = {
    "job_event": "*",
    "job": "*",
    "job_attempt": "*",
    "mirror_epoch": "epoch, seq, kind, at_ms, reason, old_epoch, old_seq, missing, detail",
    "mirror_loss": "kind, epoch, at_ms, after_epoch, after_seq, upto_epoch, upto_seq, events, jobs, passed",
    "quarantine": "epoch, seq, ordinal, kind, raw",
    "mirror_cursor": "epoch, seq, at_ms, anchor, entries, events, bytes, quarantined, gaps",
}


class Died(Exception):
    """Raised in a step of a mirror, so that the mirror dies there."""


class Mortal:
    """Several mirrors of one queue, one after another. The first mirror dies at its n-th step."""

    def __init__(self, source: StreamSource, database: Database, queue: str, n: int) -> None:
        self.source, self.database, self.queue = source, database, queue
        self.left = n
        self.told: list[str] = []
        self.outcomes: set[TurnOutcome] = set()
        self.mirror = self.another()

    def another(self) -> Mirror:
        return Mirror(self.source, self.database, self.queue, limits=LIMITS, on_step=self.on_step)

    def on_step(self, step: str) -> None:
        self.told.append(step)
        self.left -= 1
        if self.left == 0:
            raise Died

    def drain(self) -> None:
        for _ in range(100):
            try:
                outcome = self.mirror.turn().outcome
                self.outcomes.add(outcome)
                if outcome is TurnOutcome.IDLE:
                    return
            except Died:
                self.mirror = self.another()
        raise AssertionError("not idle after 100 turns")


def history(source: StreamSource, queue: str, drain: Callable[[], None]) -> None:
    """Make a queue's history: a quarantined entry, orphaned events, a gap, a baseline, and an emptied Redis."""
    writer = StreamWriter(source, queue)
    writer.life("a", "b")
    writer.raw({"type": "nonsense", "by": "x"})
    enqueue(writer, "kept", "claimed")
    survivor = f"{writer.epoch}-{writer.seq}"
    drain()
    writer.jobs("claimed", ["claimed", 1])
    enqueue(writer, "forgotten")
    drain()
    source.redis.delete(writer.keys("outbox"))
    source.redis.xadd(writer.keys("outbox"), writer.log[-3][1], id=survivor)  # an old snapshot
    writer.begin(writer.epoch + 1_000, "replid_changed", survivor)
    writer.life("c")
    drain()
    enqueue(writer, "d")
    writer.seq += 1  # an entry is missing
    enqueue(writer, "e")
    drain()
    writer.begin(writer.epoch + 1_000, "outbox_lost")
    writer.jobs("baseline", ["e", "ready", "send", "normal", 3, 3, 5])
    writer.queue_event("policy_changed", "baseline", "pending", "done")
    drain()
    source.redis.delete(writer.keys("outbox"))
    writer.begin(writer.epoch + 1_000, "created")
    writer.life("f")
    drain()


def left(database: Database, queue: str) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of a queue in SQL, without the queue's name and without the chain. The chain depends on the
    name."""
    found = {}
    for table, columns in TABLES.items():
        rows = auditlog.rows(database, f"SELECT {columns} FROM {table} WHERE queue = :q", q=queue)
        told = [tuple(str(row[name]) for name in sorted(row) if name != "queue") for row in rows]
        found[table] = sorted(told)
    return found


@pytest.mark.slow
def test_mirrors_that_die_at_any_step_write_the_same_rows_as_a_mirror_that_survives(
    source: StreamSource, database: Database
) -> None:
    alive = Mortal(source, database, "alive", 0)
    history(source, "alive", alive.drain)
    expected = left(database, "alive")
    assert set(alive.told) == set(STEPS)
    losses = auditlog.rows(database, "SELECT kind FROM mirror_loss")
    assert {"orphaned", "restated", "forgotten"} <= {row["kind"] for row in losses}

    for n in range(1, len(alive.told) + 1):
        queue = f"dies-{n}"
        mortal = Mortal(source, database, queue, n)
        history(source, queue, mortal.drain)

        assert left(database, queue) == expected, f"died at step {n}, {alive.told[n - 1]}"
        auditlog.assert_chain_holds(database, queue)


EMPTIED = {
    "job": "job_id, state, reason",
    "job_attempt": "job_id, claim, outcome",
    "job_event": "job_id, type, claim",
    "mirror_epoch": "kind, missing",
    "mirror_loss": "kind, events, jobs",
    "quarantine": "kind",
    "mirror_cursor": "entries, events, gaps, quarantined",
}
"""The columns that do not depend on the number of the new epoch. A crash may change this number, since a new mirror
knows only the epochs in SQL."""


def emptied(source: StreamSource, queue: str, drain: Callable[[], None]) -> None:
    """Delete the outbox. No data in Redis shows the loss, and the mirror makes Redis begin an epoch."""
    writer = StreamWriter(source, queue)
    writer.life("a")
    enqueue(writer, "b")
    drain()
    source.redis.delete(writer.keys("outbox"))
    drain()


def without_numbers(database: Database, queue: str) -> dict[str, list[tuple[Any, ...]]]:
    return {
        table: sorted(
            tuple(str(value) for value in row.values())
            for row in auditlog.rows(
                database, f"SELECT {columns} FROM {table} WHERE queue = :q", q=queue
            )
        )
        for table, columns in EMPTIED.items()
    }


@pytest.mark.slow
def test_a_mirror_that_dies_after_the_outbox_was_deleted_writes_the_same_rows(
    source: StreamSource, database: Database
) -> None:
    alive = Mortal(source, database, "alive", 0)
    emptied(source, "alive", alive.drain)
    expected = without_numbers(database, "alive")
    assert TurnOutcome.BEHIND in alive.outcomes
    assert expected["mirror_loss"] != []

    for n in range(1, len(alive.told) + 1):
        queue = f"dies-{n}"
        mortal = Mortal(source, database, queue, n)
        emptied(source, queue, mortal.drain)

        assert without_numbers(database, queue) == expected, (
            f"died at step {n}, {alive.told[n - 1]}"
        )
        auditlog.assert_chain_holds(database, queue)
