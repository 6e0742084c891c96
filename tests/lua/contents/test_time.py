"""The effects of time on the keys in Redis: on leases, losses, retention and slots."""

from rq_core.protocol.engine.plan import named_slot
from tests.kit.consistency import assert_consistent
from tests.kit.seed import LEASE_MS, NO_FENCE, Seed, events_of
from tests.kit.snapshots import diff, without_slot
from tests.lua.contents.entries import T, entry


def test_a_claim_counts_an_expired_lease_as_a_loss_and_claims_the_job_again(seed: Seed) -> None:
    claim = seed.running("a")
    seed.live(LEASE_MS)
    now = T + LEASE_MS

    changes = seed.changes(lambda: seed.claim(worker="w-2"))

    assert changes == {
        "state": {
            "a": (
                f"running task=t priority=critical claim=1 fence={claim.fence} by=w-1 seq=1 since={T}",
                f"running task=t priority=critical claim=2 fence={T}-4 by=w-2 lost=1 seq=1 since={now}",
            )
        },
        "leases": {"a": (float(now), float(now + LEASE_MS))},
        "outbox": [
            entry(3, "lease_expired", f'[["a","{claim.fence}","w-1",1,"ready"]]', by="w-2", at=now),
            entry(4, "claimed", '[["a",2]]', by="w-2", at=now),
        ],
    }


def test_a_job_dies_as_poison_after_its_last_allowed_loss(seed: Seed) -> None:
    seed.enqueue("a", losses=2)
    for _ in range(2):
        assert len(seed.claim().jobs) == 1
        seed.live(LEASE_MS)

    assert seed.claim().jobs == ()
    line = f"dead task=t losses=2 claim=2 lost=2 seq=1 since={seed.now} reason=poison"
    assert line == seed.state("a")


