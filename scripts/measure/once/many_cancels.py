"""Measures a cancel of half of a queue's jobs by their task, beside a drain, and the first claim afterwards.

    scripts/measure/once/run many-cancels [--jobs 2000000] [--engine NAME] [--small]

The jobs to cancel are the first half of one list. Afterwards the list still begins with the cancelled jobs' entries. A
drain in another process claims and completes jobs of a higher priority, and enqueues a new job for each completed one.

The cancel takes turns of three kinds, one after the other, until it is complete:

- *beside*: cancel and drain run at the same time.
- *alone*: the cancel stops, and only the drain runs. A turn beside is compared with the turns alone before and after
  it, so that other work of the machine changes both.
- *by itself*: the drain stops. The server then carries out one call at a time. So the clock of the server's process
  gives the processor time of each call. Between the calls of the cancel are calls like those of the drain.

The server's own clock (SLOWLOG) also counts the time in which the server waits for a processor. On a busy machine, any
command may then take 10 ms by this clock. So the figures have the longest command, with its name, of the turns beside
and of the turns alone.

The command fails if a call takes more than 10 ms of the server's processor time. It fails if the drain beside the
cancel reaches less than 75 % of the drain alone (median). It also fails if the first claim afterwards takes more than a
second. ``--small`` measures 20,000 jobs, and checks none of these limits.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

import click

from rq_core.connections.client import Client
from rq_core.model.filters.job_filter import Filter
from rq_core.model.ids import JobIds
from rq_core.model.job import Claim, NewJob, profile
from rq_core.model.table.machine import Priority
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.bulk import CANCEL, BulkChange, BulkPlace
from rq_core.protocol.engine.plan import Plan, Send
from tests.kit.reaper import close_reaper
from tests.kit.servers import RedisServer, engines
from tests.kit.wait import wait_until
from tests.rigs.stage import directory, served

QUEUE: Final = "many"
SLOW_US: Final = 2_000
"""The duration (µs) from which the server records a command in its slow log. Recording costs the server time, too."""
COMMAND_MS_MAX: Final = 10.0
DRAIN_MIN: Final = 0.75
FIRST_S_MAX: Final = 1.0
TURN_S: Final = 5.0
"""The duration (s) of a turn in which cancel and drain run at the same time. Turns of the other two kinds take a
quarter of this."""
CLAIMS: Final = 50
"""The number of jobs in one claim of the drain (the process that claims and completes jobs)."""
BACKLOG: Final = {"backlog_max_jobs": 100_000_000, "backlog_max_bytes": 100_000_000_000}
"""Limits of the events in Redis that are not mirrored yet. They are so high that no run reaches them without a
mirror."""

ids = JobIds()


class Longest(NamedTuple):
    """The longest command in some turns (periods) of the measurement, and its duration (ms)."""

    ms: float
    name: str


NONE: Final = Longest(0.0, "")


@dataclass
class Figures:
    """The measured values of one cancel. A turn is *beside* if cancel and drain run at the same time, *alone* if only
    the drain runs, and *by itself* if only the cancel runs."""

    jobs: int
    cancelled: int = 0
    looked: int = 0
    seconds: float = 0.0
    """The time (s) that the cancel took, without the turns in which it was stopped."""
    cpu: dict[str, list[float]] = field(default_factory=dict)
    """Names of the commands of a round trip → the server's processor times (ms), in the turns in which the drain was
    stopped."""
    beside_longest: Longest = NONE
    """The longest command, by the server's clock, in the turns in which cancel and drain ran at the same time."""
    alone_longest: Longest = NONE
    """The longest command, by the server's clock, in the turns in which only the drain ran."""
    beside: list[float] = field(default_factory=list)
    """The drain's jobs per second in each turn in which the cancel also ran."""
    alone: list[float] = field(default_factory=list)
    """The drain's jobs per second in each turn in which only the drain ran. The first of these turns comes before the
    cancel."""
    first_s: float = 0.0
    """The time (s) of the claims after the cancel, until a claim got a job that was not one of the drain's."""
    first_claims: int = 0
    """The number of claims after the cancel, until a claim got a job that was not one of the drain's."""
    first_longest: Longest = NONE
    """The longest command, by the server's clock, after the cancel and until a claim got a job that was not one of the
    drain's."""

    @property
    def longest_cpu(self) -> Longest:
        """The round trip with the longest processor time (ms) of the server, in the turns in which the drain was
        stopped."""
        return max((Longest(max(row), name) for name, row in self.cpu.items()), default=NONE)

    @property
    def shares(self) -> list[float]:
        """The drain's jobs per second in each turn in which the cancel also ran, divided by the average of the turns
        before and after it, in which only the drain ran."""
        around = zip(self.beside, itertools.pairwise(self.alone), strict=False)
        return [beside * 2 / (before + after) for beside, (before, after) in around]

    @property
    def share(self) -> float:
        return statistics.median(self.shares)

    @property
    def failures(self) -> list[str]:
        found = []
        if self.longest_cpu.ms > COMMAND_MS_MAX:
            found.append(f"{self.longest_cpu.name} took {self.longest_cpu.ms:.1f} ms")
        if self.first_longest.ms > COMMAND_MS_MAX:
            found.append(f"a claim afterwards took {self.first_longest.ms:.1f} ms")
        if self.share < DRAIN_MIN:
            found.append(f"the drain reached {self.share:.0%} of the drain alone")
        if self.first_s > FIRST_S_MAX:
            found.append(f"the first claim came after {self.first_s:.2f} s")
        return found

    def document(self) -> dict[str, Any]:
        """Return the figures as a dict. Each list becomes its length and its least, median and highest value."""
        rows = {"beside": self.beside, "alone": self.alone, "shares": self.shares}
        spread = {name: _spread(row) for name, row in rows.items() if row}
        cpu = {name: _spread(row) for name, row in self.cpu.items()}
        return asdict(self) | {"longest_cpu": self.longest_cpu, "cpu": cpu} | spread


