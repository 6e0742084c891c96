"""Every script on a job in every state. An allowed call appends exactly its events. A call that is not allowed changes
no byte.

The expected result comes from machine.TRANSITIONS. Only the condition of each transition is written here, in GUARDS. A
new transition without a condition fails these tests.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from rq_core.model.job import Claim
from rq_core.model.table.machine import TRANSITIONS, Event, State, Transition
from rq_core.protocol.calls import schedules
from rq_core.protocol.calls.enqueue import pack_jobs
from rq_core.protocol.calls.schedules import Instant
from tests.kit.cases import case
from tests.kit.consistency import assert_consistent
from tests.kit.listener import Listener
from tests.kit.seed import LEASE_MS, NO_FENCE, QUEUE, WORKER, Seed, events_of
from tests.kit.snapshots import copy_queue, diff, fields_of, lines_of, without_slot

INSTANT = 1_700_000_000_000
JOB = f"tick-beat-{INSTANT}"
DELAY_MS = 60_000
NAME = "t/job"
FULL_SCOPE = "host=full"
FULL_LANE = f"2+{FULL_SCOPE}"
RETENTION_MS = 30 * 86_400_000
SETTLING = {
    "turn": "complete",
    "complete": "complete",
    "fail": "fail",
    "rollback": "rollback",
    "park": "park",
}
"""The scripts that settle a claim, each with the operation that it performs on the claim."""


@dataclass(frozen=True)
class Facts:
    """The facts about a job and a call that decide which transition happens."""

    due: bool = False
    lease_over: bool = False
    last_attempt: bool = False
    last_loss: bool = False
    retention_over: bool = False
    holds: bool = True
    """True if the call presents the fence that is in force."""
    takes: bool = True
    """True if the claim may take jobs."""
    delayed: bool = False
    final: bool = False
    unknown_task: bool = False
    last_unknown: bool = False
    full: bool = False
    """True if a scope of the job is full and the rule of the scope is to discard jobs."""
    put_back: bool = False
    """True if the job is to be put back into the queue, and not removed."""
    was_dead: bool = False
    named: bool = False
    """True if the job has a unique name and was never claimed."""
    replaces: bool = False
    """True if the call enqueues another job with the same name, which replaces this job."""
    over: bool = False
    """True if the deadline of the job has passed."""
    soon: bool = False
    """True if the call lets the job run at once."""
    rescued: bool = False
    """True if the call gives the job a later deadline."""
    endless: bool = False
    """True if the call removes the deadline of the job. (In this matrix, the deadline of a waiting job has always
    passed.)"""
    of_schedule: bool = False
    """True if the job is the current job of the schedule for which the call reports an instant."""
    asleep: bool = False
    """True if the job waits for a moment, and not for the signal that the test sends."""
    in_vain: bool = False
    """True if the job has begun a wait whose signal has not arrived."""
    waits: bool = False
    """True if the job has begun a wait. (A job that has not keeps its claim: Redis lacks the entry for which it
    parks.)"""
    failed_before: bool = False
    """True if the job has failed or lost a worker, before this call or in this call."""


GUARDS: dict[str, Callable[[Facts], bool]] = {
    "enqueue: none -enqueued-> ready": lambda f: not (f.delayed or f.full or f.replaces),
    "enqueue: none -enqueued-> scheduled": lambda f: f.delayed,
    "enqueue: none -discarded-> none": lambda f: f.full,
    "enqueue: ready -replaced-> none": lambda f: f.named and f.replaces,
    "enqueue: scheduled -replaced-> none": lambda f: f.named and f.replaces,
    **{
        f"enqueue: {state} -expired-> none": lambda f: (
            f.over and not f.failed_before and not f.replaces
        )
        for state in ("ready", "scheduled")
    },
    "tick: none -enqueued-> ready": lambda f: not (f.delayed or f.full or f.replaces),
    "tick: none -enqueued-> scheduled": lambda f: f.delayed,
    "tick: none -discarded-> none": lambda f: f.full,
    "tick: ready -replaced-> none": lambda f: f.named and f.replaces,
    "tick: scheduled -replaced-> none": lambda f: f.named and f.replaces,
    **{
        f"tick: {state} -expired-> none": lambda f: (
            f.over and not f.failed_before and not f.replaces
        )
        for state in ("ready", "scheduled")
    },
    "tick: running -cancel_requested-> cancelling": lambda f: f.of_schedule and f.replaces,
    "claim: scheduled -promoted-> ready": lambda f: f.due and not f.over,
    "claim: ready -claimed-> running": lambda f: f.takes and not f.over,
    **{
        f"{script}: {state} -expired-> {target}": lambda f, target=target: (
            f.over and f.failed_before == (target == "dead")
        )
        for script in ("claim", "turn")
        for state in ("ready", "scheduled")
        for target in ("none", "dead")
    },
    "claim: running -lease_expired-> ready": lambda f: f.lease_over and not f.last_loss,
    "claim: running -lease_expired-> dead": lambda f: f.lease_over and f.last_loss,
    "claim: cancelling -cancelled-> none": lambda f: f.lease_over,
    "claim: dead -pruned-> none": lambda f: f.retention_over,
    "complete: running -succeeded-> none": lambda f: f.holds,
    "complete: cancelling -succeeded-> none": lambda f: f.holds,
    "turn: running -succeeded-> none": lambda f: f.holds,
    "turn: cancelling -succeeded-> none": lambda f: f.holds,
    "turn: scheduled -promoted-> ready": lambda f: f.due and not f.over,
    "turn: ready -claimed-> running": lambda f: f.takes and not f.over,
    "turn: running -lease_expired-> ready": lambda f: f.lease_over and not (f.last_loss or f.holds),
    "turn: running -lease_expired-> dead": lambda f: f.lease_over and f.last_loss and not f.holds,
    "turn: cancelling -cancelled-> none": lambda f: f.lease_over and not f.holds,
    "turn: dead -pruned-> none": lambda f: f.retention_over,
    "fail: running -retried-> scheduled": lambda f: (
        f.holds and f.delayed and not (f.final or f.last_attempt)
    ),
    "fail: running -retried-> ready": lambda f: (
        f.holds and not (f.delayed or f.final or f.last_attempt)
    ),
    "fail: running -died-> dead": lambda f: f.holds and (f.final or f.last_attempt),
    "fail: cancelling -cancelled-> none": lambda f: f.holds,
    "rollback: running -rolled_back-> ready": lambda f: (
        f.holds and not (f.unknown_task or f.delayed)
    ),
    "rollback: running -rolled_back-> scheduled": lambda f: (
        f.holds and (f.delayed or f.unknown_task) and not f.last_unknown
    ),
    "rollback: running -died-> dead": lambda f: f.holds and f.unknown_task and f.last_unknown,
    "rollback: cancelling -cancelled-> none": lambda f: f.holds,
    "park: running -parked-> parked": lambda f: f.holds and f.waits,
    "park: parked -woken-> ready": lambda f: f.holds and f.waits and not f.in_vain,
    "park: cancelling -cancelled-> none": lambda f: f.holds,
    "signal: parked -woken-> ready": lambda f: not f.asleep,
    **{
        f"{script}: parked -woken-> ready": lambda f: f.due and not f.over
        for script in ("claim", "turn")
    },
    **{f"{script}: parked -expired-> dead": lambda f: f.over for script in ("claim", "turn")},
    "restore: parked -removed-> none": lambda f: not f.put_back,
    "cancel: parked -cancelled-> none": lambda f: True,
    "cancel: ready -cancelled-> none": lambda f: True,
    "cancel: scheduled -cancelled-> none": lambda f: True,
    "cancel: running -cancel_requested-> cancelling": lambda f: True,
    "edit: ready -edited-> ready": lambda f: (
        not (f.delayed or f.soon) and (f.over if f.endless else f.rescued or not f.over)
    ),
    "edit: ready -edited-> scheduled": lambda f: f.delayed and not f.over,
    "edit: scheduled -edited-> ready": lambda f: f.soon and not f.over,
    "edit: scheduled -edited-> scheduled": lambda f: (
        not f.soon and (f.over if f.endless else f.rescued or not f.over)
    ),
    "requeue: dead -requeued-> ready": lambda f: True,
    "prune: dead -pruned-> none": lambda f: True,
    "restore: none -restored-> ready": lambda f: f.put_back and not (f.delayed or f.was_dead),
    "restore: none -restored-> scheduled": lambda f: f.put_back and f.delayed,
    "restore: none -restored-> dead": lambda f: f.put_back and f.was_dead,
    "restore: ready -removed-> none": lambda f: not f.put_back,
    "restore: scheduled -removed-> none": lambda f: not f.put_back,
    "restore: dead -removed-> none": lambda f: not f.put_back,
}


def arrow(transition: Transition) -> str:
    return f"{transition.script}: {transition}"


def walk(source: State | None, script: str, facts: Facts) -> list[Transition]:
    """Return the transitions that one call makes from a state, each at most once.

    One call ends only one lease or due time. A job that it has just enqueued stays as it is.
    """
    path: list[Transition] = []
    state = source
    while True:
        possible = [
            t
            for t in TRANSITIONS
            if t.script == script
            and t.source == state
            and t not in path
            and GUARDS[arrow(t)](facts)
            and not (path and t.event in {Event.LEASE_EXPIRED, Event.PRUNED, Event.EDITED})
            and not (path and path[-1].event is Event.ENQUEUED)
        ]
        if not possible:
            return path
        assert len(possible) == 1, f"{script} could draw {possible}"
        path += possible
        state = possible[0].target


# How the job comes to stand where it stands. Each returns its last fence, if it ever had one.


@dataclass(frozen=True)
class Stand:
    name: str
    state: State | None
    seed: Callable[[Seed], str | None]
    facts: dict[str, bool]


def wait(seed: Seed, *then: Callable[[], Any], ms: int = 0, **options: Any) -> None:
    """Enqueue the job, let ``ms`` pass, and make these calls."""
    seed.enqueue(JOB, **options)
    seed.advance(ms)
    for step in then:
        step()


def run(seed: Seed, *then: Callable[[Claim], Any], **options: Any) -> str:
    """Enqueue the job, claim it, and make these calls with the claim."""
    claim = seed.running(JOB, **options)
    for step in then:
        step(claim)
    return claim.fence


def run_again(seed: Seed, *then: Callable[[Claim], Any], **options: Any) -> str:
    """Enqueue the job, claim it, make these calls with the claim, and claim it again. Return the last fence."""
    run(seed, *then, **options)
    return seed.claim_one(JOB).fence


def stand(name: str, state: State | None, make: Callable[[Seed], Any], **facts: bool) -> Stand:
    return Stand(name, state, make, facts)


def slept(seed: Seed, ms: int, passed: int = 0, **options: Any) -> str:
    """Let the job sleep for ``ms``. Advance the clock by ``passed`` ms, or by the whole sleep. Return the fence."""
    fence = seed.parked(JOB, f"+{ms}", what="sleep", **options)
    seed.advance(passed or ms)
    return fence


SOON: dict[str, int] = {"expires_in_ms": 1_000}
IN_LANE = {"lane": "2+host=free"}
SCHEDULED, PARKED, READY, RUNNING, CANCELLING, DEAD = State
STANDS = [
    stand("never_there", None, lambda s: None),
    stand("finished", None, lambda s: run(s, s.complete)),
    # Its tombstone is still in the list.
    stand("cancelled_while_ready", None, lambda s: wait(s, lambda: s.cancel(JOB))),

    stand("delayed", SCHEDULED, lambda s: wait(s, delay_ms=DELAY_MS)),
    stand("delayed_and_due", SCHEDULED, lambda s: wait(s, ms=1_000, delay_ms=1_000), due=True),
    stand("waiting_for_retry", SCHEDULED, lambda s: run(s, lambda c: s.fail(c, delay_ms=DELAY_MS))),
    stand("retry_due", SCHEDULED,
          lambda s: run(s, lambda c: s.fail(c, delay_ms=1_000), lambda c: s.advance(1_001)), due=True),
    stand("waiting_for_its_task", SCHEDULED,
          lambda s: run(s, lambda c: s.rollback(c, reason="unknown_task", backoff_ms=DELAY_MS))),

    stand("fresh", READY, wait),
    stand("promoted", READY, lambda s: wait(s, lambda: s.claim(0), ms=1_000, delay_ms=1_000)),
    stand("retried_at_once", READY, lambda s: run(s, s.fail)),
    stand("rolled_back", READY, lambda s: run(s, s.rollback)),
    stand("lease_ended", READY, lambda s: run(s, lambda c: s.live(LEASE_MS), lambda c: s.claim(0))),
    stand("requeued", READY, lambda s: run(s, lambda c: s.fail(c, verdict="final"), lambda c: s.requeue(JOB))),
    stand("enqueued_again_over_its_tombstone", READY, lambda s: wait(s, lambda: s.cancel(JOB), lambda: wait(s))),

    stand("held", RUNNING, run),
    stand("held_a_second_time", RUNNING, lambda s: run_again(s, s.rollback)),
    stand("held_for_its_last_attempt", RUNNING, lambda s: run_again(s, s.fail, attempts=2), last_attempt=True),
    stand("lease_over", RUNNING, lambda s: run(s, lambda c: s.live(LEASE_MS)), lease_over=True),
    # Nobody could extend, so nobody is reaped yet.
    stand("lease_over_after_an_outage", RUNNING, lambda s: run(s, lambda c: s.advance(2 * LEASE_MS))),
    stand("lease_over_for_the_last_time", RUNNING,
          lambda s: run(s, lambda c: s.live(LEASE_MS), losses=1), lease_over=True, last_loss=True),
    stand("held_with_no_loss_left", RUNNING, lambda s: run(s, losses=1), last_loss=True),

    stand("held_in_the_place_of_its_schedule", RUNNING, lambda s: run(s, lane="2+tick=beat"), of_schedule=True),

    stand("cancelling", CANCELLING, lambda s: run(s, lambda c: s.cancel(JOB))),
    stand("cancelling_and_lease_over", CANCELLING,
          lambda s: run(s, lambda c: s.cancel(JOB), lambda c: s.live(LEASE_MS)), lease_over=True),
    stand("cancelling_in_its_last_attempt", CANCELLING,
          lambda s: run(s, lambda c: s.cancel(JOB), attempts=1), last_attempt=True),

    stand("given_up", DEAD, lambda s: run(s, lambda c: s.fail(c, verdict="final"))),
    stand("attempts_spent", DEAD, lambda s: run(s, s.fail, attempts=1)),
    stand("poison", DEAD, lambda s: run(s, lambda c: s.live(LEASE_MS), lambda c: s.claim(0), losses=1)),
    stand("task_never_known", DEAD, lambda s: run(s, lambda c: s.rollback(c, reason="unknown_task", unknown_max=1))),
    stand("long_dead", DEAD,
          lambda s: run(s, lambda c: s.fail(c, verdict="final"), lambda c: s.advance(RETENTION_MS)),
          retention_over=True),

    # Parked.
    stand("parked_for_a_signal", PARKED, lambda s: s.parked(JOB)),
    stand("parked_for_a_signal_in_a_lane", PARKED, lambda s: s.parked(JOB, **IN_LANE)),
    stand("parked_for_a_signal_or_a_moment", PARKED, lambda s: s.parked(JOB, "+5000")),
    stand("asleep", PARKED, lambda s: s.parked(JOB, "+5000", what="sleep"), asleep=True),
    stand("asleep_and_due", PARKED, lambda s: slept(s, 1_000), asleep=True, due=True),
    stand("asleep_and_due_in_a_lane", PARKED, lambda s: slept(s, 1_000, **IN_LANE), asleep=True, due=True),
    stand("asleep_past_its_deadline", PARKED, lambda s: slept(s, 9_000, 1_000, **SOON), asleep=True, over=True),
    stand("asleep_until_its_deadline", PARKED,
          lambda s: slept(s, 1_000, **SOON), asleep=True, due=True, over=True),
    stand("woken", READY, lambda s: (s.parked(JOB), s.signal(JOB))[0]),
    stand("about_to_park", RUNNING, lambda s: run(s, s.wait), waits=True, in_vain=True),
    stand("about_to_park_for_what_has_come", RUNNING,
          lambda s: run(s, s.wait, lambda c: s.signal(JOB)), waits=True),

    # Unique.
    stand("the_only_one", READY, lambda s: wait(s, name=NAME), named=True),
    stand("the_only_one_and_delayed", SCHEDULED, lambda s: wait(s, name=NAME, delay_ms=DELAY_MS), named=True),
    stand("the_only_one_and_claimed_before", READY, lambda s: run(s, s.rollback, name=NAME)),
    stand("the_only_one_and_dead", DEAD, lambda s: run(s, lambda c: s.fail(c, verdict="final"), name=NAME)),

    # With a deadline that is over.
    stand("over_in_line", READY, lambda s: wait(s, ms=1_000, **SOON), over=True),
    stand("over_in_a_lane", READY, lambda s: wait(s, ms=1_000, expires_at_ms=s.now + 1_000, **IN_LANE), over=True),
    stand("over_when_it_is_due", SCHEDULED, lambda s: wait(s, ms=1_000, delay_ms=1_000, **SOON), over=True, due=True),
    stand("over_when_it_is_due_in_a_lane", SCHEDULED,
          lambda s: wait(s, ms=1_000, delay_ms=1_000, **SOON, **IN_LANE), over=True, due=True),
    stand("over_before_it_is_due", SCHEDULED, lambda s: wait(s, ms=1_000, delay_ms=DELAY_MS, **SOON), over=True),
    stand("over_after_a_failure", READY,
          lambda s: run(s, s.fail, lambda c: s.advance(1_000), **SOON), over=True, failed_before=True),
    stand("over_while_it_waits_for_its_retry", SCHEDULED,
          lambda s: run(s, lambda c: s.fail(c, delay_ms=DELAY_MS), lambda c: s.advance(1_000), **SOON),
          over=True, failed_before=True),
    # A claim that was given back is no failure.
    stand("over_and_given_back", READY, lambda s: run(s, lambda c: s.advance(1_000), s.rollback, **SOON), over=True),
    # A deadline is for the beginning of a claim, not for its end.
    stand("over_while_it_runs", RUNNING, lambda s: run(s, lambda c: s.advance(1_000), **SOON)),
    stand("over_with_its_lease", RUNNING, lambda s: run(s, lambda c: s.live(LEASE_MS), expires_in_ms=LEASE_MS),
          lease_over=True, over=True, failed_before=True),
    stand("dead_of_its_deadline", DEAD,
          lambda s: run(s, s.fail, lambda c: s.advance(1_000), lambda c: s.claim(0), **SOON)),
]  # fmt: skip


# The calls.


def tick(seed: Seed, instant: int = INSTANT, **options: Any) -> None:
    """Report an instant of a schedule that exists only during this call."""
    (kinds, ((_, _, digest, lane, spec),)) = pack_jobs([seed.job("-", **options)])
    keys, line = seed.keys, f"on v=1 next={INSTANT} due={INSTANT} last=0 from=live seen=0 was="
    entry = {"beat": f"{line}\n{{}}", "beat|job": f"{kinds[1:-1]}\n{lane}\n{digest}\n{spec}"}
    seed.control.hset(keys("schedules"), mapping=entry)
    seed.control.zadd(keys("ticks"), {"beat": INSTANT})
    told = Instant("beat", 1, INSTANT, instant, seed.now + 10**11, 0)
    answer = seed.client.run(schedules.tick(seed.queue, WORKER, [told]))
    assert answer.told["beat"].outcome in {"fired", "duplicate", "skipped"}
    seed.control.delete(keys("schedules"), keys("ticks"))
    seed.control.zrem(keys("scheduled"), "tick|")


@dataclass(frozen=True)
class Probe:
    name: str
    script: str
    call: Callable[[Seed, str], Any]
    facts: dict[str, bool]


PROBES = [
    Probe("enqueue", "enqueue", lambda s, f: s.enqueue(JOB), {}),
    Probe("enqueue delayed", "enqueue", lambda s, f: s.enqueue(JOB, delay_ms=5_000), {"delayed": True}),
    Probe("enqueue to be discarded", "enqueue",
          lambda s, f: s.enqueue(JOB, lane=FULL_LANE, full=f"discard|{FULL_SCOPE}"), {"full": True}),
    Probe("enqueue in its place", "enqueue",
          lambda s, f: s.enqueue("other", unique="replace", name=NAME), {"replaces": True}),
    Probe("tick", "tick", lambda s, f: tick(s), {}),
    Probe("tick delayed", "tick", lambda s, f: tick(s, delay_ms=5_000), {"delayed": True}),
    Probe("tick to be discarded", "tick",
          lambda s, f: tick(s, lane=FULL_LANE, full=f"discard|{FULL_SCOPE}"), {"full": True}),
    Probe("tick in its place", "tick",
          lambda s, f: tick(s, INSTANT + 1, unique="replace", name=NAME), {"replaces": True}),
    Probe("claim", "claim", lambda s, f: s.claim(worker="w-2"), {}),
    Probe("claim none", "claim", lambda s, f: s.claim(0, worker="w-2"), {"takes": False}),
    Probe("turn", "turn", lambda s, f: s.turn((JOB, f)), {}),
    Probe("turn none", "turn", lambda s, f: s.turn((JOB, f), limit=0), {"takes": False}),
    Probe("complete", "complete", lambda s, f: s.complete((JOB, f)), {}),
    Probe("fail", "fail", lambda s, f: s.fail((JOB, f)), {}),
    Probe("fail delayed", "fail", lambda s, f: s.fail((JOB, f), delay_ms=5_000), {"delayed": True}),
    Probe("fail finally", "fail", lambda s, f: s.fail((JOB, f), verdict="final"), {"final": True}),
    Probe("rollback", "rollback", lambda s, f: s.rollback((JOB, f)), {}),
    Probe("rollback delayed", "rollback", lambda s, f: s.rollback((JOB, f), delay_ms=5_000), {"delayed": True}),
    Probe("rollback unknown", "rollback",
          lambda s, f: s.rollback((JOB, f), reason="unknown_task"), {"unknown_task": True}),
    Probe("rollback unknown too often", "rollback",
          lambda s, f: s.rollback((JOB, f), reason="unknown_task", unknown_max=1),
          {"unknown_task": True, "last_unknown": True}),
    Probe("park", "park", lambda s, f: s.park((JOB, f)), {}),
    Probe("signal", "signal", lambda s, f: s.signal(JOB), {}),
    Probe("cancel", "cancel", lambda s, f: s.cancel(JOB), {}),
    Probe("edit", "edit", lambda s, f: s.edit(JOB, priority="high"), {}),
    Probe("edit later", "edit", lambda s, f: s.edit(JOB, due="+5000"), {"delayed": True}),
    Probe("edit to run now", "edit", lambda s, f: s.edit(JOB, due="+0"), {"soon": True}),
    Probe("edit the deadline", "edit", lambda s, f: s.edit(JOB, expires=f"+{2 * DELAY_MS}"), {"rescued": True}),
    Probe("take the deadline away", "edit", lambda s, f: s.edit(JOB, expires="-"), {"endless": True}),
    Probe("requeue", "requeue", lambda s, f: s.requeue(JOB), {}),
    Probe("prune", "prune", lambda s, f: s.prune(JOB), {}),
    Probe("put back", "restore", lambda s, f: s.restore(s.lost(JOB)), {"put_back": True}),
    Probe("put back in its lane", "restore",
          lambda s, f: s.restore(s.lost(JOB, State.RUNNING, lane=FULL_LANE, claims=2)), {"put_back": True}),
    Probe("put back later", "restore",
          lambda s, f: s.restore(s.lost(JOB, State.SCHEDULED, due_ms=s.now + 5_000)),
          {"put_back": True, "delayed": True}),
    Probe("put back too late", "restore",
          lambda s, f: s.restore(s.lost(JOB, State.SCHEDULED, due_ms=s.now)), {"put_back": True}),
    Probe("put back as dead", "restore",
          lambda s, f: s.restore(s.lost(JOB, State.DEAD, reason="attempts", failures=3)),
          {"put_back": True, "was_dead": True}),
    Probe("take out", "restore", lambda s, f: s.restore(s.revived(JOB)), {}),
    Probe("extend", "extend", lambda s, f: s.extend([(JOB, f)]), {}),
]  # fmt: skip


def cases(each: Stand) -> list[tuple[Probe, bool]]:
    """Return the calls to make on a job in this state. If there is a job, each call with a fence is made with the right
    fence and with a wrong one."""
    settling = [(p, True) for p in PROBES if p.script in {*SETTLING, "extend"}]
    return [*((p, False) for p in PROBES), *(settling if each.state else [])]


def facts_of(each: Stand, probe: Probe, *, wrong: bool) -> Facts:
    facts = {**each.facts, **probe.facts}
    if wrong or each.state not in {State.RUNNING, State.CANCELLING}:
        facts["holds"] = False
    return Facts(**facts)


def bystanders(seed: Seed) -> None:
    """Make a running, a dead and a scheduled job, which no call of the matrix may change."""
    seed.cap(FULL_SCOPE, 0)
    running = seed.running("b-running")
    seed.fail(seed.running("b-dead"), verdict="final")
    seed.enqueue("b-scheduled", delay_ms=90 * 86_400_000)
    seed.control.zadd(seed.keys("leases"), {running.id: seed.now + 10**11})
    seed.control.zadd(seed.keys("expiring"), {"dead|b-dead": seed.now + 10**11})


@pytest.fixture
def other(seed: Seed, redis_url: str) -> Iterator[Seed]:
    """Yield a Seed with another client, for copies of the queue."""
    with Seed(redis_url, name="c-2") as made:
        made.clock = seed.clock
        yield made


@pytest.mark.parametrize("each", STANDS, ids=lambda each: each.name)
def test_each_call_makes_exactly_the_state_transitions_that_the_table_lists(
    seed: Seed, other: Seed, listener: Listener, each: Stand
) -> None:
    """Checks the transitions, and that waiting clients get exactly one message about each end."""
    bystanders(seed)
    start = seed.now
    for probe, wrong in cases(each):
        with case(call=probe.name, wrong_fence=wrong):
            name = f"{probe.name.replace(' ', '-')}.{wrong}"
            copy_queue(seed.control, seed.queue, name)
            check(other.of(name), listener, each, probe, wrong=wrong)
            seed.clock.set(start)


def check(seed: Seed, listener: Listener, each: Stand, probe: Probe, *, wrong: bool) -> None:
    fence = each.seed(seed) or NO_FENCE
    if wrong:
        # The fence of the claim before, or of a claim that will be: neither is in force.
        epoch, _, number = fence.partition("-")
        fence = f"{epoch}-{int(number) + (1 if each.name == 'held' else -1)}"
    seed.take_token()
    listener.listen(seed)
    before = seed.snapshot()
    path = walk(each.state, probe.script, facts_of(each, probe, wrong=wrong))

    probe.call(seed, fence)

    ends = any(t.source and t.target in (None, State.DEAD) for t in path)
    assert ends == (JOB in listener.told())
    after = seed.snapshot()
    assert_consistent(after)
    entries = seed.entries()[len(before["outbox"]) :]
    refused = probe.script in SETTLING and not facts_of(each, probe, wrong=wrong).holds
    expected = [*(["settlement_refused"] if refused else []), *(str(t.event) for t in path)]
    if probe.script == "tick" and probe.name != "tick in its place":
        expected.append("ticked")
    if probe.script == "signal" and each.state is not None:
        expected.insert(0, "signalled")
    assert expected == events_of(entries, JOB)
    if probe.name in {"enqueue in its place", "tick in its place"}:
        # What the other job brings is no part of the matrix.
        assert path or lines_of(after).get(JOB) == lines_of(before).get(JOB)
        return
    assert len(entries) == len(expected)
    if probe.script == "signal" and not path:
        # The signal waits in the job's box, which this call may begin.
        line = re.sub(" life=[0-9a-f]+", "", lines_of(after).get(JOB, ""))
        assert line == re.sub(" life=[0-9a-f]+", "", lines_of(before).get(JOB, ""))
        return
    target = path[-1].target if path else each.state
    line = lines_of(after).get(JOB)
    assert target == (fields_of(line)["state"] if line else None)
    changes, _ = without_slot(diff(before, after), seed.now)
    if path:
        touched = {
            m
            for key in ("state", "jobs", "leases", "scheduled", "parked", "dead")
            for m in changes.get(key, ())
        }
        assert touched <= {JOB, f"job|{JOB}"}
    else:
        assert_nothing_moved(
            seed,
            probe,
            changes,
            before,
            refused=refused,
            holds=facts_of(each, probe, wrong=wrong).holds,
        )


def assert_nothing_moved(
    seed: Seed,
    probe: Probe,
    changes: dict[str, Any],
    before: dict[str, Any],
    *,
    refused: bool,
    holds: bool,
) -> None:
    """Assert that the call changed no job.

    The call may record the time of its activity, remove list entries without a job, and log a refused settlement.
    """
    meta = changes.pop("meta", {})
    if probe.script in {"claim", "turn", "extend"}:
        noted = {"last_activity", "no_reap_before"}
        for entries in (f"ready:{rank}" for rank in range(4)):
            if probe.script != "extend" and len(before[entries]) > 0:
                # A claim that passes over an entry that leads nowhere forgets it.
                noted.add("tombstones")
                changes.pop(entries, None)
        assert set(meta) <= noted
    else:
        assert meta == {}
    if probe.name in {"claim none", "turn none"} and any(
        before[f"ready:{rank}"] for rank in range(4)
    ):
        # Somebody else can take what this worker could not; an entry that leads nowhere counts until it is met.
        assert changes.pop("wake") == ([], ["1"])
    if probe.script in {"claim", "turn"}:
        # The deadline of a job that runs is over: it has no moment to wait for.
        changes.pop("expiring", None)
    if probe.script == "extend" and holds and list(changes) == ["leases"]:
        # An extension that is accepted moves the deadline; it moves no job.
        assert list(changes.pop("leases")) == [JOB]
    if probe.script == "tick":
        ((_, raw),) = changes.pop("outbox")
        assert raw["type"] == "ticked"
    if refused:
        ((_, raw),) = changes.pop("outbox")
        assert raw["type"] == "settlement_refused"
        assert f',"{SETTLING[probe.script]}",' in raw["jobs"]
        assert (raw["at"], raw["by"]) == (str(seed.now), WORKER)
    assert changes == {}


def test_the_test_of_transitions_makes_every_transition_of_the_table_and_has_a_condition_for_each() -> (
    None
):
    """A guard is the condition of a transition in this module."""
    drawn = {
        arrow(t)
        for each in STANDS
        for probe, wrong in cases(each)
        for t in walk(each.state, probe.script, facts_of(each, probe, wrong=wrong))
    }

    assert sorted(map(arrow, TRANSITIONS)) == sorted(GUARDS)
    assert sorted(map(arrow, TRANSITIONS)) == sorted(drawn)


def test_the_header_of_each_script_names_its_transitions() -> None:
    """People who read the scripts rely on the headers."""
    from rq_core.scripts.script import names, script

    for name in names():
        expected = sorted(str(t) for t in TRANSITIONS if t.script == name)
        assert expected == sorted(script(name).header.transitions)


@pytest.mark.parametrize("claimable", ["fresh", "delayed_and_due", "retried_at_once"])
def test_a_paused_queue_promotes_due_jobs_and_admits_no_claim(seed: Seed, claimable: str) -> None:
    """The promoted jobs are ready for later claims."""
    next(s for s in STANDS if s.name == claimable).seed(seed)
    seed.configure(paused=1)

    claimed = seed.claim()

    assert claimed.jobs == ()
    assert fields_of(seed.state(JOB) or "")["state"] == "ready"


def test_the_shipped_scripts_use_the_clock_of_the_server(redis_url: str) -> None:
    """Other tests cannot show this, since they replace the clock."""
    from rq_core.scripts.script import script

    with Seed(redis_url, QUEUE, scripts=script, real_clock=True) as seed:
        seconds, micros = seed.control.time()
        started = seconds * 1000 + micros // 1000
        seed.enqueue("a", "b")
        seed.enqueue("c", delay_ms=1)
        first, second = seed.claim(2).jobs
        seed.fail(first, delay_ms=1)
        seed.complete(second)
        seconds, micros = seed.control.time()
        ended = seconds * 1000 + micros // 1000

        assert_consistent(seed.snapshot())
        assert all(started <= entry.at_ms <= ended + 1 for entry in seed.entries())
        assert started <= int(seed.meta("epoch") or 0) <= ended