def test_an_extended_lease_does_not_expire(seed: Seed) -> None:
    claim = seed.running("a")
    for _ in range(10):
        seed.advance(LEASE_MS // 3)
        seed.extend([claim])
        assert seed.claim().jobs == ()

    assert events_of(seed.entries(), "a") == ["enqueued", "claimed"]


def test_a_settlement_after_the_lease_has_passed_is_accepted_while_the_claim_is_in_force(
    seed: Seed,
) -> None:
    claim = seed.running("a")
    seed.live(2 * LEASE_MS)

    assert seed.complete(claim) == {}
    assert seed.claim().jobs == ()


def test_extend_prolongs_leases_and_reports_lost_and_cancelled_jobs(seed: Seed) -> None:
    held = seed.running("held")
    unwanted = seed.cancelling("unwanted")
    seed.rollback(seed.running("back"))
    seed.advance(5_000)
    seen = []

    changes = seed.changes(
        lambda: seen.append(seed.extend([held, unwanted, ("back", NO_FENCE), ("nobody", NO_FENCE)]))
    )

    deadlines = (float(T + LEASE_MS), float(T + 5_000 + LEASE_MS))
    assert changes == {
        "meta": {"last_activity": (str(T), str(T + 5_000))},
        "leases": {"held": deadlines, "unwanted": deadlines},
    }
    assert (("back", "nobody"), ("unwanted",)) == (seen[0].lost, seen[0].cancelling)


def test_only_the_worker_of_the_claim_in_force_can_extend_the_lease(seed: Seed) -> None:
    """A worker lost the job and claimed it again. It cannot extend the lease of its first claim."""
    old = seed.running("a")
    seed.rollback(old)
    new = seed.claim_one("a")
    seed.advance(1_000)
    before = seed.snapshot()["leases"]

    lost = [seed.extend([old]).lost, seed.extend([new], worker="w-2").lost]

    assert [("a",), ("a",)] == lost
    assert before == seed.snapshot()["leases"]
    assert seed.extend([new]).lost == ()


def test_no_lease_expires_within_one_lease_time_after_a_period_without_calls(
    seed: Seed,
) -> None:
    """No worker could extend its leases during the gap. So workers get time to do it afterwards."""
    seed.running("a")
    seed.advance(LEASE_MS * 2)
    assert seed.claim(1).jobs == ()
    assert seed.meta("no_reap_before") == str(seed.now + LEASE_MS)

    seed.live(LEASE_MS - 1)
    assert seed.claim(1).jobs == ()
    seed.advance(1)
    assert ["a"] == [c.id for c in seed.claim(1).jobs]


def test_a_period_of_two_thirds_of_a_lease_without_calls_does_not_delay_the_expiry_of_leases(
    seed: Seed,
) -> None:
    seed.running("a")
    before = seed.meta("no_reap_before")
    seed.advance(LEASE_MS * 2 // 3)
    seed.claim(0)
    assert before == seed.meta("no_reap_before")

    seed.advance(LEASE_MS * 2 // 3 + 1)
    seed.claim(0)
    assert str(seed.now + LEASE_MS) == seed.meta("no_reap_before")


def test_a_period_without_calls_postpones_the_expiry_of_leases_only_once(seed: Seed) -> None:
    seed.running("a")
    seed.advance(LEASE_MS)
    seed.extend([])
    first = seed.meta("no_reap_before")
    seed.advance(1)
    seed.claim(0)

    assert first == seed.meta("no_reap_before")


def test_a_job_of_an_unknown_task_waits_longer_each_time_until_it_dies(
    seed: Seed,
) -> None:
    seed.enqueue("a")
    limits = {"backoff_ms": 1_000, "backoff_max_ms": 3_000, "unknown_max": 5}
    waits, outcomes = [], []
    for _ in range(5):
        (claim,) = seed.claim().jobs
        outcomes.append(seed.rollback(claim, reason="unknown_task", **limits)["a"])
        due = seed.snapshot()["scheduled"].get("job|a")
        if due is not None:
            waits.append(int(due) - seed.now)
            seed.clock.set(int(due))

    assert [1_000, 2_000, 3_000, 3_000] == waits
    assert outcomes == ["scheduled"] * 4 + ["dead"]
    state = f"dead task=t claim=5 unknown=4 seq=1 since={seed.now} reason=unknown_task"
    assert state == seed.state("a")


def test_dead_jobs_are_pruned_at_the_end_of_their_retention(seed: Seed) -> None:
    seed.configure(dead_retention_ms=60_000)
    seed.dead("a")
    seed.advance(60_000 - 1)
    seed.claim(0)
    assert seed.state("a") is not None
    seed.advance(1)

    before = seed.snapshot()
    seed.claim(0)
    after = seed.snapshot()

    assert_consistent(after)
    changes, _ = without_slot(diff(before, after), seed.now)
    changes.pop("meta", None)
    assert changes == {
        "jobs": {"a": (before["jobs"]["a"], None)},
        "state": {"a": (before["state"]["a"], None)},
        "dead": {"a": (float(T), None)},
        "expiring": {"dead|a": (T + 60_000.0, None)},
        "outbox": [entry(5, "pruned", '[["a"]]', at=seed.now)],
    }


def test_a_requeued_job_is_not_pruned(seed: Seed) -> None:
    seed.configure(dead_retention_ms=60_000)
    seed.dead("a")
    seed.requeue("a")
    seed.advance(60_000)
    seed.claim(0)

    assert (seed.state("a") or "").startswith("ready")


def test_call_slots_are_forgotten_an_hour_after_their_last_call(seed: Seed) -> None:
    seed.enqueue("a")
    seed.cancel("a")
    assert sorted(seed.snapshot()["slots"]) == ["c-1.cancel.2", "c-1.cancel.2|a", "c-1.enqueue.1"]
    seed.advance(45 * 60_000)
    seed.enqueue("b")
    seed.advance(30 * 60_000)
    seed.claim(0)

    assert sorted(seed.snapshot()["slots"]) == ["c-1.claim.3", "c-1.claim.3|a", "c-1.enqueue.1"]


def test_a_call_slot_that_a_relay_has_named_is_remembered_for_thirty_days(seed: Seed) -> None:
    """A relay may be suspended for weeks between its COMMIT and its call. Another relay has sent the same call
    meanwhile."""
    call = seed.client.calls.enqueue.chunk("q", [seed.job("a")])
    call.slot = named_slot("inbox.0f", 1)
    seed.client.run(call)
    (first,) = {n: s for n, s in seed.snapshot()["slots"].items() if n.startswith("inbox.")}.items()
    seed.advance(86_400_000)
    call.slot = named_slot("inbox.0f", 2)
    seed.client.run(call)
    days = 86_400_000
    assert first == ("inbox.0f", f"1 {seed.now + 29 * days}")
    seed.advance(28 * days)
    seed.claim(0)
    seed.assert_consistent()
    before = len(seed.entries())
    assert seed.client.run(call).duplicates == ("a",), "it was answered from the slot"
    assert len(seed.entries()) == before
    seed.advance(days + 1)
    seed.claim(0)

    assert not [name for name in seed.snapshot()["slots"] if name.startswith("inbox.")]


def test_a_claim_does_not_forget_the_call_slot_that_it_uses_itself(seed: Seed) -> None:
    seed.claim(0)
    seed.advance(2 * 3_600_000)
    seed.claim(0)

    assert seed.snapshot()["slots"]["c-1.claim.1"] == f"2 {seed.now + 3_600_000} +"
