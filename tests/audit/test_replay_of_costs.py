"""The replay of claims under rates that count a unit: it accepts what such a rate admits, and reports every lie."""

from __future__ import annotations

from typing import Any

import pytest

from tests.audit.test_replay import at, of_queue, replay, tell, the_violation
from tests.kit.story import MemoryWriter

FAMILY, LIMIT = "ask@1s:tokens", [100, 1000, 10]
SCOPE = f"{FAMILY}=gpt"
BEGIN_MS = 2_000_000_000_000


@pytest.fixture
def log() -> MemoryWriter:
    made = MemoryWriter()
    tell(made, of_queue("cap_changed", FAMILY, None, "100/1000ms/10", 1))
    return made


def enqueue(log: MemoryWriter, **costs: int | None) -> None:
    """Log jobs with these costs, by id."""
    for job_id, cost in costs.items():
        traits = [None] * 9 + [None if cost is None else f"tokens:{cost}"]
        beginning = [job_id, 1, None, "send", "normal", 3, 3, "d", f"2+{SCOPE}", None]
        log.jobs("enqueued", [*beginning, *traits] if cost else beginning[:9])


def claim(log: MemoryWriter, job_id: str, at_ms: int, *cost: int) -> None:
    tell(log, at(BEGIN_MS + at_ms - 1), ("claimed", [job_id, 1, [[SCOPE, *LIMIT, *cost]]]))


def test_replay_accepts_a_dear_job_and_the_next_one_once_its_debt_is_paid(
    log: MemoryWriter,
) -> None:
    enqueue(log, a=30, b=4, c=None)
    claim(log, "a", 0, 30)
    claim(log, "b", 240, 4)
    claim(log, "c", 250)

    assert replay(log).violations == []


@pytest.mark.parametrize("early_ms", [2, 50, 200])
def test_replay_reports_a_claim_before_the_debt_of_a_dear_job_is_paid(
    log: MemoryWriter, early_ms: int
) -> None:
    enqueue(log, a=30, b=4)
    claim(log, "a", 0, 30)
    claim(log, "b", 240 - early_ms, 4)

    found = the_violation(log)

    assert (found.invariant, found.job_id) == ("I3", "b")
    assert found.says == (
        f"claimed {early_ms} ms too early for {SCOPE} to take 4: 100 per 1000 ms, 10 at once"
    )


@pytest.mark.parametrize(("told", "cost"), [((3,), 30), ((), 30), ((31,), 30), ((2,), None)])
def test_replay_reports_a_claim_that_says_another_cost_than_its_job_has(
    log: MemoryWriter, told: Any, cost: int | None
) -> None:
    enqueue(log, a=cost)
    claim(log, "a", 0, *told)

    found = the_violation(log)

    says = f"the claim says that it takes {(*told, 1)[0]} from {SCOPE}, the job costs {cost or 1}"
    assert (found.invariant, found.says) == ("I3", says)
