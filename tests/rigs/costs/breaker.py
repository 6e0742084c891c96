"""Services fail and heal in phases. Meanwhile worker processes are killed, suspended and restarted, and Redis is killed
and restarted. No job may begin in a pause, and one probe may run at a time. At the end all services are well, and all
jobs must succeed."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rq_core.connections.client import Client
from rq_core.doctor import diagnose
from sql_audit.proof.event_details import facts_in
from tests.kit import auditlog
from tests.kit.servers import RedisServer
from tests.kit.wait import wait_until
from tests.rigs.costs import hosts
from tests.rigs.judge.breakers import Claim, Event, Judge, Judged, Run
from tests.rigs.judge.times import percentile
from tests.rigs.parks.log import Log
from tests.rigs.stage import WORKER, Crew, Unit, workers

SHARES: Final = 0.0, 1.0, 1.0, 0.3
"""The shares of answers that are errors. A service changes from one share to another at random."""
PHASE_S: Final = 0.3, 4.0
"""The shortest and the longest time (s) between two changes of a service."""
FIRST_S: Final = 1.5, 4.0
"""The shortest and the longest time (s) for which a service fails at the beginning."""
WAITING: Final = 15
"""The least number of jobs of each host that wait or run, until the end."""
TICK_S: Final = 0.05
FOLLOW_S: Final = 0.5
HEALED_S: Final = 60.0
"""The longest time (s) from the last healing to the end of the last job."""
SHOWN: Final = 20
FAULTS: Final = (
    "host.kill", "host.stop", "redis", "kill", "host.stop", "host.kill", "stop", "leave",
)  # fmt: skip
"""The faults, in turn. ``host.…`` strikes the worker that runs the next job of a failing host. That job is a probe if
the host is paused. ``redis`` strikes Redis, and the other faults strike any worker."""


@dataclass
class Strained:
    """The counts of a run, and the problems that the run found."""

    seconds: float = 0.0
    jobs: int = 0
    runs: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    judged: Judged = field(default_factory=Judged)
    healed_s: float = 0.0
    """The time (s) from the last healing to the end of the last job."""
    problems: list[str] = field(default_factory=list)

    @property
    def kills(self) -> int:
        return self.faults["kill"] + self.faults["host.kill"]

    @property
    def zombies(self) -> int:
        return self.faults["stop"] + self.faults["host.stop"]

    def line(self) -> str:
        found, told, faults = self.judged, self.events, self.faults
        return (
            f"{self.jobs:,} jobs, {self.runs:,} runs in {self.seconds:.0f} s; {found.pauses} pauses of open scopes,"
            f" {found.again} by probes; {found.probes} probes, {found.probes_lost} of them lost with their worker,"
            f" {found.opened} opened a scope; {self.kills} kills ({faults['host.kill']} in handlers of failing hosts),"
            f" {self.zombies} zombies ({faults['host.stop']} in such handlers), {told['lease_expired']} lost leases,"
            f" {told['settlement_refused']} settlements refused, {faults['leave']} workers and {faults['redis']} times"
            f" Redis restarted; failed runs until a pause {min(found.failing, default=0)} to"
            f" {max(found.failing, default=0)}, of them in flight at most {max(found.in_flight, default=0)}; the first"
            f" probe began {percentile(found.late_ms, 0.5):.0f} ms (p50; p99 {percentile(found.late_ms, 0.99):.0f} ms)"
            f" after its pause; the last job ended {self.healed_s:.1f} s after the last healing;"
            f" {len(self.problems)} problems"
        )


class Strain:
    """The services, the faults, and the producer of one run."""

    def __init__(
        self, server: RedisServer, crew: Crew, log: Log, names: list[str], draw: random.Random
    ) -> None:
        self.found = Strained()
        self.jobs: dict[str, str] = {}
        """The host of each job."""
        self._server, self._crew, self._log, self._draw = server, crew, log, draw
        self._folder = crew.place / "hosts"
        self._turns = {name: time.monotonic() + draw.uniform(*FIRST_S) for name in names}
        """When a service changes next (monotonic, s)."""
        self._wakes: dict[int, float] = {}
        """When a suspended worker goes on (monotonic, s), by process id."""
        self._followed = 0.0

    def strain(self, seconds: float, every_s: float) -> None:
        """Let services fail and heal for this time, with a fault about every ``every_s``."""
        began = time.monotonic()
        next_fault, faults = began + every_s / 2, itertools.cycle(FAULTS)
        while (now := time.monotonic()) < began + seconds:
            for host, at in self._turns.items():
                if now >= at:
                    self._answer(host, self._draw.choice(SHARES))
                    self._turns[host] = now + self._draw.uniform(*PHASE_S)
            if now >= next_fault:
                self._fault(next(faults))
                next_fault = now + self._draw.uniform(0.5, 1.5) * every_s
            self._enqueue()
            self._go_on()
            self._crew.rest(TICK_S)
        self.found.seconds = time.monotonic() - began

    def heal(self) -> None:
        """Let all services answer, and wait until all jobs have ended."""
        for mark in self._folder.glob("*.*"):
            mark.unlink(missing_ok=True)
        for host in self._turns:
            self._answer(host, 0.0)
        began = time.monotonic()

        def is_done() -> bool:
            self._go_on()
            self._crew.mend()
            self._log.follow()
            return not self._wakes and not self._log.unended()

        with contextlib.suppress(AssertionError):
            wait_until(is_done, "all jobs have ended", timeout=HEALED_S)
        self.found.healed_s = time.monotonic() - began
        if left := self._log.unended():
            self.found.problems.append(
                f"{left} jobs are left {HEALED_S:g} s after the last healing"
            )

    def _answer(self, host: str, share: float) -> None:
        fresh = self._folder / f"{host}.fresh"
        fresh.write_text(str(share))
        fresh.rename(self._folder / host)

    def _enqueue(self) -> None:
        """Enqueue jobs until enough of each host wait. Copy the log from time to time."""
        if time.monotonic() < self._followed + FOLLOW_S:
            return
        self._log.follow()
        self._followed = time.monotonic()
        lack = WAITING * len(self._turns) - self._log.unended()
        if lack > 0:
            chosen = [self._draw.choice(list(self._turns)) for _ in range(lack)]
            tasks = [self._draw.choice((hosts.ask, hosts.call)) for _ in chosen]
            jobs = [task.job(host) for task, host in zip(tasks, chosen, strict=True)]
            self.jobs |= {job.id: host for job, host in zip(jobs, chosen, strict=True)}
            hosts.app.enqueue_many(jobs)

    def _fault(self, kind: str) -> None:
        if kind.startswith("host."):
            self._mark(kind)
            return
        if kind == "redis":
            (self._server.kill if self._draw.random() < 0.5 else self._server.stop)()
            self._crew.rest(self._draw.uniform(0.0, 0.8))
            self._server.start()
        elif (unit := self._any()) is None:
            return
        elif kind == "stop":
            os.kill(unit.pid, signal.SIGSTOP)
        else:
            os.kill(unit.pid, signal.SIGKILL if kind == "kill" else signal.SIGTERM)
        self.found.faults[kind] += 1

    def _any(self) -> Unit | None:
        """Return a worker that runs and is not suspended."""
        fit = [
            unit
            for unit in self._crew.units
            if unit.process.poll() is None and unit.pid not in self._wakes
        ]
        return self._draw.choice(fit) if fit else None

    def _mark(self, kind: str) -> None:
        """Let the next handler of a failing host end or suspend its worker. The handler's job is a probe if the host is
        paused."""
        ill = [host for host in self._turns if (self._folder / host).read_text() == "1.0"]
        if ill:
            (self._folder / f"{self._draw.choice(ill)}.{kind.removeprefix('host.')}").touch()

    def _go_on(self) -> None:
        """Let suspended workers go on once their leases are over."""
        now = time.monotonic()
        for unit in self._crew.units:
            if unit.process.poll() is None and unit.process.is_stopped:
                wake_s = now + hosts.LEASE_S * self._draw.uniform(1.5, 3.5)
                if now >= self._wakes.setdefault(unit.pid, wake_s):
                    os.kill(unit.pid, signal.SIGCONT)
                    del self._wakes[unit.pid]
        running = {unit.pid for unit in self._crew.units if unit.process.poll() is None}
        self._wakes = {pid: at for pid, at in self._wakes.items() if pid in running}


def strain(
    server: RedisServer,
    place: Path,
    seconds: float,
    *,
    hosts_count: int = 6,
    processes: int = 3,
    places: int = 4,
    every_s: float = 1.5,
    seed: int = 1,
    audit_url: str | None = None,
) -> Strained:
    """Let workers ask services that fail and heal for some seconds, and judge what the workers did."""
    draw, app = random.Random(seed), hosts.app
    names = [f"h{number}" for number in range(hosts_count)]
    folder = place / "hosts"
    folder.mkdir()
    for name in names:
        (folder / name).write_text("1.0")
    app.connect_to(server.url)
    app.apply_settings()
    options = "--concurrency", str(places), "--grace", "1"
    with (
        Client(server.url) as client,
        Log(client, place, hosts.FRAGILE, url=audit_url) as log,
        workers(
            place,
            "tests.rigs.costs.hosts:app",
            [hosts.FRAGILE],
            server.url,
            *options,
            count=processes,
            variables={hosts.HOSTS: str(folder)},
        ) as crew,
    ):
        strained = Strain(server, crew, log, names, draw)
        found = strained.found
        strained.strain(seconds, every_s)
        strained.heal()
        crew.stop(WORKER)
        log.follow()
        found.jobs = len(strained.jobs)
        rows = auditlog.events(log.database, hosts.FRAGILE)
        found.events = Counter(row["type"] for row in rows)
        lines = crew.witness.lines()
        found.faults += Counter(f"host.{line['what']}" for line in lines)
        runs = runs_of(lines)
        found.runs = len(runs)
        found.judged = Judge(runs, strained.jobs, hosts.LIMIT).judge(events_of(rows))
        found.problems += found.judged.problems[:SHOWN]
        found.problems += [f"verify: {each}" for each in log.problems()[:SHOWN]]
        found.problems += [f"doctor: {each}" for each in diagnose(client, hosts.FRAGILE)[:SHOWN]]
    app.close()
    return found


def events_of(rows: Iterable[dict[str, Any]]) -> Iterator[Event]:
    """Yield the events of all jobs. SQL has no claim number for a pause, so a pause gets the number of the job's last
    claim."""
    last: dict[str, int] = {}
    for row in rows:
        if (job := row["job_id"]) is None:
            continue
        if row["type"] == "claimed":
            last[job] = row["claim"]
        number = row["claim"] if row["claim"] is not None else last.get(job, 0)
        yield Event(row["type"], row["at_ms"], (job, number), facts_in(row["detail"]))


def runs_of(lines: list[dict[str, Any]]) -> dict[Claim, Run]:
    """Return the runs of all handlers."""
    found: dict[Claim, Run] = {}
    for line in lines:
        claim = line["job"], line["claim"]
        if line["what"] == "began":
            found[claim] = Run(line["host"], line["at_ms"], line["failures"])
        elif line["what"] == "ended":
            found[claim] = found[claim]._replace(ended_ms=line["at_ms"], how=line["how"])
    return found
