"""Findings of the doctor about kept results, and the repairs of these findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from rq_core.model.outcome import Cancelled, Kept, Succeeded
from rq_core.model.result_encoding import pack_result
from rq_core.protocol.reads.result_reads import Absent
from tests.kit.consistency import assert_consistent
from tests.kit.doctor import look, mend, named
from tests.kit.seed import Seed

HOUR = 3_600_000


@pytest.fixture
def seed(redis_url: str) -> Iterator[Seed]:
    with Seed(redis_url) as made:
        made.enqueue("a", "b", keep_ms=HOUR)
        made.complete(*made.claim().jobs, values={1: pack_result('"a"'), 2: pack_result('"b"')})
        yield made


def lose_a_value(seed: Seed) -> None:
    seed.control.hdel(seed.keys("returned"), "a")


def lose_all_values(seed: Seed) -> None:
    seed.control.delete(seed.keys("returned"))


def cut_a_value(seed: Seed) -> None:
    seed.control.hset(seed.keys("returned"), "a", '"')


def damage_a_byte_of_a_value(seed: Seed) -> None:
    """Change one byte of a value, so that the value is not UTF-8."""
    seed.control.hset(seed.keys("returned"), "a", b'"\xff"')


def damage_a_byte_of_a_line(seed: Seed) -> None:
    line = seed.snapshot()["results"]["a"].encode()
    seed.control.hset(seed.keys("results"), "a", line.replace(b"task=t", b"task=\xff"))


def lose_a_deadline(seed: Seed) -> None:
    seed.control.zrem(seed.keys("kept"), "a")


def let_a_deadline_come_too_early(seed: Seed) -> None:
    seed.control.zadd(seed.keys("kept"), {"a": seed.now})


def leave_a_value_behind(seed: Seed) -> None:
    seed.control.hset(seed.keys("returned"), "stray", "1")


def put_another_value_in_its_place(seed: Seed, job_id: str = "a") -> None:
    seed.control.hset(seed.keys("returned"), job_id, '"x"')


def call_a_cancelled_job_a_success(seed: Seed) -> None:
    """Write a results line and a value which say that a cancelled job succeeded."""
    seed.enqueue("cancelled", keep_ms=HOUR)
    seed.cancel("cancelled")
    tell_of(seed, "cancelled", "a")


def tell_of_the_job_that_had_the_id_before(seed: Seed) -> None:
    line = seed.snapshot()["results"]["a"]
    seed.enqueue("a", keep_ms=HOUR)
    seed.complete(*seed.claim().jobs, values={1: pack_result('"n"')})
    seed.control.hset(seed.keys("results"), "a", line)


def tell_of(seed: Seed, job_id: str, other: str) -> None:
    """Replace the result of a job by the result of the job ``other``."""
    before = seed.snapshot()
    seed.control.hset(seed.keys("results"), job_id, before["results"][other])
    seed.control.hset(seed.keys("returned"), job_id, before["returned"][other])


def miscount(seed: Seed) -> None:
    seed.control.hset(seed.keys("meta"), "kept_bytes", "5")


@pytest.mark.parametrize(
    "plant, told",
    [
        (lose_a_value, "results"),
        (lose_all_values, "results"),
        (cut_a_value, "results"),
        (damage_a_byte_of_a_value, "results"),
        (damage_a_byte_of_a_line, "results"),
        (lose_a_deadline, "kept"),
        (let_a_deadline_come_too_early, "kept"),
        (leave_a_value_behind, "returned"),
        (put_another_value_in_its_place, "results"),
        (call_a_cancelled_job_a_success, "results"),
        (tell_of_the_job_that_had_the_id_before, "results"),
        (miscount, "meta"),
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_the_doctor_finds_and_repairs_damage_to_kept_results(
    seed: Seed, plant: Callable[[Seed], None], told: str
) -> None:
    assert [] == look(seed)
    plant(seed)

    assert told in named(look(seed))
    assert [] == mend(seed)
    assert_consistent(seed.snapshot())


@pytest.mark.parametrize("plant", [put_another_value_in_its_place, lose_a_value])
def test_repair_removes_a_false_result_value_and_keeps_the_other_results(
    seed: Seed, plant: Callable[[Seed], None]
) -> None:
    plant(seed)
    mend(seed)

    found = seed.client.run(seed.client.calls.endings.look("q", ["a", "b"]))
    assert {
        "a": Succeeded("a", missing="lost"),
        "b": Succeeded("b", Kept('"b"', "t"), None),
    } == found


OF_OTHERS = pytest.mark.parametrize(
    "plant, job_id",
    [(call_a_cancelled_job_a_success, "cancelled"), (tell_of_the_job_that_had_the_id_before, "a")],
)


@OF_OTHERS
def test_repair_replaces_a_result_that_belongs_to_another_job_by_the_outcome_in_the_log(
    seed: Seed, plant: Callable[[Seed], None], job_id: str
) -> None:
    plant(seed)
    mend(seed)

    found = seed.client.run(seed.client.calls.endings.look("q", [job_id]))
    own = {"cancelled": Cancelled("cancelled"), "a": Succeeded("a", Kept('"n"', "t"), None)}
    assert {job_id: own[job_id]} == found
    assert_consistent(seed.snapshot())


@OF_OTHERS
def test_without_the_log_repair_removes_a_result_that_belongs_to_another_job(
    seed: Seed, plant: Callable[[Seed], None], job_id: str
) -> None:
    plant(seed)
    seed.control.xtrim(seed.keys("outbox"), maxlen=1, approximate=False)
    mend(seed)

    found = seed.client.run(seed.client.calls.endings.look("q", [job_id]))
    assert {job_id: Absent(None)} == found


def use_an_id_again_in_a_gap(seed: Seed) -> None:
    """Run a second job with the id of a job, and remove the second job's entries from the outbox."""
    before = len(seed.snapshot()["outbox"])
    run_again(seed)
    again = [at for at, _ in seed.snapshot()["outbox"][before:]]
    seed.enqueue("later")
    seed.control.xdel(seed.keys("outbox"), *again)


