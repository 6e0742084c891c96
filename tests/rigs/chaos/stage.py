"""The processes of a chaos run: a Redis, workers, mirrors and producers, each replaced when it ends.

Two workers run alone and two more under a supervisor; two mirrors write into one database.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from rq_core.connections.client import Client
from rq_core.model.events import OutboxId
from rq_core.model.keys import queue_keys
from rq_core.model.machine import CLAIMED_STATES, State
from sql_audit.store import migrate
from sql_audit.store.database import Database
from tests.kit.processes import Child, python, rq_core
from tests.kit.proxy import Proxy
from tests.kit.servers import Engine, PostgresServer, RedisServer
from tests.kit.snapshots import fields_of, lines_of
from tests.kit.wait import wait_until
from tests.rigs.chaos import tasks
from tests.rigs.chaos.records import Progress, read_cursors, states_of

LOOK_S: Final = 0.1
"""How often outboxes and cursors are compared."""
STOP_S: Final = 30.0
ALONE: Final = "worker"
SUPERVISOR: Final = "supervisor"
MIRROR: Final = "mirror"
PRODUCER: Final = "producer"


@dataclass
class Unit:
    """One process that is kept running."""

    kind: str
    command: Sequence[str]
    process: Child
    restarts: int = 0

    @property
    def pid(self) -> int:
        return self.process.pid


@dataclass
class Stage:
    """Everything that runs. Use it in a ``with``."""

    place: Path
    audit_url: str
    engine: Engine
    seed: int
    rate: float
    """Jobs per second, of all producers together."""
    progress: list[Progress] = field(default_factory=list)

    def __post_init__(self) -> None:
        options = {"appendonly": "yes", "appendfsync": "always"}
        self.server = RedisServer(self.engine, self.place, options)
        self.witness = self.place / "witness.jsonl"
        self.log = self.place / "log"
        self.units: list[Unit] = []
        self._told = itertools.count(1)
        self._closing = threading.Event()
        self._mending = threading.Lock()
        self.postgres: PostgresServer | None = None

    # Starting and ending.

    @contextlib.contextmanager
    def up(self) -> Iterator[Client]:
        self.server.start()
        # What runs reaches Redis through it; who looks on does so directly.
        self.proxy = Proxy(self.server.port, self.seed)
        self.database = Database(self.audit_url)
        migrate.upgrade(self.database)
        looker = threading.Thread(target=self._look_on, name="chaos-progress")
        try:
            with self.proxy, Client(self.server.url) as client:
                for _ in range(2):
                    self._start(MIRROR)
                for kind in (ALONE, ALONE, SUPERVISOR):
                    self._start(kind)
                # Neither the first producer nor the first fault may come before the queues are mirrored.
                wait_until(
                    lambda: set(tasks.QUEUES) <= set(read_cursors(self.database)),
                    lambda: f"workers and mirrors run: {self.end_of_log()}",
                    timeout=60,
                )
                for _ in range(2):
                    self._start(PRODUCER)
                looker.start()
                yield client
        finally:
            self._closing.set()
            for unit in self.units:
                unit.process.close()
            if looker.ident is not None:
                looker.join()
            self.database.close()
            self.server.kill()

    def _command(self, kind: str) -> list[str]:
        if kind == MIRROR:
            return ["tests.kit.mirror_service", self.proxy.url, self.audit_url]
        if kind == PRODUCER:
            number = next(self._told)
            path = self.place / f"told-{number}"
            seed = self.seed * 1_000 + number
            rate = str(self.rate / 2)
            return ["tests.rigs.chaos.producer", self.proxy.url, str(path), str(seed), rate]
        command = ["rq_core.cli", "worker", "tests.rigs.chaos.tasks:app", "--redis", self.proxy.url]
        command += ["--queues", ",".join(tasks.QUEUES), "--concurrency", "5", "--grace", "3"]
        return [*command, "--processes", "2"] if kind == SUPERVISOR else command

    def _launch(self, command: Sequence[str]) -> Child:
        return python(*command, log=self.log, variables={tasks.WITNESS: str(self.witness)})

    def _start(self, kind: str) -> None:
        command = self._command(kind)
        self.units.append(Unit(kind, command, self._launch(command)))

    def mend(self) -> None:
        """Start again what has ended, as a service manager does."""
        with self._mending:
            for unit in self.units:
                if unit.process.poll() is not None:
                    unit.process.wait()
                    unit.restarts += 1
                    unit.command = self._command(unit.kind)
                    unit.process = self._launch(unit.command)

    def rest(self, seconds: float) -> None:
        """Let time pass, and keep everything running."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.mend()
            time.sleep(min(0.05, left))

    def stop(self, *kinds: str) -> None:
        """End these in order (SIGTERM), and start them no more. Raises AssertionError if one does not end."""
        ending = [unit for unit in self.units if unit.kind in kinds]
        self.units = [unit for unit in self.units if unit.kind not in kinds]
        for unit in ending:
            unit.process.terminate()
        for unit in ending:
            try:
                unit.process.wait(STOP_S)
            except subprocess.TimeoutExpired as error:
                unit.process.close()
                raise AssertionError(f"a {unit.kind} did not end: {self.end_of_log()}") from error

    def end_of_log(self) -> str:
        return self.log.read_text(errors="replace")[-3_000:] if self.log.exists() else ""

    # Looking.

    def of(self, kind: str, draw: random.Random) -> Unit:
        return draw.choice([unit for unit in self.units if unit.kind == kind])

    def busy(self, client: Client, *, alone: bool = False) -> dict[int, tuple[str, ...]]:
        """Worker processes that hold claims now, with these jobs; ``alone``: only those without a supervisor."""
        mine = {unit.pid for unit in self.units if unit.kind == ALONE}
        if not alone:
            for unit in self.units:
                if unit.kind == SUPERVISOR and unit.process.poll() is None:
                    mine |= {child.pid for child in psutil.Process(unit.pid).children()}
        found: dict[int, list[str]] = defaultdict(list)
        for queue in tasks.QUEUES:
            for job_id, line in lines_of(client.run(client.calls.reads.snapshot(queue))).items():
                job = fields_of(line)
                if State(job["state"]) in CLAIMED_STATES:
                    found[int(job["by"].split("-")[1])].append(job_id)
        return {pid: tuple(found[pid]) for pid in sorted(found) if pid in mine}

    def told(self) -> list[Path]:
        return sorted(self.place.glob("told-*"))

    def live(self, client: Client) -> dict[str, str]:
        """Every job that Redis has, with its state."""
        found: dict[str, str] = {}
        for queue in tasks.QUEUES:
            found |= states_of(lines_of(client.run(client.calls.reads.snapshot(queue))))
        return found

    def drained(self, client: Client) -> bool:
        return set(self.live(client).values()) <= {State.DEAD}

    def level(self, client: Client) -> bool:
        """Whether SQL has all that the outboxes have."""
        cursors = read_cursors(self.database)
        return all(cursors.get(queue) == last_of(client, queue) for queue in tasks.QUEUES)

    def _look_on(self) -> None:
        """Note again and again how far the outboxes and SQL are. What does not answer is noted as nothing."""
        with self.server.client(socket_timeout=1.0, decode_responses=True) as redis:
            while not self._closing.wait(LOOK_S):
                at_ms = time.time_ns() / 1e6
                written: dict[str, tuple[int, int]] = {}
                with contextlib.suppress(Exception):  # Redis is taken away on purpose
                    for queue in tasks.QUEUES:
                        found: Any = redis.xrevrange(queue_keys(queue)("outbox"), count=1)
                        written[queue] = OutboxId.parse(found[0][0])
                mirrored: dict[str, tuple[int, int]] = {}
                with contextlib.suppress(Exception):  # and so is SQL
                    mirrored = read_cursors(self.database)
                self.progress += [
                    Progress(at_ms, queue, written.get(queue), mirrored.get(queue))
                    for queue in tasks.QUEUES
                ]


def last_of(client: Client, queue: str) -> tuple[int, int]:
    """The last entry of a queue's outbox."""
    look = ["XREVRANGE", queue_keys(queue)("outbox"), "+", "-", "COUNT", 1]
    (((entry_id, _),),) = client.run(client.calls.delivery.ask([look]))
    return OutboxId.parse(entry_id)


def audit_verify(redis_url: str, audit_url: str) -> dict[str, Any]:
    """What ``rq-core audit verify`` says, with Redis beside SQL. Raises AssertionError if it says nothing."""
    at = ("--audit", audit_url, "--redis", redis_url)
    ran = rq_core("audit", "verify", "--json", *at, timeout=300)
    assert ran.stdout, f"audit verify said nothing: {ran.stderr}"
    said: dict[str, Any] = json.loads(ran.stdout)
    return said
