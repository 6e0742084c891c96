"""The replay of claims under rates that count a unit. The replay accepts what Redis admits, and reports every lie."""

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
    """Log jobs. The arguments are their costs, by job id."""
    for job_id, cost in costs.items():
        traits = [None] * 9 + [None if cost is None else f"tokens:{cost}"]
        beginning = [job_id, 1, None, "send", "normal", 3, 3, "d", f"2+{SCOPE}", None]
        log.jobs("enqueued", [*beginning, *traits] if cost else beginning[:9])


def claim(log: MemoryWriter, job_id: str, at_ms: int, *cost: int) -> None:
    tell(log, at(BEGIN_MS + at_ms - 1), ("claimed", [job_id, 1, [[SCOPE, *LIMIT, *cost]]]))


def test_replay_accepts_a_claim_after_the_debt_of_a_costly_job_is_paid(
    log: MemoryWriter,
) -> None:
    enqueue(log, a=30, b=4, c=None)
    claim(log, "a", 0, 30)
    claim(log, "b", 240, 4)
    claim(log, "c", 250)

    assert replay(log).violations == []


@pytest.mark.parametrize("early_ms", [2, 50, 200])
def test_replay_reports_a_claim_before_the_debt_of_a_costly_job_is_paid(
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
def test_replay_reports_a_claim_whose_cost_differs_from_its_jobs_cost(
    log: MemoryWriter, told: Any, cost: int | None
) -> None:
    enqueue(log, a=cost)
    claim(log, "a", 0, *told)

    found = the_violation(log)

    says = f"the claim says that it takes {(*told, 1)[0]} from {SCOPE}, the job costs {cost or 1}"
    assert (found.invariant, found.says) == ("I3", says)


def test_replay_reports_a_job_with_invalid_costs(log: MemoryWriter) -> None:
    traits = [None] * 9 + ["tokens:1000000000000"]
    log.jobs("enqueued", ["a", 1, None, "send", "normal", 3, 3, "d", f"2+{SCOPE}", None, *traits])
    claim(log, "a", 0, 5)

    assert the_violation(log).says == "the job has 'tokens:1000000000000', and these are no costs"


# What jobs have really taken.


def spend(
    log: MemoryWriter, job_id: str, fence: str, told: str, at_ms: int, by: str = "w-1"
) -> None:
    log.now_ms = BEGIN_MS + at_ms - 1
    log.jobs("cost_settled", [job_id, fence, told], by=by)


def begun(log: MemoryWriter, **costs: int | None) -> str:
    """Log jobs with these costs, and claim the first one. Return the fence of the claim."""
    enqueue(log, **costs)
    first = next(iter(costs))
    log.now_ms = BEGIN_MS - 1
    return log.jobs("claimed", [first, 1, [[SCOPE, *LIMIT, costs[first]]]], by="w-1")


def test_replay_accepts_an_earlier_next_claim_after_a_job_reported_a_lower_cost(
    log: MemoryWriter,
) -> None:
    fence = begun(log, a=30, b=4)
    spend(log, "a", fence, "tokens:8", 0)
    claim(log, "b", 20, 4)

    assert replay(log).violations == []


def test_replay_reports_a_claim_before_a_jobs_extra_cost_is_paid(log: MemoryWriter) -> None:
    fence = begun(log, a=10, b=4)
    spend(log, "a", fence, "tokens:30", 0)
    claim(log, "b", 40, 4)

    assert the_violation(log).says.startswith("claimed 200 ms too early")


@pytest.mark.parametrize(
    ("change", "invariant", "says"),
    [
        ({"fence": "1-1"}, "I9", "settles the cost of fence 1-1, and"),
        ({"by": "w-2"}, "I9", "settles the cost of a claim of w-1"),
        ({"taken": "points:3"}, "I3", "says what the job took of points, and no rate"),
        ({"taken": "nothing"}, "I3", "says 'nothing', and these are no costs"),
        ({"taken": "tokens:-90"}, "I3", "says 'tokens:-90', and these are no costs"),
        ({"taken": "tokens:3,tokens:4"}, "I3", "says 'tokens:3,tokens:4', and these are no costs"),
        ({"taken": "tokens:1000000001"}, "I3", "says 'tokens:1000000001', and these are no costs"),
    ],
)
def test_replay_reports_a_false_event_about_the_cost_of_a_claim(
    log: MemoryWriter, change: dict[str, str], invariant: str, says: str
) -> None:
    fence = begun(log, a=10)
    told = {"fence": fence, "taken": "tokens:3", "by": "w-1", **change}
    spend(log, "a", told["fence"], told["taken"], 5, told["by"])

    found = the_violation(log)

    assert found.invariant == invariant
    assert found.says.startswith(says)


def test_replay_reports_a_second_cost_of_one_claim(log: MemoryWriter) -> None:
    fence = begun(log, a=10)
    spend(log, "a", fence, "tokens:3", 5)
    spend(log, "a", fence, "tokens:3", 6)

    assert the_violation(log).says == "settles the cost of its claim a second time"


def test_replay_reports_a_cost_that_is_logged_after_the_end_of_its_claim(log: MemoryWriter) -> None:
    fence = begun(log, a=10)
    log.jobs("retried", ["a", fence, None, 1, None], by="w-1")
    spend(log, "a", fence, "tokens:3", 5)

    assert the_violation(log).says == f"settles the cost of fence {fence}, and no claim is in force"


# Jobs whose beginning the log lacks: a claim names only the rates that had a limit.


def begun_before_the_log(limit: str | None) -> tuple[MemoryWriter, str]:
    """Return a log that begins with the claim of job "a", and the fence of the claim.

    The job's rate has no limit at the claim, and gets ``limit`` afterwards. Then jobs "b" and "c" are enqueued.
    """
    log = MemoryWriter()
    log.begin(BEGIN_MS - 2, "attached")
    log.now_ms = BEGIN_MS - 1
    fence = log.jobs("claimed", ["a", 1, [["queue", None]]], by="w-1")
    if limit is not None:
        tell(log, of_queue("cap_changed", FAMILY, "none", limit, 2))
    enqueue(log, b=10, c=4)
    return log, fence


def test_replay_accepts_the_cost_of_a_job_that_was_enqueued_before_the_log() -> None:
    log, fence = begun_before_the_log(limit=None)
    spend(log, "a", fence, "tokens:13", 5)

    assert replay(log).violations == []


def test_replay_accepts_a_claim_after_a_job_from_before_the_log_reported_that_it_cost_nothing() -> (
    None
):
    log, fence = begun_before_the_log("100/1000ms/10")
    claim(log, "b", 10, 10)
    spend(log, "a", fence, "tokens:0", 11)
    claim(log, "c", 12, 4)

    assert replay(log).violations == []


def test_replay_reports_a_second_cost_report_for_a_claim_from_before_the_log() -> None:
    log, fence = begun_before_the_log(limit=None)
    spend(log, "a", fence, "tokens:13", 5)
    spend(log, "a", fence, "tokens:13", 6)

    assert the_violation(log).says == "settles the cost of its claim a second time"


# Pauses.


def pause(
    log: MemoryWriter, job_id: str, fence: str, at_ms: int, until_ms: int, **said: str
) -> None:
    log.now_ms = BEGIN_MS + at_ms - 1
    about = said.get("scope", SCOPE)
    log.jobs("scope_paused", [job_id, fence, about, BEGIN_MS + until_ms], by=said.get("by", "w-1"))


def test_replay_reports_a_claim_before_the_end_of_a_pause(
    log: MemoryWriter,
) -> None:
    fence = begun(log, a=1, b=1, c=1)
    pause(log, "a", fence, 1, 5_000)
    claim(log, "b", 5_000, 1)
    assert replay(log).violations == []

    fence = str(log.rows[-1][1]) + "-" + str(log.rows[-1][2])
    pause(log, "b", fence, 5_001, 9_000)
    claim(log, "c", 8_990, 1)

    assert the_violation(log).says == f"claimed 10 ms before the pause of {SCOPE} ends"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"fence": "1-1"}, "pauses a scope under fence 1-1, and"),
        ({"by": "w-2"}, "pauses a scope under a claim of w-1"),
        ({"scope": "other@1s=x"}, "pauses other@1s=x, and the job has no such rate or breaker"),
    ],
)
def test_replay_reports_a_pause_with_a_false_field(
    log: MemoryWriter, change: dict[str, str], says: str
) -> None:
    fence = begun(log, a=1)
    said = {"fence": fence, **change}
    pause(log, "a", said.pop("fence"), 5, 5_000, **said)

    assert the_violation(log).says.startswith(says)


