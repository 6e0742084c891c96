"""Calls that a client repeats because a reply was lost. Each takes effect once, and gets the same answer."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import redis

from rq_core import errors
from rq_core.connections.async_client import AsyncClient
from rq_core.connections.client import Client
from rq_core.model.job import NewJob, profile
from rq_core.model.recurrence import recurrence
from rq_core.model.table.machine import State
from rq_core.protocol.calls import boxes, claims
from rq_core.protocol.calls.admin import Change
from rq_core.protocol.calls.boxes import NotSaved, Saving
from rq_core.protocol.calls.claims import Claimed
from rq_core.protocol.calls.enqueue import Accepted
from rq_core.protocol.calls.schedules import Declaration, Instant
from rq_core.protocol.calls.schedules import tick as tick_call
from rq_core.protocol.engine.delivery import Delivery
from rq_core.protocol.engine.plan import Call, Patience
from rq_core.protocol.operations import Operations
from rq_core.scripts.script import Script, function, names
from tests.kit.clock import timed
from tests.kit.consistency import assert_consistent
from tests.kit.seed import ERROR, LEASE_MS, LIFE, NO_FENCE, START_MS, WORKER, Seed, events_of
from tests.kit.snapshots import raw
from tests.kit.transports import LossyAsyncTransport, LossyTransport

Operation = Callable[[Seed], Any]


def load(seed: Seed, of: Iterable[str]) -> None:
    """Load these scripts again, so that no call is repeated in order to load its script."""
    with seed.control.pipeline(transaction=False) as pipe:
        for name in of:
            pipe.execute_command(*timed(name).loading)  # type: ignore[no-untyped-call]
        pipe.execute()


class LossySeed(Seed):
    """A Seed (tests/kit/seed.py) whose connection can lose replies."""

    transport: LossyTransport

    def __init__(self, url: str, queue: str = "q", **options: Any) -> None:
        self.used: set[str] = set()
        """The scripts that `told` has used since they were loaded."""
        self.transport = LossyTransport(url)
        super().__init__(url, queue, transport=self.transport, **options)


@pytest.fixture
def lossy(redis_url: str) -> Iterator[LossySeed]:
    with LossySeed(redis_url) as made:
        load(made, names())
        yield made


@pytest.fixture
def other(redis_url: str) -> Iterator[Seed]:
    """Yield a Seed with another client of the same queue."""
    with Seed(redis_url, name="c-2") as made:
        yield made


# Each returns the operation to be made, after bringing the queue where it makes a difference.


def enqueue(seed: Seed) -> Operation:
    seed.enqueue("live")
    return lambda s: s.enqueue("a", s.job("b", delay_ms=500), "live", "a")


def claim(seed: Seed) -> Operation:
    seed.running("expired", losses=1)
    seed.running("lost")
    seed.cancelling("unwanted")
    seed.live(LEASE_MS)
    seed.enqueue("a", "b", "c")
    seed.enqueue("due", delay_ms=1)
    seed.advance(1)
    return lambda s: s.claim(3, worker="w-2")


def _three(seed: Seed) -> list[tuple[str, str]]:
    claims = [seed.running("a"), seed.cancelling("b"), seed.running("c")]
    return [*((c.id, c.fence) for c in claims), ("nobody", NO_FENCE)]


def turn(seed: Seed) -> Operation:
    """Make a turn, which reports two successes and one refused success, ends an expired lease, and claims jobs."""
    held = _three(seed)
    seed.live(LEASE_MS)
    seed.enqueue("d", "e", "f")
    return lambda s: s.turn(*held[:2], held[3], limit=2)


def complete(seed: Seed) -> Operation:
    held = _three(seed)
    return lambda s: s.complete(*held)


def fail(seed: Seed) -> Operation:
    held = _three(seed)
    return lambda s: s.fail(*held, delay_ms=700)


def fail_finally(seed: Seed) -> Operation:
    held = _three(seed)
    return lambda s: s.fail(*held, verdict="final")


def save(seed: Seed) -> Operation:
    """Save a step of a job without a box, and a step whose save is refused."""
    held = _three(seed)
    return lambda s: s.save(held[0], held[3])


def spend(seed: Seed) -> Operation:
    """Report the real costs of two jobs. Only the first was claimed under a rate that counts the unit."""
    seed.cap("t@60s:tokens", "100/60000ms/100")
    seed.enqueue("paid", scopes=["t@60s:tokens=a"], cost="tokens:90")
    claim = seed.claim_one("paid")
    held = _three(seed)
    return lambda s: s.spend(claim, held[0], told="tokens:40")


def pause(seed: Seed) -> Operation:
    """Pause a rate on which a lane waits."""
    seed.cap("t@60s", "1/60000ms/1")
    seed.enqueue("a", "b", scopes=["t@60s=x"])
    seed.claim()
    calls = seed.client.calls.pauses
    return lambda s: s.client.run(calls.pause(s.queue, "t@60s=x", for_ms=5_000, by="ada"))


def park(seed: Seed) -> Operation:
    """Park three jobs. The signal of the second has already arrived, and the claim of the third is not in force."""
    first, second = seed.running("a"), seed.running("b")
    seed.wait(first)
    seed.wait(second, life="1" * 16)
    seed.signal(second.id)
    return lambda s: s.park(first, second, ("nobody", NO_FENCE))


def signal(seed: Seed) -> Operation:
    """Send a signal to three ids: a parked job, a running job that waits for another name, and no job."""
    seed.parked("a")
    seed.wait(seed.running("b"), name="other", life="1" * 16)
    return lambda s: s.signal("a", "b", "nobody", key="once")


def rollback(seed: Seed) -> Operation:
    held = _three(seed)
    return lambda s: s.rollback(*held)


def rollback_unknown(seed: Seed) -> Operation:
    held = _three(seed)
    return lambda s: s.rollback(*held, reason="unknown_task")


def cancel(seed: Seed) -> Operation:
    _three(seed)
    seed.enqueue("ready")
    return lambda s: s.cancel("a", "b", "ready", "nobody")


def edit(seed: Seed) -> Operation:
    _three(seed)
    seed.enqueue("ready")
    seed.enqueue("later", delay_ms=5_000)
    return lambda s: s.edit("a", "ready", "later", "nobody", priority="high", due="+1000")


def requeue(seed: Seed) -> Operation:
    seed.dead("dead")
    seed.enqueue("ready")
    return lambda s: s.requeue("dead", "ready", "nobody")


def prune(seed: Seed) -> Operation:
    seed.dead("dead")
    seed.enqueue("ready")
    return lambda s: s.prune("dead", "ready", "nobody")


def free(seed: Seed) -> Operation:
    seed.enqueue("a", name="t/a")
    return lambda s: s.free("t/a", "t/b")


def restore(seed: Seed) -> Operation:
    """Put jobs back into lists and lanes, and remove other jobs."""
    _capped(seed)
    seed.dead("dead")
    seed.enqueue("ready")
    seed.enqueue("later", delay_ms=5_000)
    records = [
        seed.lost("plain"),
        seed.lost("again-a", lane="2+task=c+tenant=a"),
        seed.lost("again-f", lane="2+tenant=f"),
        seed.lost("in-time", State.SCHEDULED, due_ms=seed.now + 700),
        seed.lost("buried", State.DEAD, reason="final"),
        *map(seed.revived, ("a", "dead", "ready", "later", "waits-a", "nobody")),
    ]
    return lambda s: s.client.run(s.client.calls.audit.restore("q", records, after="-"))


def configure(seed: Seed) -> Operation:
    seed.configure(paused=1)
    return lambda s: s.configure(paused=0, lease_ms=9_000)


def cap(seed: Seed) -> Operation:
    """Change limits: a running task's first cap and two raised caps. A fourth change has a wrong version."""
    _capped(seed)
    seed.enqueue("plain", "plain-2")
    seed.claim(1)
    return lambda s: s.client.run(
        s.client.calls.caps.set(
            "q", [("task=t", "1", 0), ("tenant", "2", 1), ("queue", "9", 5), ("task=c", "3", 1)]
        )
    )


