"""Scenes: for each script, a queue in which one call touches every key that the script can touch.

The crash tests stop such a call at every possible point.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rq_core.doctor import examine
from rq_core.doctor.finding import LOWER
from rq_core.doctor.image import LISTS
from rq_core.model.job import Claim, NewJob
from rq_core.model.keys import KEY_TYPES
from rq_core.model.recurrence import Overlap, recurrence
from rq_core.model.result_encoding import FULL, unpack_result
from rq_core.model.result_encoding import pack_result as pack_value
from rq_core.model.table.machine import State
from rq_core.model.unique_names import digest_of
from rq_core.protocol.calls.enqueue import pack_jobs
from rq_core.protocol.calls.schedules import Declaration
from rq_core.scripts.script import Script
from tests.kit.failover import fail_over
from tests.kit.seed import ERROR, LEASE_MS, LIFE, NO_FENCE, WORKER, Seed

SLOT = "scene.slot"


@dataclass(frozen=True)
class Scene:
    """A call of a script, on a queue that was prepared for it."""

    script: str
    args: dict[str, Any]
    each: list[tuple[Any, ...]]
    values: Mapping[int, str] = field(default_factory=dict)
    """The value that a record carries, by the record's position in ``each``, from 1."""

    def command(self, seed: Seed, made: Script) -> list[Any]:
        """Return the command that makes the call: FCALL if the script was built as a function, otherwise EVAL."""
        # With the keys on demand: a queue that remembers ids touches all that others touch.
        tail = {place: unpack_result(value) for place, value in self.values.items()}
        command = made.filled(made.head(seed.keys, made.on_demand), self.args, self.each, tail)
        if made.function:
            seed.control.execute_command(*made.loading)  # type: ignore[no-untyped-call]
            return command
        return ["EVAL", made.text, *command[2:]]


Setting = Callable[[Seed], Scene]
SCENES: dict[str, Setting] = {}


def scene(setting: Setting) -> Setting:
    SCENES[setting.__name__] = setting
    return setting


def _slotted(**args: Any) -> dict[str, Any]:
    return {"slot": SLOT, "number": 1, **args}


def _by() -> dict[str, Any]:
    return _slotted(by="somebody", why="because")


RATE = "host@10s=h"


def _caps(seed: Seed) -> None:
    seed.cap("queue", 7)
    seed.cap("task=c", 2)
    seed.cap("tenant", 1)
    seed.cap("tenant=d", 3)
    seed.cap("host@10s", "1/10000ms/1")


def _in_lane(seed: Seed, job_id: str, *more: str, **options: Any) -> NewJob:
    """Return a new job of the task "c", which has a cap, in these additional scopes."""
    return seed.job(job_id, task="c", scopes=["task=c", *more], **options)


def _capped(seed: Seed) -> list[Claim]:
    """Make a queue with full caps and waiting lanes, and return the two claims that fill the caps.

    Lanes are blocked on the task, on two tenants, and on an exhausted rate. Several jobs wait in each of these lanes.
    """
    _caps(seed)
    seed.enqueue(_in_lane(seed, "spends", RATE))
    seed.complete(*seed.claim(1).jobs)
    seed.enqueue(_in_lane(seed, "c-1", "tenant=a", "host@10s=i"), _in_lane(seed, "c-2", "tenant=b"))
    held = list(seed.claim(2).jobs)
    for n in range(2):
        seed.enqueue(_in_lane(seed, f"behind-{n}", "tenant=a"))
        seed.enqueue(seed.job(f"tenant-{n}", task="d", scopes=["tenant=b"]))
        seed.enqueue(_in_lane(seed, f"both-{n}", "tenant=e", RATE))
        seed.enqueue(seed.job(f"rated-{n}", task="d", scopes=[RATE]))
    assert not seed.claim(10).jobs
    return held


DAY = 86_400_000
CALL = "=70c5"


def _remembered(seed: Seed) -> None:
    """Make a remembered id, two expired ids, and three kept results. There is no room for another result."""
    seed.configure(results_max=100)
    for name, window in (("over", 1), ("over-too", 1), ("ended", DAY)):
        seed.enqueue(name, remember_ms=DAY, call=CALL, priority="critical")
        seed.complete(seed.claim_one(name))
        line = seed.snapshot()["results"][name].replace(str(seed.now + DAY), str(seed.now + window))
        seed.control.hset(seed.keys("results"), name, line)
        seed.control.zadd(seed.keys("kept"), {name: seed.now + window})
    seed.control.hset(seed.keys("meta"), "results_bytes", 300)
    for name, keep_ms in (("forgotten", 1), ("evicted", DAY), ("evicted-too", DAY)):
        seed.enqueue(name, keep_ms=keep_ms, priority="critical")
        seed.complete(seed.claim_one(name), values={1: '"value"'})
    # Whatever a call keeps besides, there is no room for it.
    seed.configure(kept_max_bytes=int(seed.snapshot()["meta"]["kept_bytes"]))
    seed.advance(1)


