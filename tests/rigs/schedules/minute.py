"""Lets two workers fire all schedules of one minute. Measures how late the last schedule is fired, and checks that each
is logged once."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rq_core import App
from rq_core.connections.client import Client
from rq_core.model.events import OutboxId
from rq_core.model.keys import queue_keys
from rq_core.model.schedule import Schedule
from tests.kit.sentinels import SentinelGroup
from tests.kit.servers import Engine
from tests.kit.wait import wait_until
from tests.rigs.schedules import tasks
from tests.rigs.schedules.tasks import MINUTE
from tests.rigs.stage import served, workers

MINUTE_MS: Final = 60_000
YEARLY: Final = "0 0 1 1 *"
"""The expression of overdue schedules: their one instant of this year has passed. An expression with an instant in each
minute would not do, since a worker that starts slowly would find a later instant due, and fire only that one."""
READY_S: Final = 20.0
"""The shortest time (s) from the beginning of storing schedules to the minute in which they are due. If less is left,
the rig waits for the minute after it."""
CHUNK: Final = 5_000
PATIENCE_S: Final = 120.0


@dataclass
class Fired:
    """The figures of one minute in which every schedule has an instant."""

    schedules: int
    told: Counter[str] = field(default_factory=Counter)
    """The number of times that the log has the instant of each schedule."""
    enqueued: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    by: Counter[str] = field(default_factory=Counter)
    """The number of instants that each worker reported."""
    first_ms: int = 0
    """The time (ms) from the beginning of the minute to the first event, by Redis' clock."""
    last_ms: int = 0
    struck: int | None = None
    """The number of reports that had been made when the primary was killed."""
    again: int = 0
    """The number of reports that the new primary received."""

    def line(self) -> str:
        how = ""
        if self.struck is not None:
            how = f"; the primary was killed after {self.struck:,}, and the new one told {self.again:,}"
        return (
            f"{self.schedules:,} instants of one minute: the first told after {self.first_ms} ms, the last after"
            f" {self.last_ms} ms, by {len(self.by)} workers {sorted(self.by.values())}; {dict(self.outcomes)}{how}"
        )

    @property
    def problems(self) -> list[str]:
        found = []
        if len(self.told) != self.schedules:
            found.append(f"{self.schedules - len(self.told):,} instants are not in the log")
        doubles = [name for name, count in self.told.items() if count > 1]
        if doubles:
            found.append(f"{len(doubles):,} instants are told twice: {doubles[:3]}")
        jobs = [name for name, count in self.enqueued.items() if count > 1]
        if jobs or len(self.enqueued) != self.outcomes["fired"]:
            found.append(f"{len(self.enqueued):,} jobs were enqueued, {len(jobs):,} of them twice")
        if set(self.outcomes) != {"fired"}:
            found.append(f"not all were fired: {dict(self.outcomes)}")
        return found


def fire(place: Path, engine: Engine, schedules: int, *, at_once: bool = False) -> Fired:
    """Let two idle workers fire ``schedules`` schedules that are due in the same minute.

    With ``at_once``, they are due at the beginning of this year, so the workers find them overdue when they start.
    """
    with served(engine, place) as server:
        return _fire(place, server.url, schedules, at_once=at_once)


def fire_through_a_failover(place: Path, engine: Engine, schedules: int) -> Fired:
    """Fire the schedules under Sentinel, and kill the primary when half of them are fired.

    The replica, which becomes the new primary, lacks the last writes.
    """
    group = SentinelGroup(engine, place)
    with group.up():
        return _fire(place, group.url, schedules, group)


