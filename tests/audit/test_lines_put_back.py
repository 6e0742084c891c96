"""The doctor's findings and repairs of lost or changed state lines. The outbox has no events of these jobs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.compare.drift import compare
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.command import command
from tests.kit.consistency import assert_consistent
from tests.kit.doctor import look, mend
from tests.kit.seed import Seed

LOST = ["named", "lane", "late", "low", "moved", "runs"]


@pytest.fixture
def seed(valkey_url: str, database: Database) -> Iterator[Seed]:
    """Yield a queue with jobs. Only SQL has their events."""
    with Seed(valkey_url, real_clock=True) as made:
        mirror = Mirror(Outbox(made.client), database, made.queue)
        made.enqueue("first")
        auditlog.drain(mirror)
        made.running("runs", name="t/r", expires_in_ms=900_000)
        made.enqueue("named", name="t/x", expires_in_ms=900_000)
        made.edit("named", priority="high")
        made.enqueue("low")
        made.edit("low", priority="low")
        made.enqueue("moved")
        made.edit("moved", due="+900000")
        made.enqueue("lane", scopes=["tenant=a"])
        made.enqueue("late", name="t/y", delay_ms=100_000, expires_in_ms=200_000)
        auditlog.drain(mirror)
        # The last entry stays, as the anchor of the next read.
        made.cancel("first")
        auditlog.drain(mirror)
        yield made


def doctor(seed: Seed, *words: str) -> str:
    url = seed.calls.delivery.asking.url
    return command("doctor", seed.queue, "--redis", url, "--force", *words).output


def address(database: Database) -> str:
    return database.address.render_as_string(hide_password=False)


@pytest.mark.parametrize("job", LOST)
def test_the_doctor_restores_a_lost_state_line_from_the_audit_log(
    seed: Seed, database: Database, job: str
) -> None:
    before = {
        key: seed.snapshot()[key] for key in ("state", "jobs", "slots", "scheduled", "expiring")
    }
    seed.control.hdel(seed.keys("state"), job)

    doctor(seed, "--repair", "--audit", address(database))

    assert before == {key: seed.snapshot()[key] for key in before}
    assert compare(seed.client, database, seed.queue) == ([], [])
    assert_consistent(seed.snapshot(), whole_log=False)


@pytest.mark.parametrize("job", ["named", "lane", "late"])
def test_without_the_log_the_doctor_keeps_a_job_without_a_state_line(seed: Seed, job: str) -> None:
    seed.control.hdel(seed.keys("state"), job)
    before = seed.snapshot()

    left = mend(seed)

    assert [(each.job_id, str(each.kind)) for each in left] == [(job, "no_line")]
    assert "--audit URL" in left[0].says
    assert not left[0].mendable
    after = seed.snapshot()
    assert all(before[key] == after[key] for key in before if key != "meta")


def test_the_doctor_removes_arguments_of_a_job_that_has_ended_by_the_log(
    seed: Seed, database: Database
) -> None:
    seed.control.hset(seed.keys("jobs"), "first", '{"task":"t","args":{}}')
    assert [str(each.kind) for each in look(seed)] == ["no_line"]

    doctor(seed, "--repair", "--audit", address(database))

    assert look(seed) == []
    assert "first" not in seed.snapshot()["jobs"]


def test_the_doctor_removes_arguments_without_a_state_line_if_the_queue_has_no_mirror(
    valkey_url: str,
) -> None:
    with Seed(valkey_url) as seed:
        seed.enqueue("a")
        seed.control.hset(seed.keys("jobs"), "ghost", '{"task":"t","args":{}}')

        assert mend(seed) == []
        assert list(seed.snapshot()["jobs"]) == ["a"]


@pytest.mark.parametrize(
    ("job", "was", "lie"),
    [
        ("named", "unique=t/x", "unique=t/z"),
        ("named", " unique=t/x", ""),
        ("named", "unique=t/x", "unique=t/y"),
        ("named", "expires=1", "expires=8"),
        ("named", "priority=high", "priority=low"),
        ("named", "seq=", "seq=9"),
        ("late", "due=1", "due=8"),
        ("late", "expires=1", "expires=soon1"),
        ("runs", "expires=1", "expires=8"),
    ],
)
def test_the_doctor_restores_a_changed_field_of_a_state_line_from_the_audit_log(
    seed: Seed, database: Database, job: str, was: str, lie: str
) -> None:
    before = seed.snapshot()
    line = str(seed.state(job))
    assert was in line
    seed.control.hset(seed.keys("state"), job, line.replace(was, lie))

    doctor(seed, "--repair", "--audit", address(database))

    assert line == seed.state(job)
    after = seed.snapshot()
    assert all(before[key] == after[key] for key in ("slots", "scheduled", "expiring"))
    assert compare(seed.client, database, seed.queue) == ([], [])


@pytest.mark.parametrize(("was", "lie"), [("unique=t/x", "unique=t/z"), ("expires=1", "expires=8")])
def test_the_doctor_restores_a_changed_field_of_a_state_line_from_the_outbox(
    valkey_url: str, was: str, lie: str
) -> None:
    with Seed(valkey_url) as seed:
        seed.enqueue("a", name="t/x", expires_in_ms=900_000)
        before, line = seed.snapshot(), str(seed.state("a"))
        seed.control.hset(seed.keys("state"), "a", line.replace(was, lie))

        assert mend(seed) == []
        assert line == seed.state("a")
        assert before["slots"] == seed.snapshot()["slots"]


def test_the_doctor_does_not_offer_repair_for_a_difference_that_it_cannot_repair(
    seed: Seed,
) -> None:
    seed.control.hdel(seed.keys("state"), "late")

    assert "--repair mends what can be mended" not in doctor(seed)
