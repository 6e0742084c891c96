"""Runs worker processes, and beside them the mirror: starts them, ends them together, replaces one that dies.

With one process and no mirror the worker runs right here. Children are spawned, never forked.
"""

from __future__ import annotations

import asyncio
import logging
import math
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from rq_core.app.log_context import JobLogFilter
from rq_core.connections.client import Client
from rq_core.connections.open import open_wire
from rq_core.connections.wire import WORKER_SOCKET_TIMEOUT_S
from rq_core.errors import InvalidOption, RqCoreError
from rq_core.model import logs
from rq_core.process import ending
from rq_core.process.flow_totals import FlowTotals
from rq_core.process.health import Page, Pulse, parse_address, probing
from rq_core.process.lease_guard import LeaseGuard
from rq_core.process.meeting import meet
from rq_core.process.mirror import MirrorProcess
from rq_core.process.reload import SourceFiles
from rq_core.protocol import server_check
from rq_core.protocol.plan import Patience
from rq_core.worker import CLAIM_MAX, Worker, WorkerOptions
from rq_core.worker.flow import FlowTable
from rq_core.worker.lease_table import LeaseTable

if TYPE_CHECKING:
    from rq_core.app.app import App

log = logging.getLogger(__name__)

RETIRED: Final = 75
"""Exit status of a worker that has done its share (EX_TEMPFAIL): another takes its place at once."""
RESTART_PAUSE_S_MAX: Final = 30.0
HEALTHY_LIFE_S: Final = 60.0
"""Seconds after which a worker's death is no longer counted with the ones before."""
END_WAIT_S: Final = 15.0
"""Seconds beyond the grace for a worker to give back the rest, report, and end; then it is killed. One whose handler
holds the GIL, or the event loop, hears no signal."""
HURRY: Final = signal.SIGUSR1
"""What tells a worker process that its grace is over."""
FORCE_WAIT_S: Final = ending.FORCE_AFTER_S + ending.EXIT_FUNCTIONS_S + 1.0
"""Seconds that a worker process gets to end when its work is over. It ends itself by force before that; one that cannot
(a handler left a thread that holds the GIL) is killed."""
CANNOT_RUN: Final = 69
"""Exit status of a worker that cannot run: its server, or its code, is not there (EX_UNAVAILABLE)."""


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """What ``rq-core worker`` runs."""

    target: str
    """``module:app``."""
    worker: WorkerOptions = field(default_factory=WorkerOptions)
    processes: int = 1
    redis_url: str | None = None
    prefix: str | None = None
    audit_url: str | None = None
    redact: str | None = None
    """Import path of a redactor, if not the app's own."""
    health: str | None = None
    """Where to answer HTTP requests about the workers' health: PORT or HOST:PORT."""
    reload: bool = False
    """Whether to restart the worker when a Python file below the current directory changes."""
    log_format: str = "text"
    log_level: str = "INFO"
    named: bool = False
    """Whether an operator named the queues: then the app must declare one of them, unless that is overruled."""

    def __post_init__(self) -> None:
        if self.reload and (self.processes > 1 or self.worker.burst):
            raise InvalidOption(
                option="reload",
                value=self.reload,
                must="must be for one worker that does not end by itself: leave out --processes and --burst",
            )
        if not 1 <= self.processes <= 256:
            raise InvalidOption(
                option="processes", value=self.processes, must="must be from 1 to 256"
            )
        if self.health is not None:
            parse_address(self.health)


def serve(
    options: ServeOptions,
    metrics: Callable[[FlowTotals], Page] | None = None,
    *,
    ends: bool = True,
) -> int:
    """Run until asked to stop (SIGTERM, SIGINT; a second one ends the grace). Returns the exit status.

    ``metrics`` makes the page that the port of ``health`` shows at /metrics, of what the workers count. ``ends``:
    whether the process has nothing to do afterwards, so that it may be ended by force.
    """
    logs.configure(options.log_format, options.log_level, filters=[JobLogFilter()])
    app = load(options)
    if options.named and not server_check.forced():
        _check_queues(options.worker.queues, app.queues)
    totals = FlowTotals()
    pages = {} if metrics is None else {"/metrics": metrics(totals)}
    with probing(options.health, pages):
        alone = options.processes == 1 and options.audit_url is None and not options.reload
        if alone and options.worker.max_jobs is None and options.worker.max_memory is None:
            flow = FlowTable()
            totals.join(0, flow)
            return work(app, options.worker, flow=flow, ends=ends)
        status = Supervisor(options, app, totals).run()
        if ends:
            # The app's modules are imported here, too, and may have started threads.
            ending.begin(status)
        return status