def _fire(
    place: Path,
    url: str,
    schedules: int,
    group: SentinelGroup | None = None,
    *,
    at_once: bool = False,
) -> Fired:
    found = Fired(schedules)
    with contextlib.ExitStack() as stack:
        app = stack.enter_context(_connected(url))
        crew = [place, "tests.rigs.schedules.tasks:minute", [MINUTE], url, "--grace", "1"]
        if not at_once:
            stack.enter_context(workers(*crew, count=2))  # type: ignore[arg-type]
            left = MINUTE_MS - time.time_ns() // 1_000_000 % MINUTE_MS
            time.sleep(left / 1000 + 0.1 if left < READY_S * 1000 else 0)
        client, job = app.client, tasks.remind.job("x")
        # Without an audit database the outbox keeps recent entries only.
        client.run(client.calls.audit.attach(MINUTE, "rig"))
        options: Any = {"cron": YEARLY if at_once else "* * * * *", "overlap": "allow"}
        app.schedule_many((f"remind.{n}", job, options) for n in range(schedules))
        instants = {
            each.next_ms for each in client.run(client.calls.schedules.stored(MINUTE)).values()
        }
        (minute,) = instants
        following = minute + MINUTE_MS
        if at_once:
            minute, following = _make_due(client), minute
            stack.enter_context(workers(*crew, count=2))  # type: ignore[arg-type]
        if group is not None:
            found.struck = _fail_over(group, client, minute, schedules)
        wait_until(lambda: not _left(client, following), "all are told", timeout=PATIENCE_S)
        _read(client, minute, found)
    return found


def _fail_over(group: SentinelGroup, client: Client, minute: int, schedules: int) -> int:
    """Let a replica that lacks some writes replace the primary. Return how many schedules the primary had fired."""
    wait_until(
        lambda: time.time() * 1000 >= minute - 1_000, "the minute comes", timeout=MINUTE_MS / 1000
    )
    following = minute + MINUTE_MS
    while schedules - _left(client, following) < schedules / 10:
        pass  # A pause might miss the moment.
    replica = group.cut_replica_off()
    while (told := schedules - _left(client, following)) < schedules / 2:
        pass
    lost = group.lose_primary()
    replica.thaw()
    group.wait_promoted(lost)
    return told


@contextlib.contextmanager
def _connected(url: str) -> Iterator[App]:
    tasks.minute.connect_to(url)
    try:
        yield tasks.minute
    finally:
        tasks.minute.close()


def _make_due(client: Client) -> int:
    """Make all schedules due at the beginning of this year, and return that time (Unix ms)."""
    keys = queue_keys(MINUTE)
    stored = client.run(client.calls.schedules.stored(MINUTE))
    past = int(datetime(datetime.now(UTC).year, 1, 1, tzinfo=UTC).timestamp()) * 1_000
    commands: list[list[Any]] = [["ZADD", keys("scheduled"), past, "tick|"]]
    for name, schedule in stored.items():
        due = Schedule(*schedule)._replace(next_ms=past, due_ms=past)
        commands.append(["HSET", keys("schedules"), name, str(due)])
        commands.append(["ZADD", keys("ticks"), past, name])
    client.run(client.calls.delivery.ask(commands))
    return past


def _left(client: Client, following: int) -> int:
    """Return how many schedules are not yet set to their next instant, ``following`` (Unix ms).

    A schedule that Redis has handed to a worker counts until the worker has reported it. Until then, its time in the
    key ``ticks`` is a moment in the near future, at which Redis would hand it out again.
    """
    look = ["ZCOUNT", queue_keys(MINUTE)("ticks"), "-inf", following - 1]
    (count,) = client.run(client.calls.delivery.ask([look]))
    return int(count)


def _read(client: Client, minute: int, found: Fired) -> None:
    """Read the whole log, and add its figures to ``found``."""
    last, times = "-", []
    epochs: Counter[int] = Counter()
    while True:
        entries = client.run(client.calls.audit.read_outbox(MINUTE, last, CHUNK))
        for entry_id, raw in entries:
            told = json.loads(raw["jobs"]) if raw["type"] in ("ticked", "enqueued") else []
            for each in told:
                if raw["type"] == "enqueued" and each[0].endswith(f"-{minute}"):
                    found.enqueued[each[0]] += 1
                elif raw["type"] == "ticked" and each[3] == minute:
                    found.told[each[1]] += 1
                    found.outcomes[each[6]] += 1
                    found.by[raw["by"]] += 1
                    times.append(int(raw["at"]) - minute)
                    epochs[OutboxId.parse(entry_id).epoch] += 1
        if len(entries) < CHUNK:
            break
        last = f"({entries[-1][0]}"
    if found.struck is not None:
        found.again = epochs[max(epochs)]
    found.first_ms, found.last_ms = min(times, default=0), max(times, default=0)