def register(seed: Seed) -> Operation:
    seed.client.run(seed.client.calls.caps.register("q", {"old": "{}", "same": "{}"}))
    return lambda s: s.client.run(
        s.client.calls.caps.register("q", {"old": '{"scopes":[]}', "same": "{}", "new": "{}"})
    )


def schedule(seed: Seed) -> Operation:
    """Store four schedules: a new one, an unchanged one, a changed one, and one that an operator has set.

    Code may not change the last one.
    """
    rules = [recurrence(name, every=10) for name in ("new", "same", "other", "kept")]
    made = [Declaration.of(seed.job("-"), rule) for rule in rules]
    put = seed.client.calls.schedules.put
    seed.client.run(put("q", made[1:3], source="code"))
    seed.client.run(put("q", made[3:]))
    made[2] = Declaration.of(seed.job("-"), recurrence("other", every=20))
    return lambda s: s.client.run(s.client.calls.schedules.put("q", made, source="code"))


def tick(seed: Seed) -> Operation:
    """Report four instants: one fires, one is skipped, one asks a running job to stop, and one comes too late.

    The call gives the worker no new schedule, since a repeated call gives none.
    """
    made = [
        Declaration.of(seed.job("-"), recurrence(name, every=10, overlap=overlap))
        for name, overlap in (("fires", "skip"), ("skips", "skip"), ("replaces", "replace"))
    ]
    seed.client.run(seed.client.calls.schedules.put("q", made))
    for name in ("skips", "replaces"):
        seed.client.run(seed.client.calls.schedules.run("q", name))
    seed.claim()
    seed.advance(10_000)
    stored = seed.client.run(seed.client.calls.schedules.stored("q"))
    instants = [
        Instant(name, 1, each.next_ms, each.next_ms, each.next_ms + 10_000, 0)
        for name, each in stored.items()
    ]
    late = Instant("fires", 7, 1, 1, 2, 0)
    return lambda s: s.client.run(tick_call("q", WORKER, [*instants, late], hand_max=0))