def test_replay_reports_a_pause_that_shortens_another_pause(log: MemoryWriter) -> None:
    fence = begun(log, a=1)
    pause(log, "a", fence, 5, 5_000)
    pause(log, "a", fence, 6, 4_000)

    assert the_violation(log).says == f"makes the pause of {SCOPE} shorter"


def test_replay_reports_a_claim_during_a_pause_that_a_job_from_before_the_log_began() -> None:
    log, fence = begun_before_the_log("100/1000ms/10")
    pause(log, "a", fence, 5, 5_000)
    claim(log, "b", 4_990, 10)

    assert the_violation(log).says == f"claimed 10 ms before the pause of {SCOPE} ends"


# Jobs that begin one after the other after a pause.


def paused(log: MemoryWriter, scope: str = SCOPE) -> None:
    """Let the first of three jobs pause their scope until 5,000 ms. The other jobs wait for it."""
    fence = begun(log, a=1, b=1, c=1)
    pause(log, "a", fence, 1, 5_000, scope=scope)


def test_replay_accepts_jobs_that_begin_one_after_the_other_after_a_pause(
    log: MemoryWriter,
) -> None:
    paused(log)
    claim(log, "b", 5_000, 1)
    claim(log, "c", 5_010, 1)

    assert replay(log).violations == []