@scene
def enqueue(seed: Seed) -> Scene:
    _remembered(seed)
    _capped(seed)
    seed.enqueue("live")
    for name in ("kept", "gone", "gone-too"):
        seed.enqueue(name, name=f"t/{name}", lane="2+tenant=h" if name == "gone-too" else "")
    seed.enqueue("late", unique="replace", name="t/late", after_ms=0, most_ms=0)
    seed.attach()
    seed.take_token()
    jobs = [
        *(seed.job(f"new-{p}", priority=p) for p in ("critical", "high", "normal", "low")),
        seed.job("later", delay_ms=5_000),
        seed.job("live"),
        seed.job("new-low"),
        seed.job("by-name", task="c"),
        _in_lane(seed, "waits", "tenant=a"),
        _in_lane(seed, "waits-too", "tenant=f", RATE),
        _in_lane(seed, "waits-later", delay_ms=5_000),
        _in_lane(seed, "discarded", "tenant=a", full="discard|tenant=a"),
        _in_lane(seed, "rejected", "tenant=a", full="reject|task=c"),
        _in_lane(seed, "too-many", "tenant=a", full="most|2"),
        seed.job("runs", scopes=["tenant=d"]),
        seed.job("held", name="t/kept", expires_in_ms=5_000),
        seed.job("in-its-place", unique="replace", name="t/gone", expires_in_ms=5_000),
        seed.job("in-its-place-too", unique="replace", name="t/gone-too", delay_ms=5_000),
        seed.job("first-of-two", unique="replace", name="t/new"),
        seed.job("second-of-two", unique="replace", name="t/new"),
        seed.job("in-a-window", name="t/window", window_ms=5_000),
        seed.job("put-off", unique="replace", name="t/off", after_ms=5_000, most_ms=9_000),
        seed.job("past-its-latest", unique="replace", name="t/late", after_ms=0, most_ms=0),
        *(seed.job(i, remember_ms=DAY, call=CALL) for i in ("first-call", "over", "ended", "live")),
        seed.job("ended", remember_ms=DAY, call="=0000"),
        seed.job("over-too", remember_ms=DAY, call=CALL, name="t/kept"),
    ]
    kinds, records = pack_jobs(jobs)
    return Scene("enqueue", _slotted(by="somebody", spec_max=100, kinds=kinds), records)


@scene
def claim(seed: Seed) -> Scene:
    seed.configure(dead_retention_ms=LEASE_MS)
    seed.enqueue("plain-c", task="c", priority="low")
    _capped(seed)
    _remembered(seed)
    seed.dead("old", remember_ms=DAY)
    seed.running("lost")
    seed.running("lost-low")
    seed.running("poison", losses=1)
    seed.parked("sleeps", f"+{LEASE_MS}", what="sleep")
    seed.parked("sleeps-over", f"+{LEASE_MS}", what="sleep", expires_in_ms=LEASE_MS)
    seed.cancelling("unwanted", remember_ms=DAY, keep_ms=DAY)
    # As a client that has long gone left it.
    seed.control.hset(seed.keys("slots"), "gone", f"7 {seed.now} +")
    seed.control.hset(seed.keys("slots"), "gone|a", "a cancelled")
    seed.control.zadd(seed.keys("expiring"), {"slot|gone": seed.now})
    seed.enqueue("in-a-window", name="t/window", window_ms=LEASE_MS, priority="low")
    seed.live(LEASE_MS)
    debounced = {"unique": "replace", "after_ms": 0, "most_ms": 0, "priority": "critical"}
    seed.enqueue("put-off", name="t/off", **debounced)
    seed.enqueue("put-off-in-lane", name="t/lane", lane="0+tenant=i", **debounced)
    seed.enqueue("tomb", "a", "b")
    seed.enqueue("due", "due-too", delay_ms=1)
    seed.enqueue("due-low", priority="low", delay_ms=1)
    seed.enqueue("later", delay_ms=LEASE_MS)
    seed.cancel("tomb")
    seed.enqueue(
        _in_lane(seed, "first", "tenant=f", priority="critical"),
        seed.job("second", scopes=["tenant=d"], priority="critical"),
        _in_lane(seed, "due-in-lane", "tenant=g", delay_ms=1),
    )
    # A change of a family's limits that an earlier call has not carried through.
    seed.control.zadd(seed.keys("scheduled"), {"caps|tenant|": seed.now})
    seed.advance(1)
    seed.take_token()
    bounds = {"limit": 3, "bytes_max": 1_000_000, "sweep_max": 100}
    # "lost" and "lost-low" come back at the head of the critical list; take one, put the other back.
    return Scene("claim", _slotted(worker=WORKER, **bounds), [])


