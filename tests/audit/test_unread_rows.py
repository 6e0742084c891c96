"""Rows with unusual keys. `audit verify` reads every row of every table, and the schema refuses keys that no mirror
writes.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from sql_audit.mirror.turn import Mirror
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.queries import history
from sql_audit.store.connection.database import Database
from sql_audit.store.schema.tables import metadata
from tests.kit import auditlog
from tests.kit.command import audit
from tests.kit.liar import lying
from tests.kit.outbox import StreamWriter

EVENT = "INSERT INTO job_event (queue, epoch, seq, ordinal, type, at_ms, job_id) "
MINUTE = (
    "INSERT INTO claim_minute SELECT outcome, {minute}, queue, 'made up', worker, error_type, {claims}, 0, 0, 0, 0 "
    "FROM claim_minute LIMIT 1"
)
BATCH = (
    "INSERT INTO mirror_batch SELECT queue, {number}, first_epoch, first_seq, last_epoch, last_seq, entries, events, "
    "jobs, bytes, anchor, digest, found, prev, head FROM mirror_batch LIMIT 1"
)

REFUSED = {
    "epoch -1": EVENT + "VALUES ('mail', -1, 0, 0, 'enqueued', 1, 'ghost')",
    "epoch -2": EVENT + "VALUES ('mail', -2, 7, 0, 'enqueued', 1, 'ghost')",
    "seq -1": EVENT + "SELECT queue, epoch, -1, 0, 'enqueued', 1, 'ghost' FROM job_event LIMIT 1",
    "ordinal -1": EVENT
    + "SELECT queue, epoch, seq, -1, 'enqueued', at_ms, 'ghost' FROM job_event LIMIT 1",
    "no job": EVENT
    + "SELECT queue, epoch, seq, 99, 'enqueued', at_ms, NULL FROM job_event WHERE type = 'enqueued' LIMIT 1",
    "minute -60000": MINUTE.format(minute=-60_000, claims=1),
    "no claims": MINUTE.format(minute="minute_ms", claims=0),
    "within a minute": MINUTE.format(minute="minute_ms + 7", claims=1),
    "no job anew": EVENT
    + "SELECT queue, epoch, seq + 1, 0, 'enqueued', at_ms, NULL FROM mirror_cursor",
    "batch 0": BATCH.format(number=0),
    "batch -3": BATCH.format(number=-3),
    "half a place": "UPDATE mirror_cursor SET seq = NULL",
    "a loss after itself": (
        "INSERT INTO mirror_loss (queue, batch, kind, epoch, at_ms, after_epoch, after_seq, upto_epoch, upto_seq, "
        "events, jobs, passed) SELECT queue, 1, 'orphaned', epoch, 1, epoch, 0, epoch, 1, 0, 0, 0 FROM mirror_cursor"
    ),
}
"""Rows that no mirror writes, by the reason why the schema refuses the row."""

OF_NO_QUEUE = {
    table: f"INSERT INTO {table} ({{columns}}) SELECT {{others}} FROM {table} LIMIT 1"
    for table in ("job_event", "job", "job_attempt", "claim_minute", "mirror_epoch", "mirror_batch")
}


@pytest.fixture
def log(writer: StreamWriter, make_mirror: Callable[..., Mirror], database: Database) -> Database:
    writer.life("a", "b")
    auditlog.drain(make_mirror())
    assert verify(database).verdict is LogVerdict.HOLDS
    return database


@pytest.mark.parametrize("row", REFUSED.values(), ids=REFUSED)
def test_a_row_with_an_unusual_key_is_refused_by_the_schema(log: Database, row: str) -> None:
    with pytest.raises(IntegrityError), log.writing(wait=True) as connection:
        assert connection is not None
        connection.execute(text(row))
    if log.dialect == "postgresql":
        return  # Nobody switches its CHECKs off and leaves no trace.
    with lying(log) as connection:
        connection.execute(text(row))

    assert verify(log).verdict is LogVerdict.VIOLATED


@pytest.mark.parametrize("table", OF_NO_QUEUE)
def test_verify_finds_rows_of_a_queue_that_was_never_mirrored(log: Database, table: str) -> None:
    ghost = "ghost"
    columns = [column.name for column in metadata.tables[table].columns if column.name != "id"]
    others = ", ".join(f"'{ghost}'" if name == "queue" else name for name in columns)
    with lying(log) as connection:
        row = OF_NO_QUEUE[table].format(columns=", ".join(columns), others=others)
        connection.execute(text(row))
    url = log.address.render_as_string(hide_password=False)

    of_all, of_it = (
        audit("verify", "--audit", url),
        audit("verify", "--audit", url, "--queue", ghost),
    )

    assert (of_all.exit_code, of_it.exit_code) == (1, 1)
    for said in (of_all.stdout, of_it.stdout):
        assert f"queue {ghost!r} has rows in {table} and no cursor" in said


def test_a_loss_row_that_refers_to_itself_does_not_cause_endless_queries(
    log: Database,
) -> None:
    if log.dialect == "postgresql":
        with log.writing(wait=True) as connection:
            assert connection is not None
            connection.execute(text("ALTER TABLE mirror_loss DROP CONSTRAINT mirror_loss_after"))
            connection.commit()
    with lying(log) as connection:
        connection.execute(text(REFUSED["a loss after itself"]))
        if log.dialect == "postgresql":
            connection.execute(text("SET LOCAL statement_timeout = '5s'"))

    assert len(history.history(log.readers, "a")) == 3
    assert verify(log).verdict is LogVerdict.VIOLATED
