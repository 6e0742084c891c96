"""Runs worker processes, and a mirror and a relay beside them. The supervisor starts these processes, replaces a
process that dies, and ends all of them together.

Child processes are spawned, never forked.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, NamedTuple

from rq_core.connections.client import Client
from rq_core.connections.open import open_transport
from rq_core.connections.transport import WORKER_SOCKET_TIMEOUT_S
from rq_core.errors import (
    LayoutMismatch,
    OutcomeUnknown,
    QueueDamaged,
    RqCoreError,
    ServerUnavailable,
)
from rq_core.model import plugins
from rq_core.model.lib.url import is_cluster
from rq_core.process import process_exit
from rq_core.process.claim_totals import FlowTotals
from rq_core.process.companion import Companion
from rq_core.process.lease_guard import LeaseGuard
from rq_core.process.worker_process import (
    BROKEN,
    CANNOT_RUN,
    HURRY,
    RETIRED,
    ServeOptions,
    run_child,
)
from rq_core.protocol.engine import server_check
from rq_core.protocol.engine.plan import Patience
from rq_core.worker import CLAIM_MAX
from rq_core.worker.batch_places import jobs_at_once
from rq_core.worker.claim_counters import FlowTable
from rq_core.worker.liveness.lease_table import LeaseTable

if TYPE_CHECKING:
    from rq_core.app.app import App


# A supervisor first contacts the queues of its workers, so that the error of a missing server is one line, not one for
# each process.

PATIENCE: Final = Patience(unsent=3.0, unknown=3.0)
"""The maximum wait for one shard of a cluster, in seconds. A frozen shard must not delay work on the queues of other
shards."""


class Met(NamedTuple):
    """The queues that a supervisor has contacted and that workers can use."""

    queues: list[str]
    made: list[str]
    """The queues in ``queues`` that the supervisor has just created."""


def meet(app: App, queues: Sequence[str]) -> tuple[Met, list[server_check.Remark]]:
    """Contact these queues, and create missing queues that the app declares. Returns the usable queues, and remarks on
    the server.

    In a cluster, one shard that answers is enough. Raises the error of a queue if no queue can be used.
    """
    if not is_cluster(app.redis_url):
        client = app.client
        remarks = client.run(server_check.remarks_on(client.calls.delivery.asking))
        return _meet(client, queues, app.queues), remarks
    transport = open_transport(app.redis_url, answer_within=WORKER_SOCKET_TIMEOUT_S)
    with Client(app.redis_url, prefix=app.prefix, patience=PATIENCE, transport=transport) as client:
        met = _meet(client, queues, app.queues)
        asking = client.calls.delivery.asking
        return met, client.run(server_check.remarks_on(asking, next(iter(met.queues), None)))


def _meet(client: Client, queues: Sequence[str], declared: Sequence[str]) -> Met:
    """Contact these queues, and return the usable queues. A missing queue is created only if it is in ``declared``.

    The workers log the queues that cannot be used, and leave them out.
    """
    met = Met([], [])
    error: RqCoreError | None = None
    silent: set[object] = set()
    for queue in queues:
        if client.place(queue) in silent:
            continue
        try:
            if queue in declared or client.run(client.calls.reads.is_there(queue)):
                answer = client.run(client.calls.delivery.handshake(queue))
                met.queues.append(queue)
                if answer.started == "created":
                    met.made.append(queue)
        except (QueueDamaged, LayoutMismatch) as found:
            error = found
        except (ServerUnavailable, OutcomeUnknown) as found:
            if not is_cluster(client.url):
                raise
            error = found
            silent |= {client.place(queue)} - {None}
    if error is not None and not met.queues:
        raise error
    return met


log = logging.getLogger(__name__)

RESTART_PAUSE_S_MAX: Final = 30.0
HEALTHY_LIFE_S: Final = 60.0
"""Seconds after which a worker counts as healthy. If the worker dies later than that, the pause before the next start
is again the shortest one."""
END_WAIT_S: Final = 15.0
"""Seconds that a stopping worker has, after the time for running jobs to finish (the grace), to give back its jobs,
report, and end. Then the supervisor kills the worker. A worker whose handler holds the GIL, or blocks the event loop,
does not receive signals."""
FORCE_WAIT_S: Final = process_exit.FORCE_AFTER_S + process_exit.EXIT_FUNCTIONS_S + 1.0
"""Seconds within which a worker process must end after its work is over. The process ends itself by force before that.
If it cannot, because a thread of a handler holds the GIL, the supervisor kills it."""


class Supervisor:
    """Keeps the worker processes running, and the mirror and the relay if there are any."""

    def __init__(self, options: ServeOptions, app: App, totals: FlowTotals | None = None) -> None:
        """Create the supervisor without starting processes. ``totals`` sums the counts of the worker processes."""
        self._options = options
        self._totals = totals or FlowTotals()
        self._app = app
        self._context = multiprocessing.get_context("spawn")
        self._children: dict[int, BaseProcess] = {}
        self._failures: dict[int, int] = {}
        self._born: dict[int, float] = {}
        self._due: dict[int, float] = {}
        self._tables: dict[int, LeaseTable] = {}
        """The claims and the last heartbeat of each worker process, by the number of the process. A process that
        replaces another gets the same number."""
        self._over: dict[int, float] = {}
        """Time at which the work of a process was first found to be over (monotonic clock, seconds), by the number of
        the process."""
        self._guard = LeaseGuard(
            Client(
                app.redis_url,
                prefix=app.prefix,
                patience=Patience(unsent=1.0, unknown=1.0),
                transport=open_transport(app.redis_url, answer_within=WORKER_SOCKET_TIMEOUT_S),
            ),
            options.worker.serving(app.queues).queues,
            self._lease_tables,
        )
        self._mirror = self._companion("the mirror", plugins.mirror_command, options.audit_url)
        self._relay = self._companion("the relay", plugins.relay_command, options.inbox_url)
        self._met: list[str] = []
        """The queues that can be used."""
        self._stops = 0
        self._killing_at = math.inf
        """Time at which workers that have not ended are killed (monotonic clock, seconds)."""
        self._wake = threading.Event()
        self._sources = SourceFiles(Path.cwd()) if options.reload else None
        self._reloading = False
        """True if the supervisor has asked the worker to end because its code changed."""

    def run(self) -> int:
        """Run all processes until a signal comes; with ``burst``, until all workers have ended. Returns the exit
        status."""
        before = {
            number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            # Contacted once here, so that the error of a missing server is one line, not repeated by each process.
            queues = self._options.worker.serving(self._app.queues).queues
            met, remarks = meet(self._app, queues)
            self._met += met.queues
            status = self._begin_mirror(met.made)
            if status is not None:
                # Without a mirror, jobs would run unaudited against the operator's wish.
                if status >= 0:
                    return status  # the mirror has logged why
                log.error("the mirror was ended by signal %d before it was ready", -status)
                return 1
            server_check.warn(remarks)
            if self._relay is not None:
                self._relay.start()
            for place in range(self._options.processes):
                self._spawn(place)
            self._guard.start()
            try:
                return self._watch()
            finally:
                self._guard.stop()
        finally:
            # The mirror ends last, so that it copies the events of the others.
            for companion in (self._relay, self._mirror):
                if companion is not None:
                    companion.end()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _companion(
        self, name: str, finds: Callable[[], plugins.CompanionCommand], database: str | None
    ) -> Companion | None:
        """Return a mirror or relay that uses ``database``; it is not started yet. Return None without a database."""
        if database is None:
            return None
        return Companion(name, partial(finds(), self._app.redis_url, self._app.prefix, database))

    def _begin_mirror(self, made: Sequence[str]) -> int | None:
        """Start the mirror, if there is one. Wait at most READY_WAIT_S until it is ready and mirrors all queues.

        Returns None if the workers may start. Otherwise returns the exit status of the mirror, which has ended.
        """
        if self._mirror is None:
            return None
        client, queues = self._app.client, self._met
        self._mirror.start(made)
        try:
            # SQL then has the queues' history from the first event on. Of queues that are attached already, Redis keeps
            # the events while the database is away.
            return self._mirror.wait_until_ready(
                lambda: all(client.run(client.calls.reads.counts(queue)).audit for queue in queues),
                lambda: self._stops > 0,
                "the mirror is not ready yet; the workers start without it",
            )
        finally:
            self._app.close()

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stops += 1
        if self._stops <= 2:
            grace = self._options.worker.grace if self._stops == 1 else 0.0
            self._killing_at = time.monotonic() + grace + END_WAIT_S
        for child in self._children.values():
            if child.is_alive() and child.pid is not None:
                os.kill(child.pid, signal.SIGTERM if self._stops == 1 else HURRY)
        self._wake.set()

    def _lease_tables(self) -> dict[int, LeaseTable]:
        """Return the lease tables, by process id, of the live processes whose work is not over."""
        return {
            child.pid: table
            for place, child in list(self._children.items())
            if child.pid is not None and child.exitcode is None
            if (table := self._tables[place]).ended is None
        }

    def _spawn(self, place: int) -> None:
        # A finished job keeps its lease until it is settled, so a worker may hold more leases than it runs jobs.
        rows = 2 * jobs_at_once(self._app, self._options.worker) + CLAIM_MAX
        table = self._tables[place] = LeaseTable(self._context, rows)
        flow = FlowTable(self._context)
        self._totals.join(place, flow)
        child = self._context.Process(
            target=run_child, args=(self._options, table, flow), name=f"rq-core-worker-{place}"
        )
        child.start()
        self._born[place] = time.monotonic()
        self._children[place] = child
        if self._stops:
            child.terminate()

    def _watch(self) -> int:
        status = 0
        while self._children or self._due:
            self._reload_if_changed()
            now = time.monotonic()
            for place, due in list(self._due.items()):
                if self._stops:
                    del self._due[place]
                elif due <= now:
                    del self._due[place]
                    self._spawn(place)
            for place, child in list(self._children.items()):
                if child.exitcode is None:
                    self._end_if_over(place, child)
                    continue
                child.join()
                del self._children[place]
                exitcode = self._exitcode(place, child.exitcode)
                if self._reloading and not self._stops:
                    self._totals.depart(place)
                    self._reloading, self._killing_at = False, math.inf
                    self._due[place] = time.monotonic()
                    continue
                if exitcode == RETIRED and not self._stops:
                    self._totals.depart(place, "retired")
                    self._due[place] = time.monotonic()
                    continue
                # Without burst no worker ends by itself: a handler has ended the process (os._exit, a C library).
                if self._stops or (exitcode == 0 and self._options.worker.burst):
                    self._totals.depart(place)
                    if exitcode not in (BROKEN, CANNOT_RUN, RETIRED):
                        status = status or max(0, exitcode)
                    continue
                self._bury(place, exitcode)
            self._watch_companions()
            if time.monotonic() > self._killing_at:
                self._kill_all()
            self._wait()
        return status

    def _watch_companions(self) -> None:
        for companion in (self._mirror, self._relay):
            if companion is not None and not self._stops:
                companion.watch()

    def _exitcode(self, place: int, exitcode: int) -> int:
        """Return the exit code of a process.

        If the process was killed after its worker had ended, return the exit status of the worker.
        """
        self._over.pop(place, None)
        ended = self._tables[place].ended
        return exitcode if exitcode >= 0 or ended is None else ended

    def _end_if_over(self, place: int, child: BaseProcess) -> None:
        """Kill a process whose work has been over for FORCE_WAIT_S seconds. A new process can then take its place."""
        if self._tables[place].ended is None:
            return
        now = time.monotonic()
        if now - self._over.setdefault(place, now) > FORCE_WAIT_S:
            log.error(
                "the work of worker process %d (%d) is over, but it does not end, killing it",
                *(place, child.pid),
            )
            child.kill()
            self._over[place] = math.inf

    def _reload_if_changed(self) -> None:
        """Ask the worker to end if its code has changed. After the grace, the worker gives back the jobs that have not
        ended.

        If a worker has died and waits for its next start, the supervisor starts it at once.
        """
        changed = None if self._sources is None or self._stops else self._sources.changed()
        if changed is None:
            return
        log.info("%s changed, restarting the worker", changed)
        self._due = dict.fromkeys(self._due, time.monotonic())
        for child in self._children.values():
            if not self._reloading and child.is_alive() and child.pid is not None:
                self._reloading = True
                self._killing_at = time.monotonic() + self._options.worker.grace + END_WAIT_S
                os.kill(child.pid, signal.SIGTERM)

    def _kill_all(self) -> None:
        """Kill all workers. Their jobs run again when the leases are over."""
        for place, child in self._children.items():
            log.error("worker process %d (%d) does not end, killing it", place, child.pid)
            child.kill()
        self._killing_at = math.inf

    def _bury(self, place: int, exitcode: int) -> None:
        """Plan the start of a new worker in the place of a dead one. The pause before each new start grows.

        With ``--reload``, after an error of the app's code, the new worker starts at the next change of a file.
        """
        self._totals.depart(place, "died")
        if exitcode == BROKEN and self._sources is not None:
            log.error("the worker waits for the next change of a file")
            self._due[place] = math.inf
            return
        lived = time.monotonic() - self._born[place]
        before = 0 if lived > HEALTHY_LIFE_S else self._failures.get(place, 0)
        failures = self._failures[place] = before + 1
        pause = min(0.5 * 2 ** (failures - 1), RESTART_PAUSE_S_MAX)
        what = f"signal {-exitcode}" if exitcode < 0 else f"status {exitcode}"
        log.error("worker process %d ended by %s, restarting in %g s", place, what, pause)
        self._due[place] = time.monotonic() + pause

    def _wait(self) -> None:
        sentinels = [child.sentinel for child in self._children.values()]
        if sentinels:
            multiprocessing.connection.wait(sentinels, timeout=0.2)
        else:
            self._wake.wait(0.2)
            self._wake.clear()


# Finds changes of Python files, so that ``rq-core worker --reload`` runs the new code.
#
# It checks all files twice a second: a few hundred files take a millisecond, and no library is needed.

LOOK_EVERY_S: Final = 0.5
"""Seconds between two checks of the files."""
FILES_MAX: Final = 20_000
"""Maximum number of files that are checked; changes of other files are not found."""
_SKIPPED: Final = frozenset({"__pycache__", "node_modules"})

Stamp = tuple[int, int]
"""The time of a file's last change (ns), and its size."""