def _spread(row: Sequence[float]) -> list[float]:
    return [len(row), *(round(each, 4) for each in (min(row), statistics.median(row), max(row)))]


def plain(count: int, task: str, priority: Priority = Priority.NORMAL) -> Iterator[NewJob]:
    made = profile(task, priority)
    return (NewJob(ids(), QUEUE, made, '{"n":1}') for _ in range(count))


def drain(url: str) -> None:
    """Claim and complete jobs after the line "go" on standard input, until the line "stop". Return when the input ends.

    After each line, print the time (s) and the number of jobs completed so far. The drain's process runs this function.
    """
    import threading

    count, stopped, going, idle = 0, threading.Event(), threading.Event(), threading.Event()

    def report() -> None:
        for line in sys.stdin:
            if line == "stop\n":
                going.clear()
                idle.wait()
            print(json.dumps([time.monotonic(), count]), flush=True)
            if line == "go\n":
                idle.clear()
                going.set()
        stopped.set()
        going.set()

    threading.Thread(target=report, daemon=True).start()
    with Client(url) as client:
        while not stopped.is_set():
            if not going.is_set():
                idle.set()
                going.wait()
                continue
            count += drain_turn(client, "w-1")


def drain_turn(client: Client, worker: str, run: Callable[[Plan[Any]], Any] | None = None) -> int:
    """Claim and complete jobs, and enqueue a new job for each job of the task "drained". Return the number of jobs."""
    run, call = run or client.run, client.calls.delivery.call
    held = run(call(claims.claim(QUEUE, worker, CLAIMS))).jobs
    high = [claim for claim in held if '"drained"' in claim.spec]
    run(call(claims.complete(QUEUE, worker, [(c.id, c.fence) for c in held])))
    run(client.calls.enqueue.many(plain(len(high), "drained", Priority.HIGH)))
    return len(held)


class Drain:
    """The process that runs :func:`drain`: it claims and completes jobs of the queue, and counts them."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, "--drain", url],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.say("go")

    def say(self, word: str = "mark") -> tuple[float, int]:
        """Send "stop" or "go" to the drain's process, or "mark" to make it only report.

        Return the time (s), and the number of jobs that the drain has completed so far.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        at, count = json.loads(self._process.stdout.readline())
        return at, count

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


def rate(before: tuple[float, int], after: tuple[float, int]) -> float:
    return (after[1] - before[1]) / max(after[0] - before[0], 1e-9)


def longest(control: Any) -> Longest:
    """Return the longest command in the server's slow log, and reset the log."""
    slow = control.slowlog_get(1_000_000)
    control.slowlog_reset()
    return max(
        (Longest(each["duration"] / 1e3, name_of(each["command"])) for each in slow),
        default=NONE,
    )


def name_of(command: str | bytes) -> str:
    """Return the name of a Redis command. For a call of a script, add the script's name or its first words."""
    text = command.decode(errors="replace") if isinstance(command, bytes) else command
    return " ".join(text.split()[:3])[:60]


