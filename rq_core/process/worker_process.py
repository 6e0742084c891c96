"""One worker process: loads the app, runs a worker until a signal stops it, and ends.

The process runs alone, or as a child of the supervisor.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rq_core.app.handlers.log_context import JobLogFilter
from rq_core.errors import InvalidOption, RqCoreError
from rq_core.masking import masked
from rq_core.model.keys import DEFAULT_PREFIX
from rq_core.model.lib import logs
from rq_core.process import process_exit
from rq_core.process.health import Pulse
from rq_core.process.http_port import parse_address
from rq_core.worker import Worker, WorkerOptions
from rq_core.worker.claim_counters import FlowTable
from rq_core.worker.liveness.lease_table import LeaseTable

if TYPE_CHECKING:
    from rq_core.app.app import App

log = logging.getLogger(__name__)

RETIRED: Final = 75
"""Exit status of a worker after --max-jobs or --max-memory (EX_TEMPFAIL): another worker takes its place at once."""
HURRY: Final = signal.SIGUSR1
"""The signal by which the supervisor ends the grace of a worker process, the time that running jobs have to finish at a
stop."""
CANNOT_RUN: Final = 69
"""Exit status of a supervised worker that cannot run: its server does not answer, or refuses it (EX_UNAVAILABLE)."""
BROKEN: Final = 70
"""Exit status of a supervised worker whose app cannot be imported, or is invalid (EX_SOFTWARE)."""


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The options of ``rq-core worker``."""

    target: str
    """The app, as ``module:app``."""
    worker: WorkerOptions = field(default_factory=WorkerOptions)
    processes: int = 1
    redis_url: str | None = None
    prefix: str | None = None
    audit_url: str | None = None
    inbox_url: str | None = None
    """The database of an inbox, for a relay beside the workers; None for no relay."""
    redact: str | None = None
    """Import path of a redactor that replaces the redactor of the app; None: the app's own redactor is used."""
    health: str | None = None
    """Address of the port for HTTP requests about the workers' health: PORT or HOST:PORT; None for no port."""
    reload: bool = False
    """If true, the worker is restarted when a Python file below the current directory changes."""
    django: str | None = None
    """The module of Django's settings, for an app in a Django project; None for other apps."""
    log_format: str = "text"
    log_level: str = "INFO"

    def __post_init__(self) -> None:
        if self.reload and (self.processes > 1 or self.worker.burst):
            raise InvalidOption.of(
                "reload",
                self.reload,
                "must be for one worker that does not end by itself: leave out --processes and --burst",
            )
        if not 1 <= self.processes <= 256:
            raise InvalidOption.of("processes", self.processes, "must be from 1 to 256")
        if self.health is not None:
            parse_address(self.health)


def load(options: ServeOptions) -> App:
    """Return the app that ``options.target`` names, after a check. The server, prefix, audit database and redactor
    that the command line names replace the app's own.

    Raises InvalidOption, TargetBroken or InvalidTask.
    """
    from rq_core.app.loading import load_app

    if options.django is None:
        app = load_app(options.target)
    else:
        from rq_core.contrib.django.setting_up import prepare_app, set_up

        set_up(options.django)
        app = load_app(options.target)
        prepare_app(app)
    app.connect_to(options.redis_url, prefix=options.prefix)
    app.audit_url = options.audit_url or app.audit_url
    if options.redact is not None:
        app.redact = options.redact
    app.check()
    return app


def _server_of(app: App) -> str:
    """Return the server of an app as `rq-core health` shows it: the URL without passwords, and the app's prefix if this
    is not the default."""
    prefix = "" if app.prefix == DEFAULT_PREFIX else f", prefix {app.prefix}"
    return masked(app.redis_url) + prefix


def work(
    app: App,
    options: WorkerOptions,
    table: LeaseTable | None = None,
    flow: FlowTable | None = None,
    *,
    ends: bool = True,
) -> int:
    """Run one worker in this process. Returns the exit status. RETIRED means that another worker should take its place.

    If ``ends`` is true, the process has no work afterwards. It then has a few seconds to end, and is ended by force
    (:mod:`rq_core.process.process_exit`).
    """

    async def main() -> int:
        pulse = Pulse()
        status = CANNOT_RUN if table is not None else 1
        worker = Worker(app, options, on_claim=pulse.beat, lease_table=table, flow=flow)
        pulse.start(worker.name, worker.options.queues, server=_server_of(app))
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
                process_exit.begin(status)
        if not clean:
            # Handlers that do not stop would keep the loop or the process alive; their jobs have been given back.
            process_exit.end_now(status)
        return status

    status: int = _run(main())
    return status


def _refused(error: RqCoreError, *, supervised: bool) -> int:
    """Log, in one line, why a worker cannot run. Returns the exit status of its process."""
    log.error("worker cannot run: %s", error)
    return CANNOT_RUN if supervised else 1


def _stop_on_signals(worker: Worker, *, supervised: bool) -> None:
    """Make signals stop a worker.

    A supervised worker stops at SIGTERM. Running jobs then have a time to finish (the grace). A second SIGTERM does not
    end the grace, since systemd also sends SIGTERM to each process. To end it, the supervisor sends HURRY.
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
    run: Callable[[Any], Any] = asyncio.run
    with contextlib.suppress(ImportError):
        run = importlib.import_module("uvloop").run
    # Run after the block: within it, the ImportError would be the context of each error of a handler.
    return run(main)


def run_child(options: ServeOptions, table: LeaseTable, flow: FlowTable) -> None:
    """Run a worker in a process that the supervisor has spawned. Exits with the worker's status."""
    # Ctrl-C reaches the whole process group; only the supervisor reacts to it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logs.configure(options.log_format, options.log_level, filters=[JobLogFilter()])
    threading.Thread(target=_end_with_parent, name="rq-core-parent", daemon=True).start()
    try:
        app = load(options)
    except RqCoreError as error:
        _refused(error, supervised=True)
        sys.exit(BROKEN)
    try:
        status = work(app, options.worker, table, flow)
    except RqCoreError as error:
        status = _refused(error, supervised=True)
    sys.exit(status)


def _end_with_parent() -> None:
    """Stop this worker when its supervisor has ended, because no other process would stop it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        log.error("the supervisor is gone, stopping")
        os.kill(os.getpid(), signal.SIGTERM)