# With lanes: two jobs hold scopes, other lanes wait for these, and a rate is spent.


def _in_lane(seed: Seed, job_id: str, *scopes: str, **options: Any) -> NewJob:
    return seed.job(job_id, task="c", scopes=["task=c", *scopes], **options)


def _capped(seed: Seed) -> list[tuple[str, str]]:
    seed.cap("task=c", 2)
    seed.cap("tenant", 1)
    seed.cap("host@10s", "1/10000ms/1")
    seed.enqueue(_in_lane(seed, "a", "tenant=a", "host@10s=h"), _in_lane(seed, "b", "tenant=b"))
    held = [(c.id, c.fence) for c in seed.claim().jobs]
    seed.enqueue(*(_in_lane(seed, f"waits-{t}", f"tenant={t}") for t in ("a", "b", "c")))
    seed.enqueue(seed.job("rated", scopes=["host@10s=h"]))
    assert not seed.claim().jobs
    seed.take_token()
    return [*held, ("nobody", NO_FENCE)]


def enqueue_into_lanes(seed: Seed) -> Operation:
    _capped(seed)
    return lambda s: s.enqueue(
        s.job("open", scopes=["tenant=d"]),
        _in_lane(s, "blocked", "tenant=a"),
        _in_lane(s, "later", "tenant=d", delay_ms=500),
        _in_lane(s, "discarded", "tenant=a", full="discard|tenant=a"),
        _in_lane(s, "rejected", "tenant=a", full="most|1"),
        s.job("by-name", task="c"),
    )


def claim_from_lanes(seed: Seed) -> Operation:
    """Claim from lanes. In the same call a lease ends, a rate admits jobs again, lanes are served or refused, and a
    plain job enters its lane."""
    seed.enqueue("moves", task="c")
    _capped(seed)
    seed.live(LEASE_MS)
    seed.enqueue(_in_lane(seed, "new", "tenant=c"), seed.job("other", scopes=["tenant=d"]))
    return lambda s: s.claim(3, worker="w-2")


def complete_in_lanes(seed: Seed) -> Operation:
    held = _capped(seed)
    return lambda s: s.complete(*held)


def turn_in_lanes(seed: Seed) -> Operation:
    """Make a turn whose claim takes the places that its reports free."""
    held = _capped(seed)
    seed.advance(1)
    return lambda s: s.turn(*held, limit=3)


def fail_in_lanes(seed: Seed) -> Operation:
    held = _capped(seed)
    return lambda s: s.fail(*held)


def rollback_into_another_lane(seed: Seed) -> Operation:
    held = _capped(seed)
    return lambda s: s.rollback(*held, reason="lane_changed", lane="2+task=c+tenant=z")


def cancel_in_lanes(seed: Seed) -> Operation:
    _capped(seed)
    seed.enqueue(seed.job("first", scopes=["tenant=d"]), _in_lane(seed, "next", "tenant=d"))
    return lambda s: s.cancel("first", "waits-a", "a", "nobody")


def edit_in_lanes(seed: Seed) -> Operation:
    _capped(seed)
    seed.enqueue(seed.job("first", scopes=["tenant=d"]), _in_lane(seed, "next", "tenant=d"))
    return lambda s: s.edit("first", "waits-a", "a", "nobody", priority="low", expires="+9000")


def requeue_into_lanes(seed: Seed) -> Operation:
    held = _capped(seed)
    seed.fail(*held[:2], verdict="final")
    return lambda s: s.requeue("a", "b", "nobody")


