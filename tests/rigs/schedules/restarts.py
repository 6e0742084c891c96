"""Fires one schedule while its workers are restarted. SQL must have each instant, as fired or as missed."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rq_core.connections.client import Client
from rq_core.model.recurrence import recurrence
from rq_core.model.schedule import Schedule
from sql_audit.store import migrate
from sql_audit.store.connection.database import Database
from tests.kit.servers import Engine
from tests.kit.wait import wait_until
from tests.rigs.chaos.records import read_cursors
from tests.rigs.chaos.stage import MIRROR, audit_verify, last_of
from tests.rigs.judge.times import percentile
from tests.rigs.schedules.tasks import BEATS, EVERY, NAME
from tests.rigs.stage import DURABLE, STOP_S, WORKER, Crew, Unit, served

KILLED: Final = 2, 5
"""The restarts that kill a worker with SIGKILL: the second of every five."""
BOTH: Final = 2, 4
"""The restarts in which both workers are away at the same time: the second of every four."""
LONG: Final = 10, 10
"""The restarts that last so long that instants pass: every tenth."""
LONG_TIMES: Final = 5


@dataclass(frozen=True)
class Instant:
    """An instant of a schedule: a row of the view ``schedule_tick``."""

    nominal_ms: int
    late_ms: int
    outcome: str
    missed: int


@dataclass
class Accounted:
    """The schedule's instants in SQL after all restarts."""

    restarts: int
    seconds: float = 0.0
    instants: list[Instant] = field(default_factory=list)
    verify: str = ""
    problems: list[str] = field(default_factory=list)

    @property
    def missed(self) -> int:
        return sum(each.missed for each in self.instants)

    def line(self) -> str:
        late = [each.late_ms for each in self.instants if each.outcome == "fired"]
        told = dict(Counter(each.outcome for each in self.instants))
        return (
            f"{self.restarts} restarts in {self.seconds:.0f} s: {len(self.instants)} instants {told},"
            f" {self.missed} passed over and told as missed; late p50 {percentile(late, 0.5):.0f} ms,"
            f" max {max(late, default=0)} ms; verify: {self.verify}"
        )


def restart(
    place: Path, engine: Engine, restarts: int, *, seconds: float, every: float
) -> Accounted:
    """Restart one of two workers, or both, ``restarts`` times, and check the log.

    A stopped worker is away for ``seconds``. BOTH and LONG name the restarts of both workers, and the long restarts.
    """
    found, began = Accounted(restarts), time.monotonic()
    audit = str(place / "audit.db")
    migrate.upgrade_schema(audit)
    with (
        served(engine, place, DURABLE) as server,
        Crew(place, {EVERY: str(every)}) as crew,
        Client(server.url) as client,
    ):
        crew.knows(MIRROR, lambda: ["tests.kit.mirror_service", server.url, audit])
        app = "tests.rigs.schedules.tasks:beats"
        crew.knows_workers(app, [BEATS], server.url, "--grace", "1")
        crew.start(MIRROR)
        pair = [crew.start(WORKER), crew.start(WORKER)]
        first = wait_until(lambda: _stored(client), lambda: f"it is stored: {crew.end_of_log()}")
        crew.wait_started(2)
        for number in range(restarts):
            _restart(crew, pair, number, seconds)
        last = _stored(client)
        wait_until(
            lambda: _stored(client) != last,
            lambda: f"one more instant: {crew.end_of_log()}",
            timeout=10 * every + 30,
        )
        crew.stop(WORKER)
        with contextlib.closing(Database(audit)) as database:
            wait_until(
                lambda: read_cursors(database).get(BEATS) == last_of(client, BEATS),
                lambda: f"SQL has all: {crew.end_of_log()}",
            )
        crew.stop(MIRROR)
        found.instants = _instants(audit)
        said = audit_verify(server.url, audit)
        found.verify = said["verdict"]
        found.problems += [f"verify: {each}" for each in said["violations"]]
        end = _stored(client)
    assert first is not None
    assert end is not None
    found.seconds = time.monotonic() - began
    # The first look may come after the first instants.
    start = first.next_ms if not first.last_ms else found.instants[0].nominal_ms
    found.problems += unaccounted(found.instants, start, end.next_ms, round(every * 1000))
    return found


def _restart(crew: Crew, pair: list[Unit], number: int, seconds: float) -> None:
    """Stop or kill one worker, or both, and start them again after a while."""
    is_long = _is_one(number, LONG)
    places = [0, 1] if is_long or _is_one(number, BOTH) else [number % 2]
    how = signal.SIGKILL if _is_one(number, KILLED) else signal.SIGTERM
    for place in places:
        process = pair[place].process
        os.kill(process.pid, how)
        process.wait(STOP_S)
        crew.units.remove(pair[place])
    time.sleep(seconds * (LONG_TIMES if is_long else 1))
    started = crew.said().count("worker started")
    for place in places:
        pair[place] = crew.start(WORKER)
    crew.wait_started(started + len(places))


def _is_one(number: int, which: tuple[int, int]) -> bool:
    place, of = which
    return number % of == place - 1


def unaccounted(
    instants: Sequence[Instant], start_ms: int, end_ms: int, every_ms: int
) -> list[str]:
    """Return a sentence for each instant, from ``start_ms`` until before ``end_ms``, that SQL lacks or has twice.

    SQL has an instant as fired, as missed, or in the count of missed instants of a later row.
    """
    rule = recurrence(NAME, every=every_ms / 1000)
    left = set(_between(rule.instants(start_ms - 1), end_ms))
    found = []
    expected = start_ms
    for each in instants:
        told = [expected + n * every_ms for n in range(each.missed)]
        if each.outcome != "missed":
            told.append(each.nominal_ms)
        for instant in told:
            if instant not in left:
                found.append(f"the instant {instant} is told twice, or is none of the schedule's")
            left.discard(instant)
        expected = told[-1] + every_ms
    return found + [f"nothing tells of the instant {instant}" for instant in sorted(left)]


def _between(instants: Iterator[int], end_ms: int) -> Iterator[int]:
    for instant in instants:
        if instant >= end_ms:
            return
        yield instant


def _stored(client: Client) -> Schedule | None:
    return client.run(client.calls.schedules.stored(BEATS)).get(NAME)


def _instants(audit: str) -> list[Instant]:
    with contextlib.closing(sqlite3.connect(audit)) as connection:
        rows = connection.execute(
            "SELECT nominal_ms, late_ms, outcome, missed FROM schedule_tick WHERE queue = ? AND name = ?"
            " ORDER BY nominal_ms",
            (BEATS, NAME),
        ).fetchall()
    return [Instant(*row) for row in rows]
