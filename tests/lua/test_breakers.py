"""Breakers: scopes that pause when a service fails, and their probes (docs/decisions/breakers.md has the table)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rq_core.errors import InvalidOption
from rq_core.model.job import Claim
from rq_core.model.limits.breakers import KEPT_MS, LOOK_MS, read_breaker
from rq_core.model.limits.limit import FOREVER_MS
from rq_core.protocol.calls.pauses import PauseChange
from tests.kit.seed import Seed

FAMILY = "ask.host@60s:failures"
SCOPE = f"{FAMILY}=h1"
COOLDOWN = 30_000
LEASE = 30_000


def begin(seed: Seed, jobs: int, failures: int = 3, **options: Any) -> None:
    """Set the limit of the breaker, and enqueue this number of jobs in the scope."""
    seed.cap(FAMILY, f"{failures}/60000ms/{COOLDOWN}")
    seed.enqueue(*(f"j-{n}" for n in range(jobs)), scopes=[SCOPE], **options)


def entry(seed: Seed) -> str | None:
    found: str | None = seed.snapshot()["rates"].get(SCOPE)
    return found


def claimed(seed: Seed, limit: int = 100) -> list[Claim]:
    found = [claim for _ in range(4) for claim in seed.claim(limit).jobs]
    seed.assert_consistent()
    return found


def fail_all(seed: Seed, claims: list[Claim], **how: Any) -> None:
    for claim in claims:
        seed.fail(claim, **how)
    seed.assert_consistent()


def open_circuit(seed: Seed, jobs: int = 8) -> list[Claim]:
    """Let three jobs fail, so that the scope is paused. Returns the claims of jobs that still run."""
    begin(seed, jobs)
    claims = list(seed.claim(5).jobs)
    fail_all(seed, claims[:3], delay_ms=1_000)
    return claims[3:5]


def pauses(seed: Seed) -> list[tuple[str, int]]:
    return [
        (job.job_id, job.fields["until_ms"])
        for event in seed.entries()
        if event.event == "scope_paused"
        for job in event.jobs
    ]


def test_a_claim_from_a_closed_breaker_takes_all_jobs_and_stores_nothing_about_the_breaker(
    seed: Seed,
) -> None:
    begin(seed, 5)

    assert len(claimed(seed)) == 5
    assert entry(seed) is None


def test_the_failure_that_reaches_the_limit_pauses_the_scope(seed: Seed) -> None:
    begin(seed, 5)
    claims = claimed(seed, 4)
    fail_all(seed, claims[:2], delay_ms=1)
    assert read_breaker(entry(seed) or "").failed == (seed.now, seed.now)  # type: ignore[union-attr]
    assert pauses(seed) == []

    seed.fail(claims[2], delay_ms=1)

    assert pauses(seed) == [("j-2", seed.now + COOLDOWN)]
    assert entry(seed) == f"{seed.now} until={seed.now + COOLDOWN}"
    seed.advance(COOLDOWN - 1)
    assert claimed(seed) == []
    seed.advance(1)
    assert [claim.id for claim in claimed(seed)] == ["j-0"]


def test_failures_outside_the_window_of_the_breaker_do_not_count(seed: Seed) -> None:
    begin(seed, 3)
    (first, second, third) = claimed(seed)
    seed.fail(first, delay_ms=100_000)
    seed.advance(60_000 - 1)
    seed.extend([second, third])
    seed.fail(second, delay_ms=100_000)
    seed.advance(1)
    seed.fail(third, delay_ms=100_000)

    assert pauses(seed) == []
    assert read_breaker(entry(seed) or "").failed == (seed.now - 1, seed.now)  # type: ignore[union-attr]


@pytest.mark.parametrize("error", ['{"excepted":"%s"}', '{"type": "E", "excepted": "a %s b"}'])
def test_an_error_that_the_breaker_excepts_is_not_counted_as_a_failure(
    seed: Seed, error: str
) -> None:
    begin(seed, 3)
    fail_all(seed, claimed(seed), delay_ms=1, error=error % FAMILY)

    assert entry(seed) is None


@pytest.mark.parametrize("excepted", ["other@60s:failures", f"x{FAMILY}", ""])
def test_an_error_that_only_another_breaker_excepts_is_counted_as_a_failure(
    seed: Seed, excepted: str
) -> None:
    begin(seed, 3)
    fail_all(seed, claimed(seed), delay_ms=1, error=json.dumps({"excepted": excepted}))

    assert len(pauses(seed)) == 1


def test_an_error_counts_as_a_failure_though_its_message_resembles_the_mark_of_excepted_errors(
    seed: Seed,
) -> None:
    begin(seed, 3)
    error = json.dumps({"message": f'"excepted": "{FAMILY}"'})
    fail_all(seed, claimed(seed), delay_ms=1, error=error)

    assert len(pauses(seed)) == 1


def test_one_probe_runs_after_the_pause(seed: Seed) -> None:
    open_circuit(seed)
    seed.advance(COOLDOWN)

    (probe,) = claimed(seed)
    assert entry(seed) == f"{seed.now} until={seed.now} probe={probe.id}"
    seed.advance(LOOK_MS)
    assert claimed(seed) == []


def test_a_probe_that_succeeds_opens_the_scope(seed: Seed) -> None:
    open_circuit(seed)
    seed.advance(COOLDOWN)
    (probe,) = claimed(seed)

    seed.complete(probe)

    assert entry(seed) is None
    assert len(claimed(seed)) == 5


def test_the_script_turn_that_reports_the_success_of_a_probe_claims_the_waiting_jobs_in_the_same_call(
    seed: Seed,
) -> None:
    open_circuit(seed)
    seed.advance(COOLDOWN)
    (probe,) = claimed(seed)

    assert len(seed.turn(probe).jobs) == 5
    seed.assert_consistent()


def test_a_probe_that_fails_pauses_the_scope_again(seed: Seed) -> None:
    open_circuit(seed)
    seed.advance(COOLDOWN)
    (probe,) = claimed(seed)
    seed.advance(500)

    seed.fail(probe, delay_ms=1_000)

    assert pauses(seed)[1:] == [(probe.id, seed.now + COOLDOWN)]
    seed.advance(COOLDOWN - 1)
    assert claimed(seed) == []
    seed.advance(1)
    assert len(claimed(seed)) == 1


@pytest.mark.parametrize("how", ["rollback", "excepted", "cancelled", "parked", "lost"])
def test_if_a_probe_neither_succeeds_nor_fails_the_next_job_is_the_probe(
    seed: Seed, how: str
) -> None:
    open_circuit(seed)
    seed.advance(COOLDOWN)
    (probe,) = claimed(seed)

    if how == "rollback":
        seed.rollback(probe, delay_ms=100)
    elif how == "excepted":
        seed.fail(probe, delay_ms=100, error=json.dumps({"excepted": FAMILY}))
    elif how == "cancelled":
        seed.cancel(probe.id)
        seed.fail(probe)
    elif how == "parked":
        seed.rollback(probe, lane="", delay_ms=100, reason="snoozed")
    else:
        seed.live(LEASE)

    (second,) = claimed(seed)
    assert len(pauses(seed)) == 1
    assert (
        entry(seed)
        == f"{seed.now} until={seed.now - (LEASE if how == 'lost' else 0)} probe={second.id}"
    )
    assert claimed(seed) == []


@pytest.mark.parametrize("phase", ["paused", "over", "probing"])
@pytest.mark.parametrize("end", ["complete", "fail", "rollback"])
def test_the_end_of_a_job_that_began_before_the_pause_changes_nothing_in_the_breaker(
    seed: Seed, phase: str, end: str
) -> None:
    (flying, _) = open_circuit(seed)
    seed.extend([flying])
    if phase != "paused":
        seed.advance(COOLDOWN // 2)
        seed.extend([flying])
        seed.advance(COOLDOWN // 2)
    if phase == "probing":
        claimed(seed)
    before = entry(seed)

    if end == "complete":
        seed.complete(flying)
    elif end == "fail":
        seed.fail(flying, delay_ms=90_000)
    else:
        seed.rollback(flying, delay_ms=90_000)

    assert entry(seed) == before
    assert len(pauses(seed)) == 1
    seed.assert_consistent()


def test_a_failure_that_is_reported_after_the_lease_expired_does_not_count_for_the_breaker(
    seed: Seed,
) -> None:
    begin(seed, 3)
    claims = claimed(seed)
    seed.live(LEASE)
    claimed(seed)

    assert set(seed.fail(*claims).values()) == {"stale"}
    assert entry(seed) is None


def test_a_failure_that_is_sent_twice_counts_once(seed: Seed) -> None:
    begin(seed, 3)
    (first, second, _) = claimed(seed)
    seed.fail(first, first, second, delay_ms=1)
    seed.fail(first, second, delay_ms=1)

    assert len(read_breaker(entry(seed) or "").failed) == 2  # type: ignore[union-attr]


def test_a_breaker_that_pauses_one_key_does_not_pause_other_keys(seed: Seed) -> None:
    open_circuit(seed)
    seed.enqueue("other", scopes=[f"{FAMILY}=h2"])
    seed.enqueue("plain")

    assert {claim.id for claim in claimed(seed)} == {"other", "plain"}


def test_a_job_with_two_breakers_begins_only_if_both_admit_it(seed: Seed) -> None:
    """While one of its two breakers is paused, the job waits. Meanwhile the other breaker does not use it as the
    probe."""
    other = "ask.zone@60s:failures"
    seed.cap(FAMILY, f"1/60000ms/{COOLDOWN}")
    seed.cap(other, f"1/60000ms/{2 * COOLDOWN}")
    seed.enqueue("a", scopes=[SCOPE, f"{other}=z"])
    seed.enqueue("b", scopes=[SCOPE])
    (a, b) = claimed(seed)
    seed.fail(a, delay_ms=1)
    assert {scope for scope, _ in _paused_scopes(seed)} == {SCOPE, f"{other}=z"}
    seed.rollback(b)

    seed.advance(COOLDOWN)
    assert [claim.id for claim in claimed(seed)] == ["b"]
    seed.complete(("b", _fence(seed, "b")))
    assert claimed(seed) == []
    seed.advance(COOLDOWN)
    assert [claim.id for claim in claimed(seed)] == ["a"]


def _paused_scopes(seed: Seed) -> list[tuple[str, int]]:
    return [
        (job.fields["scope"], job.fields["until_ms"])
        for event in seed.entries()
        if event.event == "scope_paused"
        for job in event.jobs
    ]


def _fence(seed: Seed, job_id: str) -> str:
    line: str = seed.snapshot()["state"][job_id]
    return next(word[6:] for word in line.split() if word.startswith("fence="))


def test_a_job_that_a_full_cap_refuses_does_not_become_the_probe(seed: Seed) -> None:
    """If such a job were the probe, the paused scope would wait for a job that does not run."""
    seed.cap("tenant", "1")
    seed.cap(FAMILY, f"1/60000ms/{COOLDOWN}")
    seed.enqueue("fails", scopes=[SCOPE])
    (fails,) = claimed(seed)
    seed.fail(fails, delay_ms=100_000)
    seed.enqueue("holder", scopes=["tenant=x"])
    claimed(seed)
    seed.enqueue("full", scopes=[SCOPE, "tenant=x"])
    seed.enqueue("free", scopes=[SCOPE])

    seed.advance(COOLDOWN - 1)
    seed.extend([("holder", _fence(seed, "holder"))])
    seed.advance(1)
    assert [claim.id for claim in claimed(seed)] == ["free"]


def test_a_pause_is_not_prolonged_by_a_clock_that_goes_back(seed: Seed) -> None:
    open_circuit(seed)
    seed.advance(-3_600_000)

    assert claimed(seed) == []
    seed.advance(COOLDOWN)
    assert len(claimed(seed)) == 1


def test_earlier_failures_still_count_after_the_clock_went_back(seed: Seed) -> None:
    begin(seed, 3)
    claims = claimed(seed)
    fail_all(seed, claims[:2], delay_ms=1)
    seed.advance(-3_600_000)
    seed.fail(claims[2], delay_ms=1)

    assert pauses(seed) == [(claims[2].id, seed.now + COOLDOWN)]


def test_a_scope_without_a_limit_is_open(seed: Seed) -> None:
    open_circuit(seed)
    seed.cap(FAMILY, "none")

    assert len(claimed(seed)) == 3


def test_a_limit_of_0_stops_the_scope(seed: Seed) -> None:
    begin(seed, 2)
    seed.cap(FAMILY, "0")

    assert claimed(seed) == []


def test_another_job_becomes_the_probe_if_redis_does_not_know_the_job_that_was_the_probe(
    seed: Seed,
) -> None:
    """For example, Redis lost the probe's job, and a restore brought the job back."""
    open_circuit(seed)
    seed.advance(COOLDOWN)
    (probe,) = claimed(seed)
    seed.control.hset(seed.keys("rates"), SCOPE, f"{seed.now} until={seed.now} probe=nobody")
    seed.complete(probe)

    seed.advance(LOOK_MS)
    assert len(claimed(seed)) == 1


