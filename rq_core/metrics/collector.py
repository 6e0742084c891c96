"""Collectors for prometheus_client: for ``rq-core metrics``, a worker's port, and your own registries.

    from prometheus_client import REGISTRY
    from rq_core.metrics.collector import QueueCollector

    REGISTRY.register(QueueCollector.at("redis://localhost:6379/0", audit_url="audit.db"))

This module needs the extra ``metrics``. Nothing is read before a scrape.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Self, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from rq_core.errors import RqCoreError, ServerUnsuitable
from rq_core.metrics.shared import Shared, SharedOverview, shared_inbox, shared_log, viewer
from rq_core.metrics.table import BY_NAME, FAMILIES, TASKS_MAX, Family
from rq_core.model.keys import DEFAULT_PREFIX, is_name
from rq_core.model.lib.text import printable
from rq_core.model.plugins import InboxOverview, LogOverview
from rq_core.process.claim_totals import FlowTotals
from rq_core.protocol.reads.queue_load import Overview, QueueOverview
from rq_core.worker.claim_counters import BOUNDS_S, OTHER, parts_of
from rq_core.worker.settlement import NOT_RUN

# Readings of Redis, of the log and of an inbox, as samples of the families of :mod:`rq_core.metrics.table`.

ALWAYS_SHOWN: Final = ("succeeded", "died", "lease_expired")
"""Outcomes of claims that alerts and panels use. As soon as a claim of a task has ended, the task has a sample of each
of these outcomes, which may be 0. Other outcomes have no sample until a claim ends with them."""


PAUSE_CAUSES: Final = ("failures", "handler", "operator")
"""The causes of pauses. Each mirrored queue has a sample of each cause, which may be 0."""


class Sample(NamedTuple):
    """One number of a metric family."""

    name: str
    labels: tuple[str, ...]
    """The values of the family's labels, in the family's order."""
    value: float


class TaskNames:
    """The task names that labels may have: the first TASKS_MAX that appear. These names stay; tasks that appear later
    share the label OTHER.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()

    def of(self, task: str) -> str:
        """Return a task's label: the task's name, or OTHER."""
        if task not in self._known:
            if len(self._known) >= TASKS_MAX:
                return OTHER
            self._known.add(task)
        return task


def state_samples(found: Overview) -> Iterator[Sample]:
    """Yield the samples of one reading of Redis."""
    for queue in found.queues:
        yield from _queue_samples(queue)
        yield Sample("rqc_queue_unreadable", (queue.queue,), 0)
    for name in found.unreadable:
        yield Sample("rqc_queue_unreadable", (name,), 1)
    yield Sample("rqc_queues_left_out", (), found.queues_left_out)
    if found.used_memory is not None:
        yield Sample("rqc_redis_used_memory_bytes", (), found.used_memory)
    if found.maxmemory is not None:
        yield Sample("rqc_redis_maxmemory_bytes", (), found.maxmemory)
    if found.used_memory is not None and found.maxmemory:
        yield Sample("rqc_redis_memory_ratio", (), found.used_memory / found.maxmemory)