class SourceFiles:
    """The ``.py`` files below a directory, except those in hidden directories and virtual environments."""

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._clock = clock
        self._seen = self._look()
        self._due = clock() + LOOK_EVERY_S

    def changed(self) -> Path | None:
        """Return a file that has changed, appeared or disappeared since the last check. Return None if no file has, or
        if the next check is not due yet."""
        if self._clock() < self._due:
            return None
        before, self._seen = self._seen, self._look()
        self._due = self._clock() + LOOK_EVERY_S
        differing = dict(before.items() ^ self._seen.items())
        return min(differing, default=None)

    def _look(self) -> dict[Path, Stamp]:
        found: dict[Path, Stamp] = {}
        for path in _python_files(self._root):
            try:
                facts = path.stat()
            except OSError:
                continue  # The file was removed meanwhile.
            found[path] = facts.st_mtime_ns, facts.st_size
            if len(found) == FILES_MAX:
                break
        return found


def _python_files(root: Path) -> Iterator[Path]:
    for where, directories, names in os.walk(root):
        directories[:] = sorted(
            each
            for each in directories
            if not each.startswith(".")
            and each not in _SKIPPED
            and not Path(where, each, "pyvenv.cfg").exists()
        )
        yield from (Path(where, name) for name in sorted(names) if name.endswith(".py"))