def test_a_paused_scope_is_forgotten_a_day_after_its_pause(seed: Seed) -> None:
    begin(seed, 3)
    fail_all(seed, claimed(seed), verdict="final")
    seed.advance(COOLDOWN + KEPT_MS - 1)
    claimed(seed)
    assert entry(seed) is not None
    seed.advance(101)
    claimed(seed)
    assert entry(seed) is None


def test_failures_are_forgotten_after_the_window_of_the_breaker(seed: Seed) -> None:
    begin(seed, 1)
    fail_all(seed, claimed(seed), verdict="final")
    seed.advance(60_101)
    claimed(seed)
    assert entry(seed) is None


@pytest.mark.parametrize("until", ["paused", "open"])
def test_a_handler_pauses_the_scope_of_a_breaker(seed: Seed, until: str) -> None:
    begin(seed, 4)
    (first,) = seed.claim(1).jobs
    seed.spend(first, told="", pauses=f"{SCOPE}|5000")
    seed.rollback(first, reason="scope_paused")
    assert claimed(seed) == []
    seed.advance(5_000)
    (probe,) = claimed(seed)
    if until == "open":
        seed.complete(probe)
        assert len(claimed(seed)) == 3


def test_the_success_of_a_probe_does_not_end_a_pause_that_began_while_the_probe_ran(
    seed: Seed,
) -> None:
    (flying, _) = open_circuit(seed)
    seed.advance(COOLDOWN // 2)
    seed.extend([flying])
    seed.advance(COOLDOWN // 2)
    (probe,) = claimed(seed)
    seed.spend(flying, told="", pauses=f"{SCOPE}|7000")
    seed.advance(7_000)
    assert claimed(seed) == []
    seed.spend(flying, told="", pauses=f"{SCOPE}|7000")
    seed.complete(probe)
    assert claimed(seed) == []
    seed.advance(7_000)
    assert len(claimed(seed)) == 1


@pytest.mark.parametrize("by", ["failures", "operator"])
def test_an_operator_resumes_a_breaker_and_all_its_jobs_begin(seed: Seed, by: str) -> None:
    if by == "failures":
        open_circuit(seed)
    else:
        begin(seed, 5)
        assert change(seed, "pause") == ("paused", FOREVER_MS)
        assert entry(seed) == f"{seed.now} until={FOREVER_MS} by=ada"
        seed.advance(KEPT_MS)
    assert claimed(seed) == []

    assert change(seed, "resume") == ("resumed", None)

    assert len(claimed(seed)) == (3 if by == "failures" else 5)
    assert entry(seed) is None
    assert change(seed, "resume") == ("open", None)


def test_a_probes_success_does_not_end_an_operators_pause(seed: Seed) -> None:
    open_circuit(seed)
    seed.advance(COOLDOWN)
    (probe,) = claimed(seed)
    change(seed, "pause", for_ms=50_000)
    seed.complete(probe)

    assert claimed(seed) == []
    assert change(seed, "pause", for_ms=10) == ("kept", seed.now + 50_000)
    seed.advance(50_000)
    assert len(claimed(seed)) == 1


@pytest.mark.parametrize("limit", ["100/1000ms/10", "none", "0"])
def test_a_debt_of_a_rate_remains_after_an_operator_paused_and_resumed_the_rate(
    seed: Seed, limit: str
) -> None:
    scope = "ask@1s:tokens=gpt"
    seed.cap("ask@1s:tokens", "100/1000ms/10")
    seed.enqueue("debtor", scopes=[scope], cost="tokens:60")
    seed.enqueue("next", scopes=[scope], cost="tokens:10")
    claimed(seed)
    seed.cap("ask@1s:tokens", limit)
    if limit != "100/1000ms/10":
        with pytest.raises(InvalidOption, match="must have a rate or a breaker"):
            change(seed, "pause", scope)
        return

    assert change(seed, "pause", scope) == ("paused", FOREVER_MS)
    seed.advance(100)
    assert change(seed, "resume", scope) == ("resumed", None)
    assert claimed(seed) == []
    seed.advance(499)
    assert claimed(seed) == []
    seed.advance(1)
    assert [claim.id for claim in claimed(seed)] == ["next"]


def test_jobs_of_a_rate_begin_one_by_one_after_an_operators_pause(
    seed: Seed,
) -> None:
    scope = "ask@1s=x"
    seed.cap("ask@1s", "100/1000ms/10")
    seed.enqueue(*"abc", scopes=[scope])
    change(seed, "pause", scope, for_ms=5_000)
    seed.advance(4_999)
    assert claimed(seed) == []
    seed.advance(1)
    assert [claim.id for claim in claimed(seed)] == ["a"]
    seed.advance(10)
    assert [claim.id for claim in claimed(seed)] == ["b"]


@pytest.mark.parametrize(
    "scope", ["t", "queue", "task=t", "ask@1s", "ask@1s:tokens", "a b@1s=x", ""]
)
def test_a_pause_is_refused_unless_it_names_a_single_scope_of_a_rate_or_breaker(
    seed: Seed, scope: str
) -> None:
    with pytest.raises(InvalidOption, match="must be one scope of a rate or a breaker"):
        change(seed, "pause", scope)


def change(seed: Seed, how: str, scope: str = SCOPE, **options: Any) -> PauseChange:
    plan = getattr(seed.client.calls.pauses, how)(seed.queue, scope, by="ada", why="ill", **options)
    made: PauseChange = seed.client.run(plan)
    return made
