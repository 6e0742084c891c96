"""Unique names in the doctor: names to restore, names to remove, and names that the doctor only reports."""

from collections.abc import Iterator

import pytest

from rq_core.doctor.repair import carry_out
from tests.kit.consistency import assert_consistent
from tests.kit.doctor import look, mend, named
from tests.kit.seed import Seed

NAMES = ("t/waits", "t/runs", "t/again", "t/window", "t/over", "t/last", "t/begun")
"""The names of seven jobs, in this order: one waits, one runs, one waits for a retry, one waits and has a window, one
has ended within its window, one is debounced and not yet claimed, and one is debounced and claimed."""


@pytest.fixture
def seed(redis_url: str) -> Iterator[Seed]:
    with Seed(redis_url) as made:
        yield made


def fill(seed: Seed) -> None:
    debounced = {"unique": "replace", "after_ms": 0, "most_ms": 0}
    seed.enqueue("over", name="t/over", window_ms=60_000)
    seed.complete(seed.claim_one("over"))
    seed.enqueue("begun", name="t/begun", **debounced)
    seed.claim_one("begun")
    seed.fail(seed.running("again", name="t/again"), delay_ms=60_000)
    seed.running("runs", name="t/runs")
    seed.enqueue("waits", name="t/waits")
    seed.enqueue("window", name="t/window", window_ms=60_000)
    seed.enqueue("last", name="t/last", lane="2+host=h", **debounced)


def fields(seed: Seed) -> dict[str, str]:
    return {f: by for f, by in seed.snapshot()["slots"].items() if f.startswith("unique|")}


def test_a_queue_with_unique_names_of_every_kind_has_no_findings(seed: Seed) -> None:
    fill(seed)

    assert [] == look(seed)
    assert {"unique|t/begun"} == {f"unique|{name}" for name in NAMES} - fields(seed).keys()
    assert_consistent(seed.snapshot())


@pytest.mark.parametrize("name", ["t/waits", "t/runs", "t/again", "t/last"])
@pytest.mark.parametrize("plant", ["lost", "another job's"])
def test_repair_restores_a_unique_name_that_the_state_line_of_a_job_has(
    seed: Seed, name: str, plant: str
) -> None:
    fill(seed)
    field, before = f"unique|{name}", fields(seed)
    if plant == "lost":
        seed.control.hdel(seed.keys("slots"), field)
    else:
        seed.control.hset(seed.keys("slots"), field, "waits-not")

    assert {"slots"} == named(look(seed))
    assert [] == mend(seed)
    assert before == fields(seed)


@pytest.mark.parametrize("holder", ["begun", "gone"])
def test_repair_removes_a_unique_name_that_no_state_line_has(seed: Seed, holder: str) -> None:
    fill(seed)
    before = fields(seed)
    seed.control.hset(seed.keys("slots"), "unique|t/begun", holder)

    assert {"slots"} == named(look(seed))
    assert [] == mend(seed)
    assert before == fields(seed)


@pytest.mark.parametrize("plant", ["lost", "changed", "stray"])
def test_repair_restores_the_expiry_of_a_unique_name_in_the_index(seed: Seed, plant: str) -> None:
    fill(seed)
    before = seed.snapshot()["expiring"]
    if plant == "lost":
        seed.control.zrem(seed.keys("expiring"), "name|t/over")
    else:
        member = "name|t/over" if plant == "changed" else "name|t/none"
        seed.control.zadd(seed.keys("expiring"), {member: 5})

    assert {"expiring"} == named(look(seed))
    assert [] == mend(seed)
    assert before == seed.snapshot()["expiring"]


def test_the_doctor_does_not_report_the_lost_throttle_window_of_a_job_that_has_ended(
    seed: Seed,
) -> None:
    """Checks that the name stays free. The job has ended, and no state line proves that its window is open."""
    fill(seed)
    seed.control.hdel(seed.keys("slots"), "unique|t/over")
    seed.control.zrem(seed.keys("expiring"), "name|t/over")

    assert [] == look(seed)


def test_repair_does_not_restore_the_unique_name_of_a_job_that_ended_after_the_examination(
    seed: Seed,
) -> None:
    fill(seed)
    seed.control.hdel(seed.keys("slots"), "unique|t/waits")
    found = look(seed)
    seed.cancel("waits")

    assert 0 == carry_out(seed.client, seed.queue, found, by="ada")
    assert "unique|t/waits" not in fields(seed)
    assert_consistent(seed.snapshot())
