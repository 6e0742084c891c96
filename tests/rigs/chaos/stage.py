"""The processes of a chaos run: one Redis, workers, mirrors and producers. A process that ends is started again.

Two workers run alone, and a supervisor runs two more. Two mirrors write into one database.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil

from rq_core.connections.client import Client
from rq_core.model.events import OutboxId
from rq_core.model.keys import queue_keys
from rq_core.model.table.machine import CLAIMED_STATES, State
from sql_audit.store import migrate
from sql_audit.store.connection.database import Database
from tests.kit.processes import rq_core, worker_words
from tests.kit.proxy import Proxy
from tests.kit.servers import Engine, PostgresServer, RedisServer
from tests.kit.snapshots import fields_of, lines_of
from tests.kit.wait import wait_until
from tests.rigs.chaos import tasks
from tests.rigs.chaos.records import Progress, read_cursors, states_of
from tests.rigs.stage import DURABLE, WORKER, Crew

LOOK_S: Final = 0.1
"""The time (s) between two comparisons of the outboxes with the cursors."""
FAR_S: Final = 0.002
"""The round trip (s) to a Redis that is far away, without the time that the proxy takes."""
SUPERVISOR: Final = "supervisor"
MIRROR: Final = "mirror"
PRODUCER: Final = "producer"


class Stage(Crew):
    """All running processes of a chaos run. Use its method ``up`` in a ``with`` statement."""

    def __init__(
        self,
        place: Path,
        audit_url: str,
        engine: Engine,
        seed: int,
        rate: float,
        *,
        far: bool = False,
    ) -> None:
        """``rate`` is the number of jobs per second that all producers together enqueue. With ``far``, a round trip to
        Redis takes FAR_S at least, and each worker outside of the supervisor serves one queue: such a worker arms its
        claims."""
        super().__init__(place)
        self.audit_url = audit_url
        self.server = RedisServer(engine, place, DURABLE)
        self.postgres: PostgresServer | None = None
        self.progress: list[Progress] = []
        self._seed = seed
        self._rate = rate
        self._far = far
        self._told = itertools.count(1)
        self._closing = threading.Event()

    # Starting and ending.

    @contextlib.contextmanager
    def up(self) -> Iterator[Client]:
        self.server.start()
        # What runs reaches Redis through it; who looks on does so directly.
        self.proxy = Proxy(self.server.port, self._seed, FAR_S / 2 if self._far else 0.0)
        self.database = Database(self.audit_url)
        migrate.upgrade_schema(self.database)
        looker = threading.Thread(target=self._look_on, name="chaos-progress")
        self._know_all(self.proxy.url)
        try:
            with self.proxy, self, Client(self.server.url) as client:
                for kind in (MIRROR, MIRROR, WORKER, WORKER, SUPERVISOR):
                    self.start(kind)
                # Neither the first producer nor the first fault may come before the queues are mirrored.
                wait_until(
                    lambda: set(tasks.QUEUES) <= set(read_cursors(self.database)),
                    lambda: f"workers and mirrors run: {self.end_of_log()}",
                    timeout=60,
                )
                for _ in range(2):
                    self.start(PRODUCER)
                looker.start()
                yield client
        finally:
            self._closing.set()
            if looker.ident is not None:
                looker.join()
            self.database.close()
            self.server.kill()

    def _know_all(self, url: str) -> None:
        """Register the command line of each kind of process."""

        def producer() -> list[str]:
            number = next(self._told)
            told, seed = self.place / f"told-{number}", self._seed * 1_000 + number
            return ["tests.rigs.chaos.producer", url, str(told), str(seed), str(self._rate / 2)]

        def worker_of(*queues: str) -> list[str]:
            options = ("--concurrency", "5", "--grace", "3")
            return [*worker_words("tests.rigs.chaos.tasks:app", queues, url), *options]

        each = itertools.cycle([(name,) for name in tasks.QUEUES] if self._far else [tasks.QUEUES])
        self.knows(PRODUCER, producer)
        self.knows(MIRROR, lambda: ["tests.kit.mirror_service", url, self.audit_url])
        self.knows(WORKER, lambda: worker_of(*next(each)))
        self.knows(SUPERVISOR, lambda: [*worker_of(*tasks.QUEUES), "--processes", "2"])

    # Looking.

    def busy(self, client: Client, *, alone: bool = False) -> dict[int, tuple[str, ...]]:
        """Return the process ids of workers that hold claims, each with its jobs. With ``alone``, leave out the workers
        of a supervisor."""
        mine = {unit.pid for unit in self.units if unit.kind == WORKER}
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
        """Return every job that Redis has, with its state."""
        found: dict[str, str] = {}
        for queue in tasks.QUEUES:
            found |= states_of(lines_of(client.run(client.calls.reads.snapshot(queue))))
        return found

    def drained(self, client: Client) -> bool:
        return set(self.live(client).values()) <= {State.DEAD}

    def level(self, client: Client) -> bool:
        """Return whether the mirrors have copied all outbox entries to SQL."""
        cursors = read_cursors(self.database)
        return all(cursors.get(queue) == last_of(client, queue) for queue in tasks.QUEUES)

    def _look_on(self) -> None:
        """Record the last entry of each outbox and the last entry in SQL, again and again. The record has None for a
        server that does not answer."""
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
    """Return the last entry of a queue's outbox as (epoch, number)."""
    look = ["XREVRANGE", queue_keys(queue)("outbox"), "+", "-", "COUNT", 1]
    (((entry_id, _),),) = client.run(client.calls.delivery.ask([look]))
    return OutboxId.parse(entry_id)


def audit_verify(redis_url: str, audit_url: str, *, timeout: float = 300) -> dict[str, Any]:
    """Run ``rq-core audit verify`` on SQL and Redis for at most ``timeout`` seconds, and return its JSON.

    Raises AssertionError if the command prints nothing.
    """
    at = ("--audit", audit_url, "--redis", redis_url)
    ran = rq_core("audit", "verify", "--json", *at, timeout=timeout)
    assert ran.stdout, f"audit verify said nothing: {ran.stderr}"
    said: dict[str, Any] = json.loads(ran.stdout)
    return said
