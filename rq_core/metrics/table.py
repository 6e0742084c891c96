"""Every metric: its name, type, labels, source, and help text.

The collectors and the reference of metrics are made from this table. A test compares the dashboard with it.
The number of values of each label is bounded. A value is never a job, a worker, or the text of an error. It is never a
key of a cap either, because the key may be a customer's name.
"""

from __future__ import annotations

import math
from typing import Final, Literal, NamedTuple

from rq_core.model.table.effects import CLAIM_ENDS
from rq_core.model.table.machine import PRIORITIES, State
from rq_core.protocol.reads.overview import QUEUES_MAX, RATES_MAX, SCOPES_MAX
from rq_core.worker.claim_counters import BOUNDS_S

LABELS: Final = frozenset(
    {"queue", "state", "priority", "scope", "task", "outcome", "why", "cause"}
)
"""The names of all labels. The value of ``scope`` is a scope without a key: ``queue``, ``task=send``, or a family of
keys."""
TASKS_MAX: Final = 256
"""Maximum number of tasks that labels name. All further tasks are counted together, under ``(other)``."""
VALUES_MAX: Final = {
    # Running and cancelling jobs are counted together.
    "state": len(State) - 1,
    "priority": len(PRIORITIES),
    "scope": SCOPES_MAX,
    "task": TASKS_MAX + 1,
    # One more, for a lost claim, which no event ends.
    "outcome": len(CLAIM_ENDS) + 1,
    "why": 2,
    # The three causes, and one value for a pause whose claim Redis has forgotten.
    "cause": 4,
}
"""The maximum number of values that each label may have in one queue, by label."""


