"""A service answers 429 while very many jobs of one key wait. It refuses the first job, and then the first job after
each pause, until it does all jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rq_core.connections.client import Client
from rq_core.model.limits.limit import Limit
from tests.kit.wait import wait_until
from tests.rigs.costs import tasks
from tests.rigs.parks.log import Log, Told
from tests.rigs.stage import WORKER, Crew, workers

FAMILY = f"complete.model@{tasks.EACH_MS / 1000:g}s:tokens"
WIDE = Limit(1_000_000, tasks.EACH_MS, 1_000_000)


@dataclass
class Refused:
    """The counts of a run, and the problems that the run found."""

    jobs: int
    pauses: int = 0
    probes: list[int] = field(default_factory=list)
    """For each pause except the first: the number of jobs that were claimed since the pause before it."""
    late_ms: list[int] = field(default_factory=list)
    """For each pause: the time (ms) from its end until the first claim."""
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        return (
            f"{self.jobs:,} jobs of one key, {self.pauses} pauses of {tasks.PAUSE_S:g} s: no claim before their ends,"
            f" the first {min(self.late_ms, default=0)} to {max(self.late_ms, default=0)} ms after them; jobs that"
            f" began until the next 429: {dict(Counter(self.probes))}; {len(self.problems)} problems"
        )


def refuse(url: str, place: Path, jobs: int, refusals: int, *, processes: int = 2) -> Refused:
    """Let ``jobs`` jobs of one key wait. The service answers 429 about ``refusals`` times, and then does all jobs."""
    found, app = Refused(jobs), tasks.app
    refusing = place / "refusing"
    refusing.touch()
    app.connect_to(url)
    app.apply_settings()
    with (
        Client(url) as client,
        Log(client, place, tasks.BUSY) as log,
        workers(
            place,
            "tests.rigs.costs.tasks:app",
            [tasks.BUSY],
            url,
            count=processes,
            variables={tasks.REFUSING: str(refusing)},
        ) as crew,
    ):
        client.run(client.calls.admin.configure(tasks.BUSY, {"paused": 1}))
        app.enqueue_many(tasks.complete.job("small") for _ in range(jobs))
        client.run(client.calls.admin.configure(tasks.BUSY, {"paused": 0}))
        _wait_answers(crew, refusals, refused=True)
        refusing.unlink()
        _wait_answers(crew, 1, refused=False)
        # The other jobs need not wait for the rate, which is as slow as a 429 takes here.
        client.run(client.calls.caps.change(tasks.BUSY, FAMILY, WIDE, by="rig"))
        wait_until(
            lambda: not log.unended(),
            lambda: f"all jobs have ended, {log.unended()} are left: {crew.end_of_log()}",
            timeout=30 + jobs / 20,
        )
        crew.stop(WORKER)
        log.follow()
        _judge(log, crew.witness.lines("asked"), found)
    app.close()
    return found


def _wait_answers(crew: Crew, count: int, *, refused: bool) -> None:
    wait_until(
        lambda: sum(each["refused"] == refused for each in crew.witness.lines("asked")) >= count,
        lambda: f"{count} answers: {crew.end_of_log()}",
        timeout=30 + 5 * tasks.PAUSE_S * count,
    )


def _judge(log: Log, asked: Sequence[dict[str, Any]], found: Refused) -> None:
    """Compare the claims in the log with the pauses, and with the runs that the handlers saw."""
    told = list(log.events("claimed", "scope_paused", "cap_changed"))
    found.problems += judge_pauses(told, found)
    found.problems += judge_runs(told, asked)
    for kind in ("retried", "died", "lease_expired", "settlement_refused"):
        if times := log.count(kind).total():
            found.problems.append(f"{kind}: {times} times")
    back = list(log.events("rolled_back"))
    reasons = Counter(each.facts["reason"] for each in back)
    if reasons != {"scope_paused": found.pauses}:
        found.problems.append(
            f"{found.pauses} pauses, and claims were given back for {dict(reasons)}"
        )
    if attempts := [each for each in asked if each["attempt"] != 1]:
        found.problems.append(f"{len(attempts)} runs after one that spent an attempt")
    if Counter(each["refused"] for each in asked) != {True: found.pauses, False: found.jobs}:
        found.problems.append("the service has answered another number of jobs")
    if log.count("succeeded") != Counter(log.count("enqueued").keys()):
        found.problems.append("not each job succeeded once")
    found.problems += log.problems()


def judge_pauses(told: Sequence[Told], found: Refused) -> list[str]:
    """Return a sentence for each claim that came in a pause, or after a pause faster than the rate allows. Claims after
    the first change of the limit that follows a pause are not judged."""
    problems: list[str] = []
    until_ms: int | None = None
    begun: list[int] = []
    for each in told:
        if each.event == "scope_paused":
            found.pauses += 1
            if until_ms is not None:
                found.probes.append(len(begun))
            until_ms, begun = each.facts["until_ms"], []
        elif each.event == "cap_changed" and until_ms is not None:
            break
        elif each.event == "claimed" and until_ms is not None:
            begun.append(each.at_ms)
            if len(begun) == 1:
                found.late_ms.append(each.at_ms - until_ms)
            # Nothing of the burst is free when the pause ends, but one token.
            opens_ms = until_ms + len(begun) * tasks.EACH_MS - 1
            if each.at_ms < opens_ms:
                problems.append(f"{each.job} was claimed {opens_ms - each.at_ms} ms too early")
    return problems


def judge_runs(told: Sequence[Told], asked: Sequence[dict[str, Any]]) -> list[str]:
    """Return a sentence for each handler that began in a pause by its own clock, and whose claim came after the
    beginning of the pause."""
    problems: list[str] = []
    before: Counter[str] = Counter()
    for each in told:
        if each.event == "claimed":
            before[each.job] += 1
        elif each.event == "scope_paused":
            pause = range(each.at_ms, each.facts["until_ms"])
            problems += [
                f"{line['job']} began {pause.stop - line['at_ms']:.0f} ms before the end of a pause"
                for line in asked
                if int(line["at_ms"]) in pause and line["claim"] > before[line["job"]]
            ]
    return problems
