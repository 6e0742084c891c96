"""The steps with which a worker fires schedules, and the events in the log about them."""

import json
from typing import Any

from rq_core.model.recurrence import from_json, recurrence
from rq_core.model.schedule import Schedule
from rq_core.protocol.calls.schedules import Declaration, Instant, Ticked, Told, tick
from tests.kit.consistency import assert_consistent
from tests.kit.seed import Seed

EVERY_MS = 10_000
HAND_MS = 5_000


def put(seed: Seed, *names: str, job: Any = None, source: str = "code", **rule: Any) -> Schedule:
    made = [
        Declaration.of(job or seed.job("-", task="ping"), recurrence(n, **(rule or {"every": 10})))
        for n in names or ("beat",)
    ]
    seed.client.run(seed.client.calls.schedules.put(seed.queue, made, source=source))
    return stored(seed, made[0].rule.name)


def stored(seed: Seed, name: str = "beat") -> Schedule:
    return seed.client.run(seed.client.calls.schedules.stored(seed.queue))[name]


def send(seed: Seed, *instants: Instant, worker: str = "w-1", **how: Any) -> Ticked:
    answer = seed.client.run(tick(seed.queue, worker, instants, **how))
    assert_consistent(seed.snapshot())
    return answer


def judged(due: dict[str, str], now: int) -> list[Instant]:
    """Return a worker's reports about the due schedules that the worker got from its claim."""
    found = []
    for name, entry in due.items():
        schedule = Schedule.parse(entry)
        passed = from_json(name, schedule.rule).judge(schedule.next_ms, now)
        found.append(Instant.of(name, schedule, passed))
    return found


def fire(seed: Seed, **how: Any) -> dict[str, Told]:
    """Take the due schedules and report them, as a worker does. Return the outcome of each."""
    handed = send(seed)
    return send(seed, *judged(handed.due, handed.now_ms), **how).told


def until_due(seed: Seed, name: str = "beat", more_ms: int = 0) -> Schedule:
    found = stored(seed, name)
    seed.live(max(0, found.due_ms - seed.now) + more_ms)
    return found


def told(seed: Seed) -> list[tuple[Any, ...]]:
    outbox = seed.snapshot()["outbox"]
    return [tuple(t) for _, e in outbox if e["type"] == "ticked" for t in json.loads(e["jobs"])]
