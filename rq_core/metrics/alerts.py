"""Every alert: when it fires, what it means, what to look at and what to type.

The one table from which come the rules for Prometheus, the runbook, and the words of ``rq-core top``.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from rq_core.metrics.table import BY_NAME


class When(NamedTuple):
    """One condition on the samples of a family."""

    family: str
    comparison: Literal[">", "<", "=="]
    value: float
    labels: tuple[tuple[str, str], ...] = ()
    within_s: int = 0
    """If given, not the sample counts but how much it grew in so many seconds."""

    @property
    def expr(self) -> str:
        """The condition in Prometheus' language."""
        labels = ", ".join(f'{name}="{value}"' for name, value in self.labels)
        chosen = f"{self.family}{{{labels}}}" if labels else self.family
        if self.within_s:
            grew = "increase" if BY_NAME[self.family].kind == "counter" else "delta"
            chosen = f"{grew}({chosen}[{_duration(self.within_s)}])"
        return f"{chosen} {self.comparison} {self.value:g}"


class Alert(NamedTuple):
    """One rule."""

    name: str
    title: str
    severity: Literal["page", "ticket"]
    """page: an operator has to look now; ticket: within a working day."""
    for_s: int
    """How long it must hold before it fires, in seconds."""
    all_of: tuple[When, ...]
    """Of one queue, if the families have that label."""
    means: str
    """A paragraph."""
    look: tuple[str, ...]
    """Commands that show more; QUEUE stands for the queue, URL behind --audit for the audit database's."""
    do: str
    """What may be done, most likely first: items of a list."""

    @property
    def expr(self) -> str:
        """The rule in Prometheus' language."""
        by_queue = all("queue" in BY_NAME[when.family].labels for when in self.all_of)
        glue = "\nand on (queue) " if by_queue else "\nand "
        return glue.join(when.expr for when in self.all_of)

    @property
    def summary(self) -> str:
        """What it means, on one line."""
        return " ".join(self.means.split())

    @property
    def anchor(self) -> str:
        """Its section of the runbook."""
        return self.title.lower().replace(" ", "-")


def _duration(seconds: int) -> str:
    return f"{seconds // 60}m" if seconds % 60 == 0 else f"{seconds}s"


_READY: Final = When("rqc_queue_jobs", ">", 0, (("state", "ready"),))
_RUNNING_ON: Final = When("rqc_queue_paused", "==", 0)