@scene
def claim_of_one(seed: Seed) -> Scene:
    """Claim one job. The claim also promotes due jobs, and most of them go back into their lists."""
    made = claim(seed)
    return Scene("claim", {**made.args, "limit": 1}, [])


@scene
def claim_of_all(seed: Seed) -> Scene:
    """Claim from every lane. In this call rates become exhausted, and plain jobs move into lanes."""
    made = claim(seed)
    seed.cap("queue", "none")
    seed.take_token()
    return Scene("claim", {**made.args, "limit": 100}, [])


@scene
def claim_in_a_fair_queue(seed: Seed) -> Scene:
    seed.configure(fair=1)
    seed.cap("weight=b", 2)
    made = claim(seed)
    for key in ("a", "b"):
        scopes = [f"fair={key}", "tenant=d"]
        seed.enqueue(
            *(seed.job(f"{key}-{n}", scopes=scopes, priority="critical") for n in range(3))
        )
    seed.complete(*seed.claim(2).jobs)
    seed.take_token()
    return Scene("claim", {**made.args, "limit": 5}, [])


def _held(seed: Seed) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return two lists of (id, fence): five jobs that can be settled, and two jobs whose settlement is refused.

    One of the five jobs is asked to stop, and lanes wait for the scopes of two others. The queue is full.
    """
    capped = _capped(seed)
    _remembered(seed)
    ties = [{"remember_ms": DAY, "keep_ms": DAY}, {"keep_ms": DAY}]
    running = [*(seed.running(f"h-{n}", **ties[n]) for n in range(2)), *capped]
    unwanted = seed.cancelling("unwanted", remember_ms=DAY, keep_ms=DAY)
    seed.cap("queue", 5)
    seed.enqueue("waiting")
    seed.take_token()
    held = [(c.id, c.fence) for c in (*running, unwanted)]
    return held, [("waiting", NO_FENCE), ("nobody", NO_FENCE)]


@scene
def complete(seed: Seed) -> Scene:
    held, refused = _held(seed)
    values = {1: pack_value('"first"', FULL), 2: pack_value('"second"'), 6: pack_value('"refused"')}
    return Scene("complete", _slotted(worker=WORKER), [*held, *refused], values)


@scene
def turn(seed: Seed) -> Scene:
    """Report the success of all jobs that fill the queue, and claim waiting jobs. The leases of two reported jobs have
    expired. Two further reports are refused."""
    made = claim(seed)
    seed.complete(*seed.claim(2).jobs)
    seed.cap("queue", "none")
    held = [(c.id, c.fence) for c in seed.claim(3).jobs]
    late = [(c.id, c.fence) for c in seed.claim(2).jobs]
    for job_id, _ in late:
        seed.control.zadd(seed.keys("leases"), {job_id: seed.now - 1})
    running = [job_id for job_id, line in seed.snapshot()["state"].items() if "fence=" in line]
    assert {job_id for job_id, _ in [*held, *late]} <= set(running)
    seed.cap("queue", len(running))
    seed.enqueue("waiting")
    seed.take_token()
    refused = [("waiting", NO_FENCE), ("nobody", NO_FENCE)]
    return Scene("turn", made.args, [*held, *late, *refused])


@scene
def fail(seed: Seed) -> Scene:
    held, refused = _held(seed)
    how = [("retry", 0), ("final", 0), ("retry", 0), ("retry", 5_000), ("retry", 0)]
    each = [
        (*pair, verdict, delay_ms, "broken", ERROR, "", "")
        for pair, (verdict, delay_ms) in zip([*held, *refused], [*how, how[0], how[0]], strict=True)
    ]
    return Scene("fail", _slotted(worker=WORKER), each)


@scene
def rollback(seed: Seed) -> Scene:
    seed.rollback(seed.running("h-0"), reason="unknown_task", backoff_ms=1)
    seed.advance(1)
    seed.claim_one("h-0")
    fence = seed.client.run(seed.client.calls.reads.job("h-0", [seed.queue])).fields["fence"]  # type: ignore[union-attr]
    running = [("h-0", fence), *((c.id, c.fence) for c in map(seed.running, ("h-1", "h-2")))]
    unwanted = seed.cancelling("unwanted", remember_ms=DAY)
    capped = [(c.id, c.fence) for c in _capped(seed)]
    seed.enqueue("waiting")
    seed.take_token()
    reasons = ["unknown_task", "unknown_task", *["shutdown"] * 5]
    pairs = [*running, (unwanted.id, unwanted.fence), *capped, ("waiting", NO_FENCE)]
    lanes = dict.fromkeys(("h-2", "c-2"), "2+task=c+tenant=z")
    each = [
        (*pair, reason, "null", lanes.get(pair[0], ""), 0, "", "")
        for pair, reason in zip(pairs, reasons, strict=True)
    ]
    limits = {"backoff_ms": 1_000, "backoff_max_ms": 60_000, "unknown_max": 2}
    return Scene("rollback", _slotted(worker=WORKER, **limits), each)


@scene
def save(seed: Seed) -> Scene:
    """Save entries in the boxes of two jobs. The first job has no box yet. Two saves are refused.

    A signal has begun the box of a fourth job. The worker gives this box the id of the box that Redis has lost.
    """
    a, b, c, d = (seed.running(name) for name in ("h-0", "h-1", "h-2", "h-3"))
    seed.save(b, what="begin", life="1" * 16)
    seed.signal("h-1")
    seed.signal("h-3", key="k")
    seed.enqueue("waiting")
    seed.attach()
    seed.take_token()
    records = [
        (a.id, a.fence, LIFE, "begin", 1, "first", ""),
        (a.id, a.fence, LIFE, "save", 2, "second", ""),
        (b.id, b.fence, "1" * 16, "save", 1, "charge", ""),
        (c.id, NO_FENCE, "2" * 16, "save", 1, "charge", ""),
        ("waiting", NO_FENCE, "3" * 16, "save", 1, "charge", ""),
        (a.id, a.fence, LIFE, "sleep", 3, "nap", "+5000"),
        (b.id, b.fence, "1" * 16, "wait", 2, "approval", ""),
        (b.id, b.fence, "1" * 16, "wait", 3, "approval#2", "+5000"),
        (b.id, b.fence, "1" * 16, "wait", 4, "refusal", "+0"),
        (d.id, d.fence, "4" * 16, "move", 0, "", ""),
    ]
    values = {2: pack_value('"second"'), 3: pack_value('"charged"', FULL), 4: "!too_large"}
    return Scene("save", _slotted(worker=WORKER), records, values)


@scene
def show(seed: Seed) -> Scene:
    """Show a progress and chunks of three jobs. A fourth report is refused.

    The first job has shown nothing, and the second has chunks of an earlier claim. The third has the id of an earlier
    job, which had also shown chunks.
    """
    a, b, c = (seed.running(name) for name in ("h-0", "h-1", "h-2"))
    seed.show(b, c, says="1/3 earlier", chunks=[(n, "earlier") for n in range(1, 4)])
    seed.fail(b)
    seed.complete(c)
    b, c = seed.claim_one("h-1"), seed.running("h-2")
    seed.take_token()
    records = [
        (a.id, a.fence, 1, 0, "chunk", 1, "first"),
        (a.id, a.fence, 1, 0, "says", 1, "1/2 half"),
        (b.id, b.fence, 2, 0, "chunk", 1, "again"),
        (c.id, c.fence, 1, 0, "chunk", 1, "another job"),
        ("waiting", NO_FENCE, 1, 0, "chunk", 1, "refused"),
    ]
    return Scene("show", {"worker": WORKER}, records)


@scene
def spend(seed: Seed) -> Scene:
    """Correct the costs of three jobs, and pause two scopes. A fourth report is refused, since its job is not claimed.

    The first job took less than its cost, so that a lane opens. The second took more, and pauses its rate. The third
    has no rate that counts the unit.
    """
    for name, scope in (("less", "t@60s:tokens=a"), ("more", "t@60s:tokens=b"), ("c", "t=c")):
        seed.cap(scope.partition("=")[0], "100/60000ms/100" if "@" in scope else 9)
        seed.enqueue(name, scopes=[scope], cost="tokens:90")
    held = {claim.id: (claim.id, claim.fence) for claim in seed.claim().jobs}
    seed.enqueue("behind", scopes=["t@60s:tokens=a"], cost="tokens:80")
    seed.enqueue("waiting")
    seed.claim(1)
    seed.enqueue("waiting-2")
    seed.attach()
    seed.take_token()
    told = {"less": "tokens:20", "more": "points:1,tokens:200", "c": "tokens:5"}
    pauses = {"more": "t@60s:tokens=b|5000", "c": "t=c|5000"}
    records = [(*held[name], costs, pauses.get(name, "")) for name, costs in told.items()]
    return Scene("spend", _slotted(worker=WORKER), [*records, ("waiting-2", NO_FENCE, "", "")])


@scene
def pause(seed: Seed) -> Scene:
    """Pause a rate, and a breaker that has failed; resume a rate and a breaker on which lanes wait."""
    for scope in ("t@60s:tokens=a", "t@60s=b", "t@60s:failures=c", "t@60s:failures=d"):
        seed.cap(scope.partition("=")[0], "1/60000ms/1")
        seed.enqueue(f"first-{scope[-1]}", f"second-{scope[-1]}", scopes=[scope])
    held = {claim.id: claim for claim in seed.claim().jobs}
    seed.fail(held["first-d"])
    seed.client.run(seed.client.calls.pauses.pause(seed.queue, "t@60s=b", by="ada"))
    seed.claim()
    seed.attach()
    seed.take_token()
    records = [
        ("t@60s:tokens=a", 5_000), ("t@60s=b", 0), ("t@60s:failures=c", 5_000), ("t@60s:failures=d", 0),
    ]  # fmt: skip
    return Scene("pause", _slotted(by="ada", why="ill"), records)


def _life(number: int) -> str:
    return f"{number:016x}"


@scene
def park(seed: Seed) -> Scene:
    """Park jobs in lanes and without lanes: with a timeout, without one, and with a signal that has already arrived."""
    capped = _capped(seed)
    _remembered(seed)
    held = [seed.running(f"h-{n}", **({"expires_in_ms": DAY} if n < 2 else {})) for n in range(4)]
    held += capped
    unwanted = seed.cancelling("unwanted", remember_ms=DAY, keep_ms=DAY)
    for n, each in enumerate((*held, unwanted)):
        seed.wait(each, f"+{LEASE_MS}" if n % 2 else "", life=_life(n))
    seed.signal("h-2", capped[1].id)
    seed.take_token()
    parks = [(each.id, each.fence, "1", _life(n), "") for n, each in enumerate((*held, unwanted))]
    parks[0] = (*parks[0][:4], "1,2+")  # Redis lacks entry 2
    return Scene("park", _slotted(worker=WORKER), [*parks, ("nobody", NO_FENCE, "1", _life(0), "")])


@scene
def signal(seed: Seed) -> Scene:
    """Send signals to parked, running and ready jobs, and to no job. One signal repeats an earlier key."""
    capped = _capped(seed)
    for n, name in enumerate(("h-0", "h-1")):
        seed.parked(name, f"+{LEASE_MS}" if n else "", expires_in_ms=DAY)
    seed.wait(capped[0], life=_life(77))
    seed.park(capped[0])
    running = seed.running("h-2")
    seed.wait(running, name="other", life=_life(78))
    seed.enqueue("waiting")
    seed.attach()
    seed.take_token()
    ids = ("h-0", "h-0", "h-1", capped[0].id, "h-2", "waiting", "waiting", "nobody")
    keys = ("k", "k", "", "l", "m", "k", "", "k")
    each = [
        (i, "approval", key, _life(90 + n), digest_of("{}"), "{}")
        for n, (i, key) in enumerate(zip(ids, keys, strict=True))
    ]
    return Scene("signal", _slotted(by="ann", why="asked", value_max=100), each)


@scene
def extend(seed: Seed) -> Scene:
    held, refused = _held(seed)
    seed.advance(LEASE_MS // 2)
    return Scene("extend", {"worker": WORKER}, [*held, *refused])


def _of_every_kind(seed: Seed) -> list[tuple[str]]:
    _caps(seed)
    seed.enqueue(
        _in_lane(seed, "dead-c", "tenant=a", "host@10s=i"), _in_lane(seed, "c-1", "tenant=b", RATE)
    )
    seed.fail(seed.claim_one("dead-c"), verdict="final")
    seed.claim_one("c-1")
    # The second lane waits for what the first is going to take.
    seed.enqueue(
        _in_lane(seed, "open-c", "tenant=c", priority="high"), _in_lane(seed, "next-c", "tenant=c")
    )
    seed.enqueue(_in_lane(seed, "behind-c", "tenant=b"))
    seed.dead("dead-1", remember_ms=DAY)
    seed.fail(seed.running("again", remember_ms=DAY), delay_ms=1_000)
    seed.dead("dead-2")
    seed.running("running")
    seed.cancelling("unwanted")
    seed.enqueue("ready")
    seed.enqueue("scheduled", delay_ms=5_000, keep_ms=DAY)
    seed.take_token()
    return [
        (i,)
        for i in (
            "dead-1", "again", "running", "unwanted", "ready", "scheduled", "dead-2", "dead-c", "c-1", "open-c",
            "behind-c", "nobody", "ready",
        )
    ]  # fmt: skip


@scene
def cancel(seed: Seed) -> Scene:
    return Scene("cancel", {**_by(), "only": ""}, [(i, "") for (i,) in _of_every_kind(seed)])


def _waiting(seed: Seed) -> list[tuple[str, str]]:
    """Make waiting jobs of every kind, and return their ids with the state lines that an edit expects.

    Three jobs wait for a retry. The expected line of one job is wrong.
    """
    ids = _of_every_kind(seed)
    seed.fail(seed.running("retried"), delay_ms=5_000)
    seed.fail(seed.running("retried-c", task="e", scopes=["tenant=g"]), delay_ms=5_000)
    seed.enqueue("waits-too")
    seed.take_token()
    lines = {"ready": seed.state("ready") or "", "waits-too": "ready task=t seq=1 since=1"}
    names = [*(i for (i,) in ids), "retried", "retried-c", "next-c", "waits-too"]
    return [(i, lines.get(i, "")) for i in names]


@scene
def edit(seed: Seed) -> Scene:
    change = {"priority": "high", "due": "+0", "expires": "+100000"}
    return Scene("edit", {**_by(), **change}, _waiting(seed))


@scene
def edit_later(seed: Seed) -> Scene:
    change = {"priority": "", "due": "+1000", "expires": ""}
    return Scene("edit", {**_by(), **change}, _waiting(seed))


@scene
def edit_now(seed: Seed) -> Scene:
    """Edit waiting jobs so that they run now. They keep their places in line."""
    change = {"priority": "", "due": "+0", "expires": str(seed.now + 100_000)}
    return Scene("edit", {**_by(), **change}, _waiting(seed))


@scene
def requeue(seed: Seed) -> Scene:
    return Scene("requeue", _by(), _of_every_kind(seed))


@scene
def free(seed: Seed) -> Scene:
    for job_id in ("waits", "runs"):
        seed.enqueue(job_id, name=f"t/{job_id}")
    seed.claim(1)
    seed.enqueue("in-a-window", name="t/window", window_ms=5_000)
    seed.take_token()
    names = [("t/waits",), ("t/runs",), ("t/gone",), ("t/waits",), ("t/window",)]
    return Scene("free", _by(), names)


@scene
def prune(seed: Seed) -> Scene:
    return Scene("prune", _by(), _of_every_kind(seed))


@scene
def restore(seed: Seed) -> Scene:
    _remembered(seed)
    _of_every_kind(seed)
    seed.restore(seed.lost("earlier"))
    after = seed.meta("restored")
    alive = ("dead-1", "dead-c", "running", "unwanted", "ready", "scheduled", "open-c", "behind-c")
    lane = "2+task=c+tenant=b"
    later, reason = {"due_ms": seed.now + 1_000}, {"reason": "attempts", "claims": 3, "failures": 3}
    records: list[tuple[Any, ...]] = [
        *(seed.lost(f"lost-{p}", priority=p) for p in ("critical", "high", "normal", "low")),
        seed.lost("lost-c", task="c", lane=lane),
        seed.lost("lost-open", lane="2+tenant=x"),
        seed.lost("lost-rated", lane=f"2+{RATE}"),
        seed.lost("lost-later", State.SCHEDULED, **later),
        seed.lost("lost-dead", State.DEAD, **reason),
        seed.lost("lost-missing", State.RUNNING, missing=True),
        seed.lost("lost-window", unique_name="t/window", name_stands=f"until:{seed.now + 1_000}"),
        seed.lost("lost-held", unique_name="t/window", name_stands=f"until:{seed.now + 1_000}"),
        seed.lost("next-c"),
        seed.lost("ended"),
        seed.lost("over", once_ms=seed.now + DAY),
        *map(seed.revived, (*alive, "nobody")),
    ]
    return Scene("restore", _slotted(by="somebody", why="because", after=after), records)


@scene
def cap(seed: Seed) -> Scene:
    """Change limits: a busy task's first cap, a raised cap, a key's cap, a rate, a weight, and the queue's cap."""
    capped = _capped(seed)
    seed.enqueue("busy", "busy-2", task="b")
    seed.claim(2)
    seed.cap("queue", 1)
    seed.take_token()
    assert len(capped) == 2
    changes = [
        ("task=b", "1", 0), ("tenant", "2", 1), ("tenant=a", "none", 0), ("host@10s", "9/10000ms/9", 1),
        ("task=c", "9", -1), ("weight=b", "3", -1), ("queue", "9", -1), ("tenant=d", "3", -1), ("task=d", "1", 5),
    ]  # fmt: skip
    return Scene("cap", _slotted(by="somebody", why="because", source="live"), changes)


