"""What is read of Redis and of the log, as samples of the families of :mod:`rq_core.metrics.table`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from rq_core.metrics.table import TASKS_MAX
from rq_core.model.reader import LogOverview
from rq_core.protocol.overview import Overview, QueueOverview
from rq_core.worker.flow import OTHER

ALWAYS_SHOWN: Final = ("succeeded", "died", "lease_expired")
"""Outcomes of claims that alerts and panels ask for: shown with 0 until there are any."""


class Sample(NamedTuple):
    """One number."""

    name: str
    labels: tuple[str, ...]
    """The values of the family's labels, in its order."""
    value: float


class TaskNames:
    """The tasks that labels may name: the first TASKS_MAX that are seen. What is named once stays named."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def of(self, task: str) -> str:
        """The label of a task."""
        if task not in self._known:
            if len(self._known) >= TASKS_MAX:
                return OTHER
            self._known.add(task)
        return task


def state_samples(found: Overview) -> Iterator[Sample]:
    """The samples of one look at Redis."""
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
    states = {"ready": queue.ready_jobs, "scheduled": queue.scheduled}
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
    for scope in queue.scopes:
        labels = (name, scope.scope)
        yield Sample("rqc_scope_holders", labels, scope.holders)
        yield Sample("rqc_scope_limit", labels, scope.limit.most or 0)
        yield Sample("rqc_scope_blocked_lanes", labels, scope.blocked_lanes)
        yield Sample("rqc_scope_full", labels, int(scope.full))


def log_samples(
    found: LogOverview, state: Overview | None, now_ms: int, tasks: TaskNames
) -> Iterator[Sample]:
    """The samples of one look at the log. How far it is behind is known only beside a look at Redis (``state``).

    ``now_ms`` is the clock of who looks (Unix ms), by which proofs have an age.
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


def lag_s(queue: QueueOverview, last_at_ms: int | None) -> float:
    """How many seconds the log may be behind: those since its last event, if others wait to be mirrored."""
    if not queue.backlog:
        return 0.0
    return max(0, queue.now_ms - (last_at_ms or queue.epoch)) / 1000
