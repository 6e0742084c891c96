"""Cancels of jobs in the inbox whose rows no relay has taken. The same transaction or an earlier one has enqueued the
job."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from rq_core import App, InvalidOption
from sql_audit.inbox.session import Session as RelaySession
from tests.inbox.conftest import committed
from tests.inbox.test_within import ASYNC, SYNC, driver_url, may_be, opened, opened_async
from tests.kit.wait import wait_until


@pytest.mark.parametrize("kind", SYNC)
def test_a_cancelled_row_is_deleted_when_the_transaction_commits(
    kind: str, url: str, app: App
) -> None:
    send = app.tasks["send"]
    with opened(kind, url) as scene:
        first, second, third = (send.within(scene.connection).enqueue(n) for n in range(3))
        assert "cancelled" == app.within(scene.connection).cancel(first)
        scene.commit()
        assert "cancelled" == send.within(scene.connection).cancel(second)
        scene.rollback()
        assert "cancelled" == app.within(scene.connection).cancel(third)
        assert "gone" == app.within(scene.connection).cancel(first)
        scene.commit()

    assert [second.id] == [row.job_id for row in committed(url)]


@pytest.mark.parametrize("kind", ASYNC)
async def test_a_cancelled_row_is_deleted_when_the_transaction_commits_in_an_event_loop(
    kind: str, url: str, app: App
) -> None:
    if not may_be(kind, url):
        return
    async with opened_async(kind, url) as scene:
        handle = await app.tasks["send"].within(scene.connection).enqueue_async(1)
        assert "cancelled" == await app.within(scene.connection).cancel_async(handle)
        assert "gone" == await app.within(scene.connection).cancel_async(handle)
        await scene.commit()

    assert [] == committed(url)


def test_cancelling_a_job_does_not_delete_a_row_with_the_same_id_in_another_queue(
    url: str, app: App
) -> None:
    with opened("session", url) as scene:
        app.tasks["send"].with_options(id="j-1").within(scene.connection).enqueue(1)
        assert "gone" == app.within(scene.connection).cancel(app.handle_by_id("other", "j-1"))
        scene.commit()

    assert 1 == len(committed(url))


def test_a_row_in_a_batch_that_a_relay_has_begun_to_send_cannot_be_cancelled(
    url: str, app: App
) -> None:
    """Checks that the row stays. Its job may already be in Redis."""
    send = app.tasks["send"]
    with opened("session", url) as scene:
        sent, other = (
            send.within(scene.connection).enqueue(1),
            send.within(scene.connection).enqueue(2),
        )
        scene.commit()
        ids = {row.job_id: row.id for row in committed(url)}
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.execute(
                text(
                    "INSERT INTO rqc_relay (queue, slot, number, ids) VALUES ('mail', 's', 1, :ids)"
                ),
                {"ids": f"[{ids[sent.id]}]"},
            )
        engine.dispose()
        assert "relaying" == app.within(scene.connection).cancel(sent)
        assert "cancelled" == app.within(scene.connection).cancel(other)
        scene.commit()

    assert [sent.id] == [row.job_id for row in committed(url)]


def test_a_row_that_a_relay_takes_while_a_cancel_waits_for_a_lock_is_not_cancelled(
    pg_url: str, app: App
) -> None:
    """Checks that the cancel waits until the relay has committed its batch, and then leaves the row."""
    with opened("session", pg_url) as scene:
        handle = app.tasks["send"].within(scene.connection).enqueue(1)
        scene.commit()
    (row,) = committed(pg_url)
    outcome: list[str] = []

    def cancel() -> None:
        with opened("session", pg_url) as scene:
            outcome.append(app.within(scene.connection).cancel(handle))
            scene.commit()

    relay = RelaySession(pg_url)
    with relay.transaction() as transaction:
        transaction.lock("mail")
        (chosen,) = transaction.choose("mail", 10)
        cancelling = threading.Thread(target=cancel)
        cancelling.start()
        with psycopg.connect(driver_url(pg_url)) as look:
            wait_until(
                lambda: look.execute(
                    "SELECT 1 FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
                    " WHERE NOT granted AND a.datname = current_database()"
                ).fetchone(),
                "the cancel to wait for the relay",
            )
        transaction.connection.exec_driver_sql(f"UPDATE rqc_relay SET ids = '[{chosen.id}]'")
    cancelling.join()
    relay.close()

    assert ["relaying"] == outcome
    assert [row] == committed(pg_url)


def test_a_relay_leaves_out_a_row_that_an_open_transaction_has_cancelled(
    pg_url: str, app: App
) -> None:
    relay = RelaySession(pg_url)
    with opened("session", pg_url) as scene:
        handle = app.tasks["send"].within(scene.connection).enqueue(1)
        other = app.tasks["send"].within(scene.connection).enqueue(2)
        scene.commit()
        assert "cancelled" == app.within(scene.connection).cancel(handle)
        with relay.transaction() as transaction:
            transaction.lock("mail")
            chosen = transaction.choose("mail", 10)
        scene.commit()
    relay.close()

    assert [other.id] == [row.job_id for row in chosen]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_transaction_at_an_isolation_level_above_read_committed_cannot_cancel_a_job(
    pg_url: str, app: App, level: str
) -> None:
    engine: Any = create_engine(pg_url, isolation_level=level)
    with Session(engine) as session:
        handle = app.tasks["send"].within(session).enqueue(1)
        with pytest.raises(InvalidOption, match="READ COMMITTED"):
            app.within(session).cancel(handle)
    engine.dispose()
