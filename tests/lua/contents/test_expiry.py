"""Deadlines: no claim takes a job at its deadline or later.

A waiting job then leaves Redis. If it had failed or lost a worker before, it is dead instead.
"""

import pytest

from tests.kit.seed import LEASE_MS, Seed, events_of, spec
from tests.lua.contents.entries import T, entry

DIGEST = "44136fa355b3678a1146ad16f7e8649e"  # of {}
MANY = 250


def test_enqueue_writes_a_deadline_into_the_state_line_the_event_and_the_index(seed: Seed) -> None:
    seed.client.run(seed.client.calls.delivery.handshake("q"))
    jobs = (
        seed.job("a", expires_in_ms=1_000),
        seed.job("b", expires_at_ms=T + 2_000, delay_ms=500, lane="2+host=h", spec_max=100),
    )

    changes, later = (seed.changes(lambda job=job: seed.enqueue(job)) for job in jobs)

    line = f"ready task=t seq=1 expires={T + 1_000} since={T}"
    assert (changes["state"], changes["jobs"]) == ({"a": (None, line)}, {"a": (None, spec())})
    line = f"scheduled task=t lane=2+host=h expires={T + 2_000} due={T + 500} since={T}"
    assert (later["state"], later["jobs"]) == ({"b": (None, line)}, {"b": (None, spec())})
    assert changes["expiring"]["job|a"] == (None, T + 1_000.0)
    assert later["expiring"]["job|b"] == (None, T + 2_000.0)
    told = '"' + spec().replace('"', '\\"') + '"'
    assert [*changes["outbox"], *later["outbox"]] == [
        entry(
            1,
            "enqueued",
            f'[["a",1,null,"t","normal",3,3,"{DIGEST}",null,null,{T + 1_000}]]',
            by="c-1",
        ),
        entry(
            2,
            "enqueued",
            f'[["b",null,{T + 500},"t","normal",3,3,"{DIGEST}","2+host=h",{told},{T + 2_000}]]',
            by="c-1",
        ),
    ]
    assert changes["meta"]["ties"] == (None, "1")


@pytest.mark.parametrize("options", [{}, {"lane": "2+host=h"}, {"priority": "low"}])
def test_a_job_can_be_claimed_before_its_deadline_but_not_at_its_deadline(
    seed: Seed, options: dict[str, str]
) -> None:
    seed.enqueue("early", "late", expires_in_ms=1_000, **options)
    seed.enqueue("other", **options)
    seed.advance(999)
    early = seed.claim(1).jobs
    seed.advance(1)
    late = seed.claim(10).jobs

    assert [["early"], ["other"]] == [[c.id for c in claims] for claims in (early, late)]
    assert ["enqueued", "expired"] == events_of(seed.entries(), "late")


def test_a_claim_checks_deadlines_that_have_passed_since_the_last_sweep(seed: Seed) -> None:
    """The sweep for expired jobs runs only ten times a second. So a claim also compares each job's deadline with the
    clock."""
    for n in range(3):
        seed.enqueue(f"plain-{n}", expires_in_ms=50)
        seed.enqueue(f"lane-{n}", lane=f"2+host=h{n}", expires_in_ms=50)
    seed.enqueue("stays", "stays-too", lane="2+host=h0")
    assert ["plain-0"] == [c.id for c in seed.claim(1).jobs]
    seed.advance(50)

    claimed = [c.id for c in seed.claim(10).jobs]

    assert ["stays", "stays-too"] == claimed
    gone = [f"{kind}-{n}" for kind in ("plain", "lane") for n in range(3)][1:]
    assert all(seed.state(job_id) is None for job_id in gone)


def test_a_job_that_failed_before_its_deadline_is_dead_when_it_expires(seed: Seed) -> None:
    """Operators can still see the dead job and its error."""
    claim = seed.running("a", expires_in_ms=1_000)
    seed.fail(claim, delay_ms=5_000)
    seed.advance(1_000)
    seed.claim(0)
    line = f"dead task=t priority=critical claim=1 failed=1 seq=1 expires={T + 1_000} since={T + 1_000}"

    assert f"{line} reason=expired" == seed.state("a")
    assert ["enqueued", "claimed", "retried", "expired"] == events_of(seed.entries(), "a")