def _check_queues(named: Sequence[str], declared: Sequence[str]) -> None:
    """Raise InvalidOption if the app declares none of the queues: no task of it is enqueued there by itself."""
    if not set(named) & set(declared):
        known = ", ".join(declared) or "none: its tasks are not declared where it is imported"
        must = (
            f"must name a queue that the app declares ({known}). Declare it with app.queue(NAME), or give --force if"
            " jobs are enqueued there by name or by with_options"
        )
        raise InvalidOption(option="queues", value=",".join(named), must=must)


def load(options: ServeOptions) -> App:
    """The app of ``options.target``, with the URLs of the command line. Raises InvalidOption."""
    from rq_core.app.loading import load_app

    app = load_app(options.target)
    app.connect_to(options.redis_url, prefix=options.prefix)
    if options.redact is not None:
        app.redact = options.redact
    app.check()
    return app


def work(
    app: App,
    options: WorkerOptions,
    table: LeaseTable | None = None,
    flow: FlowTable | None = None,
    *,
    ends: bool = True,
) -> int:
    """Run one worker in this process. Returns the exit status: RETIRED if another should take its place.

    From then on the process has a few seconds to end in order (:mod:`rq_core.process.ending`), if it ``ends``.
    """

    async def main() -> int:
        pulse = Pulse()
        status = CANNOT_RUN if table is not None else 1
        worker = Worker(app, options, on_claim=pulse.beat, lease_table=table, flow=flow)
        pulse.start(worker.name, options.queues)
        _stop_on_signals(worker, supervised=table is not None)
        try:
            clean = await worker.run()
            status = RETIRED if worker.retired else 0
        except RqCoreError as error:
            if worker.clean:
                raise
            clean = False
            status = _refused(error, supervised=table is not None)
        finally:
            pulse.end()
            if table is not None:
                table.end(status)
            if ends:
                ending.begin(status)
        if not clean:
            # Handlers that do not stop would keep the loop or the process; their jobs have been given back.
            ending.end_now(status)
        return status

    status: int = _run(main())
    return status


def _refused(error: RqCoreError, *, supervised: bool) -> int:
    """Say why a worker cannot run, in one clear line. Returns the exit status of its process."""
    log.error("worker cannot run: %s", error)
    return CANNOT_RUN if supervised else 1


def _stop_on_signals(worker: Worker, *, supervised: bool) -> None:
    """Let signals stop a worker.

    One that is supervised gets them from its supervisor. A terminal sends SIGINT to all processes, systemd SIGTERM, so
    that of the supervisor is no second one: that has a number of its own.
    """
    loop = asyncio.get_running_loop()
    if not supervised:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, worker.stop)
        return

    def stop() -> None:
        if not worker.asked:
            worker.stop()

    def hurry() -> None:
        stop()
        worker.stop()

    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_signal_handler(HURRY, hurry)


def _run(main: Any) -> Any:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def _child(options: ServeOptions, table: LeaseTable, flow: FlowTable) -> None:
    """A worker process, as the supervisor spawns it."""
    # Ctrl-C reaches the whole process group; only the supervisor answers it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logs.configure(options.log_format, options.log_level, filters=[JobLogFilter()])
    threading.Thread(target=_end_with_parent, name="rq-core-parent", daemon=True).start()
    try:
        status = work(load(options), options.worker, table, flow)
    except RqCoreError as error:
        status = _refused(error, supervised=True)
    sys.exit(status)