def everything(seed: Seed) -> Operation:
    """Send in one exchange all calls that a worker sends together: reports, claims, and an extension."""
    seed.enqueue("x", "y", "z", "v", "w")
    x, y, z = seed.claim(3).jobs

    def carry_out(s: Seed) -> Any:
        calls: list[Call[Any]] = [
            claims.complete("q", WORKER, [(x.id, x.fence)]),
            claims.fail("q", WORKER, [(y.id, y.fence, "retry", 500, "-", ERROR)]),
            claims.rollback("q", WORKER, [(z.id, z.fence, "shutdown", "null", "", 0)]),
            claims.claim("q", WORKER, 2),
            claims.turn("q", WORKER, 2, [(y.id, NO_FENCE)]),
            claims.extend("q", WORKER, [(x.id, x.fence)]),
        ]
        return s.client.run(s.client.calls.delivery.carry_out(calls))

    return carry_out


OPERATIONS = [
    enqueue, claim, turn, complete, fail, fail_finally, rollback, rollback_unknown, save, spend, pause, park, signal,
    cancel, edit, requeue, prune,
    free, restore, configure, cap, register, schedule, tick, enqueue_into_lanes, claim_from_lanes, turn_in_lanes,
    complete_in_lanes, fail_in_lanes, rollback_into_another_lane, cancel_in_lanes, edit_in_lanes, requeue_into_lanes,
    everything,
]  # fmt: skip


def test_every_script_with_a_slot_has_an_operation() -> None:
    with_slot = {name for name in names() if "slot" in function(name).args}

    assert with_slot == with_slot & {make.__name__ for make in OPERATIONS}


every_operation = pytest.mark.parametrize("make", OPERATIONS, ids=lambda f: f.__name__)
# `everything` is several calls, each of them shown alone.
every_single_operation = pytest.mark.parametrize(
    "make", [make for make in OPERATIONS if make is not everything], ids=lambda f: f.__name__
)
# With asyncio, settlements and claims are only sent by workers.
every_async_operation = pytest.mark.parametrize(
    "make",
    [
        enqueue, cancel, edit, requeue, prune, restore, configure, cap, register, everything, enqueue_into_lanes,
        cancel_in_lanes, edit_in_lanes,
    ],
    ids=lambda f: f.__name__,
)  # fmt: skip


def told(seed: LossySeed, make: Callable[[Seed], Operation], **trouble: Any) -> tuple[Any, Any]:
    """Run the operation on an empty server with this fault. Return its answer and the contents of the queue.

    The scripts are newly loaded, and so remember nothing of another run. (To load all of them takes the server 0.06 s.)
    """

    def script(name: str) -> Script:
        seed.used.add(name)
        return timed(name)

    seed.control.flushall()
    seed.clock.set(START_MS)
    load(seed, seed.used)
    seed.used.clear()
    seed.calls = Operations(Delivery(name="c-1", scripts=script))
    seed.client.calls = seed.calls
    operation = make(seed)
    for name, value in trouble.items():
        setattr(seed.transport, name, value)
    answer = operation(seed)
    left = (seed.transport.lose, seed.transport.unsent, seed.transport.flush)
    assert left == (0, 0, None), "the trouble did not come"
    snapshot = seed.snapshot()
    snapshot["meta"].pop("replid")
    for _, entry in snapshot["outbox"]:
        if entry["type"] == "epoch_started":
            del entry["data"]
    return answer, snapshot


@every_operation
@pytest.mark.parametrize(
    "trouble",
    [
        {"lose": 1},
        {"lose": 3},
        {"unsent": 2},
        {"lose": 1, "flush": 0},
        {"flush": 0},
    ],
    ids=["lost", "lost three times", "not sent at first", "lost with the scripts", "no scripts"],
)
def test_a_call_that_is_sent_again_has_the_same_answer_and_effect(
    lossy: LossySeed, make: Callable[[Seed], Operation], trouble: dict[str, int]
) -> None:
    """Compares each byte of the queue: no event is written twice, and no job runs twice."""
    expected = told(lossy, make)

    actual = told(lossy, make, **trouble)

    assert expected[0] == actual[0]
    assert expected[1] == actual[1]
    assert_fully_consistent(lossy)