def test_a_requeued_job_has_no_deadline(seed: Seed) -> None:
    claim = seed.running("a", expires_in_ms=1_000)
    seed.fail(claim)
    seed.advance(1_000)
    assert () == seed.claim().jobs
    seed.requeue("a")

    assert ["a"] == [c.id for c in seed.claim().jobs]


def test_a_job_that_is_due_at_its_deadline_expires_without_becoming_ready(seed: Seed) -> None:
    """The log has the event ``expired`` of the job, and no event ``promoted``."""
    for job_id, lane in (("plain", ""), ("lane", "2+host=h")):
        seed.enqueue(job_id, lane=lane, delay_ms=1_000, expires_in_ms=1_000)
    seed.advance(1_000)

    assert () == seed.claim().jobs
    for job_id in ("plain", "lane"):
        assert ["enqueued", "expired"] == events_of(seed.entries(), job_id)
        assert seed.state(job_id) is None


def test_a_job_running_past_its_deadline_can_be_settled_but_not_claimed_again(
    seed: Seed,
) -> None:
    seed.enqueue("done", "given-back", "failed", expires_in_ms=1_000)
    done, back, failed = seed.claim().jobs
    seed.advance(1_000)
    seed.claim(0)

    assert {} == seed.complete(done)
    assert {"given-back": "ready"} == seed.rollback(back)
    assert {"failed": "ready"} == seed.fail(failed)
    assert () == seed.claim().jobs
    assert {"failed"} == seed.snapshot()["state"].keys()


def test_a_job_that_loses_its_lease_after_its_deadline_is_dead(seed: Seed) -> None:
    seed.running("a", expires_in_ms=1_000)
    seed.live(LEASE_MS)

    assert () == seed.claim().jobs
    events = ["enqueued", "claimed", "lease_expired", "expired"]
    assert events == events_of(seed.entries(), "a")
    assert "dead" == (seed.state("a") or "").split()[0]


@pytest.mark.parametrize("lane", [False, True])
def test_many_expired_jobs_are_removed_by_a_few_bounded_calls(seed: Seed, lane: bool) -> None:
    for n in range(MANY):
        seed.enqueue(f"j-{n}", lane=f"2+host=h{n}" if lane else "", expires_in_ms=1_000)
    seed.enqueue("last", lane="2+host=last" if lane else "")
    seed.advance(1_000)
    found, calls = [], 0
    while not found:
        claimed = seed.claim(10, sweep_max=100)
        found, calls = [c.id for c in claimed.jobs], calls + 1
        assert found or claimed.more or (claimed.next_due_ms or 0) == seed.now

    assert ["last"] == found
    assert 2 <= calls <= 3
    assert 1 == len(seed.snapshot()["jobs"])


def test_a_sweep_that_reached_its_limit_asks_for_the_next_sweep_at_once(seed: Seed) -> None:
    """More jobs may expire in a second than ten sweeps can remove."""
    seed.enqueue(*(f"j-{n}" for n in range(25)), delay_ms=60_000, expires_in_ms=1_000)
    seed.advance(1_000)
    seed.take_token()
    left = []
    while not left or left[-1]:
        claimed = seed.claim(0, sweep_max=10)
        left.append(len(seed.snapshot()["jobs"]))
        if left[-1]:
            assert (claimed.next_due_ms, seed.tokens()) == (seed.now, 1)

    assert [15, 5, 0] == left


def test_an_ended_job_leaves_no_deadline_in_the_index(seed: Seed) -> None:
    seed.enqueue("a", "b", "c", expires_in_ms=86_400_000)
    (claim,) = seed.claim(1).jobs
    seed.cancel("b", "c")
    seed.complete(claim)

    assert not [m for m in seed.snapshot()["expiring"] if m.startswith("job|")]


def test_a_queue_whose_jobs_never_had_a_deadline_is_not_marked_as_a_queue_with_deadlines(
    seed: Seed,
) -> None:
    seed.complete(seed.running("a"))

    assert seed.meta("ties") is None
