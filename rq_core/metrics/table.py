"""Every metric: its name, type, labels, source, and help text.

The collectors, the page of metrics and the dashboard are derived from this table, and tests check that they agree. The
values of labels are bounded: a label never has a job, a worker, the text of an error, or a key of a cap, which may be a
customer's name.
"""

from __future__ import annotations

import math
from typing import Final, Literal, NamedTuple

from rq_core.model.table.effects import CLAIM_ENDS
from rq_core.model.table.machine import PRIORITIES
from rq_core.protocol.reads.overview import QUEUES_MAX, SCOPES_MAX
from rq_core.worker.claim_counters import BOUNDS_S

LABELS: Final = frozenset({"queue", "state", "priority", "scope", "task", "outcome", "why"})
"""All labels. The value of ``scope`` is a scope without a key: ``queue``, ``task=send``, or a family of keys."""
TASKS_MAX: Final = 256
"""Most tasks that labels name; all further tasks are counted under ``(other)``."""
VALUES_MAX: Final = {
    "state": 4,
    "priority": len(PRIORITIES),
    "scope": SCOPES_MAX,
    "task": TASKS_MAX + 1,
    # And a claim that is lost, which no event ends.
    "outcome": len(CLAIM_ENDS) + 1,
    "why": 2,
}
"""Label → the most values that it may have in one queue."""


class Family(NamedTuple):
    """One metric with all its labels."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    source: Literal["state", "log", "worker"]
    """state: one reading of Redis; log: the audit database; worker: the counts of one machine's worker processes."""
    labels: tuple[str, ...]
    says: str

    @property
    def samples_max(self) -> int:
        """The most samples of the family: in each queue, if it has that label."""
        each = len(BOUNDS_S) + 3 if self.kind == "histogram" else 1
        return each * math.prod(VALUES_MAX[label] for label in self.labels if label != "queue")


def _state(name: str, says: str, *labels: str) -> Family:
    return Family(name, "gauge", "state", labels, says)


def _log(name: str, says: str, *labels: str) -> Family:
    return Family(name, "counter" if name.endswith("_total") else "gauge", "log", labels, says)


def _worker(name: str, says: str, *labels: str) -> Family:
    kind: Literal["gauge", "counter", "histogram"] = "gauge"
    if name.endswith("_total"):
        kind = "counter"
    elif name in ("rqc_worker_wait_seconds", "rqc_worker_run_seconds"):
        kind = "histogram"
    return Family(name, kind, "worker", labels, says)


