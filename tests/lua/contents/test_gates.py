"""Two gates for calls. A pause stops claims. A backlog of the audit log stops enqueues at its limit, and stops claims,
too, at twice its limit."""

import json

import pytest

from rq_core import errors
from tests.kit.seed import Seed
from tests.lua.contents.entries import T


def test_the_pause_of_a_queue_stops_claims_and_no_other_calls(seed: Seed) -> None:
    held = seed.running("held")
    seed.enqueue("a")
    seed.configure(paused=1)
    seed.enqueue("b")
    seed.take_token()

    claimed = seed.claim()

    assert ((), False, 0) == (claimed.jobs, claimed.more, seed.tokens())
    assert seed.complete(held) == {}
    assert {"paused": "same"} == seed.configure(paused=1)
    seed.configure(paused=0)
    assert ["a", "b"] == [c.id for c in seed.claim().jobs]
    assert ["paused", "resumed"] == [
        str(e.event) for e in seed.entries() if e.event in {"paused", "resumed"}
    ]


def test_a_changed_setting_is_logged_once_with_its_old_and_new_value(seed: Seed) -> None:
    outcomes = seed.configure(lease_ms=5_000, dead_retention_ms=30 * 86_400_000)

    assert outcomes == {"lease_ms": "changed", "dead_retention_ms": "same"}
    (changed,) = [e for e in seed.entries() if e.event == "policy_changed"]
    assert changed.data == {"field": "lease_ms", "old": "30000", "new": "5000"}
    seed.running("a")
    assert {"a": float(T + 5_000)} == seed.snapshot()["leases"]


def test_a_setting_may_be_given_as_a_bool(seed: Seed) -> None:
    assert seed.configure(paused=True) == {"paused": "changed"}
    assert seed.meta("paused") == "1"


def test_a_full_backlog_refuses_an_enqueue_call_as_a_whole(
    seed: Seed,
) -> None:
    seed.attach()
    seed.configure(backlog_max_jobs=4)
    seed.enqueue("a", "b", "c")
    before = seed.snapshot()

    with pytest.raises(errors.AuditBacklogFull, match="audit off"):
        seed.enqueue("d")

    assert before == seed.snapshot()


def test_a_backlog_with_too_many_bytes_refuses_an_enqueue_call(
    seed: Seed,
) -> None:
    seed.attach()
    seed.configure(backlog_max_bytes=200)
    seed.enqueue("a", "b", "c")

    with pytest.raises(errors.AuditBacklogFull):
        seed.enqueue("d")


def shut_gate(seed: Seed) -> list:
    """Fill the backlog to twice its limit. Two jobs run and two jobs wait. Return the claims of the running jobs."""
    seed.enqueue("a", "b", "c", "waiting")
    held = list(seed.claim(3).jobs)
    seed.attach()
    seed.configure(backlog_max_jobs=1)
    seed.rollback(held.pop())
    assert seed.claim().jobs == ()
    seed.take_token()
    return held


def test_claims_stop_and_settlements_continue_at_twice_the_limit_of_the_backlog(seed: Seed) -> None:
    a, b = shut_gate(seed)

    claimed = seed.claim()

    assert ((), False, 0) == (claimed.jobs, claimed.more, seed.tokens())
    assert seed.complete(a) == {}
    assert seed.fail(b) == {"b": "ready"}
    assert seed.cancel("c") == {"c": "cancelled"}


def test_a_trim_of_an_unmirrored_queue_is_refused_with_the_error_audit_off(seed: Seed) -> None:
    """The error must be a refusal. It must not speak of a bug of rq-core."""
    seed.attach()
    seed.enqueue("a")
    seed.client.run(seed.client.calls.audit.detach("q", "db-1"))
    before = seed.snapshot()

    with pytest.raises(errors.AuditOff, match="the audit log of queue"):
        seed.client.run(seed.client.calls.audit.trim("q", "db-1", before["outbox"][-1][0], 1, 10))

    assert seed.snapshot() == before


@pytest.mark.parametrize("opener", ["trim", "detach", "a wider bound"])
@pytest.mark.damaged
def test_a_worker_is_woken_when_a_full_backlog_has_room_again(seed: Seed, opener: str) -> None:
    """No new job would wake a worker. So the call that makes room must push the wake token."""
    shut_gate(seed)

    match opener:
        case "trim":
            seed.client.run(
                seed.client.calls.audit.trim("q", "db-1", seed.snapshot()["outbox"][-1][0], 2, 100)
            )
        case "detach":
            seed.client.run(seed.client.calls.audit.detach("q", "db-1"))
        case _:
            seed.configure(backlog_max_jobs=1_000)

    assert seed.tokens() == 1
    assert seed.claim().jobs != ()


def test_resuming_a_queue_with_a_full_backlog_wakes_no_worker(seed: Seed) -> None:
    shut_gate(seed)
    seed.configure(paused=1)
    seed.configure(paused=0)

    assert seed.tokens() == 0


@pytest.mark.damaged
def test_the_backlog_counts_the_events_that_the_mirror_has_not_trimmed(seed: Seed) -> None:
    """An entry about jobs counts as many events as it has jobs. An entry about the queue counts as one event."""
    seed.enqueue("first")
    seed.attach()
    start = len(seed.snapshot()["outbox"])
    seed.enqueue("a", "b")
    seed.complete(*seed.claim().jobs)
    seed.configure(paused=1)
    added = seed.snapshot()["outbox"][start:]

    jobs = sum(len(json.loads(raw["jobs"])) if "jobs" in raw else 1 for _, raw in added)
    size = sum(len(raw[f]) for _, raw in added for f in ("type", "jobs", "data", "why") if f in raw)
    assert (str(jobs), str(size)) == (seed.meta("backlog_jobs"), seed.meta("backlog_bytes"))
    seed.client.run(seed.client.calls.audit.trim("q", "db-1", added[-1][0], jobs, size))
    assert ("0", "0") == (seed.meta("backlog_jobs"), seed.meta("backlog_bytes"))