def _schedules(seed: Seed) -> None:
    """Make schedules with each rule for overlaps. The schedule "c" has a job that is asked to stop, and a waiting
    job."""
    seed.cap("tick", 1)
    overlaps: dict[str, Overlap] = {"a": "skip", "b": "allow", "c": "replace", "d": "queue"}
    made = [
        Declaration.of(seed.job("-", task="c"), recurrence(name, every=10, overlap=overlap))
        for name, overlap in overlaps.items()
    ]
    seed.client.run(seed.client.calls.schedules.put(seed.queue, made))
    for _ in range(2):
        seed.client.run(seed.client.calls.schedules.run(seed.queue, "c"))
        seed.claim(1)
        seed.advance(1)


@scene
def schedule(seed: Seed) -> Scene:
    """Store schedules: a new one, a changed one, and one that is due before all others."""
    _schedules(seed)
    seed.take_token()
    job = seed.client.run(seed.client.calls.reads.snapshot(seed.queue))["schedules"]["a|job"]
    records = [
        ("new", -1, seed.now + 50_000, seed.now + 50_000, '{"every_ms":50000}', job),
        ("a", -1, seed.now + 60_000, seed.now + 60_000, '{"every_ms":60000}', job),
        ("b", -1, seed.now + 1, seed.now + 1, '{"every_ms":1000}', job),
    ]
    how = {"source": "live", "spec_max": 1_000, "what": "put"}
    return Scene("schedule", {**_by(), **how}, records)