def use_an_id_again_in_an_unreadable_entry(seed: Seed) -> None:
    """Run a second job with the id of a job. Of the second job, the outbox keeps only the last entry, with an unknown
    type."""
    run_again(seed)
    *rest, (at, told) = seed.snapshot()["outbox"]
    assert told["type"] == "succeeded"
    seed.control.delete(seed.keys("outbox"))
    for entry_id, fields in (*rest[:-2], (at, told | {"type": "news"})):
        seed.control.xadd(seed.keys("outbox"), fields, id=entry_id)


def run_again(seed: Seed) -> None:
    seed.enqueue("a", keep_ms=HOUR)
    seed.complete(*seed.claim().jobs, values={1: pack_result('"n"')})


@pytest.mark.parametrize(
    "plant", [use_an_id_again_in_a_gap, use_an_id_again_in_an_unreadable_entry]
)
def test_repair_keeps_the_result_of_a_job_whose_end_is_unreadable(
    seed: Seed, plant: Callable[[Seed], None]
) -> None:
    """Checks an id with two jobs. The result is not compared with the end of the earlier job, the last readable end."""
    plant(seed)

    assert "results" not in named(look(seed))
    mend(seed)
    found = seed.client.run(seed.client.calls.endings.look("q", ["a"]))
    assert {"a": Succeeded("a", Kept('"n"', "t"), None)} == found


def test_the_doctor_finds_a_false_result_despite_a_later_refused_settlement(
    seed: Seed,
) -> None:
    held = seed.running("c", keep_ms=HOUR)
    seed.complete(held, values={1: pack_result('"c"')})
    seed.complete(held)
    put_another_value_in_its_place(seed, "c")

    assert "results" in named(look(seed))


LINES: dict[str, Callable[[str], str]] = {
    "lost": lambda line: line.replace(" bytes=3", " value=lost"),
    "not kept": lambda line: line.replace(" bytes=3", " value=not_kept"),
    "unreadable": lambda _: "?",
    "removed": lambda _: "",
}
"""Ways in which a results line may be wrong, as functions from the right line to the wrong one."""


def spoil(seed: Seed, job_id: str, how: str) -> None:
    line = LINES[how](seed.snapshot()["results"][job_id])
    if line:
        seed.control.hset(seed.keys("results"), job_id, line)
    else:
        seed.control.hdel(seed.keys("results"), job_id)


@pytest.mark.parametrize("how", LINES)
def test_repair_keeps_a_correct_result_and_writes_its_damaged_line_in_the_key_results_again(
    seed: Seed, how: str
) -> None:
    before = seed.snapshot()
    spoil(seed, "a", how)
    assert "results" in named(look(seed))

    assert [] == mend(seed)

    after = seed.snapshot()
    keys = ("results", "returned", "kept")
    assert [before[key] for key in keys] == [after[key] for key in keys]
    assert_consistent(after)


def test_repair_keeps_a_result_without_a_line_in_the_key_results_if_the_log_lacks_the_end_of_the_job(
    seed: Seed,
) -> None:
    seed.enqueue("later")
    seed.control.xtrim(seed.keys("outbox"), maxlen=1, approximate=False)
    spoil(seed, "a", "removed")
    before = seed.snapshot()

    left = mend(seed)

    after = seed.snapshot()
    assert [before[key] for key in ("returned", "kept")] == [
        after[key] for key in ("returned", "kept")
    ]
    (says,) = [each.says for each in left]
    assert "id 'a': `returned` and `kept` have it, and `results` lacks it" in says


def test_repair_removes_an_expired_result_that_has_no_line_in_the_key_results(seed: Seed) -> None:
    spoil(seed, "a", "removed")
    seed.advance(2 * HOUR)

    assert [] == mend(seed)

    assert "a" not in seed.snapshot()["returned"]
    assert "a" not in seed.snapshot()["results"]


def test_a_finding_about_a_correct_result_does_not_mention_the_digest_of_the_result(
    seed: Seed,
) -> None:
    tell_of(seed, "a", "b")
    seed.control.hset(seed.keys("returned"), "a", '"a"')
    spoil(seed, "a", "lost")

    assert not any("the digest of its value" in each.says for each in look(seed))
