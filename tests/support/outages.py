"""Outages of Redis under a working worker, one after another, and how soon it claims again.

    python -m tests.support.outages --times 100 --seconds 2 --kind all

starts a server and a worker process, and says of each outage how long the worker took from Redis' return to its next
claim, and whether the job that ran meanwhile was reported once. See scripts/outages.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click

from rq_core import App, current_job
from rq_core.client import Client
from rq_core.history import decode
from tests.support.blackhole import BlackHole
from tests.support.reaper import close_reaper
from tests.support.servers import RedisServer, engines
from tests.support.wait import wait_until

QUEUE: Final = "outages"
WITNESS: Final = "RQ_CORE_OUTAGES_WITNESS"
AGAIN_MAX: Final = 10.0
"""Seconds from Redis' return within which the worker must claim again."""
PATIENCE: Final = 60.0
ROOT: Final = Path(__file__).parents[2]

app = App()
app.queue(QUEUE, lease=15)


def _note(what: str) -> None:
    with Path(os.environ[WITNESS]).open("a") as out:
        out.write(f"{what} {current_job().id} {time.monotonic():.3f}\n")


@app.task(queue=QUEUE)
def probe() -> None:
    """Shows that the worker claims."""
    _note("probe")


@app.task(queue=QUEUE)
async def long(seconds: float) -> None:
    """Ends while Redis is away, or just after."""
    _note("begin")
    await asyncio.sleep(seconds)
    _note("end")


@dataclass(frozen=True)
class Outage:
    """One outage and what came of it."""

    kind: str
    seconds: float
    again_s: float
    """From Redis' return to the next claim."""
    claims: int
    """Of the two jobs together; 2 unless a lease was lost."""
    ends: int
    """Of the two jobs; anything but 2 is a loss, or a lie."""


class Stage:
    """A server, a worker process that reaches it through a relay, and a producer that reaches it directly."""

    def __init__(self, place: Path, engine: int = 0) -> None:
        self._place = place
        self.witness = place / "witness"
        self.log = place / "worker.log"
        options = {"appendonly": "yes", "appendfsync": "always"}
        self.server = RedisServer(engines()[engine], place, options)

    @contextlib.contextmanager
    def up(self, processes: int) -> Iterator[Client]:
        self.server.start()
        with BlackHole(self.server.port) as self.relay, Client(self.server.url) as client:
            worker = self._start_worker(processes)
            try:
                yield client
            finally:
                worker.send_signal(signal.SIGTERM)
                try:
                    worker.wait(30)
                except subprocess.TimeoutExpired:
                    os.killpg(worker.pid, signal.SIGKILL)
                    worker.wait()
                self.server.kill()

    def _start_worker(self, processes: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "rq_core.cli", "worker", "tests.support.outages:app"]
        command += ["--queues", QUEUE, "--redis", self.relay.url, "--processes", str(processes)]
        with self.log.open("ab") as sink:
            return subprocess.Popen(
                [*command, "--grace", "1"],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env={**os.environ, WITNESS: str(self.witness)},
                cwd=ROOT,
                start_new_session=True,
            )

    def seen(self, what: str, job_id: str) -> float | None:
        """When a job wrote this, on the monotonic clock."""
        if not self.witness.exists():
            return None
        for line in self.witness.read_text().splitlines():
            kind, job, at = line.split(" ")
            if (kind, job) == (what, job_id):
                return float(at)
        return None

    # The kinds of outages. Each ends when Redis is back.

    def restart(self, seconds: float) -> None:
        """SIGKILL, and a new process that reads the append-only file."""
        self.server.kill()
        time.sleep(seconds)
        self.server.start()

    def freeze(self, seconds: float) -> None:
        """SIGSTOP: connections stay, nothing answers."""
        self.server.freeze()
        time.sleep(seconds)
        self.server.thaw()

    def blackhole(self, seconds: float) -> None:
        """Packets vanish; the connections of before never come back, and nobody says so."""
        self.relay.swallow()
        time.sleep(seconds)
        self.relay.heal()

    def reset(self, seconds: float) -> None:
        """Every connection is ended by the server, again and again."""
        self._repeat(["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"], seconds)

    def flush(self, seconds: float) -> None:
        """The server forgets its scripts, again and again."""
        self._repeat(["SCRIPT", "FLUSH"], seconds)

    def _repeat(self, command: Sequence[str], seconds: float) -> None:
        until = time.monotonic() + seconds
        with self.server.client() as client:
            while time.monotonic() < until:
                client.execute_command(*command)
                time.sleep(0.005)

    @property
    def kinds(self) -> dict[str, Callable[[float], None]]:
        return {
            "restart": self.restart,
            "freeze": self.freeze,
            "blackhole": self.blackhole,
            "reset": self.reset,
            "flush": self.flush,
        }


