"""For each script, a queue in which one call of it touches every key that it ever touches.

The crash tests break such a call in every place they can think of.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rq_core.scripts import Script
from tests.support.seed import ERROR, LEASE_MS, NO_FENCE, WORKER, Seed

SLOT = "scene.slot"


@dataclass(frozen=True)
class Scene:
    """A call about to be made."""

    script: str
    args: dict[str, Any]
    each: list[tuple[Any, ...]]

    def command(self, seed: Seed, made: Script) -> list[Any]:
        """The call as EVAL, of this build of the script."""
        command = made.command(seed.keys, self.each, **self.args)
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


@scene
def enqueue(seed: Seed) -> Scene:
    seed.enqueue("live")
    seed.attach()
    seed.take_token()
    jobs = [
        *(seed.job(f"new-{p}", priority=p) for p in ("critical", "high", "normal", "low")),
        seed.job("later", delay_ms=5_000),
        seed.job("live"),
        seed.job("new-low"),
    ]
    return Scene("enqueue", _slotted(by="somebody"), [job.record() for job in jobs])


@scene
def claim(seed: Seed) -> Scene:
    seed.configure(dead_retention_ms=LEASE_MS)
    seed.dead("old")
    seed.running("lost")
    seed.running("lost-low")
    seed.running("poison", losses=1)
    seed.cancelling("unwanted")
    # As a client that has long gone left it.
    seed.control.hset(seed.keys("slots"), "gone", f"7 {seed.now} ")
    seed.control.zadd(seed.keys("expiring"), {"slot|gone": seed.now})
    seed.live(LEASE_MS)
    seed.enqueue("tomb", "a", "b")
    seed.enqueue("due", "due-too", delay_ms=1)
    seed.enqueue("due-low", priority="low", delay_ms=1)
    seed.enqueue("later", delay_ms=LEASE_MS)
    seed.cancel("tomb")
    seed.advance(1)
    seed.take_token()
    bounds = {"limit": 3, "bytes_max": 1_000_000, "sweep_max": 100}
    # "lost" and "lost-low" come back at the head of the critical list; take one, put the other back.
    return Scene("claim", _slotted(worker=WORKER, **bounds), [])


@scene
def claim_of_one(seed: Seed) -> Scene:
    """Leaves most of what step 0 brought: it goes back to the head, or to the tail, of its list."""
    made = claim(seed)
    return Scene("claim", {**made.args, "limit": 1}, [])


def _held(seed: Seed) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(id, fence) of four running jobs and one cancelling, and of two that are refused."""
    running = [seed.running(f"h-{n}") for n in range(4)]
    unwanted = seed.cancelling("unwanted")
    seed.enqueue("waiting")
    seed.take_token()
    held = [(c.id, c.fence) for c in (*running, unwanted)]
    return held, [("waiting", NO_FENCE), ("nobody", NO_FENCE)]


@scene
def complete(seed: Seed) -> Scene:
    held, refused = _held(seed)
    return Scene("complete", _slotted(worker=WORKER), [*held, *refused])


@scene
def fail(seed: Seed) -> Scene:
    held, refused = _held(seed)
    how = [("retry", 0), ("retry", 5_000), ("final", 0), ("retry", 0), ("retry", 0)]
    each = [
        (*pair, verdict, delay_ms, "broken", ERROR)
        for pair, (verdict, delay_ms) in zip([*held, *refused], [*how, how[0], how[0]], strict=True)
    ]
    return Scene("fail", _slotted(worker=WORKER), each)


@scene
def rollback(seed: Seed) -> Scene:
    seed.rollback(seed.running("h-0"), reason="unknown_task", backoff_ms=1)
    seed.advance(1)
    seed.claim_one("h-0")
    fence = seed.client.job("h-0", [seed.queue]).fields["fence"]  # type: ignore[union-attr]
    running = [("h-0", fence), *((c.id, c.fence) for c in map(seed.running, ("h-1", "h-2")))]
    unwanted = seed.cancelling("unwanted")
    seed.enqueue("waiting")
    seed.take_token()
    reasons = ["unknown_task", "unknown_task", "shutdown", "shutdown", "shutdown"]
    pairs = [*running, (unwanted.id, unwanted.fence), ("waiting", NO_FENCE)]
    each = [(*pair, reason, "null") for pair, reason in zip(pairs, reasons, strict=True)]
    limits = {"backoff_ms": 1_000, "backoff_max_ms": 60_000, "unknown_max": 2}
    return Scene("rollback", _slotted(worker=WORKER, **limits), each)