@scene
def schedule_removed(seed: Seed) -> Scene:
    _schedules(seed)
    how = {"source": "live", "spec_max": 0, "what": "remove"}
    return Scene("schedule", {**_by(), **how}, [("a", -1, 0, 0, "", ""), ("b", 7, 0, 0, "", "")])


@scene
def tick(seed: Seed) -> Scene:
    """Report instants in a queue that remembers ids. Two are fired, one is skipped, and one is reported too late.

    The same call gives a fourth schedule to the worker.
    """
    _caps(seed)
    _remembered(seed)
    _schedules(seed)
    seed.enqueue(
        "plain", _in_lane(seed, "c-1", "tenant=b", RATE), _in_lane(seed, "c-2", "tenant=b")
    )
    seed.claim(2)
    seed.client.run(seed.client.calls.schedules.run(seed.queue, "a"))
    seed.live(10_000)
    seed.attach()
    seed.take_token()
    stored = seed.client.run(seed.client.calls.schedules.stored(seed.queue))
    instants = [
        (name, 1, stored[name].next_ms, stored[name].next_ms, stored[name].next_ms + 10_000, 0)
        for name in ("a", "b", "c")
    ]
    args = _slotted(by=WORKER, why="", spec_max=1_000, hand_max=10)
    return Scene("tick", args, [*instants, ("a", 9, 1, 1, 2, 0)])


