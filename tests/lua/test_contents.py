"""What each call leaves in each key, read as literally as redis-cli shows it."""

import json

import pytest

from rq_core import errors
from rq_core.model.events import decode
from rq_core.scripts import assemble
from tests.kit.consistency import assert_consistent
from tests.kit.seed import ERROR, LEASE_MS, NO_FENCE, START_MS, Seed, events_of, spec
from tests.kit.snapshots import diff, fields_of, without_slot

T = START_MS
DIGEST = "44136fa355b3678a1146ad16f7e8649e"  # of {}


def entry(number: int, kind: str, jobs: str, *, by: str = "w-1", at: int = T) -> tuple[str, dict]:
    return f"{T}-{number}", {"type": kind, "at": str(at), "by": by, "jobs": jobs}


# enqueue


def test_enqueue_writes_the_job_its_place_and_its_event(seed: Seed) -> None:
    seed.client.run(seed.client.calls.delivery.handshake("q"))

    changes = seed.changes(
        lambda: seed.enqueue(
            seed.job("a"),
            seed.job("b", priority="low", attempts=5, losses=2, task="mail.send"),
            seed.job("c", delay_ms=60_000),
        )
    )

    assert changes == {
        "meta": {"sequence": ("0", "2")},
        "jobs": {"a": (None, spec()), "b": (None, spec("mail.send")), "c": (None, spec())},
        "state": {
            "a": (None, f"ready task=t seq=1 since={T}"),
            "b": (None, f"ready task=mail.send priority=low attempts=5 losses=2 seq=2 since={T}"),
            "c": (None, f"scheduled task=t due={T + 60_000} since={T}"),
        },
        "ready:2": ([], ["a"]),
        "ready:3": ([], ["b"]),
        "scheduled": {"job|c": (None, T + 60_000.0)},
        "wake": ([], ["1"]),
        "outbox": [
            entry(
                1,
                "enqueued",
                f'[["a",1,null,"t","normal",3,3,"{DIGEST}"],'
                f'["b",2,null,"mail.send","low",5,2,"{DIGEST}"],'
                f'["c",null,{T + 60_000},"t","normal",3,3,"{DIGEST}"]]',
                by="c-1",
            )
        ],
    }


def test_a_duplicate_changes_nothing_and_is_named(seed: Seed) -> None:
    """Live is live: ready, scheduled, running or dead."""
    seed.dead("dead")
    seed.running("running")
    seed.enqueue("ready")
    seed.enqueue("scheduled", delay_ms=1_000)
    ids = ("ready", "scheduled", "running", "dead")

    changes = seed.changes(lambda: seed.enqueue(*ids, priority="high", delay_ms=5))

    assert changes == {}
    accepted = seed.enqueue("new", *ids, "new")
    assert (("new",), (*ids, "new")) == (accepted.ids, accepted.duplicates)


def test_the_first_of_two_with_one_id_in_a_batch_wins(seed: Seed) -> None:
    seed.enqueue(seed.job("a", priority="high"), seed.job("a", delay_ms=9), seed.job("b"))

    snapshot = seed.snapshot()
    assert_consistent(snapshot)
    assert (["a"], ["b"], {}) == (snapshot["ready:1"], snapshot["ready:2"], snapshot["scheduled"])


# claim


def test_claim_writes_the_claim_its_lease_and_its_event(seed: Seed) -> None:
    seed.enqueue("a", "b")

    changes = seed.changes(lambda: seed.claim(1))

    assert changes == {
        "meta": {"last_activity": (None, str(T))},
        "state": {
            "a": (
                f"ready task=t seq=1 since={T}",
                f"running task=t claim=1 fence={T}-2 seq=1 since={T} by=w-1",
            )
        },
        "ready:2": (["a", "b"], ["b"]),
        "leases": {"a": (None, T + float(LEASE_MS))},
        "outbox": [entry(2, "claimed", '[["a",1]]')],
    }


def test_a_claim_carries_all_that_a_worker_needs(seed: Seed) -> None:
    seed.enqueue("a", args_json='{"x":"ü\\n"}')
    seed.enqueue("later", delay_ms=5_000)
    seed.fail(seed.claim_one("a"))

    claimed = seed.claim()

    ((job),) = claimed.jobs
    assert ("q", "a", 2, 1, 0) == (job.queue, job.id, job.number, job.failures, job.losses)
    assert {"task": "t", "args": {"x": "ü\n"}} == json.loads(job.spec)
    assert job.fence == seed.snapshot()["outbox"][-1][0]
    assert (T, T + 5_000, False) == (claimed.now_ms, claimed.next_due_ms, claimed.more)


def test_claims_go_by_priority_and_then_by_place(seed: Seed) -> None:
    for at, priority in enumerate(["low", "normal", "critical", "high", "critical", "low"]):
        seed.enqueue(f"{priority}-{at}", priority=priority)

    order = [seed.claim(1).jobs[0].id for _ in range(6)]

    assert order == ["critical-2", "critical-4", "high-3", "normal-1", "low-0", "low-5"]


def test_a_rolled_back_job_returns_to_its_old_place(seed: Seed) -> None:
    seed.enqueue("a", "b", "c", "d")
    a, b, _c = seed.claim(3).jobs
    seed.rollback(b, a)

    assert ["a", "b", "d"] == [c.id for c in seed.claim().jobs]