class Cancelling:
    """A cancel that runs in turns: at the same time as the drain, or while the drain is stopped. Between turns the
    cancel pauses, and only the drain runs."""

    def __init__(
        self, server: RedisServer, drained: Drain, figures: Figures, turn_s: float
    ) -> None:
        self._control = server.client(decode_responses=True)
        self._client = Client(server.url)
        self._clock = (~server.pid << 3) | 2
        """The id of the clock that counts the processor time of the server's process, as clock_getcpuclockid returns
        it."""
        self._drained = drained
        self._figures = figures
        self._turn_s = turn_s
        self._by_itself = False
        self._since = (0.0, 0)
        """The time and the number of completed jobs at the beginning of a turn in which cancel and drain run at the
        same time."""
        self._until = 0.0
        self._stopped_s = 0.0

    def close(self) -> None:
        self._client.close()
        self._control.close()

    def run(self) -> None:
        """Cancel the jobs, in turns, and store the figures."""
        change = BulkChange(CANCEL, Filter(queue=QUEUE, task="cancelled"), reason="measured")
        began = time.perf_counter()
        self._alone()
        bulk = self._client.calls.bulk
        made = self._client.run(self._clocked(bulk.run(change, None, self._next)))
        figures = self._figures
        figures.seconds = time.perf_counter() - began - self._stopped_s
        figures.cancelled, figures.looked = made.changed, made.looked
        if self._by_itself:
            self._drained.say("go")
        else:
            self._end_beside()
        self._alone()

    def _next(self, _place: BulkPlace) -> None:
        """Begin the next turn if the present one is over. The cancel calls this method after each of its steps."""
        if self._by_itself:
            drain_turn(self._client, "w-3", lambda plan: self._client.run(self._clocked(plan)))
        if time.perf_counter() < self._until:
            return
        if self._by_itself:
            self._by_itself = False
            self._drained.say("go")
            self._alone()
        else:
            self._end_beside()
            self._drained.say("stop")
            self._by_itself = True
            self._until = time.perf_counter() + self._turn_s / 4

    def _alone(self) -> None:
        """Let only the drain run for a while. Then begin a turn in which cancel and drain run at the same time."""
        longest(self._control)
        began, before = time.perf_counter(), self._drained.say()
        time.sleep(self._turn_s / 4)
        self._since = self._drained.say()
        figures = self._figures
        figures.alone.append(rate(before, self._since))
        figures.alone_longest = max(figures.alone_longest, longest(self._control))
        self._stopped_s += time.perf_counter() - began
        self._until = time.perf_counter() + self._turn_s

    def _end_beside(self) -> None:
        figures = self._figures
        figures.beside.append(rate(self._since, self._drained.say()))
        figures.beside_longest = max(figures.beside_longest, longest(self._control))

    def _clocked(self, plan: Plan[Any]) -> Plan[Any]:
        """Run a plan (generator of commands). While the drain is stopped, record the server's processor time for each
        round trip."""
        replies: Any = None
        while True:
            try:
                asked = plan.send(replies)
            except StopIteration as done:
                return done.value
            began = time.clock_gettime(self._clock)
            replies = yield asked
            if isinstance(asked, Send) and self._by_itself:
                took = (time.clock_gettime(self._clock) - began) * 1e3
                words = (name_of(" ".join(map(str, command[:2]))) for command in asked.commands)
                self._figures.cpu.setdefault(", ".join(words), []).append(took)


def measure(
    server: RedisServer, jobs: int, turn_s: float = TURN_S, slow_us: int = SLOW_US
) -> Figures:
    """Fill a queue, cancel the first half of its jobs, and return the figures."""
    with Client(server.url) as client, server.client(decode_responses=True) as control:
        control.flushall()
        client.run(client.calls.audit.attach(QUEUE, "none"))
        client.run(client.calls.admin.configure(QUEUE, BACKLOG))
        client.run(client.calls.enqueue.many(plain(jobs // 2, "cancelled")))
        client.run(client.calls.enqueue.many(plain(jobs - jobs // 2, "kept")))
        client.run(client.calls.enqueue.many(plain(20 * CLAIMS, "drained", Priority.HIGH)))
        control.config_set("slowlog-log-slower-than", slow_us)
        control.config_set("slowlog-max-len", 1_000_000)
        figures = Figures(jobs)
        drained = Drain(server.url)
        try:
            # The first calls load the functions.
            wait_until(lambda: drained.say()[1] > 20 * CLAIMS, "the drain runs")
            cancelling = Cancelling(server, drained, figures, turn_s)
            with contextlib.closing(cancelling):
                cancelling.run()
        finally:
            drained.close()
        longest(control)
        while not figures.first_claims:
            began = time.perf_counter()
            claimed: Sequence[Claim] = ()
            tries = 0
            while not claimed:
                claimed = client.run(claims.claim(QUEUE, "w-2", CLAIMS)).jobs
                tries += 1
            if '"drained"' not in claimed[-1].spec:
                figures.first_claims, figures.first_s = tries, time.perf_counter() - began
        figures.first_longest = longest(control)
        return figures


@click.command()
@click.option("--jobs", default=2_000_000, show_default=True, type=click.IntRange(1_000))
@click.option("--engine", "engine_name", default=None)
@click.option("--small", is_flag=True)
@click.option("--drain", "drain_url", hidden=True)
def main(jobs: int, engine_name: str | None, drain_url: str | None, *, small: bool) -> None:
    """Print the figures of one cancel. Exit with 1 if a limit is exceeded."""
    if drain_url is not None:
        drain(drain_url)
        return
    engine = next(e for e in engines() if engine_name in (None, e.name))
    with directory() as place, served(engine, place) as server:
        found = measure(server, 20_000 if small else jobs, 0.5 if small else TURN_S)
    print(json.dumps(found.document()))
    if not small and found.failures:
        close_reaper()
        sys.exit("; ".join(found.failures))
    close_reaper()


if __name__ == "__main__":
    main()