@scene
def register(seed: Seed) -> Scene:
    seed.client.run(seed.client.calls.caps.register(seed.queue, {"t": "{}", "c": "{}"}))
    return Scene(
        "register", _slotted(by="somebody"), [("t", '{"scopes":[]}'), ("c", "{}"), ("d", "{}")]
    )


@scene
def configure(seed: Seed) -> Scene:
    seed.configure(paused=1)
    seed.take_token()
    return Scene("configure", _by(), [("paused", 0), ("lease_ms", 5_000), ("dead_retention_ms", 1)])


def _emptied(seed: Seed) -> Scene:
    """Delete a queue that has limits, and whose jobs have all ended."""
    _caps(seed)
    seed.enqueue("done", _in_lane(seed, "done-c", "tenant=a"))
    seed.complete(*seed.claim(2).jobs)
    return Scene("delete", {"by": "somebody", "why": "because"}, [])


@scene
def delete(seed: Seed) -> Scene:
    return _emptied(seed)


@scene
def delete_what_is_mirrored(seed: Seed) -> Scene:
    """Delete a mirrored queue. The call only appends an event, since the mirror must copy it first."""
    scene = _emptied(seed)
    seed.attach()
    return scene


@scene
def delete_once_the_mirror_has_the_event(seed: Seed) -> Scene:
    scene = _emptied(seed)
    seed.attach()
    assert seed.client.run(seed.client.calls.deletion.delete(seed.queue)) == "waits"
    last = seed.snapshot()["outbox"][-1][0]
    seed.client.run(seed.client.calls.audit.trim(seed.queue, "db-1", last, 0, 0))
    return scene


