"""The faults of a chaos run. Each fault disturbs a server or a process for a while.

A seed determines the order of the faults. Each round has every kind once, in a new order.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import psycopg

from rq_core.connections.client import Client
from rq_core.errors import RqCoreError
from rq_core.model.keys import queue_keys
from tests.kit.proxy import Mode
from tests.rigs.chaos import tasks
from tests.rigs.chaos.judge import LOSSES
from tests.rigs.chaos.records import Fault
from tests.rigs.chaos.stage import MIRROR, PRODUCER, SUPERVISOR, Stage
from tests.rigs.stage import WORKER

Action = Callable[["Nemesis"], None]


class Nemesis:
    """Applies faults to the processes and servers of a chaos run."""

    def __init__(self, stage: Stage, client: Client, draw: random.Random) -> None:
        self.stage = stage
        self.client = client
        self.draw = draw
        self.held: tuple[str, ...] = ()

    def schedule(self, kinds: Sequence[str] | None = None) -> Iterator[str]:
        """Yield kinds of faults for ever. Each round has every kind once, in a random order."""
        among = sorted(kinds or KINDS)
        while True:
            yield from self.draw.sample(among, len(among))

    def apply(self, kind: str) -> Fault:
        self.held = ()
        # In whole milliseconds, as Redis tells when an event was: what comes next may be of the same.
        began = float(time.time_ns() // 1_000_000)
        KINDS[kind](self)
        return Fault(kind, began, time.time_ns() / 1e6, self.held)

    def two_at_once(self) -> None:
        """Apply two faults at once: one to a process, and one to a server or its network."""
        kinds = [self.draw.choice(each) for each in (OF_PROCESSES, OF_SERVERS)]
        both = [Nemesis(self.stage, self.client, random.Random(self.draw.random())) for _ in kinds]
        with ThreadPoolExecutor(2) as pool:
            for done in [
                pool.submit(KINDS[kind], each) for kind, each in zip(kinds, both, strict=True)
            ]:
                done.result()

    # Processes.

    def kill_worker(self) -> None:
        """Kill a worker process. A worker that holds claims is preferred."""
        busy = self._busy()
        pid = self.draw.choice(list(busy) or [self.stage.of(WORKER, self.draw).pid])
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.held = busy.get(pid, ())

    def stop_worker(self) -> None:
        """Suspend a worker without a supervisor for longer than its lease. (A supervisor would extend the lease.)"""
        pids = list(self._busy(alone=True))
        pid = self.draw.choice(pids or [self.stage.of(WORKER, self.draw).pid])
        self._stop(pid, tasks.LEASE_S * self.draw.uniform(1.3, 2.0))

    def _busy(self, *, alone: bool = False) -> dict[int, tuple[str, ...]]:
        """Return the workers that hold claims, each with its jobs. Return no worker if Redis does not answer."""
        with contextlib.suppress(RqCoreError):
            return self.stage.busy(self.client, alone=alone)
        return {}

    def kill_supervisor(self) -> None:
        """Kill a supervisor. Its workers then end by themselves."""
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
        """Kill Redis with SIGKILL, and start it again from its append-only file."""
        self.stage.server.kill()
        self.stage.rest(self.draw.uniform(0.0, 2.0))
        self.stage.server.start()

    def freeze_redis(self) -> None:
        """Suspend Redis: connections stay open, and Redis answers no command."""
        self.stage.server.freeze()
        try:
            self.stage.rest(self.draw.uniform(1.0, 3.0))
        finally:
            self.stage.server.thaw()

    def fill_redis(self) -> None:
        """Make Redis refuse writes for a while: its memory limit is set to 1 MB."""
        with self.stage.server.client(socket_timeout=10.0) as redis:
            redis.config_set("maxmemory", "1mb")
        try:
            self.stage.rest(self.draw.uniform(2.0, 4.0))
        finally:
            with self.stage.server.client(socket_timeout=10.0) as redis:
                redis.config_set("maxmemory", "0")

    # Loss on purpose: what Redis had acknowledged is gone.

    def cut_log(self) -> None:
        """Kill Redis, and cut off the end of its append-only file before the next start. A crash of the machine does
        the same."""
        server = self.stage.server
        server.kill()
        files = (server.directory / "appendonlydir").glob("*.incr.aof")
        tail = max(files, key=lambda each: int(each.name.split(".")[-3]))
        content = tail.read_bytes()
        tail.write_bytes(content[: max(0, len(content) - self.draw.randint(1, 20_000))])
        server.mend_append_only_file()
        server.start()

    def go_back(self) -> None:
        """Restart Redis with its data from 1 to 3 seconds before."""
        server = self.stage.server
        files, kept = server.directory / "appendonlydir", server.directory / "kept"
        server.kill()
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(files, kept)
        server.start()
        self.stage.rest(self.draw.uniform(1.0, 3.0))
        server.kill()
        shutil.rmtree(files)
        kept.rename(files)
        server.start()

    def flush(self) -> None:
        self._command("FLUSHALL")

    def trim_outboxes(self) -> None:
        """Empty all outboxes, even of entries that the mirror has not read. An operator could do this by mistake."""
        for queue in tasks.QUEUES:
            self._command("XTRIM", queue_keys(queue)("outbox"), "MAXLEN", 0)

    def _command(self, *words: str | int) -> None:
        with self.stage.server.client(socket_timeout=10.0) as redis:
            redis.execute_command(*words)

    # The way to Redis.

    def misbehave(self, mode: Mode) -> None:
        with self.stage.proxy.doing(mode):
            self.stage.rest(self.draw.uniform(1.0, 3.0))

    # SQL.

    def lock_sql(self) -> None:
        """Hold a lock in SQL that every mirror needs."""
        with self._locked():
            self.stage.rest(3.0)

    def take_sql_away(self) -> None:
        """Make SQL unreachable: stop PostgreSQL for 5 to 10 s, or lock SQL's tables for 10 s, longer than a mirror
        waits."""
        postgres = self.stage.postgres
        if postgres is None:
            with self._locked():
                self.stage.rest(10.0)
            return
        postgres.pause()
        try:
            self.stage.rest(self.draw.uniform(5.0, 10.0))
        finally:
            postgres.resume()

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
    "redis_full": Nemesis.fill_redis,
    "sql_lock": Nemesis.lock_sql,
    "sql_stop": Nemesis.take_sql_away,
    "aof_cut": Nemesis.cut_log,
    "old_snapshot": Nemesis.go_back,
    "flushall": Nemesis.flush,
    "outbox_trim": Nemesis.trim_outboxes,
    "two_at_once": Nemesis.two_at_once,
    **{f"net_{mode}": _mode(mode) for mode in Mode if mode not in (Mode.PLAIN, Mode.BLACK_HOLE)},
}
OF_PROCESSES: Final = (
    "worker_kill", "worker_stop", "supervisor_kill", "producer_kill", "mirror_kill", "mirror_stop",
)  # fmt: skip
OF_SERVERS: Final = tuple(
    sorted(set(KINDS) - set(OF_PROCESSES) - LOSSES - {"two_at_once", "sql_stop"})
)