class Family(NamedTuple):
    """One metric with all its labels."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    source: Literal["state", "log", "inbox", "worker"]
    """The source of the samples. ``state``: a reading of Redis; ``log``: the audit database; ``inbox``: the database
    with the inbox; ``worker``: the counts of the processes of one ``rq-core worker``."""
    labels: tuple[str, ...]
    says: str

    @property
    def samples_max(self) -> int:
        """The maximum number of samples of the family. For a family with the label ``queue``, this is the maximum per
        queue."""
        each = len(BOUNDS_S) + 3 if self.kind == "histogram" else 1
        return each * math.prod(VALUES_MAX[label] for label in self.labels if label != "queue")


def _state(name: str, says: str, *labels: str) -> Family:
    return Family(name, "gauge", "state", labels, says)


def _log(name: str, says: str, *labels: str) -> Family:
    return Family(name, "counter" if name.endswith("_total") else "gauge", "log", labels, says)


def _inbox(name: str, says: str, *labels: str) -> Family:
    return Family(name, "counter" if name.endswith("_total") else "gauge", "inbox", labels, says)


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
    _state("rqc_look_seconds", "Seconds that the last look at the queues took."),
    _state(
        "rqc_queues_left_out",
        f"Queues that the last look left out: a look reads the first {QUEUES_MAX:,} by name.",
    ),
    _state(
        "rqc_queue_jobs",
        "Jobs by state: ready (including jobs that wait for a cap), scheduled, parked, running (including jobs that are"
        " being cancelled) and dead.",
        "queue",
        "state",
    ),
    _state(
        "rqc_queue_ready_jobs",
        "Ready jobs without scopes, including cancelled jobs until a claim passes over them.",
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
        "Seconds that the oldest job has waited among those that are first in their line and not blocked by a full"
        " scope. 0 without such a job. Delayed jobs and jobs that wait for a cap do not count.",
        "queue",
    ),
    _state(
        "rqc_queue_oldest_blocked_seconds",
        "Seconds that the oldest job has waited for a full scope. With more than a few blocked lanes this is a lower"
        " bound.",
        "queue",
    ),
    _state(
        "rqc_parked_oldest_seconds",
        "Seconds that the job that was parked first has been parked: it sleeps, or waits for a signal. 0 without a"
        " parked job.",
        "queue",
    ),
    _state(
        "rqc_box_fields",
        "What durable jobs have saved, as the number of fields of the key `boxes`: one for each such job, one for each"
        " of its steps, sleeps and waits, and one to three for each signal. Redis does not count their bytes.",
        "queue",
    ),
    _state(
        "rqc_shown_fields",
        "What jobs show, as the number of fields of the key `shown`: one for each job that shows its progress or has a"
        " stream, and one for each chunk.",
        "queue",
    ),
    _state(
        "rqc_queue_overdue_seconds",
        "Seconds since the earliest unfinished work of the queue was due, such as a delayed job. 0 while any worker"
        " claims.",
        "queue",
    ),
    _state(
        "rqc_queue_leases_over",
        "Running jobs whose lease has expired and whose claim no worker has ended yet.",
        "queue",
    ),
    _state("rqc_queue_paused", "1 if the queue is paused.", "queue"),
    _state(
        "rqc_queue_unreadable",
        "1 if the queue could not be read; then all its other metrics are missing.",
        "queue",
    ),
    _state("rqc_scope_holders", "Running jobs in a scope that has a limit.", "queue", "scope"),
    _state(
        "rqc_scope_limit",
        "Limit of a scope. For a family: the limit of each key; for a rate: jobs in each window.",
        "queue",
        "scope",
    ),
    _state("rqc_scope_blocked_lanes", "Lanes that wait for a scope.", "queue", "scope"),
    _state(
        "rqc_scope_full",
        "1 if a scope admits no job now, regardless of whether a job waits for the scope. For a family or a rate: 1 if"
        " a lane waits for one of its keys.",
        "queue",
        "scope",
    ),
    _state(
        "rqc_scopes_paused",
        f"Scopes of rates and breakers that are paused or probing. If more than about {RATES_MAX} such scopes of a"
        " queue are in use, this is a lower bound.",
        "queue",
        "state",
    ),
    _state("rqc_backlog_events", "Events that wait to be mirrored.", "queue"),
    _state("rqc_backlog_bytes", "Bytes of the events that wait to be mirrored.", "queue"),
    _state(
        "rqc_backlog_ratio",
        "Backlog divided by its bound: at 1 enqueuing is refused, at 2 claiming.",
        "queue",
    ),
    _state(
        "rqc_backlog_oldest_seconds",
        "Seconds that the oldest event that was read has waited to be mirrored: the mirror lags at least this much."
        " 0 if no event waits.",
        "queue",
    ),
    _state(
        "rqc_kept_results_bytes",
        "Bytes of the kept results, including the overhead of each entry.",
        "queue",
    ),
    _state(
        "rqc_kept_results_ratio",
        "Bytes of the kept results divided by their bound (kept_max_bytes): at 1 the results that expire first lose"
        " their values.",
        "queue",
    ),
    Family(
        "rqc_kept_results_evicted_total",
        "counter",
        "state",
        ("queue",),
        "Kept results whose values were removed to make room for others.",
    ),
    _state(
        "rqc_schedules",
        "Schedules that are on. Only of queues that have had schedules.",
        "queue",
    ),
    _state(
        "rqc_schedule_late_seconds",
        "Seconds since the instant of a schedule was due that no worker has served. 0 if none is late. Only of queues"
        " that have had schedules.",
        "queue",
    ),
    Family(
        "rqc_schedule_missed_total",
        "counter",
        "state",
        ("queue",),
        "Instants of schedules that were passed over: they were later than the grace, or a later one took their place.",
    ),
    _state(
        "rqc_workers",
        "Workers that serve the queue, busy or idle, and reported in the last 30 s.",
        "queue",
    ),
    _state(
        "rqc_worker_places",
        "Places of the queue's workers: jobs that they may run at once. A worker of several queues counts in each.",
        "queue",
    ),
    _state(
        "rqc_worker_busy_places",
        "Places of the queue's workers (`rqc_worker_places`) that are in use.",
        "queue",
    ),
    _state(
        "rqc_queue_unserved_jobs",
        "Jobs of one task, among the ten scheduled jobs that are due first, that workers gave back because they lack"
        " the task or refuse the arguments.",
        "queue",
    ),
    _state(
        "rqc_worker_codes",
        "Different combinations of task code and rq-core version among the queue's workers: more than 1 during a"
        " deploy, or after a deploy that missed a worker.",
        "queue",
    ),
    _state(
        "rqc_redis_used_memory_bytes", "Bytes of memory that Redis uses. Missing for a cluster."
    ),
    _state("rqc_redis_maxmemory_bytes", "Bytes of memory that Redis may use; 0: no bound."),
    _state(
        "rqc_redis_memory_ratio",
        "Used memory of Redis divided by its bound. Missing without a bound.",
    ),
    _log("rqc_audit_up", "1 if the audit database answered the last look, else 0."),
    _log(
        "rqc_audit_lag_seconds",
        "Seconds since the last mirrored event happened, if events wait to be mirrored; else 0.",
        "queue",
    ),
    _log("rqc_audit_events_total", "Events in the log.", "queue"),
    _log("rqc_audit_gaps_total", "Recorded gaps in the numbers of the log's events.", "queue"),
    _log(
        "rqc_audit_quarantined_total",
        "Outbox entries that could not be read, kept unchanged.",
        "queue",
    ),
    _log("rqc_audit_losses_total", "Times that Redis lost events that were in the log.", "queue"),
    _log("rqc_audit_orphaned_events", "Events in the log that Redis lost.", "queue"),
    _log("rqc_audit_unproven_events", "Events in the log that no proof has covered yet.", "queue"),
    _log(
        "rqc_audit_proof_age_seconds",
        "Seconds since the last recorded proof of the log. A log that was never proven has no sample, and a"
        " run of `rq-core audit verify` that finds a violation, has `--since`, or has only a reader's rights is not"
        " recorded.",
        "queue",
    ),
    _log(
        "rqc_audit_scope_pauses",
        "Pauses of scopes that began in the last 10 minutes, by cause: failures, handler, operator, or unknown if Redis"
        " has forgotten the claim that paused the scope.",
        "queue",
        "cause",
    ),
    _log(
        "rqc_claims_ended_total",
        "Claims that ended, by the event that ended them, or lost. Exact: restarts and killed processes change nothing,"
        " and claims that Redis forgot or a prune removed are still counted.",
        "queue",
        "task",
        "outcome",
    ),
    _log(
        "rqc_claims_waited_seconds_total",
        "Seconds that jobs had been ready before the claims that ended, in total.",
        "queue",
        "task",
        "outcome",
    ),
    _log(
        "rqc_claims_ran_seconds_total",
        "Seconds that the claims that ended lasted, in total.",
        "queue",
        "task",
        "outcome",
    ),
    _inbox("rqc_inbox_up", "1 if the database with the inbox answered the last look, else 0."),
    _inbox(
        "rqc_inbox_rows",
        "Committed rows of the inbox that no relay has handed over to the queue yet. A look counts 10,000 rows of a"
        " queue; then it is a lower bound.",
        "queue",
    ),
    _inbox(
        "rqc_inbox_oldest_seconds",
        "Seconds since the first of these rows was inserted, by the database's clock; 0 without rows.",
        "queue",
    ),
    _inbox(
        "rqc_inbox_parked",
        "Rows that cannot become jobs, and wait for a person. A look counts 100 rows of a queue; then it is a lower"
        " bound.",
        "queue",
    ),
    _inbox(
        "rqc_inbox_relayed_total",
        "Rows that became jobs. It falls if the database is set back.",
        "queue",
    ),
    _worker("rqc_worker_processes", "Worker processes of one supervisor."),
    _worker(
        "rqc_worker_processes_replaced_total",
        "Worker processes that the supervisor replaced: retired (at their limit of jobs or memory) or died.",
        "why",
    ),
    _worker(
        "rqc_worker_loop_lag_seconds",
        "Seconds that the event loop of a worker process was late, at the worst of the last 15 s: a handler that blocks"
        " the loop delays all others of its process, and the next claim. Of several processes the worst.",
    ),
    _worker(
        "rqc_worker_claim_age_seconds",
        "Seconds since Redis last answered a claim, of several processes the most. An idle worker claims every 5 s.",
    ),
    _worker(
        "rqc_worker_resident_bytes",
        "Bytes of resident memory of the worker processes, in total. The processes of isolated handlers do not count.",
    ),
    _worker("rqc_worker_turns_total", "Round trips to Redis in which workers claimed or settled."),
    _worker(
        "rqc_worker_turns_seconds_total",
        "Seconds that the round trips of `rqc_worker_turns_total` took, in total.",
    ),
    _worker("rqc_worker_claims_total", "Jobs that workers claimed.", "queue"),
    _worker(
        "rqc_worker_settled_total",
        "Claims that workers settled, by Redis' answer: succeeded, retried, died, cancelled, rolled_back, parked,"
        " or refused (the claim was no longer in force). The task is (not run) if no handler began. Claims that a"
        " killed process had not counted are missing.",
        "queue",
        "task",
        "outcome",
    ),
    _worker(
        "rqc_worker_wait_seconds",
        "Seconds that jobs had been ready when they were claimed, counted when the claim ends. Only for first claims of"
        " jobs without scopes and without delay; `rqc_claims_waited_seconds_total` has all claims.",
        "queue",
        "task",
    ),
    _worker(
        "rqc_worker_run_seconds",
        "Seconds that handlers ran.",
        "queue",
        "task",
    ),
)
"""All metrics, in the order of the generated page."""

BY_NAME: Final = {family.name: family for family in FAMILIES}