def _handshake() -> Scene:
    return Scene("handshake", {"by": "somebody", "floor": 0}, [])


@scene
def handshake_with_nothing(seed: Seed) -> Scene:
    return _handshake()


@scene
def handshake_after_a_failover(seed: Seed) -> Scene:
    _of_every_kind(seed)
    fail_over(seed.control)
    return _handshake()


@scene
def handshake_without_meta(seed: Seed) -> Scene:
    seed.cap("tenant", 1)
    seed.enqueue("ready")
    seed.control.delete(seed.keys("meta"))
    return _handshake()


def _attach(stamp: str, mode: str) -> Scene:
    args = {"by": "somebody", "audit_id": "db-1", "stamp": stamp, "mode": mode, "known": 0}
    return Scene("attach", args, [])


@scene
def attach(seed: Seed) -> Scene:
    _of_every_kind(seed)
    return _attach("s-1", "on")


@scene
def attach_in_the_middle(seed: Seed) -> Scene:
    _of_every_kind(seed)
    seed.control.xtrim(seed.keys("outbox"), maxlen=2, approximate=False)
    return _attach("s-1", "on")


@scene
def detach(seed: Seed) -> Scene:
    _of_every_kind(seed)
    seed.attach()
    return _attach("", "off")


@scene
def baseline(seed: Seed) -> Scene:
    _of_every_kind(seed)
    seed.attach()
    return Scene("baseline", {"by": "somebody", "cursor": "0", "most": 1_000}, [])


