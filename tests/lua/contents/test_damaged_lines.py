"""Calls on a job whose state line has a damaged number.

A script may refuse such a job or change it. The log must have each change and nothing else, as valid JSON. Redis
refuses ``nan`` and ``1e400`` as scores, and a call must not fail on such a number after its first write.
"""

import re
from collections.abc import Callable

import pytest

from rq_core.errors import QueueDamaged
from rq_core.model.job import Claim
from tests.kit.seed import LEASE_MS, Seed

pytestmark = pytest.mark.damaged

DAY = 86_400_000
FIELDS = ["expires", "seq", "once", "keep", "claim", "since"]
VALUES = ["1e400", "inf", "nan", "x"]


def lose(seed: Seed, _claim: Claim) -> None:
    seed.live(2 * LEASE_MS)
    seed.claim()


HELD: dict[str, Callable[[Seed, Claim], object]] = {
    "fail": lambda seed, claim: seed.fail(claim),
    "rollback": lambda seed, claim: seed.rollback(claim),
    "complete": lambda seed, claim: seed.complete(claim),
    "lose": lose,
}


def cancel(seed: Seed) -> None:
    seed.client.run(seed.client.calls.admin.cancel("q", ["a"]))


def expire(seed: Seed) -> None:
    seed.advance(2 * DAY)
    seed.claim()


WAITING: dict[str, Callable[[Seed], object]] = {
    "edit": lambda seed: seed.edit("a", priority="high"),
    "edit of the deadline": lambda seed: seed.edit("a", expires=f"+{DAY // 2}"),
    "edit of the due time": lambda seed: seed.edit("a", due="+5"),
    "cancel": cancel,
    "claim": lambda seed: seed.claim(),
    "expire": expire,
}


def enqueue(seed: Seed) -> None:
    options = {"unique": "keep", "name": "t/a", "expires_in_ms": DAY, "remember_ms": DAY}
    seed.enqueue(seed.job("a", **options, keep_ms=DAY, attempts=5, losses=5))  # type: ignore[arg-type]


def damage(seed: Seed, field: str, value: str) -> None:
    line = seed.state("a") or ""
    assert f" {field}=" in line
    damaged = re.sub(rf" {field}=\S+", f" {field}={value}", line)
    seed.control.hset(seed.keys("state"), "a", damaged)


def assert_told_only_what_was_done(seed: Seed, call: Callable[[], object]) -> None:
    before = len(seed.entries())
    try:
        call()
    except QueueDamaged:
        assert before == len(seed.entries())
    seed.entries()


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("how", HELD)
@pytest.mark.slow
def test_a_call_on_a_claimed_job_with_a_damaged_state_line_logs_only_what_it_changed(
    seed: Seed, how: str, field: str, value: str
) -> None:
    enqueue(seed)
    (claim,) = seed.claim().jobs
    damage(seed, field, value)
    assert_told_only_what_was_done(seed, lambda: HELD[how](seed, claim))


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("field", [f for f in FIELDS if f != "claim"])
@pytest.mark.parametrize("how", WAITING)
@pytest.mark.slow
def test_a_call_on_a_waiting_job_with_a_damaged_state_line_logs_only_what_it_changed(
    seed: Seed, how: str, field: str, value: str
) -> None:
    enqueue(seed)
    damage(seed, field, value)
    assert_told_only_what_was_done(seed, lambda: WAITING[how](seed))
