"""Results, remembered ids and windows of names whose events only SQL has. The doctor repairs each difference whose true
value the log proves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rq_core.model.outcome import Kept, Succeeded
from rq_core.model.result_encoding import FULL, pack_result
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.compare.drift import compare
from sql_audit.store.connection.database import Database
from sql_audit.upkeep.restore import restore_jobs
from sql_audit.upkeep.switch_off import switch_off
from tests.audit.pruning import DAY, prune_at
from tests.kit import auditlog
from tests.kit.command import command
from tests.kit.doctor import look
from tests.kit.seed import Seed

HOUR = 3_600_000
CALL = "=" + "70c5" * 8
FIELD = "unique|t/user=7"


@pytest.fixture
def level(valkey_url: str, database: Database) -> Iterator[tuple[Seed, Callable[[], Any]]]:
    """Yield a queue, and a function that mirrors and trims all its events."""
    with Seed(valkey_url, real_clock=True) as made:

        def drain() -> None:
            made.enqueue("anchor", delay_ms=HOUR)
            made.edit("anchor", due=f"+{HOUR}")
            auditlog.drain(Mirror(Outbox(made.client), database, made.queue))

        drain()
        yield made, drain


@pytest.fixture
def drain(level: tuple[Seed, Callable[[], Any]]) -> Callable[[], Any]:
    return level[1]


@pytest.fixture
def seed(level: tuple[Seed, Callable[[], Any]]) -> Seed:
    """Make jobs that end in several ways, and leave their events only in SQL."""
    made, drain = level
    both: dict[str, Any] = {"remember_ms": 2 * HOUR, "call": CALL, "keep_ms": HOUR}
    made.enqueue("done", **both)
    made.complete(made.claim_one("done"), values={1: pack_result('"d"')})
    made.enqueue("full", keep_ms=HOUR, audit_result=FULL)
    made.complete(made.claim_one("full"), values={1: pack_result('"f"', FULL)})
    made.enqueue("once", remember_ms=2 * HOUR, call=CALL)
    made.complete(made.claim_one("once"))
    made.dead("dead", **both)
    made.prune("dead")
    made.fail(made.cancelling("stopped", **both))
    made.enqueue("withdrawn", keep_ms=HOUR)
    made.cancel("withdrawn")
    made.enqueue("late", name="t/user=7", unique="keep", window_ms=HOUR)
    made.complete(made.claim_one("late"))
    drain()
    assert len(made.snapshot()["outbox"]) == 1
    return made


def doctor(seed: Seed, database: Database, *words: str) -> Any:
    url = database.address.render_as_string(hide_password=False)
    redis = seed.calls.delivery.asking.url
    return command("doctor", seed.queue, "--redis", redis, "--force", "--audit", url, *words)


def left(seed: Seed, database: Database, *words: str) -> list[dict[str, Any]]:
    """Run the doctor with these options, and return the findings that remain."""
    found = json.loads(doctor(seed, database, "--json", *words).stdout)
    of_queue: list[dict[str, Any]] = [
        each for report in found if report["queue"] for each in report["left"]
    ]
    return of_queue


def told(seed: Seed, job_id: str) -> Any:
    return seed.client.run(seed.client.calls.endings.look("q", [job_id]))[job_id]


def line_of(seed: Seed, job_id: str) -> str:
    line: str = seed.snapshot()["results"][job_id]
    return line


def write(seed: Seed, job_id: str, line: str) -> None:
    before = seed.snapshot()["results"].get(job_id, "")
    seed.control.hset(seed.keys("results"), job_id, line)
    seed.control.hincrby(seed.keys("meta"), "results_bytes", len(line) - len(before))
    if not before:
        seed.control.zadd(seed.keys("kept"), {job_id: 2_000_000_000_000})


def forge(seed: Seed, job_id: str, was: str, lie: str) -> None:
    line = line_of(seed, job_id)
    assert was in line
    write(seed, job_id, line.replace(was, lie, 1))


def test_an_undamaged_queue_has_no_findings(seed: Seed, database: Database) -> None:
    assert len(seed.snapshot()["results"]) == 6
    assert compare(seed.client, database, seed.queue) == ([], [])
    assert left(seed, database) == []


def test_the_doctor_removes_a_result_value_whose_digest_contradicts_sql(
    seed: Seed, database: Database
) -> None:
    before = line_of(seed, "done")
    seed.control.hset(seed.keys("returned"), "done", '"x"')
    assert look(seed) == []

    (found,) = left(seed, database)
    assert (found["job"], found["mendable"]) == (None, True)
    assert "the digest of its value is" in found["says"]
    assert left(seed, database, "--repair") == []
    assert told(seed, "done") == Succeeded("done", missing="lost")
    assert line_of(seed, "done") == before.replace(" bytes=3", " value=lost")
    assert "done" not in seed.snapshot()["returned"]
    assert left(seed, database) == []


@pytest.mark.parametrize("value", ['"x"', '"longer"', None])
def test_the_doctor_restores_a_false_or_lost_value_from_the_log(
    seed: Seed, database: Database, value: str | None
) -> None:
    before = line_of(seed, "full")
    if value is None:
        seed.control.hdel(seed.keys("returned"), "full")
    else:
        seed.control.hset(seed.keys("returned"), "full", value)

    assert left(seed, database, "--repair") == []
    assert told(seed, "full") == Succeeded("full", Kept('"f"', "t"), None)
    assert line_of(seed, "full") == before


MADE_UP = "cancelled at={at} task=t until={until}"


def make_up(seed: Seed, job_id: str, line: str = MADE_UP, at: int = 0) -> None:
    at = at or seed.now
    write(seed, job_id, line.format(at=at, until=at + HOUR, once=at + 2 * HOUR))


@pytest.mark.parametrize(
    "line",
    [
        MADE_UP,
        "succeeded at={at} fence={at}-7 task=t value=not_kept until={until}",
        "succeeded at={at} fence={at}-7 once={once}",
    ],
)
def test_the_doctor_removes_a_results_line_whose_job_the_log_lacks(
    seed: Seed, database: Database, line: str
) -> None:
    make_up(seed, "nobody", line)

    assert any(f["mendable"] and "'nobody'" in f["says"] for f in left(seed, database))
    assert left(seed, database, "--repair") == []
    assert "nobody" not in seed.snapshot()["results"]
    assert len(seed.snapshot()["results"]) == 6


def test_a_results_line_that_refers_to_another_job_is_not_compared_with_the_log(
    seed: Seed, database: Database
) -> None:
    """Checks the results line of an enqueue that was answered with another job. This enqueue appended no event to the
    log."""
    make_up(seed, "other", "same job=done at={at} once={once}")

    assert compare(seed.client, database, seed.queue)[0] == []
    doctor(seed, database, "--repair")
    assert "other" in seed.snapshot()["results"]


def off_for_a_while(seed: Seed, database: Database, drain: Callable[[], Any]) -> None:
    switch_off(seed.client, database, seed.queue)
    seed.enqueue("unheard", delay_ms=HOUR)
    seed.enqueue("heard", delay_ms=HOUR)
    seed.control.xtrim(seed.keys("outbox"), maxlen=1, approximate=False)
    drain()


def pruned(seed: Seed, database: Database, drain: Callable[[], Any]) -> None:
    drain()
    drain()
    prune_at(database, seed.now + 100 * DAY)


def outbox_lost(seed: Seed, database: Database, drain: Callable[[], Any]) -> None:
    seed.control.delete(seed.keys("outbox"))
    seed.enqueue("behind", delay_ms=HOUR)
    drain()


@pytest.mark.parametrize("happens", [off_for_a_while, pruned, outbox_lost])
def test_the_doctor_keeps_a_results_line_if_the_log_may_lack_the_events_of_its_job(
    seed: Seed, database: Database, drain: Callable[[], Any], happens: Callable[..., None]
) -> None:
    at = seed.now
    happens(seed, database, drain)
    make_up(seed, "perhaps", at=at)

    assert [v.says for v in compare(seed.client, database, seed.queue)[0] if v.job_id] == []
    doctor(seed, database, "--repair")
    assert "perhaps" in seed.snapshot()["results"]


def test_the_doctor_keeps_a_remembered_id_that_names_the_claim_of_another_job_if_the_log_has_a_gap(
    seed: Seed, database: Database, drain: Callable[[], Any]
) -> None:
    """Checks a results line with the fence of another job's claim. Without the line, another job of the id could
    begin."""
    pruned(seed, database, drain)
    other = seed.running("other")
    drain()
    fence = line_of(seed, "once").partition(" fence=")[2].partition(" ")[0]
    forge(seed, "once", fence, other.fence)
    before = line_of(seed, "once")

    (found,) = left(seed, database, "--repair")
    assert "that is not its claim; whether its id must be remembered is unknown" in found["says"]
    assert not found["mendable"]
    assert line_of(seed, "once") == before


@pytest.mark.parametrize("happens", [off_for_a_while, outbox_lost])
def test_the_doctor_does_not_repair_the_expiry_of_an_id_after_a_gap(
    seed: Seed, database: Database, drain: Callable[[], Any], happens: Callable[..., None]
) -> None:
    """Checks an id that a second job may have used in the gap, with another expiry and the same end."""
    happens(seed, database, drain)
    forge(seed, "done", " until=1", " until=0")
    before = line_of(seed, "done")

    doctor(seed, database, "--repair")
    assert line_of(seed, "done") == before


def test_remembered_ids_that_were_restored_agree_with_the_log(
    seed: Seed, database: Database, drain: Callable[[], Any]
) -> None:
    seed.control.flushall()
    drain()
    restore_jobs(seed.client, database, seed.queue, by="ada")
    drain()

    assert {"done", "once", "dead", "stopped"} == seed.snapshot()["results"].keys()
    assert compare(seed.client, database, seed.queue) == ([], [])
    forge(seed, "once", " once=1", " once=2")
    assert left(seed, database, "--repair") == []
    assert " once=1" in line_of(seed, "once")


def test_the_result_of_a_job_that_is_not_mirrored_yet_is_compared_with_the_outbox(
    seed: Seed, database: Database, drain: Callable[[], Any]
) -> None:
    seed.enqueue("full", keep_ms=2 * HOUR, task="u")
    seed.complete(seed.claim_one("full"), values={1: pack_result('"n"')})
    assert compare(seed.client, database, seed.queue) == ([], [])
    seed.enqueue("withdrawn", keep_ms=2 * HOUR, task="u")
    drain()
    seed.cancel("withdrawn")

    assert compare(seed.client, database, seed.queue) == ([], [])
    forge(seed, "withdrawn", " task=u", " task=t")
    assert left(seed, database, "--repair") == []
    assert " task=u" in line_of(seed, "withdrawn")


# Names that stand until an instant.


def move(seed: Seed, by: int) -> tuple[str, str]:
    """Add ``by`` ms to the expiry of the throttled job's name. Return the old and the new field."""
    stands: str = seed.snapshot()["slots"][FIELD]
    job_id, until = stands.split(" ")
    lied = int(until) + by
    seed.control.hset(seed.keys("slots"), FIELD, f"{job_id} {lied}")
    seed.control.zadd(seed.keys("expiring"), {"name|t/user=7": lied})
    return stands, f"{job_id} {lied}"


@pytest.mark.parametrize("happens", [off_for_a_while, outbox_lost])
def test_the_doctor_does_not_repair_the_expiry_of_a_name_after_a_gap(
    seed: Seed, database: Database, drain: Callable[[], Any], happens: Callable[..., None]
) -> None:
    happens(seed, database, drain)
    _, stands = move(seed, 60_000)

    doctor(seed, database, "--repair")
    assert seed.snapshot()["slots"][FIELD] == stands


def test_a_name_that_was_freed_and_taken_again_is_not_reported_as_a_difference(
    seed: Seed, database: Database, drain: Callable[[], Any]
) -> None:
    seed.free("t/user=7")
    drain()
    seed.enqueue("late", name="t/user=7", unique="keep", window_ms=2 * HOUR)

    assert compare(seed.client, database, seed.queue) == ([], [])
    assert left(seed, database) == []
    drain()
    assert compare(seed.client, database, seed.queue) == ([], [])