def test_a_job_rolled_back_for_later_waits_and_keeps_its_place(seed: Seed) -> None:
    """A suspect waits until another has run; it has spent nothing."""
    seed.enqueue("a", "b", "c")
    a, _b = seed.claim(2).jobs
    seed.rollback(a, reason="suspect", delay_ms=2_000)

    assert {"job|a": seed.now + 2_000} == seed.snapshot()["scheduled"]
    assert ["c"] == [c.id for c in seed.claim().jobs]
    seed.advance(2_000)
    (again,) = seed.claim().jobs
    assert (again.id, again.failures, again.losses) == ("a", 0, 0)
    assert "seq=1" in seed.state("a")
    assert_consistent(seed.snapshot())


def test_a_retried_job_keeps_its_place(seed: Seed) -> None:
    """With or without a delay: its place was given when it first became ready."""
    seed.enqueue("a", "b", "c")
    a, b = seed.claim(2).jobs
    seed.fail(b)
    seed.fail(a, delay_ms=1_000)
    seed.advance(1_000)

    assert ["a", "b", "c"] == [c.id for c in seed.claim().jobs]


def test_a_job_whose_lease_expired_keeps_its_place(seed: Seed) -> None:
    seed.enqueue("a", "b", "c")
    seed.claim(2)
    seed.live(LEASE_MS)

    assert ["a", "b", "c"] == [c.id for c in seed.claim().jobs]


def test_a_requeued_job_joins_the_tail(seed: Seed) -> None:
    seed.enqueue("a", "b")
    seed.fail(seed.claim_one("a"), verdict="final")
    seed.requeue("a")
    seed.enqueue("c")

    assert ["b", "a", "c"] == [c.id for c in seed.claim().jobs]


def test_delayed_jobs_come_in_the_order_of_their_due_times_behind_those_that_wait(
    seed: Seed,
) -> None:
    seed.enqueue("second", delay_ms=2_000)
    seed.enqueue("first", delay_ms=1_000)
    seed.enqueue("waits")
    seed.enqueue("urgent", delay_ms=2_000, priority="critical")
    seed.advance(2_000)

    assert ["urgent", "waits", "first", "second"] == [c.id for c in seed.claim().jobs]
    assert_consistent(seed.snapshot())


def test_a_due_job_that_is_not_taken_is_listed(seed: Seed) -> None:
    """Step 0 runs whatever the worker asked for."""
    seed.enqueue("a", delay_ms=1_000)
    seed.enqueue("b", delay_ms=1_001)
    seed.advance(1_000)
    seed.take_token()

    changes = seed.changes(lambda: seed.claim(0))

    assert changes == {
        "meta": {"last_activity": (None, str(T + 1_000)), "sequence": ("0", "1"),
                 "no_reap_before": (str(T + LEASE_MS), str(T + 1_000 + LEASE_MS))},
        "state": {
            "a": (
                f"scheduled task=t due={T + 1_000} since={T}",
                f"ready task=t seq=1 since={T + 1_000}",
            )
        },
        "ready:2": ([], ["a"]),
        "scheduled": {"job|a": (T + 1_000.0, None)},
        "wake": ([], ["1"]),
        "outbox": [entry(3, "promoted", '[["a",1]]', at=T + 1_000)],
    }  # fmt: skip


def test_claim_takes_at_most_limit_and_says_whether_more_is_left(seed: Seed) -> None:
    seed.enqueue("a", "b", "c")

    first, second = seed.claim(2), seed.claim(2)

    assert ([2, 1], [True, False]) == (
        [len(c.jobs) for c in (first, second)],
        [c.more for c in (first, second)],
    )


def test_claim_ends_at_the_byte_bound_but_takes_one(seed: Seed) -> None:
    big = '{"x":"' + "y" * 1_000 + '"}'
    seed.enqueue("a", "b", "c", "d", args_json=big)

    taken = [[c.id for c in seed.claim(bytes_max=size).jobs] for size in (1, 2_000, 0, 10_000)]

    assert [["a"], ["b", "c"], [], ["d"]] == taken


def test_claim_sweeps_no_more_than_it_is_told(seed: Seed) -> None:
    """Each kind has its own bound; the rest is done by the claims that follow."""
    for n in range(5):
        seed.running(f"lost-{n}")
    seed.live(LEASE_MS)
    seed.enqueue(*(f"due-{n}" for n in range(5)), delay_ms=1)
    seed.advance(1)
    seed.take_token()

    seed.claim(0, sweep_max=2)

    kinds = [(str(e.event), len(e.jobs)) for e in seed.entries()[-2:]]
    assert kinds == [("lease_expired", 2), ("promoted", 2)]
    assert seed.tokens() == 1
    seed.claim(0, sweep_max=100)
    kinds = [(str(e.event), len(e.jobs)) for e in seed.entries()[-2:]]
    assert kinds == [("lease_expired", 3), ("promoted", 3)]
    assert_consistent(seed.snapshot())


def test_claim_passes_over_a_bounded_number_of_tombstones(seed: Seed) -> None:
    ids = [f"t-{n}" for n in range(30)]
    seed.enqueue(*ids, "alive")
    seed.cancel(*ids)
    assert seed.meta("tombstones") == "30"

    first = seed.claim(1, sweep_max=10)
    left = int(seed.meta("tombstones") or 0)
    second = seed.claim(1, sweep_max=100)

    assert ((), True) == (first.jobs, first.more)
    assert 10 <= 30 - left <= 12
    assert ["alive"] == [c.id for c in second.jobs]
    assert seed.meta("tombstones") == "0"