FAMILIES: Final = (
    _state("rqc_up", "1 if Redis answered the last look at the queues, else 0."),
    _state(
        "rqc_refused",
        "1 if Redis answered and refused: a right or a password is missing, or the server is unfit. Else 0.",
    ),
    _state("rqc_look_seconds", "How long that look took."),
    _state(
        "rqc_queues_left_out",
        f"Queues that were not looked at: a look reads the first {QUEUES_MAX:,} by name.",
    ),
    _state(
        "rqc_queue_jobs",
        "Jobs by where they stand: ready, scheduled, running (those that are cancelling included) and dead. The ready"
        " ones include those that wait for a cap.",
        "queue",
        "state",
    ),
    _state(
        "rqc_queue_ready_jobs",
        "Ready jobs without scopes. Includes cancelled ones until a claim passes over them.",
        "queue",
        "priority",
    ),
    _state(
        "rqc_queue_lanes",
        "Lanes of ready jobs with scopes: open, or blocked by a full scope.",
        "queue",
        "state",
    ),
    _state(
        "rqc_queue_oldest_ready_seconds",
        "Waiting time of the oldest job that is first in its line and that no full scope holds up. 0 without such a"
        " job. Delayed jobs and jobs that wait for a cap do not raise it.",
        "queue",
    ),
    _state(
        "rqc_queue_oldest_blocked_seconds",
        "The same for jobs that wait for a full scope. With more than a few blocked lanes it is a lower bound.",
        "queue",
    ),
    _state(
        "rqc_queue_overdue_seconds",
        "How late the earliest of what is due by itself is, such as a delayed job. It stays 0 while any worker claims.",
        "queue",
    ),
    _state(
        "rqc_queue_leases_over",
        "Running jobs whose lease is over and which no worker has taken back yet.",
        "queue",
    ),
    _state("rqc_queue_paused", "1 if the queue is paused.", "queue"),
    _state(
        "rqc_queue_unreadable", "1 if the queue could not be read; then it has no others.", "queue"
    ),
    _state("rqc_scope_holders", "Running jobs in a scope that has a limit.", "queue", "scope"),
    _state(
        "rqc_scope_limit",
        "Its limit. Of a family, the limit of each key; of a rate, jobs in each window.",
        "queue",
        "scope",
    ),
    _state("rqc_scope_blocked_lanes", "Lanes that wait for it.", "queue", "scope"),
    _state(
        "rqc_scope_full",
        "1 if it takes no job now, which says nothing of whether a job waits for it. Of a family or a rate: 1 if a lane"
        " waits for one of its keys.",
        "queue",
        "scope",
    ),
    _state("rqc_backlog_events", "Events that wait to be mirrored.", "queue"),
    _state("rqc_backlog_bytes", "Their size.", "queue"),
    _state(
        "rqc_backlog_ratio",
        "How much of the backlog's bound they use: at 1 enqueuing is refused, at 2 claiming.",
        "queue",
    ),
    _state(
        "rqc_backlog_oldest_seconds",
        "How long the oldest event that was looked at has waited to be mirrored: the mirror is at least as far behind."
        " 0 if none waits.",
        "queue",
    ),
    _state(
        "rqc_kept_results_bytes",
        "Bytes that kept results take, with the overhead of each entry.",
        "queue",
    ),
    _state(
        "rqc_kept_results_ratio",
        "How much of the bound on kept results (kept_max_bytes) is used: at 1 those nearest their end lose their"
        " values.",
        "queue",
    ),
    Family(
        "rqc_kept_results_evicted_total",
        "counter",
        "state",
        ("queue",),
        "Kept results that have lost their values, so that others had room.",
    ),
    _state(
        "rqc_workers",
        "Workers that work for the queue, busy or idle, and have been heard of in the last 30 s.",
        "queue",
    ),
    _state(
        "rqc_worker_places",
        "How many jobs they may run at once. A worker for several queues counts in each.",
        "queue",
    ),
    _state("rqc_worker_busy_places", "How many of these places are taken.", "queue"),
    _state(
        "rqc_queue_unserved_jobs",
        "Of the ten scheduled jobs that are due first, those of one task that workers gave back: they do not have the"
        " task, or refuse the arguments.",
        "queue",
    ),
    _state(
        "rqc_worker_codes",
        "How many different digests of their tasks' code and versions of rq-core they have: more than 1 while a deploy"
        " is under way, or after one that missed a worker.",
        "queue",
    ),
    _state("rqc_redis_used_memory_bytes", "Memory that Redis uses. Not of a cluster."),
    _state("rqc_redis_maxmemory_bytes", "Memory that it may use; 0: any number of bytes."),
    _state("rqc_redis_memory_ratio", "The share of it that is used, if there is a bound."),
    _log("rqc_audit_up", "1 if the audit database answered the last look, else 0."),
    _log(
        "rqc_audit_lag_seconds",
        "How long ago the last mirrored event happened, if others wait to be mirrored; else 0.",
        "queue",
    ),
    _log("rqc_audit_events_total", "Events in the log.", "queue"),
    _log("rqc_audit_gaps_total", "Recorded breaks in their numbering.", "queue"),
    _log(
        "rqc_audit_quarantined_total", "Entries that could not be read, kept as they were.", "queue"
    ),
    _log(
        "rqc_audit_losses_total", "How often Redis forgot something that was in the log.", "queue"
    ),
    _log("rqc_audit_orphaned_events", "Events in the log that Redis forgot.", "queue"),
    _log("rqc_audit_unproven_events", "Events that no proof has gone through yet.", "queue"),
    _log(
        "rqc_audit_proof_age_seconds",
        "How long ago the last recorded proof of the log was made. A log that was never proven has no sample, and"
        " a run of `rq-core audit verify` that finds a violation, has `--since`, or has only a reader's rights is not"
        " recorded.",
        "queue",
    ),
    _log(
        "rqc_claims_ended_total",
        "Claims that ended, by the event that ended them, or lost. Exact: restarts and killed processes change nothing,"
        " and what Redis forgot or a prune removed goes on being counted.",
        "queue",
        "task",
        "outcome",
    ),
    _log(
        "rqc_claims_waited_seconds_total",
        "How long their jobs had been ready before, all together.",
        "queue",
        "task",
        "outcome",
    ),
    _log(
        "rqc_claims_ran_seconds_total",
        "How long they lasted, all together.",
        "queue",
        "task",
        "outcome",
    ),
    _worker(
        "rqc_worker_processes", "Worker processes of this machine, as one supervisor has them."
    ),
    _worker(
        "rqc_worker_processes_replaced_total",
        "Processes that were replaced: retired (they had done their share) or died.",
        "why",
    ),
    _worker(
        "rqc_worker_loop_lag_seconds",
        "How late the event loop of a worker process was, at the worst of the last 15 s: a handler that blocks the loop"
        " holds up all others of its process, and its next claim. Of several processes the worst.",
    ),
    _worker(
        "rqc_worker_claim_age_seconds",
        "How long ago Redis last answered a claim, of several processes the longest. An idle worker claims every 5 s.",
    ),
    _worker(
        "rqc_worker_resident_bytes",
        "Memory of the worker processes, together. Not that of isolated handlers.",
    ),
    _worker("rqc_worker_turns_total", "Round trips to Redis in which they claimed or settled."),
    _worker("rqc_worker_turns_seconds_total", "How long these took, all together."),
    _worker("rqc_worker_claims_total", "Jobs that they claimed.", "queue"),
    _worker(
        "rqc_worker_settled_total",
        "Claims that they ended, as Redis answered: succeeded, retried, died, cancelled, rolled_back, or refused (the"
        " claim was no longer in force). The task is (not run) where no handler began. What a killed process had not"
        " counted is missing.",
        "queue",
        "task",
        "outcome",
    ),
    _worker(
        "rqc_worker_wait_seconds",
        "How long jobs had been ready when they were claimed, noted when the claim ends. Only of first claims of jobs"
        " without scopes and without delay; `rqc_claims_waited_seconds_total` has all.",
        "queue",
        "task",
    ),
    _worker(
        "rqc_worker_run_seconds",
        "How long handlers ran.",
        "queue",
        "task",
    ),
)
"""All metrics, in the order of the generated page."""

BY_NAME: Final = {family.name: family for family in FAMILIES}
