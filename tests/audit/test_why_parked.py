"""`audit why` about parked jobs: what a job waits for, since when, until when, and who woke it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rq_core.model.table.machine import Event
from rq_core.protocol.calls.boxes import Sending, send_signals
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.queries.pauses import JobPause
from sql_audit.queries.waits import why
from sql_audit.store.connection.database import Database
from sql_audit.times import readable
from tests.kit import auditlog
from tests.kit.command import audit
from tests.kit.doctor import mend
from tests.kit.seed import Seed


@pytest.fixture
def seed(valkey_url: str, database: Database) -> Iterator[Seed]:
    """Yield a queue with a parked job. The job waits for the signal `approval` for at most 5 s, and sleeps for 9 s."""
    with Seed(valkey_url) as made:
        auditlog.drain(Mirror(Outbox(made.client), database, made.queue))
        claim = made.running("a")
        made.wait(claim, "+5000")
        made.wait(claim, "+9000", entry=2, name="nap", what="sleep")
        made.park(claim, waits="1,2")
        yield made


def pauses(seed: Seed, database: Database) -> list[JobPause]:
    auditlog.drain(Mirror(Outbox(seed.client), database, seed.queue))
    (answer,) = why(database.readers, "a")
    return answer.pauses


def waited(since_ms: int) -> str:
    return (
        f"it was parked, and waited for the signal approval until {readable(since_ms + 5_000)}, "
        f"the end of its sleep nap until {readable(since_ms + 9_000)}"
    )


def test_audit_why_says_what_a_parked_job_waits_for(seed: Seed, database: Database) -> None:
    since = seed.now
    seed.live(1_000)
    # Neither a signal of another name nor a baseline wakes it.
    seed.signal("a", name="refusal")
    line = str(seed.state("a")).replace(" claim=1 ", " claim=2 ")
    seed.control.hset(seed.keys("state"), "a", line)
    assert [] == mend(seed)
    assert seed.entries()[-1].event is Event.BASELINE

    found = pauses(seed, database)

    assert [JobPause(since, None, waited(since))] == found
    url = database.address.render_as_string(hide_password=False)
    shown = audit("why", "a", "--audit", url).output
    assert f"could not be claimed from {readable(since)} on: {waited(since)}" in shown


def test_audit_why_says_who_sent_the_signal_that_woke_a_job_and_why(
    seed: Seed, database: Database
) -> None:
    since = seed.now
    seed.live(1_000)
    seed.signal("a")

    found = pauses(seed, database)

    says = f"{waited(since)}; ann sent the signal approval: asked"
    assert [JobPause(since, since + 1_000, says)] == found


def test_audit_why_says_that_a_job_was_woken_by_its_timeout(seed: Seed, database: Database) -> None:
    since = seed.now
    seed.live(5_000)
    seed.claim(0)

    assert [JobPause(since, since + 5_000, f"{waited(since)}; its moment came")] == pauses(
        seed, database
    )


def test_audit_why_says_that_a_parked_job_was_cancelled(seed: Seed, database: Database) -> None:
    since = seed.now
    seed.cancel("a")

    assert [JobPause(since, since, f"{waited(since)}; it was cancelled")] == pauses(seed, database)


def test_audit_why_names_the_child_for_which_a_parent_waited(
    seed: Seed, database: Database
) -> None:
    life = "9f3a0b1c22aa0002"
    claim = seed.running("p")
    seed.save(claim, name="map:parts", value='{"count":50,"queue":"q"}', life=life)
    seed.wait(claim, entry=2, name="rq_core.child.1.49", life=life)
    since = seed.now
    seed.park(claim, waits="2", life=life)
    seed.live(1_000)
    record = Sending("p", "rq_core.child.1.49", "", "null", life)
    (sent,) = seed.client.run(send_signals(seed.queue, [record], by="w-9"))
    assert sent.outcome == "woken"

    auditlog.drain(Mirror(Outbox(seed.client), database, seed.queue))
    (answer,) = why(database.readers, "p")

    says = (
        "it was parked, and waited for child 49 of parts; w-9 reported the end of child 49 of parts"
    )
    assert [JobPause(since, since + 1_000, says)] == answer.pauses
