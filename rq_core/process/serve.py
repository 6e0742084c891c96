"""The entry of ``rq-core worker``: runs one worker in this process, or a supervisor of several. Also opens the HTTP
port."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rq_core.app.handlers.log_context import JobLogFilter
from rq_core.errors import InvalidOption
from rq_core.model.lib import logs
from rq_core.process import process_exit
from rq_core.process.claim_totals import FlowTotals
from rq_core.process.health import Page, probing
from rq_core.process.supervisor import Supervisor
from rq_core.process.worker_process import ServeOptions, load, work
from rq_core.protocol.engine import server_check
from rq_core.worker.claim_counters import FlowTable


def serve(
    options: ServeOptions,
    metrics: Callable[[FlowTotals], Page] | None = None,
    *,
    ends: bool = True,
) -> int:
    """Run workers until SIGTERM or SIGINT stops them. Running jobs then get a time to finish (the grace), which a
    second signal ends. Returns the exit status.

    ``metrics`` makes the page of the workers' counts, which the port of ``health`` serves at /metrics. ``ends`` is true
    if the process has no other work afterwards; such a process may be ended by force.
    """
    logs.configure(options.log_format, options.log_level, filters=[JobLogFilter()])
    app = load(options)
    queues = options.worker.serving(app.queues).queues
    if not server_check.forced():
        _check_queues(queues, app.queues)
    totals = FlowTotals()
    pages = {} if metrics is None else {"/metrics": metrics(totals)}
    with probing(options.health, pages):
        beside = options.audit_url or options.inbox_url
        alone = options.processes == 1 and beside is None and not options.reload
        if alone and options.worker.max_jobs is None and options.worker.max_memory is None:
            flow = FlowTable()
            totals.join(0, flow)
            return work(app, options.worker, flow=flow, ends=ends)
        status = Supervisor(options, app, totals).run()
        if ends:
            # This process has imported the app's modules, too, and they may have started threads.
            process_exit.begin(status)
        return status


def _check_queues(named: Sequence[str], declared: Sequence[str]) -> None:
    """Raise InvalidOption if the app declares none of the queues in ``named``. Usually, no producer enqueues jobs in
    undeclared queues."""
    if not set(named) & set(declared):
        known = ", ".join(declared) or "none: its tasks are not declared where it is imported"
        must = (
            f"must name a queue that the app declares ({known}). Declare it with app.queue(NAME), or give --force if"
            " jobs are enqueued there by name or by with_options"
        )
        raise InvalidOption.of("queues", ",".join(named), must)