def test_replay_reports_jobs_that_begin_at_once_after_a_pause(log: MemoryWriter) -> None:
    paused(log)
    claim(log, "b", 5_000, 1)
    claim(log, "c", 5_001, 1)

    found = the_violation(log)

    assert (found.invariant, found.job_id) == ("I3", "c")
    assert found.says.startswith(f"claimed 9 ms too early for {SCOPE}: ")


def test_replay_reports_a_costly_job_that_begins_at_the_end_of_a_pause(log: MemoryWriter) -> None:
    enqueue(log, d=5)
    paused(log)
    claim(log, "d", 5_030, 5)

    assert the_violation(log).says.startswith("claimed 10 ms too early")


def test_replay_accepts_jobs_that_begin_at_once_after_an_operator_resumed_their_scope(
    log: MemoryWriter,
) -> None:
    paused(log)
    tell(log, at(BEGIN_MS + 4_998), of_queue("pause_changed", SCOPE, None))
    claim(log, "b", 5_000, 1)
    claim(log, "c", 5_000, 1)

    assert replay(log).violations == []


@pytest.mark.parametrize("changed", [FAMILY, SCOPE])
def test_replay_accepts_jobs_that_begin_at_once_after_a_pause_in_which_the_limit_changed(
    log: MemoryWriter, changed: str
) -> None:
    """Redis forgets a pause when its rate would have been free under the limit that was in force when it began."""
    paused(log)
    old = "100/1000ms/10" if changed == FAMILY else None
    version = 2 if changed == FAMILY else 1
    tell(log, at(BEGIN_MS + 10), of_queue("cap_changed", changed, old, "200/1000ms/10", version))
    for job_id in ("b", "c"):
        tell(log, at(BEGIN_MS + 4_999), ("claimed", [job_id, 1, [[SCOPE, 200, 1000, 10, 1]]]))

    assert replay(log).violations == []