@scene
def extend(seed: Seed) -> Scene:
    held, refused = _held(seed)
    seed.advance(LEASE_MS // 2)
    return Scene("extend", {"worker": WORKER}, [*held, *refused])


def _of_every_kind(seed: Seed) -> list[tuple[str]]:
    seed.dead("dead-1")
    seed.dead("dead-2")
    seed.running("running")
    seed.cancelling("unwanted")
    seed.enqueue("ready")
    seed.enqueue("scheduled", delay_ms=5_000)
    seed.take_token()
    return [
        (i,)
        for i in (
            "dead-1",
            "running",
            "unwanted",
            "ready",
            "scheduled",
            "dead-2",
            "nobody",
            "ready",
        )
    ]


@scene
def cancel(seed: Seed) -> Scene:
    return Scene("cancel", _by(), _of_every_kind(seed))


@scene
def requeue(seed: Seed) -> Scene:
    return Scene("requeue", _by(), _of_every_kind(seed))


@scene
def prune(seed: Seed) -> Scene:
    return Scene("prune", _by(), _of_every_kind(seed))


@scene
def configure(seed: Seed) -> Scene:
    seed.configure(paused=1)
    seed.take_token()
    return Scene("configure", _by(), [("paused", 0), ("lease_ms", 5_000), ("dead_retention_ms", 1)])


def _handshake() -> Scene:
    return Scene("handshake", {"by": "somebody", "floor": 0}, [])


@scene
def handshake_with_nothing(seed: Seed) -> Scene:
    return _handshake()


@scene
def handshake_after_a_failover(seed: Seed) -> Scene:
    _of_every_kind(seed)
    control: Any = seed.control
    control.execute_command("DEBUG", "CHANGE-REPL-ID")
    return _handshake()


@scene
def handshake_without_meta(seed: Seed) -> Scene:
    seed.enqueue("ready")
    seed.control.delete(seed.keys("meta"))
    return _handshake()


@scene
def attach(seed: Seed) -> Scene:
    _of_every_kind(seed)
    return Scene("attach", {"by": "somebody", "audit_id": "db-1", "mode": "on"}, [])


@scene
def attach_in_the_middle(seed: Seed) -> Scene:
    _of_every_kind(seed)
    seed.control.xtrim(seed.keys("outbox"), maxlen=2, approximate=False)
    return Scene("attach", {"by": "somebody", "audit_id": "db-1", "mode": "on"}, [])


@scene
def detach(seed: Seed) -> Scene:
    _of_every_kind(seed)
    seed.attach()
    return Scene("attach", {"by": "somebody", "audit_id": "db-1", "mode": "off"}, [])


@scene
def baseline(seed: Seed) -> Scene:
    each = _of_every_kind(seed)
    seed.attach()
    return Scene("baseline", {"by": "somebody", "last": 1}, each)


@scene
def trim(seed: Seed) -> Scene:
    _of_every_kind(seed)
    seed.attach()
    upto = seed.snapshot()["outbox"][-2][0]
    args = {"audit_id": "db-1", "upto": upto, "jobs": 3, "size": 100}
    return Scene("trim", args, [])


@scene
def repair(seed: Seed) -> Scene:
    each = _of_every_kind(seed)
    seed.enqueue("garbled")
    for name in ("leases", "scheduled", "dead", "ready:2"):
        seed.control.delete(seed.keys(name))
    seed.control.zrem(seed.keys("expiring"), "dead|dead-1", "dead|dead-2")
    seed.control.zadd(seed.keys("leases"), {"nobody": 1, "ready": 1})
    seed.control.zadd(seed.keys("scheduled"), {"job|ready": 1})
    seed.control.zadd(seed.keys("dead"), {"running": 1})
    seed.control.hset(seed.keys("jobs"), "nobody", "{}")
    seed.control.zadd(seed.keys("scheduled"), {"stray": 1})
    slot = next(iter(seed.snapshot()["slots"]))
    seed.control.zadd(seed.keys("expiring"), {"stray": 1, f"slot|{slot}": 1})
    line = seed.control.hget(seed.keys("state"), "garbled")
    seed.control.hset(seed.keys("state"), "garbled", "rubbish")
    records = [
        *(("job", i, 1, 1, "", "") for (i,) in each[:-1]),
        ("job", "garbled", 1, 1, "rubbish", line),
        ("slot", slot, 0, 0, "", ""),
        ("scheduled", "stray", 0, 0, "", ""),
        ("expiring", "stray", 0, 0, "", ""),
    ]
    args = {"by": "somebody", "sequence_min": 99, "tombstones_now": 0}
    return Scene("repair", args, records)