def _queue_samples(queue: QueueOverview) -> Iterator[Sample]:
    name = queue.queue
    states = {"ready": queue.ready_jobs, "scheduled": queue.scheduled, "parked": queue.parked}
    states |= {"running": queue.running, "dead": queue.dead}
    for state, jobs in states.items():
        yield Sample("rqc_queue_jobs", (name, state), jobs)
    for priority, jobs in queue.ready.items():
        yield Sample("rqc_queue_ready_jobs", (name, priority), jobs)
    yield Sample("rqc_queue_lanes", (name, "open"), queue.open_lanes)
    yield Sample("rqc_queue_lanes", (name, "blocked"), queue.blocked_lanes)
    present = queue.present
    for family, value in (
        ("queue_oldest_ready_seconds", (queue.oldest_ready_ms or 0) / 1000),
        ("queue_oldest_blocked_seconds", (queue.oldest_blocked_ms or 0) / 1000),
        ("parked_oldest_seconds", (queue.oldest_parked_ms or 0) / 1000),
        ("box_fields", queue.box_fields),
        ("shown_fields", queue.shown_fields),
        ("queue_overdue_seconds", queue.overdue_ms / 1000),
        ("queue_leases_over", queue.leases_over),
        ("queue_unserved_jobs", queue.unserved.jobs if queue.unserved else 0),
        ("queue_paused", int(queue.paused)),
        ("backlog_events", queue.backlog),
        ("backlog_bytes", queue.backlog_bytes),
        ("backlog_ratio", queue.backlog_ratio),
        ("backlog_oldest_seconds", (queue.oldest_event_ms or 0) / 1000),
        ("kept_results_bytes", queue.kept_bytes),
        ("kept_results_ratio", queue.kept_ratio),
        ("kept_results_evicted_total", queue.evicted),
        ("workers", len(present)),
        ("worker_places", sum(each.says.places for each in present)),
        ("worker_busy_places", sum(each.says.busy for each in present)),
        ("worker_codes", len({(each.says.version, each.says.code) for each in present})),
    ):
        yield Sample(f"rqc_{family}", (name,), value)
    if queue.schedules is not None:
        late = queue.late_schedule
        yield Sample("rqc_schedules", (name,), queue.schedules)
        yield Sample("rqc_schedule_late_seconds", (name,), late.late_ms / 1000 if late else 0)
        yield Sample("rqc_schedule_missed_total", (name,), queue.schedules_missed)
    standings = [use.standing for use in queue.paused_scopes.values()]
    for standing in ("paused", "probing"):
        yield Sample("rqc_scopes_paused", (name, standing), standings.count(standing))
    for scope in queue.scopes:
        labels = (name, scope.scope)
        yield Sample("rqc_scope_holders", labels, scope.holders)
        yield Sample("rqc_scope_limit", labels, scope.limit.most or 0)
        yield Sample("rqc_scope_blocked_lanes", labels, scope.blocked_lanes)
        yield Sample("rqc_scope_full", labels, int(scope.full))


def log_samples(
    found: LogOverview, state: Overview | None, now_ms: int, tasks: TaskNames
) -> Iterator[Sample]:
    """Yield the samples of one reading of the audit log. For the lag of the mirror, a reading of Redis (``state``) is
    also needed.

    ``now_ms``: the collector's time (Unix ms), from which the age of proofs is measured.
    """
    queues = {queue.queue: queue for queue in state.queues} if state else {}
    for log in found.queues:
        labels = (log.queue,)
        yield Sample("rqc_audit_events_total", labels, log.events)
        yield Sample("rqc_audit_gaps_total", labels, log.gaps)
        yield Sample("rqc_audit_quarantined_total", labels, log.quarantined)
        yield Sample("rqc_audit_losses_total", labels, log.losses)
        yield Sample("rqc_audit_orphaned_events", labels, log.orphaned_events)
        yield Sample("rqc_audit_unproven_events", labels, log.events - (log.proven_events or 0))
        for cause in {**dict.fromkeys(PAUSE_CAUSES, 0), **log.pauses}:
            yield Sample("rqc_audit_scope_pauses", (log.queue, cause), log.pauses.get(cause, 0))
        if log.proven_at_ms is not None:
            age = max(0, now_ms - log.proven_at_ms) / 1000
            yield Sample("rqc_audit_proof_age_seconds", labels, age)
        queue = queues.get(log.queue)
        if queue is not None:
            yield Sample("rqc_audit_lag_seconds", labels, lag_s(queue, log.last_at_ms))
    sums: dict[tuple[str, str, str], tuple[int, int, int]] = {}
    for each in found.claims:
        key = (each.queue, tasks.of(each.task), each.outcome)
        claims, waited, ran = sums.get(key, (0, 0, 0))
        sums[key] = (claims + each.claims, waited + each.waited_ms, ran + each.ran_ms)
        for outcome in ALWAYS_SHOWN:
            # Prometheus sees no increase in a counter that begins with 1.
            sums.setdefault((*key[:2], outcome), (0, 0, 0))
    for key, (claims, waited, ran) in sums.items():
        yield Sample("rqc_claims_ended_total", key, claims)
        yield Sample("rqc_claims_waited_seconds_total", key, waited / 1000)
        yield Sample("rqc_claims_ran_seconds_total", key, ran / 1000)


