"""The faults: each takes something away for a while and gives it back, and is then over.

A schedule is drawn from a seed: every kind comes once before any comes again, in an order that changes.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import psycopg

from rq_core.client import Client
from tests.faults import tasks
from tests.faults.proxy import Mode
from tests.faults.records import Fault
from tests.faults.stage import ALONE, MIRROR, PRODUCER, SUPERVISOR, Stage

Action = Callable[["Nemesis"], None]


class Nemesis:
    """Applies faults to a stage."""

    def __init__(self, stage: Stage, client: Client, draw: random.Random) -> None:
        self.stage = stage
        self.client = client
        self.draw = draw

    def schedule(self) -> Iterator[str]:
        while True:
            yield from self.draw.sample(sorted(KINDS), len(KINDS))

    def apply(self, kind: str) -> Fault:
        began = time.time_ns() / 1e6
        KINDS[kind](self)
        return Fault(kind, began, time.time_ns() / 1e6)

    # Processes.

    def kill_worker(self) -> None:
        """One that holds a claim, if any does."""
        pids = self.stage.busy_pids(self.client)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.draw.choice(pids or [self.stage.of(ALONE, self.draw).pid]), signal.SIGKILL)

    def stop_worker(self) -> None:
        """Past its lease; one with a supervisor would keep it."""
        pids = self.stage.busy_pids(self.client, alone=True)
        pid = self.draw.choice(pids or [self.stage.of(ALONE, self.draw).pid])
        self._stop(pid, tasks.LEASE_S * self.draw.uniform(1.3, 2.0))

    def kill_supervisor(self) -> None:
        """Its workers end by themselves."""
        self.stage.of(SUPERVISOR, self.draw).process.kill()

    def kill_producer(self) -> None:
        self.stage.of(PRODUCER, self.draw).process.kill()

    def kill_mirror(self) -> None:
        self.stage.of(MIRROR, self.draw).process.kill()

    def stop_mirror(self) -> None:
        self._stop(self.stage.of(MIRROR, self.draw).pid, self.draw.uniform(1.0, 3.0))

    def _stop(self, pid: int, seconds: float) -> None:
        try:
            os.kill(pid, signal.SIGSTOP)
            self.stage.rest(seconds)
        except ProcessLookupError:
            return
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    # Redis.

    def kill_connections(self) -> None:
        self._command("CLIENT", "KILL", "TYPE", "normal")

    def pause_clients(self) -> None:
        seconds = self.draw.uniform(0.5, 2.0)
        self._command("CLIENT", "PAUSE", int(seconds * 1000), "ALL")
        self.stage.rest(seconds)

    def flush_scripts(self) -> None:
        self._command("SCRIPT", "FLUSH")
        self._command("FUNCTION", "FLUSH")

    def restart_redis(self) -> None:
        """SIGKILL; a new process reads the append-only file."""
        self.stage.server.kill()
        self.stage.rest(self.draw.uniform(0.0, 2.0))
        self.stage.server.start()

    def freeze_redis(self) -> None:
        """Connections stay open and nothing answers."""
        self.stage.server.freeze()
        try:
            self.stage.rest(self.draw.uniform(1.0, 3.0))
        finally:
            self.stage.server.thaw()

    def _command(self, *words: str | int) -> None:
        with self.stage.server.client(socket_timeout=10.0) as redis:
            redis.execute_command(*words)

    # The way to Redis.

    def misbehave(self, mode: Mode) -> None:
        with self.stage.proxy.doing(mode):
            self.stage.rest(self.draw.uniform(1.0, 3.0))

    # SQL.

    def lock_sql(self) -> None:
        """Somebody else holds a lock that every mirror needs."""
        with self._locked():
            self.stage.rest(3.0)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        database = self.stage.database
        if database.dialect == "sqlite":
            with contextlib.closing(sqlite3.connect(database.path, timeout=30)) as connection:
                connection.isolation_level = None
                connection.execute("BEGIN IMMEDIATE")
                yield
                connection.execute("ROLLBACK")
        else:
            url = database.url.replace("+psycopg", "")
            with psycopg.connect(url, connect_timeout=5) as session:
                session.execute("LOCK TABLE job_event, mirror_cursor IN SHARE MODE")
                yield
                session.rollback()


def _mode(mode: Mode) -> Action:
    return lambda nemesis: nemesis.misbehave(mode)


KINDS: Final[Mapping[str, Action]] = {
    "worker_kill": Nemesis.kill_worker,
    "worker_stop": Nemesis.stop_worker,
    "supervisor_kill": Nemesis.kill_supervisor,
    "producer_kill": Nemesis.kill_producer,
    "mirror_kill": Nemesis.kill_mirror,
    "mirror_stop": Nemesis.stop_mirror,
    "client_kill": Nemesis.kill_connections,
    "client_pause": Nemesis.pause_clients,
    "script_flush": Nemesis.flush_scripts,
    "redis_kill": Nemesis.restart_redis,
    "redis_stop": Nemesis.freeze_redis,
    "sql_lock": Nemesis.lock_sql,
    **{f"net_{mode}": _mode(mode) for mode in Mode if mode is not Mode.PLAIN},
}