def test_the_entry_of_a_cancelled_job_does_not_give_it_out_twice(seed: Seed) -> None:
    """Enqueued again over its tombstone, it has two entries."""
    seed.enqueue("a", "b")
    seed.cancel("a")
    seed.enqueue("a")

    claimed = [c.id for c in seed.claim().jobs]

    assert sorted(claimed) == ["a", "b"]
    snapshot = seed.snapshot()
    assert_consistent(snapshot)
    assert snapshot["ready:2"] == []


def test_an_entry_of_another_priority_gives_nothing_out(seed: Seed) -> None:
    seed.enqueue("a", priority="critical")
    seed.cancel("a")
    seed.enqueue("a", priority="low")
    seed.enqueue("b")

    assert ["b", "a"] == [c.id for c in seed.claim().jobs]
    assert_consistent(seed.snapshot())


# Time: leases, losses, retention, slots.


def test_an_expired_lease_is_a_loss_and_the_job_runs_again(seed: Seed) -> None:
    claim = seed.running("a")
    seed.live(LEASE_MS)
    now = T + LEASE_MS

    changes = seed.changes(lambda: seed.claim(worker="w-2"))

    assert changes == {
        "state": {
            "a": (
                f"running task=t priority=critical claim=1 fence={claim.fence} seq=1 since={T} by=w-1",
                f"running task=t priority=critical claim=2 fence={T}-4 lost=1 seq=1 since={now} by=w-2",
            )
        },
        "leases": {"a": (float(now), float(now + LEASE_MS))},
        "outbox": [
            entry(3, "lease_expired", f'[["a","{claim.fence}","w-1",1,"ready"]]', by="w-2", at=now),
            entry(4, "claimed", '[["a",2]]', by="w-2", at=now),
        ],
    }


def test_a_poison_job_dies_of_its_last_loss(seed: Seed) -> None:
    seed.enqueue("a", losses=2)
    for _ in range(2):
        assert len(seed.claim().jobs) == 1
        seed.live(LEASE_MS)

    assert seed.claim().jobs == ()
    line = f"dead task=t losses=2 claim=2 lost=2 seq=1 since={seed.now} reason=poison"
    assert line == seed.state("a")
    assert_consistent(seed.snapshot())


