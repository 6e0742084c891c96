"""A server and processes for the long proofs. The processes are started, killed, and started again.

One log has the output of all processes. One witness file has the lines that handlers write about their runs.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from tests.kit import processes
from tests.kit.processes import Child
from tests.kit.servers import Engine, RedisServer
from tests.kit.wait import wait_until
from tests.kit.witness import WITNESS, Witness

STOP_S: Final = 30.0
WORKER: Final = "worker"
DURABLE: Final = {"appendonly": "yes", "appendfsync": "always"}
"""The settings of a server that keeps all acknowledged data even if it is killed."""


@dataclass
class Unit:
    """One process of a crew. If it has ended, `Crew.mend` starts it again."""

    kind: str
    process: Child

    @property
    def pid(self) -> int:
        return self.process.pid


class Crew:
    """Processes of several kinds. Each kind has one command line.

    Use it in a ``with`` statement. At the end of the block all processes are killed.
    """

    def __init__(self, place: Path, variables: Mapping[str, str] | None = None) -> None:
        """``variables`` are added to the environment of each process."""
        self.place = place
        self.witness = Witness(place / "witness.jsonl")
        self.log = place / "log"
        self.units: list[Unit] = []
        self._variables = {WITNESS: str(self.witness.path), **(variables or {})}
        self._commands: dict[str, Callable[[], Sequence[str]]] = {}
        self._mending = threading.Lock()

    def knows(self, kind: str, command: Callable[[], Sequence[str]]) -> None:
        """Register the command line of a kind of process: ``python -m`` and the words that ``command`` returns.

        ``command`` is called at each start.
        """
        self._commands[kind] = command

    def knows_workers(self, app: str, queues: Sequence[str], url: str, *options: str) -> None:
        """Register the command line of the kind `WORKER`, which is ``rq-core worker``."""
        self.knows(WORKER, lambda: [*processes.worker_words(app, queues, url), *options])

    def _launch(self, kind: str) -> Child:
        return processes.python(*self._commands[kind](), log=self.log, variables=self._variables)

    def start(self, kind: str = WORKER) -> Unit:
        """Start one more process of this kind."""
        self.units.append(Unit(kind, self._launch(kind)))
        return self.units[-1]

    def wait_started(self, count: int) -> None:
        """Wait until ``count`` workers in all have logged that they started."""
        wait_until(
            lambda: self.said().count("worker started") >= count,
            lambda: f"{count} workers run: {self.end_of_log()}",
            timeout=60,
        )

    def kill(self, unit: Unit) -> None:
        """Kill a process, even if the process is suspended, and do not start it again."""
        unit.process.close()
        self.units.remove(unit)

    def mend(self) -> None:
        """Start each process again that has ended, as a service manager does."""
        with self._mending:
            for unit in self.units:
                if unit.process.poll() is not None:
                    unit.process.wait()
                    unit.process = self._launch(unit.kind)

    def rest(self, seconds: float) -> None:
        """Wait for some seconds, and keep all processes running meanwhile."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.mend()
            time.sleep(min(0.05, left))

    def stop(self, *kinds: str) -> list[int]:
        """Stop all processes of these kinds with SIGTERM, for good. Return their exit statuses.

        Raises AssertionError if a process does not end.
        """
        ending = [unit for unit in self.units if unit.kind in kinds]
        self.units = [unit for unit in self.units if unit.kind not in kinds]
        for unit in ending:
            unit.process.terminate()
        statuses = []
        for unit in ending:
            try:
                statuses.append(unit.process.wait(STOP_S))
            except subprocess.TimeoutExpired as error:
                raise AssertionError(f"a {unit.kind} did not end: {self.end_of_log()}") from error
            finally:
                unit.process.close()
        return statuses

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for unit in self.units:
            unit.process.close()

    def of(self, kind: str, draw: random.Random) -> Unit:
        """Return a random process among those of this kind."""
        return draw.choice([unit for unit in self.units if unit.kind == kind])

    def said(self) -> str:
        """Return the output of all processes."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def end_of_log(self) -> str:
        return self.said()[-3_000:]


@contextlib.contextmanager
def workers(
    place: Path,
    app: str,
    queues: Sequence[str],
    url: str,
    *options: str,
    count: int = 1,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Crew]:
    """Yield a crew of ``count`` workers that have begun. At the end of the block they are killed."""
    with Crew(place, variables) as crew:
        crew.knows_workers(app, queues, url, *options)
        for _ in range(count):
            crew.start()
        crew.wait_started(count)
        yield crew


@contextlib.contextmanager
def served(
    engine: Engine, place: Path, options: Mapping[str, str] | None = None
) -> Iterator[RedisServer]:
    """Yield a separate server."""
    server = RedisServer(engine, place, options)
    server.start()
    try:
        yield server
    finally:
        server.kill()


@contextlib.contextmanager
def directory() -> Iterator[Path]:
    """Yield a directory, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="rq-core-rig-") as name:
        yield Path(name)