def _end_with_parent() -> None:
    """Stop this worker when its supervisor is gone: no other process would."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        log.error("the supervisor is gone, stopping")
        os.kill(os.getpid(), signal.SIGTERM)


class Supervisor:
    """Keeps the worker processes, and the mirror if there is one, running."""

    def __init__(self, options: ServeOptions, app: App, totals: FlowTotals | None = None) -> None:
        """``totals`` sums what the worker processes count."""
        self._options = options
        self._totals = totals or FlowTotals()
        self._app = app
        self._context = multiprocessing.get_context("spawn")
        self._children: dict[int, BaseProcess] = {}
        self._failures: dict[int, int] = {}
        self._born: dict[int, float] = {}
        self._due: dict[int, float] = {}
        self._tables: dict[int, LeaseTable] = {}
        """By place."""
        self._over: dict[int, float] = {}
        """When the work of a place's process was first seen to be over, on the monotonic clock."""
        self._guard = LeaseGuard(
            Client(
                app.redis_url,
                prefix=app.prefix,
                patience=Patience(unsent=1.0, unknown=1.0),
                wire=open_wire(app.redis_url, answer_within=WORKER_SOCKET_TIMEOUT_S),
            ),
            options.worker.queues,
            self._lease_tables,
        )
        self._mirror = (
            MirrorProcess(app.redis_url, app.prefix, options.audit_url)
            if options.audit_url is not None
            else None
        )
        self._met: list[str] = []
        """The queues that are there: one that the app does not declare is not made."""
        self._stops = 0
        self._killing_at = math.inf
        """When workers that have not ended by themselves are killed, on the monotonic clock."""
        self._wake = threading.Event()
        self._sources = SourceFiles(Path.cwd()) if options.reload else None
        self._reloading = False
        """Whether the worker was asked to end because its code has changed."""

    def run(self) -> int:
        """Supervise until asked to stop, or with ``burst`` until all workers have ended."""
        before = {
            number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            # Once here, so that a missing server is one clear line and not one per process, again and again.
            client = self._app.client
            remarks = client.run(server_check.check(client.calls.delivery.asking))
            self._met += meet(client, self._options.worker.queues, self._app.queues)
            status = self._begin_mirror()
            if status is not None:
                # It has said why; without it, jobs would run unaudited although the operator asked for an audit.
                return status
            server_check.warn(remarks)
            for place in range(self._options.processes):
                self._spawn(place)
            self._guard.start()
            try:
                return self._watch()
            finally:
                self._guard.stop()
        finally:
            if self._mirror is not None:
                self._mirror.end()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _begin_mirror(self) -> int | None:
        """Start the mirror and wait until it has attached. Returns its status if it ended instead."""
        if self._mirror is None:
            return None
        client, queues = self._app.client, self._met
        self._mirror.start()
        try:
            return self._mirror.wait_until_attached(
                lambda: all(client.run(client.calls.reads.counts(queue)).audit for queue in queues),
                lambda: self._stops > 0,
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
        """Of the processes that work, by process id."""
        return {
            child.pid: table
            for place, child in list(self._children.items())
            if child.pid is not None and child.exitcode is None
            if (table := self._tables[place]).ended is None
        }

    def _spawn(self, place: int) -> None:
        # A finished job keeps its lease until it is reported, so a worker may hold more than it runs.
        rows = 2 * self._options.worker.concurrency + CLAIM_MAX
        table = self._tables[place] = LeaseTable(self._context, rows)
        flow = FlowTable(self._context)
        self._totals.join(place, flow)
        child = self._context.Process(
            target=_child, args=(self._options, table, flow), name=f"rq-core-worker-{place}"
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
                # Without burst no worker is ever done: a handler has ended the process (os._exit, a C library).
                if self._stops or (exitcode == 0 and self._options.worker.burst):
                    self._totals.depart(place)
                    if exitcode not in (CANNOT_RUN, RETIRED):
                        status = status or max(0, exitcode)
                    continue
                self._bury(place, exitcode)
            if self._mirror is not None and not self._stops:
                self._mirror.watch()
            if time.monotonic() > self._killing_at:
                self._kill_all()
            self._wait()
        return status

    def _exitcode(self, place: int, exitcode: int) -> int:
        """How a process ended, as its worker says if it was killed when its work was over."""
        self._over.pop(place, None)
        ended = self._tables[place].ended
        return exitcode if exitcode >= 0 or ended is None else ended

    def _end_if_over(self, place: int, child: BaseProcess) -> None:
        """Kill a process whose work has long been over: another is to take its place."""
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
        """End the worker if its code has changed; it gives back what has not ended after its grace. One that died and
        would start again after a pause starts at once."""
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
        """Their jobs run again when their leases are over."""
        for place, child in self._children.items():
            log.error("worker process %d (%d) does not end, killing it", place, child.pid)
            child.kill()
        self._killing_at = math.inf

    def _bury(self, place: int, exitcode: int) -> None:
        """A worker died: its jobs run again when their leases expire; another takes its place."""
        self._totals.depart(place, "died")
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