def test_an_extended_lease_does_not_expire(seed: Seed) -> None:
    claim = seed.running("a")
    for _ in range(10):
        seed.advance(LEASE_MS // 3)
        seed.extend([claim])
        assert seed.claim().jobs == ()

    assert events_of(seed.entries(), "a") == ["enqueued", "claimed"]


def test_a_settlement_after_the_deadline_counts_while_the_claim_is_in_force(seed: Seed) -> None:
    claim = seed.running("a")
    seed.live(2 * LEASE_MS)

    assert seed.complete(claim) == {}
    assert seed.claim().jobs == ()


def test_extend_moves_deadlines_and_reports_what_is_lost_or_unwanted(seed: Seed) -> None:
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


def test_only_the_claim_in_force_and_its_worker_extend_a_lease(seed: Seed) -> None:
    """A worker that has lost a job and holds it again must not keep the old claim alive."""
    old = seed.running("a")
    seed.rollback(old)
    new = seed.claim_one("a")
    seed.advance(1_000)
    before = seed.snapshot()["leases"]

    lost = [seed.extend([old]).lost, seed.extend([new], worker="w-2").lost]

    assert [("a",), ("a",)] == lost
    assert before == seed.snapshot()["leases"]
    assert seed.extend([new]).lost == ()


def test_nobody_is_reaped_after_a_gap_until_another_lease_has_passed(seed: Seed) -> None:
    """While nothing moved, nobody could extend."""
    seed.running("a")
    seed.advance(LEASE_MS * 2)
    assert seed.claim(1).jobs == ()
    assert seed.meta("no_reap_before") == str(seed.now + LEASE_MS)

    seed.live(LEASE_MS - 1)
    assert seed.claim(1).jobs == ()
    seed.advance(1)
    assert ["a"] == [c.id for c in seed.claim(1).jobs]


def test_a_gap_of_two_thirds_of_a_lease_is_none(seed: Seed) -> None:
    seed.running("a")
    before = seed.meta("no_reap_before")
    seed.advance(LEASE_MS * 2 // 3)
    seed.claim(0)
    assert before == seed.meta("no_reap_before")

    seed.advance(LEASE_MS * 2 // 3 + 1)
    seed.claim(0)
    assert str(seed.now + LEASE_MS) == seed.meta("no_reap_before")


def test_a_gap_counts_once(seed: Seed) -> None:
    seed.running("a")
    seed.advance(LEASE_MS)
    seed.extend([])
    first = seed.meta("no_reap_before")
    seed.advance(1)
    seed.claim(0)

    assert first == seed.meta("no_reap_before")


def test_unknown_task_backs_off_longer_each_time_and_dies_at_the_limit(seed: Seed) -> None:
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
    assert_consistent(seed.snapshot())


def test_dead_jobs_are_pruned_when_their_retention_is_over(seed: Seed) -> None:
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
        "jobs": {"a": (spec(), None)},
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


def test_slots_are_forgotten_an_hour_after_their_last_call(seed: Seed) -> None:
    seed.enqueue("a")
    seed.cancel("a")
    assert sorted(seed.snapshot()["slots"]) == ["c-1.cancel.2", "c-1.enqueue.1"]
    seed.advance(45 * 60_000)
    seed.enqueue("b")
    seed.advance(30 * 60_000)
    seed.claim(0)

    assert sorted(seed.snapshot()["slots"]) == ["c-1.claim.3", "c-1.enqueue.1"]
    assert_consistent(seed.snapshot())


def test_a_slot_in_use_is_not_forgotten_by_its_own_claim(seed: Seed) -> None:
    seed.claim(0)
    seed.advance(2 * 3_600_000)
    seed.claim(0)

    (kept,) = seed.snapshot()["slots"].values()
    assert kept.startswith(f"2 {seed.now + 3_600_000} ")
    assert_consistent(seed.snapshot())


# Settling.


def test_complete_removes_the_job_and_keeps_its_event(seed: Seed) -> None:
    claim = seed.running("a")

    changes = seed.changes(lambda: seed.complete(claim))

    assert changes == {
        "jobs": {"a": (spec(), None)},
        "state": {
            "a": (
                f"running task=t priority=critical claim=1 fence={T}-2 seq=1 since={T} by=w-1",
                None,
            )
        },
        "leases": {"a": (T + float(LEASE_MS), None)},
        "outbox": [entry(3, "succeeded", f'[["a","{T}-2"]]')],
    }


def test_outcomes_come_per_job_and_refusals_are_audited(seed: Seed) -> None:
    seed.enqueue("a", "b", "c")
    a, b, c = seed.claim().jobs
    seed.cancel("b")
    seed.complete(c)

    outcomes = seed.fail(a, b, c, ("nobody", NO_FENCE), a, delay_ms=500)

    # By id the last word counts; a worker names each job once.
    assert outcomes == {"a": "gone", "b": "cancelled", "c": "gone", "nobody": "gone"}
    kinds = [(str(e.event), [j.job_id for j in e.jobs]) for e in seed.entries()[-3:]]
    assert kinds == [
        ("retried", ["a"]),
        ("cancelled", ["b"]),
        ("settlement_refused", ["c", "nobody", "a"]),
    ]
    assert_consistent(seed.snapshot())


def test_fail_schedules_with_the_error_in_the_event(seed: Seed) -> None:
    claim = seed.running("a")

    changes = seed.changes(lambda: seed.fail(claim, delay_ms=2_000))

    assert changes == {
        "state": {
            "a": (
                f"running task=t priority=critical claim=1 fence={T}-2 seq=1 since={T} by=w-1",
                f"scheduled task=t priority=critical claim=1 failed=1 seq=1 due={T + 2_000} since={T}",
            )
        },
        "leases": {"a": (T + float(LEASE_MS), None)},
        "scheduled": {"job|a": (None, T + 2_000.0)},
        "outbox": [entry(3, "retried", f'[["a","{T}-2",{T + 2_000},1,{ERROR}]]')],
    }


def test_a_job_gets_the_attempts_that_it_has_and_no_more(seed: Seed) -> None:
    seed.enqueue("a", attempts=3)
    outcomes = [seed.fail(seed.claim_one("a"))["a"] for _ in range(3)]

    assert outcomes == ["ready", "ready", "dead"]
    line = f"dead task=t claim=3 failed=3 seq=1 since={T} reason=attempts_spent"
    assert line == seed.state("a")


def test_a_final_failure_dies_with_its_reason(seed: Seed) -> None:
    claim = seed.running("a")
    changes = seed.changes(lambda: seed.fail(claim, verdict="final", reason="gave_up"))

    assert changes["dead"] == {"a": (None, float(T))}
    assert changes["expiring"] == {"dead|a": (None, T + 30 * 86_400_000.0)}
    assert changes["outbox"] == [entry(3, "died", f'[["a","{T}-2","gave_up",1,{ERROR}]]')]


def test_requeue_forgets_failures_and_counts_claims_on(seed: Seed) -> None:
    seed.dead("a")
    seed.take_token()

    changes = seed.changes(lambda: seed.requeue("a"))

    assert changes["state"]["a"][1] == f"ready task=t priority=critical claim=1 seq=2 since={T}"
    assert changes["meta"] == {"sequence": ("1", "2")}
    assert changes["ready:0"] == ([], ["a"])
    assert changes["wake"] == ([], ["1"])
    assert seed.claim_one("a").number == 2


@pytest.mark.parametrize("verb", ["cancel", "requeue", "prune"])
def test_an_id_given_twice_has_the_outcome_that_it_had(seed: Seed, verb: str) -> None:
    """Not the outcome of asking again a moment later."""
    if verb == "cancel":
        seed.enqueue("a")
    else:
        seed.dead("a")

    outcome = getattr(seed, verb)("a", "a")

    assert {"a": {"cancel": "cancelled", "requeue": "requeued", "prune": "pruned"}[verb]} == outcome


def test_people_are_named_with_their_reason(seed: Seed) -> None:
    seed.enqueue("a")
    seed.client.run(
        seed.client.calls.admin.cancel("q", ["a"], by="ann", why='"no" longer: needed ü')
    )
    seed.client.run(seed.client.calls.admin.configure("q", {"paused": 1}, by="bob", why="upgrade"))

    last, paused = seed.entries()[-2:]
    assert ("cancelled", "ann", '"no" longer: needed ü') == (last.event, last.by, last.why)
    assert ("paused", "bob", "upgrade") == (paused.event, paused.by, paused.why)


# Waking.


def fence_of(seed: Seed, job_id: str) -> str:
    return fields_of(seed.state(job_id) or "")["fence"]


def test_a_token_is_pushed_only_where_somebody_may_be_needed(seed: Seed) -> None:
    """(what happens, whether it pushes a token into an empty list)"""
    seed.client.run(seed.client.calls.delivery.handshake("q"))

    def pushed(call: object) -> int:
        seed.take_token()
        call()  # type: ignore[operator]
        return seed.tokens()

    found = {
        "enqueue now": pushed(lambda: seed.enqueue("a")),
        "enqueue a duplicate": pushed(lambda: seed.enqueue("a")),
        "claim all": pushed(lambda: seed.claim()),
        "the first delayed": pushed(lambda: seed.enqueue("d-1", delay_ms=1_000)),
        "one due later": pushed(lambda: seed.enqueue("d-2", delay_ms=2_000)),
        "one due earlier": pushed(lambda: seed.enqueue("d-0", delay_ms=500)),
        "empty claim": pushed(lambda: seed.claim()),
        "two more": pushed(lambda: seed.enqueue("b", "c")),
        "claim that leaves one": pushed(lambda: seed.claim(1)),
        "claim of the last": pushed(lambda: seed.claim(1)),
    }
    held = {
        i: (i, line.split("fence=")[1].split(" ")[0])
        for i, line in seed.snapshot()["state"].items()
        if "fence" in line
    }
    found |= {
        "retry later than others": pushed(lambda: seed.fail(held["a"], delay_ms=9_000)),
        "retry earlier than others": pushed(lambda: seed.fail(held["b"], delay_ms=5)),
        "rollback": pushed(lambda: seed.rollback(held["c"])),
        "claim it again": pushed(lambda: seed.claim(1)),
        "retry at once": pushed(lambda: seed.fail(("c", fence_of(seed, "c")))),
        "cancel": pushed(lambda: seed.cancel("d-2")),
        "pause": pushed(lambda: seed.configure(paused=1)),
        "claim while paused": pushed(lambda: seed.claim()),
        "resume": pushed(lambda: seed.configure(paused=0)),
        "resume again": pushed(lambda: seed.configure(paused=0)),
    }

    assert found == {
        "enqueue now": 1,
        "enqueue a duplicate": 0,
        "claim all": 0,
        "the first delayed": 1,
        "one due later": 0,
        "one due earlier": 1,
        "empty claim": 0,
        "two more": 1,
        "claim that leaves one": 1,
        "claim of the last": 0,
        "retry later than others": 0,
        "retry earlier than others": 1,
        "rollback": 1,
        "claim it again": 0,
        "retry at once": 1,
        "cancel": 0,
        "pause": 0,
        "claim while paused": 0,
        "resume": 1,
        "resume again": 0,
    }


def test_there_is_never_a_second_token(seed: Seed) -> None:
    for n in range(3):
        seed.enqueue(f"a-{n}")
        seed.claim(0)
        seed.configure(paused=1)
        seed.configure(paused=0)
        seed.dead(f"d-{n}")
        seed.requeue(f"d-{n}")
        seed.rollback(seed.claim_one(f"d-{n}"))
        seed.claim(1)

    assert seed.tokens() == 1


# Pausing and the other gates.


def test_pause_stops_claims_and_nothing_else(seed: Seed) -> None:
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


def test_a_setting_is_changed_once_and_logged_with_both_values(seed: Seed) -> None:
    outcomes = seed.configure(lease_ms=5_000, dead_retention_ms=30 * 86_400_000)

    assert outcomes == {"lease_ms": "changed", "dead_retention_ms": "same"}
    (changed,) = [e for e in seed.entries() if e.event == "policy_changed"]
    assert changed.data == {"field": "lease_ms", "old": "30000", "new": "5000"}
    seed.running("a")
    assert {"a": float(T + 5_000)} == seed.snapshot()["leases"]


def test_a_bool_is_a_value_like_any_other(seed: Seed) -> None:
    assert seed.configure(paused=True) == {"paused": "changed"}
    assert seed.meta("paused") == "1"


# The audit trail's bound.


def test_at_the_backlog_bound_enqueue_is_refused_whole(seed: Seed) -> None:
    seed.attach()
    seed.configure(backlog_max_jobs=4)
    seed.enqueue("a", "b", "c")
    before = seed.snapshot()

    with pytest.raises(errors.AuditBacklogFull, match="audit off"):
        seed.enqueue("d")

    assert before == seed.snapshot()


def test_at_the_byte_bound_enqueue_is_refused_too(seed: Seed) -> None:
    seed.attach()
    seed.configure(backlog_max_bytes=200)
    seed.enqueue("a", "b", "c")

    with pytest.raises(errors.AuditBacklogFull):
        seed.enqueue("d")


def shut_gate(seed: Seed) -> list:
    """Bring the backlog to twice its bound, with three jobs held and one waiting."""
    seed.enqueue("a", "b", "c", "waiting")
    held = list(seed.claim(3).jobs)
    seed.attach()
    seed.configure(backlog_max_jobs=1)
    seed.rollback(held.pop())
    assert seed.claim().jobs == ()
    seed.take_token()
    return held


def test_at_twice_the_bound_claims_stop_and_settling_goes_on(seed: Seed) -> None:
    a, b = shut_gate(seed)

    claimed = seed.claim()

    assert ((), False, 0) == (claimed.jobs, claimed.more, seed.tokens())
    assert seed.complete(a) == {}
    assert seed.fail(b) == {"b": "ready"}
    assert seed.cancel("c") == {"c": "cancelled"}


def test_a_trim_of_a_queue_that_is_not_mirrored_is_refused_and_says_so(seed: Seed) -> None:
    """It was told as a bug in rq-core."""
    seed.attach()
    seed.enqueue("a")
    seed.client.run(seed.client.calls.audit.detach("q", "db-1"))
    before = seed.snapshot()

    with pytest.raises(errors.AuditOff, match="its audit trail was switched off"):
        seed.client.run(seed.client.calls.audit.trim("q", "db-1", before["outbox"][-1][0], 1, 10))

    assert seed.snapshot() == before


@pytest.mark.parametrize("opener", ["trim", "detach", "a wider bound"])
def test_whoever_opens_the_gate_wakes_a_worker(seed: Seed, opener: str) -> None:
    """Nobody else would: the jobs behind it were enqueued long ago."""
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


def test_resuming_a_queue_whose_backlog_is_full_wakes_nobody(seed: Seed) -> None:
    shut_gate(seed)
    seed.configure(paused=1)
    seed.configure(paused=0)

    assert seed.tokens() == 0


def test_the_backlog_is_what_the_mirror_has_not_read(seed: Seed) -> None:
    """Counted as trim counts it: jobs of an entry, or one for an event about the queue."""
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


# The outbox, its ring, and who may trim it.


def test_trim_keeps_its_anchor_and_is_idempotent(seed: Seed) -> None:
    seed.enqueue("a")
    seed.attach()
    seed.enqueue("b")
    seed.enqueue("c")
    upto = seed.snapshot()["outbox"][2][0]

    seed.client.run(seed.client.calls.audit.trim("q", "db-1", upto, 1, 10))
    once = seed.snapshot()
    seed.client.run(seed.client.calls.audit.trim("q", "db-1", upto, 1, 10))
    seed.client.run(seed.client.calls.audit.trim("q", "db-1", f"{T}-1", 1, 10))

    assert once == seed.snapshot()
    assert upto == once["outbox"][0][0]


def test_a_trim_of_all_leaves_no_backlog_whatever_came_back_with_an_old_snapshot(
    seed: Seed,
) -> None:
    seed.attach()
    seed.enqueue("a")
    seed.enqueue("b")
    first, last = (seed.snapshot()["outbox"][place][0] for place in (1, -1))

    seed.client.run(seed.client.calls.audit.trim("q", "db-1", first, 0, 0))
    assert seed.meta("backlog_jobs") == "2"
    seed.client.run(seed.client.calls.audit.trim("q", "db-1", last, 0, 0))

    assert (seed.meta("backlog_jobs"), seed.meta("backlog_bytes")) == ("0", "0")


def test_a_queue_behind_what_sql_has_begins_an_epoch_beyond_it(seed: Seed) -> None:
    seed.enqueue("a")
    seed.attach()
    epoch = int(seed.meta("epoch") or 0)

    seed.client.run(seed.client.calls.audit.attach("q", "db-1", epoch))
    assert seed.meta("epoch") == str(epoch)
    seed.client.run(seed.client.calls.audit.attach("q", "db-1", epoch + 5_000))
    once = seed.snapshot()
    seed.client.run(seed.client.calls.audit.attach("q", "db-1", epoch + 5_000))

    assert seed.snapshot() == once
    entries = [decode(at, raw) for at, raw in once["outbox"]][-3:]
    assert [str(entry.id) for entry in entries] == [f"{epoch + 5_001}-{n}" for n in range(3)]
    assert [entry.event for entry in entries] == ["epoch_started", "baseline", "policy_changed"]
    assert entries[0].data["reason"] == "behind"
    assert entries[0].data["last"] == f"{epoch}-1"
    assert entries[1].jobs[0].job_id == "a"


def test_only_the_attached_database_may_trim(seed: Seed) -> None:
    seed.enqueue("a")
    with pytest.raises(errors.AuditOff):
        seed.client.run(seed.client.calls.audit.trim("q", "db-1", f"{T}-1", 1, 10))
    seed.attach("db-1")
    before = seed.snapshot()

    with pytest.raises(errors.AuditElsewhere, match="db-1"):
        seed.client.run(seed.client.calls.audit.trim("q", "db-2", f"{T}-1", 1, 10))
    with pytest.raises(errors.AuditElsewhere, match="db-1"):
        seed.attach("db-2")
    with pytest.raises(errors.AuditElsewhere, match="db-1"):
        seed.client.run(seed.client.calls.audit.detach("q", "db-2"))
    assert before == seed.snapshot()


def test_attaching_to_a_whole_history_starts_no_epoch(seed: Seed) -> None:
    seed.enqueue("a")
    log = seed.snapshot()["outbox"]

    seed.attach()
    seed.attach()

    assert log == seed.snapshot()["outbox"]
    assert ("on", "done") == (seed.meta("audit"), seed.meta("baseline"))


def test_attaching_in_the_middle_writes_a_baseline(seed: Seed) -> None:
    """Verify needs a beginning: every live job, as it stands."""
    seed.running("running")
    seed.cancelling("cancelling", attempts=7)
    seed.dead("dead", losses=9)
    seed.enqueue("ready")
    seed.enqueue("scheduled", delay_ms=9_000)
    seed.control.xtrim(seed.keys("outbox"), maxlen=1, approximate=False)

    seed.attach()

    snapshot = seed.snapshot()
    epoch = int(seed.meta("epoch") or 0)
    assert epoch == T + 1
    entries = [e for e in seed.entries() if e.id.epoch == epoch]
    assert ["epoch_started", "baseline", "policy_changed"] == [str(e.event) for e in entries]
    assert entries[0].data["reason"] == "attached"
    assert 5 == len(entries[1].jobs)
    assert seed.meta("baseline") == "done"
    snapshot["outbox"] = snapshot["outbox"][1:]
    assert_consistent(snapshot)


def test_a_baseline_that_was_broken_off_is_asked_for_again(seed: Seed) -> None:
    seed.enqueue("a")
    seed.control.xtrim(seed.keys("outbox"), maxlen=1, approximate=False)
    plan = seed.calls.audit.attach("q", "db-1")
    reply = None
    while seed.meta("baseline") != "pending":
        reply = seed.client._wire.exchange(plan.send(reply).commands)  # type: ignore[union-attr]
    plan.close()

    seed.attach()

    assert seed.meta("baseline") == "done"
    assert [str(e.event) for e in seed.entries()].count("epoch_started") == 1
    assert events_of(seed.entries(), "a")[-1] == "baseline"


def test_detaching_says_so_and_ends_the_counting(seed: Seed) -> None:
    seed.enqueue("a")
    seed.attach()
    seed.enqueue("b")
    seed.client.run(seed.client.calls.audit.detach("q", "db-1"))
    seed.client.run(seed.client.calls.audit.detach("q", "db-1"))

    last = seed.entries()[-1]
    assert ("policy_changed", {"field": "audit", "old": "on", "new": "off"}) == (
        last.event,
        last.data,
    )
    assert ("off", "0") == (seed.meta("audit"), seed.meta("backlog_jobs"))
    seed.attach("db-2")
    assert seed.meta("audit_id") == "db-2"


def test_without_a_mirror_the_outbox_is_a_ring(seed: Seed) -> None:
    """Memory is bounded by live work, never by history."""
    with seed.control.pipeline(transaction=False) as pipe:
        seed.client.run(seed.client.calls.delivery.handshake("q"))
        made = seed.calls.delivery._script("configure")
        pipe.execute_command(*made.loading)
        for n in range(2_500):
            args = {"slot": "ring", "number": n + 1, "by": "x", "why": ""}
            pipe.execute_command(*made.command(seed.keys, [("paused", (n + 1) % 2)], **args))
        pipe.execute()

    length = len(seed.snapshot()["outbox"])
    assert 1_000 <= length <= 1_200
    assert_consistent(seed.snapshot(), whole_log=False)
    seed.enqueue("a")
    seed.attach()
    assert seed.meta("epoch") == str(T + 1)


# Epochs.


def test_the_first_epoch_begins_with_its_creation(seed: Seed) -> None:
    met = seed.client.run(seed.client.calls.delivery.handshake("q"))
    again = seed.client.run(seed.client.calls.delivery.handshake("q"))

    assert (T, T, LEASE_MS, False, False, None) == (
        met.epoch, met.now_ms, met.lease_ms, met.paused, met.audit, met.audit_id,
    )  # fmt: skip
    assert ("created", None) == (met.started, again.started)
    replid = seed.control.info("replication")["master_replid"]
    assert seed.snapshot()["outbox"] == [
        (
            f"{T}-0",
            {"type": "epoch_started", "at": str(T), "by": "c-1",
             "data": f'["created",null,null,"{replid}",null]'},
        )
    ]  # fmt: skip
    assert_consistent(seed.snapshot())


def test_a_failover_starts_an_epoch_and_ends_no_claim(seed: Seed) -> None:
    claim = seed.running("a")
    before = seed.meta("replid")
    seed.control.execute_command("DEBUG", "CHANGE-REPL-ID")
    seed.advance(LEASE_MS * 3)

    assert seed.claim().jobs == ()

    started = seed.entries()[-1]
    assert started.data == {
        "reason": "replid_changed",
        "old_epoch": T,
        "old_replid": before,
        "replid": seed.meta("replid"),
        "last": f"{T}-2",
    }
    assert seed.meta("no_reap_before") == str(seed.now + LEASE_MS)
    assert seed.complete(claim) == {}
    assert_consistent(seed.snapshot())


def test_an_epoch_is_greater_than_any_before_whatever_the_clock_says(seed: Seed) -> None:
    seed.enqueue("a")
    seed.clock.set(T - 10**9)
    seed.control.execute_command("DEBUG", "CHANGE-REPL-ID")
    seed.enqueue("b")
    assert seed.meta("epoch") == str(T + 1)
    seed.calls.delivery.set_floor("q", T + 77)
    seed.control.execute_command("DEBUG", "CHANGE-REPL-ID")
    seed.enqueue("c")
    assert seed.meta("epoch") == str(T + 78)
    seed.control.delete(seed.keys("meta"))
    seed.calls.delivery.set_floor("q", 0)
    seed.enqueue("d")
    assert seed.meta("epoch") == str(T + 79)


def test_a_lost_outbox_starts_an_epoch(seed: Seed) -> None:
    seed.enqueue("a")
    seed.control.delete(seed.keys("outbox"))
    seed.enqueue("b")

    entries = seed.entries()
    assert ["epoch_started", "enqueued"] == [str(e.event) for e in entries]
    assert ("outbox_lost", None) == (entries[0].data["reason"], entries[0].data["last"])
    assert entries[1].id == (T + 1, 1)


def test_a_lost_meta_keeps_jobs_and_order(seed: Seed) -> None:
    """The count of places is gone: new ones must still come behind the old."""
    claim = seed.running("held", priority="normal")
    seed.enqueue("a")
    seed.control.delete(seed.keys("meta"))
    seed.enqueue("b")
    seed.rollback(claim)

    assert ["held", "a", "b"] == [c.id for c in seed.claim().jobs]
    assert_consistent(seed.snapshot())


def test_after_flushall_the_queue_begins_anew(seed: Seed) -> None:
    seed.enqueue("a")
    claim = seed.claim_one("a")
    seed.control.flushall()
    seed.clock.set(T + 5)

    assert seed.complete(claim) == {"a": "gone"}
    assert ["epoch_started", "settlement_refused"] == [str(e.event) for e in seed.entries()]
    assert seed.meta("epoch") == str(T + 5)
    assert ["q"] == seed.client.run(seed.client.calls.reads.queues())
    assert_consistent(seed.snapshot())


def test_another_layout_is_refused(seed: Seed) -> None:
    seed.enqueue("a")
    seed.control.hset(seed.keys("meta"), "layout", "2")
    before = seed.snapshot()

    with pytest.raises(errors.LayoutMismatch):
        seed.enqueue("b")
    with pytest.raises(errors.LayoutMismatch):
        seed.client.run(seed.client.calls.delivery.handshake("q"))
    assert before == seed.snapshot()


# Size.


def test_batches_of_ten_thousand_work_in_every_script(seed: Seed) -> None:
    """The bound of a call is 10,000 records; Lua's stack has room for 8,000 values."""
    count = 10_000
    ids = [f"j-{n}" for n in range(count)]
    jobs = [seed.job(i) for i in ids]

    def carry_out(call: object) -> object:
        (value,) = seed.client.run(seed.client.calls.delivery.carry_out([call]))  # type: ignore[list-item]
        assert not isinstance(value, Exception), value
        return value

    def enqueue(batch: list) -> object:
        return carry_out(seed.calls.enqueue.chunk("q", batch))

    assert len(enqueue(jobs).ids) == count  # type: ignore[attr-defined]
    assert len(enqueue(jobs).duplicates) == count  # type: ignore[attr-defined]
    claimed = seed.claim(count, bytes_max=10**9).jobs
    assert ids == [c.id for c in claimed]
    held = [(c.id, c.fence) for c in claimed]
    assert seed.extend(held).lost == ()
    assert len(seed.rollback(*held)) == count
    claimed = seed.claim(count, bytes_max=10**9).jobs
    assert ids == [c.id for c in claimed]
    held = [(c.id, c.fence) for c in claimed]
    assert set(seed.fail(*held, verdict="final").values()) == {"dead"}
    assert len(seed.complete(*held)) == count
    assert set(seed.requeue(*ids).values()) == {"requeued"}
    assert_consistent(seed.snapshot(), whole_log=False)
    assert set(seed.cancel(*ids).values()) == {"cancelled"}
    assert seed.snapshot()["state"] == {}


def test_claim_reads_little_more_than_it_gives_out(seed: Seed) -> None:
    """A hundred payloads of a mebibyte are not read to give out one."""
    big = '{"x":"' + "y" * 100_000 + '"}'
    seed.enqueue(*(f"j-{n}" for n in range(100)), args_json=big)
    made = assemble.build("claim")
    watched = made.text.replace(
        "function read_many(key, names)",
        "function read_many(key, names)\n"
        "  if key == jobs then redis.call('INCRBY', 'test:specs', #names) end",
    )
    assert watched != made.text
    args = {
        "slot": "s",
        "number": 1,
        "worker": "w",
        "limit": 100,
        "bytes_max": 150_000,
        "sweep_max": 9,
    }
    command = made.command(seed.keys, **args)

    reply = seed.control.execute_command("EVAL", watched, *command[2:])

    assert len(reply[5:]) == 2 * 6
    assert int(seed.control.get("test:specs")) <= 12


HOSTILE = [
    "-",
    ".",
    ":",
    "_",
    "a",
    "0",
    "nil",
    "null",
    "job",
    "slot:x",
    "A" * 128,
    "--x",
    "1.5",
    "d",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_odd_but_valid_names_go_all_the_way(seed: Seed, name: str) -> None:
    other = seed.of(name)
    other.enqueue(name, task=name, delay_ms=1)
    other.advance(1)
    (claim,) = other.claim(worker=name).jobs
    other.fail(claim, worker=name, verdict="final", reason=name)
    other.client.run(other.client.calls.admin.requeue(name, [name], by=name))
    (claim,) = other.claim(worker=name).jobs
    assert_consistent(other.snapshot())
    assert other.complete(claim, worker=name) == {}
    assert_consistent(other.snapshot())
    assert other.client.run(other.client.calls.reads.counts(name)).running == 0


@pytest.mark.parametrize("queue", ["", "a b", "{a}", "a|b", "ü", "a" * 129, "a\n"])
def test_a_bad_queue_name_is_refused_before_anything_is_sent(seed: Seed, queue: str) -> None:
    with pytest.raises(errors.InvalidName):
        seed.of("q").client.run(
            seed.of("q").client.calls.enqueue.many([seed.job("a")._replace(queue=queue)])
        )
    assert seed.control.keys("rqc:*") == []