def inbox_samples(found: InboxOverview) -> Iterator[Sample]:
    """Yield the samples of one reading of an inbox. Queues with invalid names share the label OTHER."""
    sums: dict[str, tuple[int, int, int, int]] = {}
    for each in found.queues:
        # A plain INSERT may name anything, and a label is bounded.
        name = each.queue if is_name(each.queue) else OTHER
        rows, oldest, parked, relayed = sums.get(name, (0, 0, 0, 0))
        oldest = max(oldest, each.oldest_ms or 0)
        sums[name] = (rows + each.rows, oldest, parked + each.parked, relayed + each.relayed)
    for name, (rows, oldest, parked, relayed) in sums.items():
        yield Sample("rqc_inbox_rows", (name,), rows)
        yield Sample("rqc_inbox_oldest_seconds", (name,), max(0, oldest) / 1000)
        yield Sample("rqc_inbox_parked", (name,), parked)
        yield Sample("rqc_inbox_relayed_total", (name,), relayed)


def lag_s(queue: QueueOverview, last_at_ms: int | None) -> float:
    """Return the greatest possible lag of the log, in seconds: 0 if no event waits, else the time since the log's last
    event.

    Without an event in the log (``last_at_ms`` None), the time counts from the beginning of the queue's epoch, the
    present stretch of its history in Redis.
    """
    if not queue.backlog:
        return 0.0
    return max(0, queue.now_ms - (last_at_ms or queue.epoch)) / 1000


log = logging.getLogger(__name__)

T = TypeVar("T")

_LE: Final = (*(f"{bound:g}" for bound in BOUNDS_S), "+Inf")


def _family(family: Family) -> Any:
    """Return an empty metric family of prometheus_client."""
    if family.kind == "counter":
        name = family.name.removesuffix("_total")
        return CounterMetricFamily(name, family.says, labels=family.labels)
    kinds = {"gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
    return kinds[family.kind](family.name, family.says, labels=family.labels)


def _families(samples: Iterable[Sample]) -> Iterator[Any]:
    """Yield the families that have samples, in the order of the table."""
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.name, []).append(sample)
    for name in sorted(found, key=list(BY_NAME).index):
        family = _family(BY_NAME[name])
        for sample in found[name]:
            # Names come from Redis and SQL, which may hold any bytes: a label is one line of valid UTF-8.
            family.add_metric([printable(label) for label in sample.labels], sample.value)
        yield family


class QueueCollector(Collector):
    """Collects the state of all queues of a server, and of their audit log and inbox if there are any.

    A scrape shows a reading that is at most a second old. It waits at most 1.5 s for all servers together. A reading
    costs Redis four round trips, however many jobs there are.

    If Redis or a database does not answer, ``rqc_up``, ``rqc_audit_up`` or ``rqc_inbox_up`` is 0; the other servers'
    samples are shown. If Redis refuses the reading, ``rqc_refused`` is 1.
    """

    def __init__(
        self,
        overview: Shared[Overview],
        log: Shared[LogOverview] | None = None,
        inbox: Shared[InboxOverview] | None = None,
    ) -> None:
        self._overview = overview
        self._log = log
        self._inbox = inbox
        self._tasks = TaskNames()
        self._own = contextlib.ExitStack()
        self.is_read = False
        """True if the last collection could read Redis."""
        self.unreadable: Mapping[str, str] = {}
        """The queues that the last collection could not read, each with the reason."""

    @classmethod
    def at(
        cls,
        redis_url: str,
        *,
        prefix: str = DEFAULT_PREFIX,
        audit_url: str | None = None,
        inbox_url: str | None = None,
    ) -> Self:
        """Create a collector with its own connections, which ``close`` closes.

        Raises AuditNotConfigured if no installed package reads audit logs or inboxes. Raises RqCoreError for an invalid
        URL.
        """
        with contextlib.ExitStack() as own:
            log = inbox = None
            if audit_url is not None:
                log = own.enter_context(shared_log(audit_url))
            if inbox_url is not None:
                inbox = own.enter_context(shared_inbox(inbox_url))
            client = own.enter_context(viewer(redis_url, prefix))
            made = cls(own.enter_context(contextlib.closing(SharedOverview(client))), log, inbox)
            made._own = own.pop_all()
        return made

    def close(self) -> None:
        """Close the connections that ``at`` opened."""
        self._own.close()

    def describe(self) -> Iterator[Any]:
        """Yield the families without samples. This reads nothing."""
        return (_family(family) for family in FAMILIES if family.source != "worker")

    def collect(self) -> Iterator[Any]:
        """Yield the families with their samples from a shared reading."""
        for each in (self._log, self._inbox):
            # All readings at once, so that servers that do not answer cost a scrape no more time than one.
            if each is not None:
                each.begin()
        state, refused = _found(self._overview)
        self.is_read, self.unreadable = state is not None, {} if state is None else state.unreadable
        samples = [] if state is None else list(state_samples(state))
        samples.append(Sample("rqc_up", (), int(refused or state is not None)))
        samples.append(Sample("rqc_refused", (), int(refused)))
        samples.append(Sample("rqc_look_seconds", (), self._overview.took_s))
        if self._log is not None:
            logged, _ = _found(self._log)
            if logged is not None:
                samples += log_samples(logged, state, int(time.time() * 1000), self._tasks)
            samples.append(Sample("rqc_audit_up", (), int(logged is not None)))
        if self._inbox is not None:
            rows, _ = _found(self._inbox)
            if rows is not None:
                samples += inbox_samples(rows)
            samples.append(Sample("rqc_inbox_up", (), int(rows is not None)))
        return _families(samples)