ALERTS: Final = (
    Alert(
        "RqCoreRedisDown",
        "Redis does not answer",
        "page",
        60,
        (When("rqc_up", "==", 0),),
        """
        The exporter gets no answer from Redis. Workers and producers most likely get none either: workers wait,
        and producers raise ServerUnavailable.
        """,
        (
            "redis-cli -u URL ping",
            "rq-core queues --redis URL",
        ),
        """
        - Start Redis, or end the failover. Nothing has to be repaired in rq-core: workers go on by themselves,
          and jobs whose lease ended meanwhile run again.
        - If only the exporter gets no answer, check its URL and its user's rights with `rq-core queues`.
        """,
    ),
    Alert(
        "RqCoreNoWorker",
        "No worker runs",
        "page",
        60,
        (
            When("rqc_workers", "==", 0),
            _READY,
        ),
        """
        Jobs are ready, and no worker of the queue has been heard of for 30 s.
        """,
        (
            "rq-core workers --queue QUEUE",
            "rq-core queues",
            "rq-core health",
        ),
        """
        - Start workers for the queue: `rq-core worker MODULE:APP --queues QUEUE`.
        - If workers run, look whether they work for this queue, this Redis and this prefix: `rq-core health` names
          the queues and the server of each. Run it on their machine as their user, with their TMPDIR, and in their
          container: it sees no others.
        """,
    ),
    Alert(
        "RqCoreJobsWait",
        "Jobs wait for a place",
        "page",
        120,
        (
            When("rqc_queue_oldest_ready_seconds", ">", 300),
            _RUNNING_ON,
            When("rqc_workers", ">", 0),
        ),
        """
        The first job in line has waited for more than five minutes, though workers are there, the queue is not
        paused, and no full scope holds it up. The workers are too few, or stuck in long jobs, or the queue's
        own cap is full.
        """,
        (
            "rq-core top",
            "rq-core workers --queue QUEUE",
            "rq-core caps QUEUE",
        ),
        """
        - If all places are busy, start more workers, or give them more places (`--concurrency`).
        - If `rq-core caps QUEUE` shows that the scope queue is full, raise it: `rq-core cap QUEUE queue N`.
        - If one kind of job takes all places, cap its task: `rq-core cap QUEUE task=NAME N`.
        """,
    ),
    Alert(
        "RqCoreNoClaims",
        "No worker claims",
        "page",
        120,
        (
            When("rqc_queue_overdue_seconds", ">", 60),
            _RUNNING_ON,
        ),
        """
        A retry, a delayed job or a spent rate was due more than a minute ago. Each claim sees to what is due, so
        no worker has claimed since.
        """,
        (
            "rq-core workers --queue QUEUE",
            "rq-core health --queue QUEUE",
        ),
        """
        - If no worker is there, start one.
        - If workers are there, they are stuck: `rq-core health` says for how long, on their machine as their user,
          with their TMPDIR, and in their container. Restart those.
        """,
    ),
    Alert(
        "RqCoreLeasesOver",
        "Leases are over",
        "page",
        120,
        (
            When("rqc_queue_leases_over", ">", 0),
            _RUNNING_ON,
        ),
        """
        The leases of running jobs have ended: their worker is gone. A worker that claims gets these jobs, the first
        one after an outage one lease (30 s) later; so for two minutes most likely no worker has claimed.
        """,
        (
            "rq-core top",
            "rq-core workers --queue QUEUE",
            "rq-core health --queue QUEUE",
        ),
        """
        - If `rq-core workers` shows none that lives, start one, and wait up to two leases (one minute): the jobs run
          again, and each has one loss more (`max_losses`).
        - If one lives, `rq-core top` says whether it claims and when it gets the jobs. If none claims, restart it.
        """,
    ),
    Alert(
        "RqCoreQueuePaused",
        "A queue is paused",
        "ticket",
        900,
        (
            When("rqc_queue_paused", "==", 1),
            _READY,
        ),
        """
        Jobs wait, and no worker can claim them: an operator paused the queue.
        """,
        (
            "rq-core queues",
            "rq-core audit tail --queue QUEUE --audit URL",
        ),
        """
        - The event `paused` of `rq-core audit tail` says who paused it, when and why; Redis does not keep that.
        - When the reason is gone: `rq-core resume QUEUE`.
        """,
    ),
    Alert(
        "RqCoreScopeFull",
        "A scope is full",
        "ticket",
        300,
        (
            When("rqc_scope_full", "==", 1),
            When("rqc_queue_oldest_blocked_seconds", ">", 300),
        ),
        """
        Jobs of the queue have waited for more than five minutes for a cap or a rate that is full. `rq-core caps QUEUE`
        shows which scope they wait for. That is what caps are for; but this one may be too low, or its holders are
        stuck.
        """,
        (
            "rq-core caps QUEUE",
            "rq-core jobs QUEUE --state running",
            "rq-core job ID",
            "rq-core workers --queue QUEUE",
        ),
        """
        - If `rq-core workers` shows a holder's worker as silent, that worker is gone: start a worker and wait up to two
          leases (one minute). `rq-core cancel ID` works only while the job's worker lives.
        - If the worker lives and the holder is stuck, end the job: `rq-core cancel ID`, or restart the worker.
        - If the limit is too low: `rq-core cap QUEUE SCOPE N`. It takes effect at once, for every worker.
        """,
    ),
    Alert(
        "RqCoreJobsDie",
        "Jobs die",
        "ticket",
        0,
        (When("rqc_queue_jobs", ">", 0, (("state", "dead"),), within_s=600),),
        """
        More jobs are dead than ten minutes ago: their attempts are spent, their error is final, or they took down as
        many workers as they may (poison). They stay in Redis until they are requeued or pruned, or their retention
        ends.
        """,
        (
            "rq-core dead QUEUE",
            "rq-core job ID",
            "rq-core audit history ID --audit URL",
        ),
        """
        - Correct the code or the data, then `rq-core requeue ID`.
        - If the reason is poison, the job kills its process: look at its memory and at native code, or isolate
          the task with `isolation="process"`.
        - If the reason is unknown_task or unknown_arguments, a deploy has missed workers or producers, or a producer
          that enqueues by name gave a wrong task or wrong arguments: `rq-core workers` shows the code of each worker,
          `rq-core job ID` the error.
        """,
    ),
    Alert(
        "RqCoreWorkersLost",
        "Claims are lost",
        "ticket",
        0,
        (When("rqc_claims_ended_total", ">", 0, (("outcome", "lease_expired"),), within_s=600),),
        """
        Claims ended because their lease was over: a worker was killed, ran out of memory, or was cut off from
        Redis.
        """,
        (
            "rq-core workers --queue QUEUE",
            "rq-core audit tail --queue QUEUE --audit URL",
        ),
        """
        - Look why processes end: the log of the supervisor (`worker process 2 ended by signal 9`) and the
          kernel's.
        - If it is memory: `--max-memory`, or fewer places.
        """,
    ),
    Alert(
        "RqCoreBacklogHalf",
        "The backlog is half full",
        "page",
        300,
        (When("rqc_backlog_ratio", ">", 0.5),),
        """
        Events wait in Redis to be mirrored, more than half of what is allowed. At 1 enqueuing is refused
        (AuditBacklogFull), at 2 claiming.
        """,
        ("rq-core queues",),
        """
        - Start the mirror, or end what keeps it from its database: its log says what it waits for.
        - To gain time: `rq-core set QUEUE backlog_max_jobs=N`, if Redis has the memory.
        """,
    ),
    Alert(
        "RqCoreMirrorBehind",
        "The mirror is behind",
        "ticket",
        300,
        (When("rqc_backlog_oldest_seconds", ">", 60),),
        """
        An event has waited in Redis for more than a minute, and the mirror has not copied it to SQL. Redis does not
        know whether a mirror runs.
        """,
        (
            "rq-core queues",
            "rq-core doctor QUEUE --audit URL",
        ),
        """
        - Look whether the mirror runs (`rq-core audit run`, or `worker --audit`), and what its log says.
        - If none runs, start it with the database that has the log: `rq-core audit run --audit URL`. Another
          database is refused.
        - If it runs and its log names an error, mend that: it goes on by itself.
        """,
    ),
    Alert(
        "RqCoreAuditDown",
        "The audit database does not answer",
        "ticket",
        120,
        (When("rqc_audit_up", "==", 0),),
        """
        The audit database does not answer. Workers go on; events collect in Redis, and after a while enqueuing
        is refused (see the backlog).
        """,
        (
            "rq-core queues",
            "rq-core audit head --audit URL",
        ),
        """
        - Start the database. The mirror catches up by itself.
        """,
    ),
    Alert(
        "RqCoreRedisForgot",
        "Redis forgot events",
        "page",
        0,
        (When("rqc_audit_losses_total", ">", 0, within_s=3600),),
        """
        Redis came back with less than the log has: after a restart, a failover or a flush. Jobs may be lost, or
        run a second time.
        """,
        ("rq-core audit restore --queue QUEUE --audit URL",),
        """
        - `rq-core audit restore --audit URL` shows which jobs were lost and which came back; with `--apply` it puts
          lost jobs back and removes those that had ended.
        """,
    ),
    Alert(
        "RqCoreLogGap",
        "The log has a gap",
        "ticket",
        0,
        (When("rqc_audit_gaps_total", ">", 0, within_s=3600),),
        """
        Numbers of events are missing in the log: SQL was restored from an older backup, or an operator trimmed or
        changed the outbox by hand.
        """,
        (
            "rq-core audit verify --queue QUEUE --audit URL",
            "rq-core doctor QUEUE",
        ),
        """
        - `rq-core audit restore --audit URL` lists the jobs that may have ended in the gap.
        - If SQL was not restored, find who writes to the keys of rq-core, and take the right away: `rq-core acl ROLE`
          prints what each needs.
        """,
    ),
    Alert(
        "RqCoreQuarantined",
        "Entries are in quarantine",
        "ticket",
        0,
        (When("rqc_audit_quarantined_total", ">", 0, within_s=3600),),
        """
        The mirror found entries that it could not read, and kept them as they were.
        """,
        ("rq-core audit verify --queue QUEUE --audit URL",),
        """
        - Upgrade the mirror before the workers: an older one does not know newer events.
        """,
    ),
    Alert(
        "RqCoreUnproven",
        "The log is unproven",
        "ticket",
        0,
        (
            When("rqc_audit_proof_age_seconds", ">", 172800),
            When("rqc_audit_unproven_events", ">", 0),
        ),
        """
        The last recorded proof of the log is older than two days, and events came since. The alert does not fire for a
        log that was never proven.
        """,
        ("rq-core audit verify --queue QUEUE --audit URL",),
        """
        - Run `rq-core audit verify --audit URL` once a day, by cron or a timer, from the log's first day on.
        - If it runs: a run that finds a violation, has `--since`, or has only a reader's rights is not recorded. Look
          at what it says. `rq-core audit grants verifier` prints the rights with which it is recorded.
        """,
    ),
    Alert(
        "RqCoreMemory",
        "Redis is nearly full",
        "page",
        300,
        (When("rqc_redis_memory_ratio", ">", 0.8),),
        """
        Redis uses more than 80 % of its maxmemory. When it is full, enqueuing is refused (QueueFull); jobs
        still finish.
        """,
        (
            "rq-core queues",
            "redis-cli -u URL info memory",
        ),
        """
        - Give Redis more memory, or find which queue grows, and drain it with more workers.
        - Dead jobs use memory, too: `rq-core prune --all-dead QUEUE`.
        """,
    ),
    Alert(
        "RqCoreCodeSkew",
        "Workers run different code",
        "ticket",
        1800,
        (When("rqc_worker_codes", ">", 1),),
        """
        For half an hour workers of one queue have had different code, or different versions of rq-core: a deploy has
        missed some.
        """,
        ("rq-core workers --queue QUEUE",),
        """
        - Restart the workers whose code or version is the old one.
        """,
    ),
    Alert(
        "RqCoreLoopBlocked",
        "An event loop is blocked",
        "ticket",
        120,
        (When("rqc_worker_loop_lag_seconds", ">", 5),),
        """
        The event loop of a worker process is more than five seconds late: a handler blocks it. Meanwhile no other async
        handler of the process goes on, and it claims nothing. Leases are kept all the same.
        """,
        (
            "rq-core workers",
            "rq-core health",
        ),
        """
        - Find the handler: of those that are running, an `async def` one that computes or calls something that blocks,
          or a `def` one that holds the GIL. `py-spy dump --pid PID` shows where it is.
        - Let it await, or make it a `def` handler, or isolate the task with `isolation="process"`.
        """,
    ),
    Alert(
        "RqCoreWorkerSilent",
        "A worker process does not claim",
        "page",
        120,
        (When("rqc_worker_claim_age_seconds", ">", 60),),
        """
        Redis has not answered a claim of a worker process for a minute, though even an idle one claims every five
        seconds: the process is stopped, blocked, or cut off from Redis.
        """,
        (
            "rq-core health",
            "rq-core workers",
        ),
        """
        - If Redis is away, see there. If other processes of the machine claim, look at this one: is it stopped
          (`ps -o stat`), or its event loop blocked?
        - Restart it. Its jobs run again when their leases are over.
        """,
    ),
    Alert(
        "RqCoreQueuesLeftOut",
        "Queues are left out",
        "ticket",
        0,
        (When("rqc_queues_left_out", ">", 0),),
        """
        There are more queues than a look reads, so some have no metrics and raise no alert.
        """,
        ("rq-core queues",),
        """
        - A queue for each customer is seldom needed: jobs of one queue share it by `fair`, and caps hold for each key.
        - Put queues that are watched apart under a prefix of their own, and start an exporter for each prefix.
        """,
    ),
    Alert(
        "RqCoreQueueUnreadable",
        "A queue cannot be read",
        "page",
        60,
        (When("rqc_queue_unreadable", "==", 1),),
        """
        A key of the queue has another type, another release of rq-core made the queue, or the exporter's user lacks a
        right.
        """,
        (
            "rq-core queues",
            "rq-core doctor QUEUE",
        ),
        """
        - If a key has another type: `rq-core doctor QUEUE` names it and says what to do.
        - If the queue has another layout, no client of this release can use it: use the release that made it.
        - If a right is missing, the error names it: `rq-core acl viewer` prints all that the exporter needs.
        """,
    ),
)

ALERT_BY_NAME: Final = {alert.name: alert for alert in ALERTS}