@pytest.mark.parametrize("trouble", [{"lose": 1}, {"lose": 3}, {"unsent": 2}], ids=str)
def test_a_repeated_enqueue_of_several_chunks_stores_each_job_once_and_in_order(
    lossy: LossySeed, trouble: dict[str, int]
) -> None:
    """The next chunk is prepared while a chunk is being sent. It must not overtake that chunk."""
    ids = [f"job-{n:04}" for n in range(2_500)]
    made = 0

    def jobs() -> Iterator[NewJob]:
        nonlocal made
        for name in ids:
            made += 1
            if made == 1_500:
                # The first chunk is on its way or done.
                for field, value in trouble.items():
                    setattr(lossy.transport, field, value)
            yield lossy.job(name)

    accepted = lossy.client.run(lossy.client.calls.enqueue.many(jobs()))

    assert list(accepted.ids) == ids
    assert lossy.control.lrange(lossy.keys("ready:2"), 0, -1) == ids
    assert lossy.transport.lose == lossy.transport.unsent == 0
    assert_fully_consistent(lossy)


def assert_fully_consistent(seed: Seed) -> None:
    assert_consistent(seed.snapshot())


@pytest.mark.parametrize("at", range(7))
def test_a_worker_call_that_is_repeated_after_some_replies_arrived_has_the_same_answer_and_effect(
    lossy: LossySeed, at: int
) -> None:
    """The connection breaks after some of the replies have arrived."""
    expected = told(lossy, everything)

    assert expected == told(lossy, everything, lose=1, keep=min(at, 6))


@pytest.mark.parametrize("at", range(7))
def test_the_script_turn_is_carried_out_once_though_the_scripts_are_flushed_halfway(
    lossy: LossySeed, at: int
) -> None:
    """The calls after the flush are carried out later, and still in their order."""
    answers, _ = told(lossy, everything, flush=at)

    assert [{}, {"y": "scheduled"}, {"z": "ready"}] == answers[:3]
    taken = [c.id for claimed in answers[3:5] for c in claimed.jobs]
    assert ["v", "w", "z"] == sorted(taken)
    assert_consistent(lossy.snapshot())
    assert 3 == sum(len(e.jobs) for e in lossy.entries() if e.event == "claimed") - 3


def test_a_job_that_ended_before_its_enqueue_call_was_sent_again_is_not_run_again(
    lossy: LossySeed, other: Seed
) -> None:
    """The reply to the enqueue was lost. The job runs and leaves Redis before the client repeats the call."""
    lossy.client.run(lossy.client.calls.delivery.handshake("q"))

    def run() -> None:
        for claimed in other.claim().jobs:
            other.complete(claimed)

    lossy.transport.lose, lossy.transport.between = 1, run

    accepted = lossy.enqueue("a", "b")

    assert (("a", "b"), ()) == (accepted.ids, accepted.duplicates)
    assert {} == lossy.snapshot()["jobs"]
    for job_id in ("a", "b"):
        assert ["enqueued", "claimed", "succeeded"] == events_of(lossy.entries(), job_id)