def _found(shared: Shared[T]) -> tuple[T, bool] | tuple[None, bool]:
    """Return (reading, whether the server refused the reading). None in place of the reading: the reading failed."""
    try:
        return shared.get(), False
    except RqCoreError as error:
        log.debug("nothing to show: %s", error)
        return None, isinstance(error, ServerUnsuitable)
    except Exception:
        # A scrape still shows the results of the other readings.
        log.exception("a look at the queues, at their log or at their inbox failed")
    return None, False


class WorkerCollector(Collector):
    """Collects what the processes of one ``rq-core worker`` have counted, from their shared memory. It sends no command
    to Redis."""

    def __init__(self, totals: FlowTotals) -> None:
        self._totals = totals

    def describe(self) -> Iterator[Any]:
        """Return the families without samples. This reads nothing."""
        return (_family(family) for family in FAMILIES if family.source == "worker")

    def collect(self) -> Iterator[Any]:
        """Yield the families with the current counts."""
        samples: list[Sample] = [Sample("rqc_worker_processes", (), self._totals.processes)]
        turns, turns_s = self._totals.turns()
        samples.append(Sample("rqc_worker_turns_total", (), turns))
        samples.append(Sample("rqc_worker_turns_seconds_total", (), turns_s))
        now, vitals = time.monotonic(), self._totals.vitals()
        if vitals:
            # The worst of all processes, since no label names a process.
            lag = max(each.lagging_s(now) for each in vitals)
            silent = max(max(0.0, now - each.answered_at) for each in vitals)
            samples.append(Sample("rqc_worker_loop_lag_seconds", (), lag))
            samples.append(Sample("rqc_worker_claim_age_seconds", (), silent))
            resident = sum(each.resident for each in vitals)
            samples.append(Sample("rqc_worker_resident_bytes", (), resident))
        for why, times in self._totals.replaced.items():
            samples.append(Sample("rqc_worker_processes_replaced_total", (why,), times))
        runs = _family(BY_NAME["rqc_worker_run_seconds"])
        waits = _family(BY_NAME["rqc_worker_wait_seconds"])
        claims: dict[str, float] = {}
        for (queue, task), row in sorted(self._totals.sums().items()):
            parts = parts_of(row)
            claims[queue] = claims.get(queue, 0) + parts.claims
            for outcome, count in parts.outcomes.items():
                # An outcome that never occurred would only be noise, except for the two that alerts use.
                if count or outcome in ("succeeded", "died"):
                    settled = (queue, task, outcome)
                    samples.append(Sample("rqc_worker_settled_total", settled, count))
            if task != NOT_RUN:
                labels = (queue, task)
                runs.add_metric(labels, _cumulative(parts.runs), sum_value=parts.ran_s)
                waits.add_metric(labels, _cumulative(parts.waits), sum_value=parts.waited_s)
        samples += [Sample("rqc_worker_claims_total", (q,), n) for q, n in claims.items()]
        yield from _families(samples)
        yield from (waits, runs)


def _cumulative(buckets: Iterable[float]) -> list[tuple[str, float]]:
    total = 0.0
    found = []
    for le, count in zip(_LE, buckets, strict=True):
        total += count
        found.append((le, total))
    return found
