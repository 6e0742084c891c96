"""Stores very many schedules in one queue. Measures the time, the memory, and the cost of a claim beside them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import redis

from rq_core import App
from rq_core.model.keys import queue_keys
from rq_core.model.recurrence import recurrence
from rq_core.model.schedule import Schedule
from scripts.measure import instructions

QUEUE: Final = "digests"
OPTIONS: Final[Any] = {"cron": "0 8 * * *", "tz": "Europe/Berlin", "spread": 900}
RATE_MIN: Final = 15_000
"""The lowest number of schedules that must be stored per second."""
BYTES_MAX: Final = 700
SLACK: Final = 0.02
"""The relative noise of counted instructions."""
BARE_S: Final = 0.5

app = App()


@app.task(queue=QUEUE)
def digest(tenant: str) -> None:
    """Run as the job of one tenant's schedule."""


@dataclass
class Run:
    """The figures of storing all schedules once."""

    rate: float
    """The number of schedules that were stored per second."""
    bare: float
    """The number of EVALSHA round trips per second of a script that does nothing, measured right before the run."""
    bytes_each: float
    """The bytes of Redis' memory for each schedule, without the outbox."""


@dataclass
class Many:
    """The figures of storing all schedules several times."""

    schedules: int
    runs: list[Run] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        rates = sorted(each.rate for each in self.runs)
        bare = [each.bare for each in self.runs]
        return (
            f"{self.schedules:,} schedules, {len(self.runs)} times: median {statistics.median(rates):,.0f}/s"
            f" ({rates[0]:,.0f} to {rates[-1]:,.0f}); {max(each.bytes_each for each in self.runs):.0f} bytes each;"
            f" bare EVALSHA {statistics.median(bare):,.0f}/s ({min(bare):,.0f} to {max(bare):,.0f})"
        )

    @property
    def rate(self) -> float:
        return statistics.median(each.rate for each in self.runs)


def declare(url: str, schedules: int, times: int = 1) -> Many:
    """Store ``schedules`` schedules with one call in an empty queue. Repeat this ``times`` times."""
    app.connect_to(url)
    found = Many(schedules)
    made = [(f"digest.{n}", digest.job(f"t-{n}"), OPTIONS) for n in range(min(schedules, 1_000))]
    try:
        with redis.Redis.from_url(url) as control:
            for _ in range(times):
                control.flushall(asynchronous=False)
                # The first call makes the queue, and the second one loads no script.
                app.schedule_many(made[:1])
                app.remove_schedule(QUEUE, made[0][0])
                found.runs.append(_run(control, found, schedules))
    finally:
        app.close()
    return found


def _run(control: Any, found: Many, schedules: int) -> Run:
    bare = _bare(control)
    control.xtrim(queue_keys(QUEUE)("outbox"), maxlen=0)
    before = control.info("memory")["used_memory"]
    began = time.perf_counter()
    stored = app.schedule_many(_declared(schedules))
    seconds = time.perf_counter() - began
    if (len(stored.changed), stored.same, stored.conflicts) != (schedules, (), ()):
        found.problems.append(f"{len(stored.changed):,} of {schedules:,} schedules were stored")
    control.xtrim(queue_keys(QUEUE)("outbox"), maxlen=0)
    taken = control.info("memory")["used_memory"] - before
    in_ticks = control.zcard(queue_keys(QUEUE)("ticks"))
    if in_ticks != schedules:
        found.problems.append(f"{in_ticks:,} of {schedules:,} schedules have a tick")
    return Run(schedules / seconds, bare, taken / schedules)


def _declared(schedules: int) -> Iterator[tuple[str, Any, Any]]:
    for n in range(schedules):
        yield f"digest.{n}", digest.job(f"t-{n}"), OPTIONS


def _bare(control: Any) -> float:
    """Return how many calls per second are possible for a script that does nothing."""
    sha = control.script_load("return 1")
    began, count = time.perf_counter(), 0
    while (seconds := time.perf_counter() - began) < BARE_S:
        control.evalsha(sha, 0)
        count += 1
    return count / seconds


@dataclass
class Claims:
    """The processor instructions of a claim of one job, in queues with and without schedules.

    All schedules of a queue together have one entry in the key `scheduled`, as one delayed job has. A claim reads it.
    """

    schedules: int
    without: int
    delayed: int
    """The number of instructions in a queue with one delayed job."""
    beside: int

    def line(self) -> str:
        change = self.beside / self.delayed - 1
        return (
            f"a claim of 1: {self.without:,} instructions without schedules, {self.delayed:,} beside a delayed job,"
            f" {self.beside:,} beside {self.schedules:,} schedules ({change:+.1%} of that)"
        )

    @property
    def problems(self) -> list[str]:
        dearer = self.beside > self.delayed * (1 + SLACK)
        return ["a claim is dearer beside schedules than beside a delayed job"] if dearer else []


def claims(schedules: int) -> Claims:
    """Count the instructions of claims under callgrind, as scripts/measure/instructions does."""
    with instructions.serving() as server:
        nothing = server.counted(lambda: None)
        spent = []
        later = round(time.time() * 1000) + 10**9
        for count, delayed in ((0, 0), (0, 1), (schedules, 0)):
            instructions.empty(server)
            life = instructions.Life(server, "plain", QUEUE)
            _fill(server, count)
            if delayed:
                server("ZADD", queue_keys(QUEUE)("scheduled"), later, "job|later")
            spent.append(_claims(server, life, nothing))
    return Claims(schedules, *spent)


def _claims(server: instructions.Server, life: instructions.Life, nothing: int) -> int:
    calls, found = instructions.CALLS[1], []
    for window in range(-1, instructions.WINDOWS):
        life.enqueue(1, calls)
        server("FCALL", "collect", 0)
        count = server.counted(lambda: life.claim(1, calls))
        life.complete(1, calls)
        if window >= 0:
            found.append(count)
    return round((statistics.median(found) - nothing) / calls)


_FILL: Final = """
for n = ARGV[1], ARGV[2] do
  redis.call('HSET', KEYS[1], 'digest.' .. n, ARGV[3], 'digest.' .. n .. '|job', ARGV[4])
  redis.call('ZADD', KEYS[2], ARGV[5], 'digest.' .. n)
end
redis.call('ZADD', KEYS[3], ARGV[5], 'tick|')
redis.call('HSET', KEYS[4], 'schedules', '1')
"""


def _fill(server: instructions.Server, schedules: int) -> None:
    """Write schedules directly into Redis. Under callgrind the script `schedule` would take an hour."""
    rule, keys = recurrence("digest.0", cron="0 0 1 1 *"), queue_keys(QUEUE)
    instant = rule.next_after(round(time.time() * 1000)) or 0
    line = Schedule("on", 1, instant, instant, 0, "live", 0, (), rule.to_json())
    job = '[2,0,"task=digest","\\"digest\\",\\"normal\\",3,3,\\"","",0,{"unique":"keep"}]\n\nab ~/digest\n{}'
    names = [keys(name) for name in ("schedules", "ticks", "scheduled", "meta")]
    for first in range(0, schedules, 1_000):
        last = min(first + 1_000, schedules) - 1
        server("EVAL", _FILL, 4, *names, first, last, str(line), job, instant)