@scene
def trim(seed: Seed) -> Scene:
    _of_every_kind(seed)
    seed.attach()
    upto = seed.snapshot()["outbox"][-2][0]
    args = {"audit_id": "db-1", "upto": upto, "jobs": 3, "size": 100}
    return Scene("trim", args, [])


@scene
def listen(seed: Seed) -> Scene:
    _of_every_kind(seed)
    return Scene("listen", {}, [])


@scene
def repair(seed: Seed) -> Scene:
    _of_every_kind(seed)
    seed.enqueue("garbled")
    for name in ("leases", "scheduled", "dead", "ready:2", "open", "rates"):
        seed.control.delete(seed.keys(name))
    seed.control.zrem(seed.keys("expiring"), "dead|dead-1", "dead|dead-2")
    seed.control.zadd(seed.keys("leases"), {"nobody": 1, "ready": 1})
    seed.control.zadd(seed.keys("scheduled"), {"job|ready": 1})
    seed.control.zadd(seed.keys("dead"), {"running": 1})
    seed.control.zadd(seed.keys("parked"), {"running": 1})
    seed.control.hset(seed.keys("jobs"), "nobody", "{}")
    seed.control.zadd(seed.keys("scheduled"), {"stray": 1})
    seed.control.hset(seed.keys("results"), "ready", "?")
    seed.control.zadd(seed.keys("kept"), {"stray": 1})
    seed.control.hset(seed.keys("returned"), "stray", "1")
    seed.control.hset(seed.keys("boxes"), f"{LIFE}|1", "?")
    seed.control.hset(seed.keys("shown"), "stray~1", "?")
    slot = next(iter(seed.snapshot()["slots"]))
    seed.control.zadd(seed.keys("expiring"), {"stray": 1, f"slot|{slot}": 1})
    seed.control.zpopmin(seed.keys("waiting"))
    seed.control.zadd(seed.keys("waiting"), {"2+task=c|1|nobody": 0})
    seed.control.zadd(seed.keys("holders"), {"task=c|nobody": 0})
    seed.control.zrem(seed.keys("holders"), "task=c|c-1")
    seed.control.zadd(seed.keys("blocked"), {"task=c|0000000000000001|2+task=c": 0})
    seed.control.hset(seed.keys("lanes"), "2+task=c", "open 2000000000000001")
    seed.control.hdel(seed.keys("meta"), "caps_by_key")
    seed.control.hset(seed.keys("state"), "garbled", "rubbish")
    found = examine(seed.snapshot())
    records = [(at, *edit) for at, finding in enumerate(found) for edit in finding.edits]
    # That queue is not fair.
    records.append((len(found), "fair", "a", LOWER, "20000"))
    untouched = KEY_TYPES.keys() - {key for _, key, *_ in records} - set(LISTS)
    assert untouched == {"caps", "schedules", "ticks", "tasks", "wake", "workers"}
    return Scene("repair", {"by": "somebody"}, records)
