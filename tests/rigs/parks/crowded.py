"""Sends very many signals to one job, half of them twice with the same key. The job parks and wakes meanwhile, on two
workers."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rq_core.connections.client import Client
from tests.kit.wait import wait_until
from tests.rigs.parks import tasks
from tests.rigs.parks.log import Log
from tests.rigs.stage import workers

PAUSES: Final = 0.1
"""The share of signals before which the sender waits until the job is parked. The other signals are sent at once."""
AT_ONCE: Final = "at once"
LATE: Final = "late"


@dataclass
class Crowd:
    """The counts of a run, and the problems that the run found."""

    signals: int
    outcomes: Counter[str] = field(default_factory=Counter)
    """The number of calls with each outcome."""
    parks: int = 0
    wakes: int = 0
    taken: int = 0
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        return (
            f"{self.signals:,} signals in {self.outcomes.total():,} calls, outcomes {dict(self.outcomes)}; the job"
            f" parked {self.parks} times and was woken {self.wakes} times; it took {self.taken:,} signals;"
            f" {len(self.problems)} problems"
        )


def send(url: str, place: Path, count: int, *, processes: int = 2, seed: int = 1) -> Crowd:
    """Send ``count`` signals to one job. Check the values that its waits return, and its log."""
    found, draw, app = Crowd(count), random.Random(seed), tasks.app
    twice = set(draw.sample(range(count - 1), count // 2))
    app.connect_to(url)
    app.apply_settings()
    with (
        Client(url) as client,
        Log(client, place, tasks.COLLECTED) as log,
        workers(
            place, "tests.rigs.parks.tasks:app", [tasks.COLLECTED], url, count=processes
        ) as crew,
        ThreadPoolExecutor(2) as pool,
    ):
        handle = tasks.collect.enqueue(count)

        def one(number: int) -> str:
            key = f"key-{number}" if number in twice else ""
            return str(app.signal(handle, "number", number, key=key))

        late: list[int] = []
        for number in range(count):
            if draw.random() < PAUSES:
                wait_until(
                    lambda: handle.state() == "parked",
                    lambda: f"the job is parked: {crew.end_of_log()}",
                )
            if number not in twice:
                said = [one(number)]
            elif draw.random() < 0.5:
                said = sorted(pool.map(one, [number, number]), key="known".__eq__)
            else:
                said = [one(number)]
                late.append(number)
            if number < count - 1 and len(late) > 3:
                said.append(one(late.pop(draw.randrange(len(late)))))
            if number == count - 2:
                said += map(one, late)
            found.outcomes.update(said)
            if said[0] not in ("sent", "woken") or any(each != "known" for each in said[1:]):
                found.problems.append(f"signal {number}: {said}")
        (line,) = wait_until(
            lambda: crew.witness.lines("collected"),
            lambda: f"the job has taken all: {crew.end_of_log()}",
            timeout=60,
        )
        wait_until(lambda: not log.unended(), "the job has ended")
        log.follow()
        if line["got"] != list(range(count)):
            found.problems.append(f"the waits returned {line['got']}")
        _judge(log, found)
    app.close()
    return found


def _judge(log: Log, found: Crowd) -> None:
    """Compare the signals in the log with the signals that were sent, and add the differences to the problems."""
    found.parks = len(list(log.events("parked")))
    found.wakes = len(list(log.events("woken")))
    sent: list[Any] = [each.facts["message"] for each in log.events("signalled")]
    taken = [each.facts.get("message") for each in log.events("step_saved")]
    found.taken = len(taken)
    numbers = list(range(1, found.signals + 1))
    if sent != numbers:
        found.problems.append(f"the log has the signals {sent}")
    if taken != numbers:
        found.problems.append(f"the log says that these signals were taken: {taken}")
    if found.outcomes["known"] != found.signals // 2:
        found.problems.append(f"{found.outcomes['known']} repeated calls were recognized")
    if not found.wakes:
        found.problems.append("no signal woke the job")
    found.problems += log.problems()
