"""Findings from the outbox alone: false results lines, and false windows of names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rq_core.doctor import Finding
from rq_core.doctor.result_check import value_by
from rq_core.model.events import OutboxId
from rq_core.model.job_ends import End
from rq_core.model.result_encoding import pack_result
from rq_core.model.table.machine import Event
from rq_core.model.unique_names import digest_of
from rq_core.protocol.calls.audit import remember
from tests.kit.doctor import look, mend, named
from tests.kit.seed import Seed

HOUR = 3_600_000
CALL = "=" + "70c5" * 8
NAME = "t/user=7"
FIELD = f"unique|{NAME}"


@pytest.fixture
def seed(valkey_url: str) -> Iterator[Seed]:
    """Yield a queue with the events of jobs that succeeded, died, were cancelled or were replaced."""
    with Seed(valkey_url) as made:
        made.enqueue("anchor", delay_ms=HOUR)
        made.advance(1)
        made.enqueue("done", remember_ms=2 * HOUR, call=CALL, keep_ms=HOUR)
        made.complete(made.claim_one("done"), values={1: pack_result('"d"')})
        made.enqueue("plain", keep_ms=HOUR)
        made.complete(made.claim_one("plain"), values={1: pack_result('"p"')})
        made.enqueue("once", remember_ms=2 * HOUR, call=CALL)
        made.complete(made.claim_one("once"))
        made.dead("dead", remember_ms=2 * HOUR, call=CALL, keep_ms=HOUR)
        made.advance(5)
        made.prune("dead")
        stopped = made.cancelling("stopped", remember_ms=2 * HOUR, call=CALL, keep_ms=HOUR)
        made.fail(stopped)
        made.enqueue("withdrawn", keep_ms=HOUR)
        made.cancel("withdrawn")
        made.enqueue("old", name=NAME, unique="replace", keep_ms=HOUR)
        made.enqueue("new", name=NAME, unique="replace", delay_ms=HOUR)
        made.enqueue("mark", "quick", delay_ms=HOUR)
        yield made


def line_of(seed: Seed, job_id: str) -> str:
    line: str = seed.snapshot()["results"][job_id]
    return line


def forge(seed: Seed, job_id: str, was: str, lie: str) -> None:
    line = line_of(seed, job_id)
    assert was in line
    changed = line.replace(was, lie, 1)
    seed.control.hset(seed.keys("results"), job_id, changed)
    seed.control.hincrby(seed.keys("meta"), "results_bytes", len(changed) - len(line))


def of_ids(found: list[Finding]) -> list[str]:
    return [each.says for each in found if each.says.startswith("id ")]


def test_after_every_kind_of_end_of_a_job_its_line_in_the_key_results_agrees_with_its_events(
    seed: Seed,
) -> None:
    assert {
        "done", "plain", "once", "dead", "stopped", "withdrawn", "old",
    } == seed.snapshot()["results"].keys()  # fmt: skip
    assert [] == look(seed)


def test_the_finding_about_a_results_line_names_the_field_that_differs(seed: Seed) -> None:
    forge(seed, "done", " task=t", " task=u")

    (says,) = of_ids(look(seed))
    assert "kept with task=u, task=t by the log" in says


@pytest.mark.parametrize("job_id", ["done", "plain"])
def test_the_doctor_does_not_judge_a_results_line_if_the_log_lacks_the_first_event_of_its_job(
    seed: Seed, job_id: str
) -> None:
    """Checks an outbox with only the last event of the job. The retention of the result is in the first event."""
    at = [e.id for e in seed.entries() if any(j.job_id == job_id for j in e.jobs)][-1]
    seed.control.xtrim(seed.keys("outbox"), minid=str(at), approximate=False)
    forge(seed, job_id, " until=18", " until=17")
    before = line_of(seed, job_id)

    assert [] == of_ids(look(seed))
    mend(seed)
    assert before == line_of(seed, job_id)


def test_the_doctor_does_not_judge_a_results_line_if_later_entries_of_the_outbox_are_missing(
    seed: Seed,
) -> None:
    forge(seed, "done", " until=18", " until=17")
    seed.control.xdel(seed.keys("outbox"), str(seed.entries()[-2].id))

    assert [] == of_ids(look(seed))


def test_a_logged_result_value_with_a_wrong_digest_is_not_restored() -> None:
    told = {"value_digest": digest_of('"f"'), "value": '"f"'}
    end = End(Event.SUCCEEDED, OutboxId(1, 2), 5, told)

    assert value_by('"x"', end) == '"f"'
    assert value_by('"x"', end._replace(facts=told | {"value": '"g"'})) is None


def made_up(seed: Seed, job_id: str, at_ms: int) -> None:
    line = f"cancelled at={at_ms} task=t until={seed.now + HOUR}"
    seed.control.hset(seed.keys("results"), job_id, line)
    seed.control.zadd(seed.keys("kept"), {job_id: seed.now + HOUR})


@pytest.mark.parametrize("job_id", ["nobody", "alive"])
def test_repair_removes_a_results_line_that_no_job_can_have_written(
    seed: Seed, job_id: str
) -> None:
    seed.enqueue("alive", delay_ms=HOUR)
    made_up(seed, job_id, seed.now)
    if job_id == "alive":
        for key, remove in (("state", seed.control.hdel), ("jobs", seed.control.hdel)):
            remove(seed.keys(key), job_id)

    (says,) = of_ids(look(seed))
    no_end = "by the log no job of this id can have left it"
    assert ("the log shows no end of job alive" if job_id == "alive" else no_end) in says
    mend(seed)
    assert job_id not in seed.snapshot()["results"]
    assert "done" in seed.snapshot()["results"]


def test_repair_keeps_a_result_whose_line_in_the_key_results_lacks_the_size_if_the_jobs_end_is_unknown(
    seed: Seed,
) -> None:
    seed.control.xtrim(seed.keys("outbox"), maxlen=1, approximate=False)
    line = line_of(seed, "done")
    size = next(word for word in line.split() if word.startswith("bytes="))
    forge(seed, "done", f" {size}", "")
    before = seed.snapshot()["returned"]["done"]

    (says,) = [each for each in of_ids(look(seed)) if "'done'" in each]
    mend(seed)

    assert "its line there says no size; the log does not show how its job ended" in says
    assert before == seed.snapshot()["returned"]["done"]


def test_repair_keeps_a_results_line_of_a_job_that_the_outbox_may_have_forgotten(
    seed: Seed,
) -> None:
    made_up(seed, "early", seed.now)
    seed.control.xtrim(seed.keys("outbox"), maxlen=5, approximate=False)

    assert "results" not in named(look(seed))
    mend(seed)
    assert "early" in seed.snapshot()["results"]


def test_repair_keeps_a_results_line_if_entries_about_its_job_may_be_missing(seed: Seed) -> None:
    made_up(seed, "early", seed.now)
    seed.control.xdel(seed.keys("outbox"), str(seed.entries()[-2].id))

    assert "results" not in named(look(seed))
    mend(seed)
    assert "early" in seed.snapshot()["results"]


def test_the_doctor_does_not_report_a_results_line_that_is_older_than_the_log(seed: Seed) -> None:
    """Checks a job that ended before the first entry of the outbox, as after a loss of the outbox."""
    made_up(seed, "early", seed.entries()[0].at_ms - 1)

    assert "results" not in named(look(seed))


def test_the_doctor_does_not_report_a_remembered_id_that_a_restore_put_back(seed: Seed) -> None:
    """Checks two ids whose jobs have no event in the outbox.

    With one of the ids, an earlier job ended before the restore.
    """
    seed.attach()
    seed.enqueue("twice", remember_ms=10, call=CALL)
    seed.complete(seed.claim_one("twice"))
    seed.advance(20)
    until = seed.now + HOUR
    done = seed.restore(
        *(remember(i, until, f"dead at={seed.now} once={until}") for i in ("twice", "unheard"))
    )

    assert {"twice": "remembered", "unheard": "remembered"} == done
    assert [] == look(seed)


def test_the_doctor_does_not_report_a_results_line_that_refers_to_another_job(
    seed: Seed,
) -> None:
    """Checks an enqueue whose unique name another job held. This enqueue appended no event.

    An earlier job of the same id had ended before.
    """
    seed.enqueue("twice", remember_ms=10, call=CALL)
    seed.complete(seed.claim_one("twice"))
    seed.advance(20)
    seed.enqueue("twice", name=NAME, remember_ms=HOUR, call=CALL)

    assert line_of(seed, "twice").startswith("same job=new")
    assert [] == look(seed)


# Names that stand until an instant.


def throttle(seed: Seed, job_id: str) -> str:
    seed.enqueue(job_id, name="t/user=9", unique="keep", window_ms=HOUR)
    return f"{job_id} {seed.now + HOUR}"


def test_the_doctor_does_not_judge_the_expiry_of_a_name_if_the_log_lacks_the_event_of_its_job(
    seed: Seed,
) -> None:
    throttle(seed, "late")
    seed.complete(seed.claim_one("late"))
    seed.control.hset(seed.keys("slots"), "unique|t/user=9", f"late {seed.now + 2 * HOUR}")
    seed.control.zadd(seed.keys("expiring"), {"name|t/user=9": seed.now + 2 * HOUR})
    seed.control.xtrim(seed.keys("outbox"), maxlen=1, approximate=False)

    assert [] == look(seed)


def test_the_doctor_does_not_judge_the_expiry_of_a_name_if_later_entries_of_the_outbox_are_missing(
    seed: Seed,
) -> None:
    """Checks a gap in the outbox, in which another job of the same id may have taken the name."""
    throttle(seed, "late")
    seed.enqueue("x", "y", delay_ms=HOUR)
    seed.enqueue("z", delay_ms=HOUR)
    seed.control.hset(seed.keys("slots"), "unique|t/user=9", f"late {seed.now + 2 * HOUR}")
    seed.control.zadd(seed.keys("expiring"), {"name|t/user=9": seed.now + 2 * HOUR})
    seed.control.xdel(seed.keys("outbox"), str(seed.entries()[-2].id))

    assert "slots" not in named(look(seed))