KINDS: Final = ("restart", "freeze", "blackhole", "reset", "flush")


def outage(stage: Stage, client: Client, kind: str, seconds: float) -> Outage:
    """Let Redis be away for so long while a job runs, and see what comes of it."""
    job = long.job(seconds * 0.9)
    client.enqueue([job])
    wait_until(lambda: stage.seen("begin", job.id), "the job runs", timeout=PATIENCE)
    stage.kinds[kind](seconds)
    back = time.monotonic()
    asked = probe.job()
    client.enqueue([asked])
    at = wait_until(
        lambda: stage.seen("probe", asked.id),
        lambda: f"the worker claims after {kind}; its log: {stage.log.read_text()[-2_000:]}",
        timeout=PATIENCE,
    )
    ids = {job.id, asked.id}
    wait_until(
        lambda: not any(client.job(each, [QUEUE]) for each in ids),
        lambda: f"both are reported after {kind}; the log: {stage.log.read_text()[-2_000:]}",
        timeout=PATIENCE,
    )
    claims, ends = _tally(client, ids)
    assert at is not None
    return Outage(kind, round(seconds, 2), round(at - back, 2), claims, ends)


def _tally(client: Client, ids: set[str]) -> tuple[int, int]:
    """How often these jobs were claimed, and how often they ended in success."""
    counts = {"claimed": 0, "succeeded": 0}
    for entry_id, raw in client.read_outbox(QUEUE, "-", 10_000):
        entry = decode(entry_id, raw)
        if str(entry.event) in counts:
            counts[str(entry.event)] += sum(each.job_id in ids for each in entry.jobs)
    return counts["claimed"], counts["succeeded"]


def run(
    place: Path,
    *,
    kinds: Sequence[str] = KINDS,
    times: int,
    seconds: float,
    seed: int = 0,
    processes: int = 1,
    engine: int = 0,
    on_outage: Callable[[Outage], None] = lambda _: None,
) -> list[Outage]:
    """So many outages of these kinds in turn. Those of up to two seconds vary in length; longer ones are exact."""
    rng = random.Random(seed)
    stage = Stage(place, engine)
    found = []
    with stage.up(processes) as client:
        for kind in itertools.islice(itertools.cycle(kinds), times):
            length = seconds if seconds > 2 else rng.uniform(0.05, seconds)
            found.append(outage(stage, client, kind, length))
            on_outage(found[-1])
    return found


def problems(found: Sequence[Outage]) -> list[str]:
    """What fell short."""
    said = []
    for n, each in enumerate(found):
        what = f"outage {n} ({each.kind}, {each.seconds} s)"
        if each.again_s > AGAIN_MAX:
            said.append(f"{what}: claims again after {each.again_s} s")
        if each.ends != 2:
            said.append(f"{what}: {each.ends} successes of 2 jobs")
        if each.claims != 2:
            said.append(f"{what}: {each.claims} claims of 2 jobs")
    return said


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=2.0, help="length; up to 2: at most")
    parser.add_argument("--kind", default="all", choices=["all", *KINDS])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", action="store_true", dest="as_json")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rq-core-outages-") as name:
        found = run(
            Path(name),
            kinds=KINDS if given.kind == "all" else [given.kind],
            times=given.times,
            seconds=given.seconds,
            seed=given.seed,
            processes=given.processes,
            on_outage=lambda each: None if given.as_json else click.echo(each),
        )
    close_reaper()
    again = sorted(each.again_s for each in found)
    summary = {
        "outages": len(found),
        "seed": given.seed,
        "again_p50_s": again[len(again) // 2],
        "again_p99_s": again[min(len(again) - 1, len(again) * 99 // 100)],
        "again_max_s": again[-1],
        "problems": problems(found),
    }
    if given.as_json:
        summary["each"] = [asdict(each) for each in found]
    click.echo(json.dumps(summary))
    return 1 if summary["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