@pytest.mark.parametrize(
    "late",
    [
        turn, complete, fail, rollback, turn_in_lanes, complete_in_lanes, fail_in_lanes, rollback_into_another_lane,
    ],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_a_settlement_that_is_sent_again_does_not_change_a_newer_claim(
    lossy: LossySeed, other: Seed, late: Callable[[Seed], Operation]
) -> None:
    """The repeated settlement arrives late. Meanwhile another worker has claimed the job, or the job has left Redis."""
    operation = late(lossy)
    lossy.control.script_flush()
    lossy.transport.lose = 1

    def go_on() -> None:
        other.advance(1_000)
        other.claim(worker="w-2")

    lossy.transport.between = go_on

    answer = operation(lossy)

    assert "nobody" in (answer.refused if isinstance(answer, Claimed) else answer)
    before = lossy.snapshot()
    assert_consistent(before)
    assert [str(e.event) for e in lossy.entries()].count("settlement_refused") == 1


@pytest.mark.parametrize("how", ["complete", "turn"])
def test_a_call_never_gets_the_answer_of_the_call_before_it(lossy: LossySeed, how: str) -> None:
    """The slot still has the longer answer of an earlier call."""
    held = lossy.running("a")
    report = lossy.turn if how == "turn" else lossy.complete
    lossy.enqueue("b")
    report(("nobody", NO_FENCE))
    lossy.transport.lose = 1

    answer = report(held)

    assert (answer.refused if isinstance(answer, Claimed) else answer) == {}
    assert not isinstance(answer, Claimed) or answer.jobs == ()
    assert_fully_consistent(lossy)


def test_a_claim_that_is_sent_again_omits_jobs_that_the_worker_no_longer_holds(
    lossy: LossySeed, other: Seed
) -> None:
    """The answer has the jobs that this worker still holds, with their specs, and no jobs of other workers."""
    jobs = ["a", "b", "c", "d", "e"]
    lossy.enqueue(*jobs, args_json='{"n":1}')

    def meanwhile() -> None:
        fences = {
            i: other.client.run(other.client.calls.reads.job(i, ["q"])).fields["fence"]
            for i in jobs
        }  # type: ignore[union-attr]
        other.complete(("a", fences["a"]))
        other.cancel("b")
        other.fail(("c", fences["c"]))
        other.rollback(("d", fences["d"]))
        assert ["d"] == [c.id for c in other.claim(1, worker="w-2").jobs]

    lossy.transport.lose, lossy.transport.between = 1, meanwhile

    claimed = lossy.claim()

    assert ["b", "e"] == [c.id for c in claimed.jobs]
    assert {'{"task":"t","args":{"n":1}}'} == {c.spec for c in claimed.jobs}
    assert {1} == {c.number for c in claimed.jobs}
    assert ["enqueued", "claimed"] == events_of(lossy.entries(), "e")
    assert_consistent(lossy.snapshot())


def test_a_claim_that_returned_no_job_claims_none_when_it_is_sent_again(
    lossy: LossySeed, other: Seed
) -> None:
    lossy.claim()
    lossy.transport.lose, lossy.transport.between = 1, lambda: other.enqueue("a")

    assert () == lossy.claim().jobs
    assert ["a"] == [c.id for c in lossy.claim().jobs]


def test_the_answer_to_a_save_that_is_sent_again_omits_the_entries_of_waits(
    lossy: LossySeed,
) -> None:
    """The answer that a slot keeps has no values: a worker that needs one reads the box."""
    claim = lossy.running("a")
    lossy.save(claim)
    lossy.signal("a", value="[1]")
    records = [
        Saving("a", claim.fence, LIFE, "wait", 2, "approval", "", ""),
        Saving("a", claim.fence, LIFE, "wait", 3, "refusal", "", "+5000"),
    ]
    lossy.transport.lose = 1

    answer = lossy.client.run(boxes.save("q", WORKER, records))

    assert {1: NotSaved("waits", START_MS + 5_000)} == answer


def test_a_call_that_arrives_late_is_refused_and_changes_nothing(lossy: LossySeed) -> None:
    """Two connections deliver the calls in the wrong order. The newer call has already been answered."""
    lossy.enqueue("a")
    lossy.enqueue("b")
    late = lossy.transport.calls
    (first,) = [c for c in late if "a" in c]
    before = raw(lossy.control)

    reply = lossy.control.execute_command(*first)

    assert ["refused", "stale_call"] == reply
    assert before == raw(lossy.control)


@every_single_operation
@pytest.mark.slow
def test_a_call_with_a_lower_number_than_the_last_call_is_stale_in_every_script(
    lossy: LossySeed, make: Callable[[Seed], Operation]
) -> None:
    operation = make(lossy)
    operation(lossy)
    for (_, script), slots in lossy.calls.delivery._free.items():
        for slot in slots:
            if script == make.__name__.split("_")[0]:
                slot.number -= 1 if slot.number > 1 else 2
                slot.number -= 1
    before = raw(lossy.control)

    with pytest.raises(errors.StaleCall):
        operation(lossy)

    assert before == raw(lossy.control)


def test_a_refused_call_is_carried_out_when_sent_again(lossy: LossySeed) -> None:
    """The call was refused because the queue was full, and the reply was lost. When the call is repeated, the queue has
    room."""
    lossy.enqueue("first")
    lossy.attach()
    lossy.configure(backlog_max_jobs=1)
    upto = lossy.snapshot()["outbox"][-1][0]
    with Seed(lossy.client.url, name="c-2") as mirror:
        lossy.transport.lose = 1
        lossy.transport.between = lambda: mirror.client.run(
            mirror.client.calls.audit.trim("q", "db-1", upto, 100, 10_000)
        )

        assert ("a",) == lossy.enqueue("a").ids

    assert ["enqueued"] == events_of(lossy.entries(), "a")


# What cannot be found out.


class Ticking:
    """A clock that advances by a second each time it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def impatient(url: str, **patience: float) -> LossySeed:
    seed = LossySeed(url)
    seed.client.calls = seed.calls = Operations(
        Delivery(name="c-1", scripts=timed, patience=Patience(**patience), clock=Ticking(), url=url)
    )
    return seed


def test_the_error_of_an_unknown_outcome_names_the_jobs(redis_url: str) -> None:
    with impatient(redis_url, unsent=2.0, unknown=5.0) as seed:
        seed.client.run(seed.client.calls.delivery.handshake("q"))
        seed.transport.lose = 1_000

        with pytest.raises(errors.OutcomeUnknown) as caught:
            seed.enqueue("a", "b")

        assert ("a", "b") == caught.value.ids
        seed.transport.lose = 0
        seed.enqueue("c")
        assert ["enqueued"] == events_of(seed.entries(), "a")


def test_an_unsent_call_is_given_up_sooner_than_a_call_without_an_answer(
    redis_url: str,
) -> None:
    with impatient(redis_url, unsent=2.0, unknown=50.0) as seed:
        seed.client.run(seed.client.calls.delivery.handshake("q"))
        before = seed.snapshot()
        seed.transport.unsent = 10

        with pytest.raises(errors.ServerUnavailable, match="no connection"):
            seed.enqueue("a")

        assert before == seed.snapshot()


def test_a_call_without_an_answer_raises_outcome_unknown_if_the_server_then_fills_up(
    redis_url: str,
) -> None:
    """The error must not say that the queue takes no new jobs.

    The jobs may be in Redis, and after such an error their producer would enqueue them again.
    """
    with impatient(redis_url, unsent=2.0, unknown=20.0) as seed:
        seed.client.run(seed.client.calls.delivery.handshake("q"))
        seed.enqueue("warm")
        seed.transport.lose = 1
        seed.transport.between = lambda: seed.control.config_set("maxmemory", "1")
        try:
            with pytest.raises(errors.OutcomeUnknown) as caught:
                seed.enqueue("a")
            assert ("a",) == caught.value.ids
        finally:
            seed.control.config_set("maxmemory", "0")
        assert ["enqueued"] == events_of(seed.entries(), "a")


def test_a_call_that_a_full_server_refused_on_repetition_gets_its_outcome_once_memory_is_free(
    redis_url: str,
) -> None:
    with impatient(redis_url, unsent=2.0, unknown=20.0) as seed:
        seed.enqueue("warm")
        pauses = []

        def pause(_: float) -> None:
            pauses.append(1)
            if len(pauses) == 3:
                seed.control.config_set("maxmemory", "0")

        seed.client._sleep = pause
        seed.transport.lose = 1
        seed.transport.between = lambda: seed.control.config_set("maxmemory", "1")
        try:
            assert ("a",) == seed.enqueue("a").ids
        finally:
            seed.control.config_set("maxmemory", "0")
        assert ["enqueued"] == events_of(seed.entries(), "a")


def test_a_forked_child_uses_its_own_slots(lossy: LossySeed) -> None:
    """A child with the slots and numbers of its parent would get answers to the parent's calls."""
    lossy.enqueue("a")
    lossy.calls.delivery._pid -= 1

    assert ("b",) == lossy.enqueue("b").ids

    names = sorted(lossy.snapshot()["slots"])
    assert 2 == len(names)
    assert 2 == len({name.rsplit(".enqueue", 1)[0] for name in names})


# asyncio


@every_async_operation
async def test_the_asyncio_client_repeats_calls_as_the_sync_client_does(
    redis_url: str, make: Callable[[Seed], Operation]
) -> None:
    """The clients share their plans, and each has a loop of its own that carries out the plans."""
    with LossySeed(redis_url) as seed:
        load(seed, names())
        expected = told(seed, make)
        seed.control.flushall()
        seed.clock.set(START_MS)
        seed.calls = seed.client.calls = Operations(Delivery(name="c-1", scripts=timed))
        operation = make(seed)
        transport = LossyAsyncTransport(redis_url)
        async with AsyncClient(redis_url, transport=transport, calls=seed.calls) as client:
            transport.lose = 2
            answer = await operation(Redirected(seed, client))
        snapshot = seed.snapshot()

    assert expected[0] == answer
    assert transport.lose == 0
    for key in expected[1].keys() - {"meta", "outbox"}:
        assert expected[1][key] == snapshot[key], key
    assert_consistent(snapshot)


class Redirected:
    """A Seed that sends its calls with an AsyncClient. It has only the calls that the operations above need."""

    def __init__(self, seed: Seed, client: AsyncClient) -> None:
        self.seed, self.client, self.calls, self.job = (
            seed,
            client,
            client.calls,
            seed.job,
        )

    def enqueue(self, *jobs: Any) -> Any:
        return self.client.run(
            self.client.calls.enqueue.many([self.job(j) if isinstance(j, str) else j for j in jobs])
        )

    def cancel(self, *ids: str) -> Any:
        return self.client.run(self.client.calls.admin.cancel("q", ids))

    def edit(self, *ids: str, **change: str) -> Any:
        return self.client.run(self.client.calls.admin.edit("q", ids, Change(**change)))

    def requeue(self, *ids: str) -> Any:
        return self.client.run(self.client.calls.admin.requeue("q", ids))

    def prune(self, *ids: str) -> Any:
        return self.client.run(self.client.calls.admin.prune("q", ids))

    def configure(self, **values: int) -> Any:
        return self.client.run(self.client.calls.admin.configure("q", values))


async def test_concurrent_enqueues_share_calls_and_get_their_own_answers(redis_url: str) -> None:
    transport = LossyAsyncTransport(redis_url)
    with Seed(redis_url) as seed:
        seed.enqueue("live")
        async with AsyncClient(
            redis_url, transport=transport, calls=Operations(Delivery(name="c-9", scripts=timed))
        ) as client:
            await client.run(client.calls.delivery.handshake("q"))
            transport.lose = 3
            ids = [*(f"a-{n}" for n in range(100)), "live", "a-7"]
            found = await asyncio.gather(*(client.enqueue_one(seed.job(i)) for i in ids))

        assert [Accepted((f"a-{n}",)) for n in range(100)] == found[:100]
        assert [Accepted((), ("live",)), Accepted((), ("a-7",))] == found[100:]
        assert_consistent(seed.snapshot())
        assert 101 == len(seed.snapshot()["jobs"])


async def test_an_error_while_encoding_a_job_is_raised_to_its_caller(redis_url: str) -> None:
    """Several callers can share such a call. After an error none of them may wait for ever."""
    with Seed(redis_url) as seed:
        async with AsyncClient(redis_url) as client:
            bad = seed.job("bad")._replace(args_json=None)  # type: ignore[arg-type]
            with pytest.raises(TypeError):
                async with asyncio.timeout(5):
                    await client.enqueue_one(bad)
            assert Accepted(("good",)) == await client.enqueue_one(seed.job("good"))


# The server's own refusals.


@pytest.mark.slow
def test_a_wrong_password_is_an_error_at_once(start_redis: Callable[..., Any]) -> None:
    """The client must not repeat the call for ten minutes."""
    server = start_redis()
    with server.client() as control:
        control.config_set("requirepass", "right")
    seen: list[float] = []
    where = r"write redis://:\*\*\*@HOST or .* password in place of \*\*\*"
    for name, words in (
        ("", rf"NOAUTH.*: {where}\.$"),
        (":wrong@", r"WRONGPASS .*: the password in the URL is wrong\. .* %40 for @"),
        ("default:wrong@", "WRONGPASS .*: the user or the password in the URL is wrong"),
        ("right@", rf"WRONGPASS.*: {where}; what has no colon .* the user\.$"),
    ):
        url = server.url.replace("redis://", f"redis://{name}")
        wrong = pytest.raises(errors.ServerUnsuitable, match=words)
        with Client(url, sleep=seen.append) as client, wrong:
            client.run(client.calls.delivery.handshake("q"))
    assert seen == []


def test_the_client_reports_a_password_that_the_server_does_not_need(redis_url: str) -> None:
    url = redis_url.replace("redis://", "redis://:any@")

    words = "the URL has a password, and the server has none: take it out"
    with Client(url) as client, pytest.raises(errors.ServerUnsuitable, match=words):
        client.run(client.calls.delivery.handshake("q"))


def test_a_client_reports_a_password_that_the_server_began_to_require(
    start_redis: Callable[..., Any],
) -> None:
    """The client sends a long command without a handshake. It must not report Redis' answer as a damaged queue."""
    server = start_redis()
    with Client(server.url) as client, server.client() as control:
        client.run(client.calls.enqueue.many([NewJob("a", "q", profile("t"), "{}")]))
        control.config_set("requirepass", "right")
        control.client_kill_filter(_type="normal", skipme=True)

        with pytest.raises(errors.ServerUnsuitable, match="NOAUTH"):
            client.run(client.calls.enqueue.many([NewJob("b", "q", profile("t"), "{}")]))


def test_a_call_is_sent_again_after_the_server_closed_the_connection(lossy: LossySeed) -> None:
    """The server closes the connection between two calls."""
    lossy.enqueue("a")
    lossy.control.client_kill_filter(_type="normal", skipme=True)

    assert ("b",) == lossy.enqueue("b").ids
    with pytest.raises(redis.ResponseError):
        lossy.control.execute_command("EVALSHA", "0" * 40, 0)
