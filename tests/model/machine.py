"""The rules of random histories, and the checks after each step. The rules run on a real server and on a model in
Python.

After each step, the state lines in Redis equal those of the model. The indexes and the log agree with both. If a job
can be claimed, a wake token exists. A failure prints its steps and the command that repeats them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from rq_core.model.table.fields import STATE_FIELDS
from rq_core.model.table.machine import PRIORITIES
from rq_core.scripts.script import Script
from tests.kit.clock import timed
from tests.kit.consistency import assert_consistent
from tests.kit.failover import fail_over
from tests.kit.seed import LEASE_MS, NO_FENCE, START_MS, Seed
from tests.kit.snapshots import Snapshot, lines_of
from tests.kit.transports import LossyTransport

RETENTION_MS = 100_000
SWEEP_MS = 100
"""Time after a claim, in milliseconds, after which the next claim must sweep. See lua/sweep/sweep.lua."""
LIMITS = {"backoff_ms": 1_000, "backoff_max_ms": 3_000, "unknown_max": 3}

IDS = [f"j-{n}" for n in range(8)]
WORKERS = ["w-1", "w-2", "w-3"]
ids = st.sampled_from(IDS)
picks = st.lists(st.integers(0, 999), min_size=1, max_size=4)
"""Numbers with which a rule chooses the jobs of a call. See Queue.pick."""
rarely = st.integers(0, 9).map(lambda n: n == 9)
workers = st.sampled_from(WORKERS)
settlements = st.sampled_from(["retry", "shutdown", "unknown_task", "complete", "final"])
delays = st.sampled_from([0, 0, 0, 500, 5_000, 40_000])
deadlines = st.sampled_from([0, 0, 0, 0, 700, 5_700, 40_700])


@dataclass
class Job:
    """A live job in the model."""

    id: str
    state: str
    since: int
    task: str = "t"
    priority: str = "normal"
    unique: str | None = None
    once: int | None = None
    call: str | None = None
    keep: int | None = None
    lane: str | None = None
    life: str | None = None
    base: str | None = None
    waits: str | None = None
    attempts: int = 3
    losses: int = 3
    claim: int = 0
    fence: str | None = None
    failed: int = 0
    lost: int = 0
    unknown: int = 0
    seq: int | None = None
    expires: int | None = None
    due: int | None = None
    by: str | None = None
    reason: str | None = None
    lease: int = 0
    returning: bool = False
    """True if the job is ready again at its old place in line. Such a job comes before the jobs that never left their
    places."""
    old_entry: bool = False
    """True if a cancelled job with the same id left an entry in the list. The job may then be claimed earlier than its
    place in line allows."""

    @property
    def rank(self) -> int:
        return [str(p) for p in PRIORITIES].index(self.priority)

    def may_run_again(self) -> bool:
        """Return whether a job has attempts and losses left since its last saved step.

        Ten times as many failures or losses in all also end the job.
        """
        failed, lost = map(int, (self.base or "0/0").split("/"))
        counts = ((self.failed, failed, self.attempts), (self.lost, lost, self.losses))
        return all(n - before < most and n < 10 * most for n, before, most in counts)

    def line(self) -> str:
        """Return the state line of the job, without fields that have their default."""
        defaults = {"priority": "normal", "attempts": 3, "losses": 3}
        parts = [self.state]
        for name in STATE_FIELDS:
            # The jobs of this model have no names.
            value = getattr(self, name, None)
            if value is not None and value != defaults.get(name, 0):
                parts.append(f"{name}={value}")
        return " ".join(parts)


@dataclass
class Model:
    """A queue in Python: its jobs, their states and their order."""

    now: int = START_MS
    jobs: dict[str, Job] = field(default_factory=dict)
    sequence: int = 0
    paused: bool = False
    no_reap_before: int = START_MS + LEASE_MS
    last_activity: int = 0
    tombs: set[str] = field(default_factory=set)
    swept_at: int = 0
    """Time of the last claim, in milliseconds."""

    def in_state(self, *states: str) -> list[Job]:
        return [job for job in self.jobs.values() if job.state in states]

    def holder_of(self, name: str | None) -> Job | None:
        """Return the live job that holds a name, or None. A holder that waits past its deadline does not count."""
        job = self._named(name)
        return None if job is None or self._is_overdue(job) else job

    def let_yield(self, name: str | None) -> None:
        """Free this name if its holder waits past its deadline. The holder continues without the name."""
        job = self._named(name)
        if job is not None and self._is_overdue(job):
            job.unique = None

    def _named(self, name: str | None) -> Job | None:
        alive = self.in_state("ready", "scheduled", "running", "cancelling", "parked")
        return next((job for job in alive if name is not None and job.unique == name), None)

    def _is_overdue(self, job: Job) -> bool:
        waits = job.state in {"ready", "scheduled", "parked"}
        return waits and job.expires is not None and job.expires <= self.now

    def move(self, job: Job, state: str, **changes: object) -> None:
        job.state, job.since, job.due, job.reason, job.waits = state, self.now, None, None, None
        if state not in {"running", "cancelling"}:
            job.fence = job.by = None
        for name, value in changes.items():
            setattr(job, name, value)

    def next_place(self) -> int:
        self.sequence += 1
        return self.sequence

    def note_activity(self) -> None:
        if self.now - self.last_activity > LEASE_MS * 2 / 3:
            self.no_reap_before = self.now + LEASE_MS
        if self.now - self.last_activity > LEASE_MS / 10:
            self.last_activity = self.now

    def new_epoch(self) -> None:
        self.no_reap_before = self.now + LEASE_MS

    def sweep(self) -> None:
        """Sweep as a claim does at its beginning: expire leases, promote due jobs, and forget old dead jobs."""
        buried = self.in_state("dead")
        self.note_activity()
        if self.no_reap_before <= self.now:
            for job in self.in_state("running", "cancelling"):
                if job.lease <= self.now:
                    self.expire(job)
        waiting = self.in_state("scheduled", "parked")
        due = [j for j in waiting if j.due is not None and j.due <= self.now]
        over = self.overdue()
        for job in sorted(due, key=lambda j: (j.due, j.id)):
            if job not in over:
                self.promote(job)
        for job in buried:
            if job.since + RETENTION_MS <= self.now:
                del self.jobs[job.id]

    def overdue(self) -> list[Job]:
        """Return the waiting jobs whose deadline has passed."""
        waiting = self.in_state("ready", "scheduled", "parked")
        return [job for job in waiting if job.expires is not None and job.expires <= self.now]

    def yield_ids(self, ids: Iterable[str]) -> None:
        """End the overdue jobs with these ids, except parked jobs and jobs that have failed or lost a worker."""
        wanted = set(ids)
        for job in self.overdue():
            if job.id in wanted and not (job.failed or job.lost or job.state == "parked"):
                self.expire_at_deadline(job)

    def expire_at_deadline(self, job: Job) -> None:
        """End a job whose deadline has passed."""
        if job.failed or job.lost or job.state == "parked":
            self.move(job, "dead", reason="expired")
            return
        if job.state == "ready" and job.lane is None:
            self.tombs.add(job.id)
        del self.jobs[job.id]

    def expire(self, job: Job) -> None:
        """End a claim whose lease has expired."""
        if job.state == "cancelling":
            del self.jobs[job.id]
            return
        job.lost += 1
        if job.may_run_again():
            self.move(job, "ready", returning=True)
        else:
            self.move(job, "dead", reason="poison")

    def promote(self, job: Job) -> None:
        """Make a due job ready."""
        returning = job.seq is not None
        self.move(job, "ready", returning=returning, seq=job.seq or self.next_place())

    def give_up(self, job: Job, how: str, delay: int) -> None:
        """End a claim that did not succeed."""
        if how in {"retry", "final"}:
            job.failed += 1
            if how == "final" or not job.may_run_again():
                self.move(job, "dead", reason="given_up" if how == "final" else "attempts_spent")
            elif delay:
                self.move(job, "scheduled", due=self.now + delay)
            else:
                self.move(job, "ready", returning=True)
        elif how == "shutdown":
            self.move(job, "ready", returning=True)
        elif job.unknown + 1 >= LIMITS["unknown_max"]:
            self.move(job, "dead", reason="unknown_task")
        else:
            wait = min(LIMITS["backoff_ms"] * 2**job.unknown, LIMITS["backoff_max_ms"])
            self.move(job, "scheduled", unknown=job.unknown + 1, due=self.now + wait)

    def put(self, job_id: str, delay: int, expires: int, **told: Any) -> None:
        """Add a job that Redis has accepted."""
        job = Job(job_id, "ready", self.now, **told)
        job.old_entry = job_id in self.tombs
        job.expires = self.now + expires if expires else None
        if delay:
            job.state, job.due = "scheduled", self.now + delay
        else:
            job.seq = self.next_place()
        self.jobs[job_id] = job

    def in_force(self, job_id: str, fence: str, worker: str) -> Job | None:
        """Return the job if this worker has its claim with this fence, or None."""
        job = self.jobs.get(job_id)
        return job if job is not None and (job.fence, job.by) == (fence, worker) else None

    def holder(self, names: Iterable[str], other: str) -> str:
        """Return the worker of the first of these jobs that is claimed, or ``other`` if none is."""
        held = (job.by for name in names if (job := self.jobs.get(name)) is not None and job.by)
        return next(held, other)


class Queue(RuleBasedStateMachine):
    """Random histories of one queue, on the server and on the model."""

    seed_of = Seed
    """The class whose methods call the server."""

    def __init__(
        self, url: str, *, scripts: Callable[[str], Script] = timed, ids: Sequence[str] = IDS
    ) -> None:
        super().__init__()
        self.ids = ids
        self.transport = LossyTransport(url)
        self.seed = self.seed_of(url, transport=self.transport, scripts=scripts)
        self.seed.control.flushall()
        self.seed.clock.set(START_MS)
        self.seed.configure(dead_retention_ms=RETENTION_MS)
        self.model = Model()
        self.fences: dict[str, str] = {}
        """For each job that was ever claimed: its last fence."""
        self.stranger = False

    def teardown(self) -> None:
        self.seed.client.close()
        self.seed.control.close()

    def before_call(self) -> None:
        """Begin a new epoch in the model at the first call after a failover."""
        if self.stranger:
            self.stranger = False
            self.model.new_epoch()

    def pick(self, numbers: list[int], *states: str) -> list[str]:
        """Choose jobs by these numbers. Most have one of these states, and some have any state."""
        fitting = [job.id for job in self.model.in_state(*states)]
        named = []
        for number in numbers:
            among = self.ids if number % 7 == 0 or not fitting else fitting
            named.append(among[number // 7 % len(among)])
        return list(dict.fromkeys(named))

    def some_held(self) -> bool:
        return bool(self.model.in_state("running", "cancelling"))

    # Rules.

    @initialize(count=st.integers(2, 6))
    def begin(self, count: int) -> None:
        self.enqueue([(i, "normal", 0, 3, 3, 0) for i in IDS[:count]])
        self.claim("w-1", count // 2, True)

    @rule(
        wanted=st.lists(
            st.tuples(
                ids,
                st.sampled_from([str(p) for p in PRIORITIES]),
                delays,
                st.integers(1, 3),
                st.integers(1, 3),
                deadlines,
            ),
            min_size=1,
            max_size=5,
        )
    )
    def enqueue(self, wanted: list[tuple[str, str, int, int, int, int]]) -> None:
        self.before_call()
        accepted = self.seed.enqueue(
            *(
                self.seed.job(i, priority=p, delay_ms=d, attempts=a, losses=n, expires_in_ms=e)
                for i, p, d, a, n, e in wanted
            )
        )
        self.model.yield_ids(i for i, *_ in wanted)
        fresh = []
        for job_id, priority, delay, attempts, losses, expires in wanted:
            if job_id in self.model.jobs:
                continue
            fresh.append(job_id)
            told = {"priority": priority, "attempts": attempts, "losses": losses}
            self.model.put(job_id, delay, expires, **told)

        assert tuple(fresh) == accepted.ids
        assert len(wanted) - len(fresh) == len(accepted.duplicates)

    @rule(worker=workers, limit=st.integers(0, 4).map(lambda n: 4 - n), woken=st.booleans())
    def claim(self, worker: str, limit: int, woken: bool) -> None:
        self.before_call()
        if woken:
            self.seed.take_token()
        self.take(worker, limit, [])

    @rule(numbers=picks, wrong=rarely, worker=workers, limit=st.integers(0, 4).map(lambda n: 4 - n))
    def turn(self, numbers: list[int], wrong: bool, worker: str, limit: int) -> None:
        """Apply a turn, which settles successes and claims jobs. The successes come first, so that their leases cannot
        expire."""
        self.before_call()
        names = self.pick(numbers, "running", "cancelling")
        self.take(self.model.holder(names, worker), limit, self.held(names, wrong))

    def take(self, worker: str, limit: int, held: list[tuple[str, str]]) -> None:
        """Claim jobs. Any successes are settled by the same call."""
        call = partial(self.seed.turn, *held) if held else self.seed.claim
        claimed = call(limit=limit, worker=worker)
        assert self.succeed(held, worker) == claimed.refused
        self.model.sweep()
        expired_due = self.let_expire()
        over = self.model.overdue()
        ready = {job.id: job for job in self.model.in_state("ready") if job not in over}
        expected = 0 if self.model.paused else min(limit, len(ready))

        assert expected == len(claimed.jobs)
        self.check_order([ready[c.id] for c in claimed.jobs], ready.values())
        for claim in claimed.jobs:
            job = ready[claim.id]
            self.model.move(
                job, "running", claim=job.claim + 1, fence=claim.fence, by=worker, returning=False
            )
            job.lease = self.model.now + LEASE_MS
            job.old_entry = False
            assert (job.claim, job.failed, job.lost) == (claim.number, claim.failures, claim.losses)
            self.fences[job.id] = claim.fence
        waiting = self.model.in_state("scheduled", "parked")
        due = [job.due for job in waiting if job.due is not None]
        # A claim may still name the due time of a job that expires in it: then one more claim finds nothing.
        assert claimed.next_due_ms in {
            min(due, default=None),
            min([*due, *expired_due], default=None),
        }
        left = bool(self.model.in_state("ready")) and not self.model.paused
        assert claimed.more or not left

    def let_expire(self) -> list[int]:
        """Expire each overdue job of the model that a claim has expired on the server. Return the due times of these
        jobs that are still in the future.

        A claim that follows another claim closely does not sweep, and may leave overdue jobs.
        """
        must = self.model.now - self.model.swept_at > SWEEP_MS
        self.model.swept_at = self.model.now
        due = []
        for job in self.model.overdue():
            line = self.seed.state(job.id)
            stays = line is not None and line.startswith(("ready ", "scheduled ", "parked "))
            assert not (stays and must), f"{job.id} did not expire"
            if not stays:
                due += [job.due] if job.due is not None and job.due > self.model.now else []
                self.model.expire_at_deadline(job)
        return due

    def check_order(self, taken: list[Job], ready: Iterable[Job]) -> None:
        """Check the order of claimed jobs: by priority, then returning jobs, then all other jobs by place in line."""
        assert [j.rank for j in taken] == sorted(j.rank for j in taken)
        names = {j.id for j in taken}
        left = [j for j in ready if j.id not in names]
        for at, job in enumerate(taken):
            behind = [*taken[at + 1 :], *left]
            assert not [j for j in behind if j.rank < job.rank]
            if job.old_entry or job.returning:
                continue
            peers = [j for j in behind if j.rank == job.rank and not j.old_entry]
            assert not [j for j in peers if j.returning]
            assert not [j for j in peers if (j.seq or 0) < (job.seq or 0)]

    def succeed(self, held: Iterable[tuple[str, str]], worker: str) -> dict[str, str]:
        """Remove the succeeded jobs from the model. Return the reason of each refused success, by job id."""
        refused = {}
        for job_id, fence in held:
            if self.model.in_force(job_id, fence, worker) is not None:
                del self.model.jobs[job_id]
            else:
                refused[job_id] = "stale" if job_id in self.model.jobs else "gone"
        return refused

    def held(self, names: list[str], wrong: bool) -> list[tuple[str, str]]:
        """Return each job with the fence that its worker presents: the job's last fence or, with ``wrong``, an invalid
        fence."""
        return [(i, NO_FENCE if wrong else self.fences.get(i, NO_FENCE)) for i in names]

    @rule(how=settlements, numbers=picks, wrong=rarely, delay=delays, worker=workers)
    def settle(self, how: str, numbers: list[int], wrong: bool, delay: int, worker: str) -> None:
        self.before_call()
        names = self.pick(numbers, "running", "cancelling")
        worker, held = self.model.holder(names, worker), self.held(names, wrong)
        match how:
            case "complete":
                outcomes = self.seed.complete(*held, worker=worker)
                assert self.succeed(held, worker) == outcomes
                return
            case "retry" | "final":
                outcomes = self.seed.fail(
                    *held, verdict=how, delay_ms=delay, reason="given_up", worker=worker
                )
            case _:
                outcomes = self.seed.rollback(*held, reason=how, worker=worker, **LIMITS)
        expected = self.given_back(held, worker, lambda job: self.model.give_up(job, how, delay))

        assert expected == outcomes

    def given_back(
        self, held: list[tuple[str, str]], worker: str, change: Callable[[Job], object]
    ) -> dict[str, str]:
        """Apply ``change`` to the jobs whose claim is in force. Return the outcome of each job that is given back, by
        id."""
        expected = {}
        for job_id, fence in held:
            job = self.model.in_force(job_id, fence, worker)
            if job is None:
                expected[job_id] = "stale" if job_id in self.model.jobs else "gone"
            elif job.state == "cancelling":
                del self.model.jobs[job_id]
                expected[job_id] = "cancelled"
            else:
                change(job)
                expected[job_id] = job.state
        return expected

    @rule(how=settlements, numbers=picks, delay=delays, worker=workers, limit=st.integers(1, 4))
    def take_and_settle(
        self, how: str, numbers: list[int], delay: int, worker: str, limit: int
    ) -> None:
        """Claim jobs and settle them. Two separate rules would rarely pick the same jobs."""
        self.claim(worker, limit, True)
        self.settle(how, numbers, False, delay, worker)

    @precondition(some_held)
    @rule(numbers=picks, wrong=rarely, worker=workers)
    def extend(self, numbers: list[int], wrong: bool, worker: str) -> None:
        """Extend the leases of jobs, some with a wrong fence. Only the worker of a claim can extend its lease."""
        self.before_call()
        names = self.pick(numbers, "running", "cancelling")
        held = self.held(names, wrong)
        extended = self.seed.extend(held, worker=worker)
        self.model.note_activity()
        lost, cancelling = [], []
        for job_id, fence in held:
            job = self.model.in_force(job_id, fence, worker)
            if job is None:
                lost.append(job_id)
                continue
            job.lease = self.model.now + LEASE_MS
            if job.state == "cancelling":
                cancelling.append(job_id)

        assert (tuple(lost), tuple(cancelling)) == (extended.lost, extended.cancelling)

    @rule(how=st.sampled_from(["requeue", "cancel", "prune"]), numbers=picks)
    def a_person_decides(self, how: str, numbers: list[int]) -> None:
        if how == "cancel":
            self.cancel(numbers[:3])
        elif how == "requeue" or len(numbers) < 3:
            self.requeue(numbers)
        else:
            self.prune(numbers)

    def cancel(self, numbers: list[int]) -> None:
        self.before_call()
        names = self.pick(numbers, "ready", "scheduled", "running", "parked")
        outcomes = self.seed.cancel(*names)
        expected = {}
        for job_id in names:
            job = self.model.jobs.get(job_id)
            if job is None:
                expected[job_id] = "gone"
            elif job.state in {"ready", "scheduled", "parked"}:
                expected[job_id] = "cancelled"
                if job.state == "ready" and job.lane is None:
                    self.model.tombs.add(job_id)
                del self.model.jobs[job_id]
            else:
                if job.state == "running":
                    job.state, job.since = "cancelling", self.model.now
                expected[job_id] = job.state

        assert expected == outcomes

    def requeue(self, numbers: list[int]) -> None:
        self.before_call()
        names = self.pick(numbers, "dead")
        outcomes = self.seed.requeue(*names)
        expected = {}
        for job_id in names:
            job = self.model.jobs.get(job_id)
            if job is None:
                expected[job_id] = "gone"
            elif job.state != "dead":
                expected[job_id] = job.state
            elif self.model.holder_of(job.unique) is not None:
                expected[job_id] = "held"
            else:
                expected[job_id] = "requeued"
                self.model.let_yield(job.unique)
                self.model.move(
                    job,
                    "ready",
                    seq=self.model.next_place(),
                    failed=0,
                    lost=0,
                    base=None,
                    unknown=0,
                    expires=None,
                )
                job.returning = False
                job.old_entry = job_id in self.model.tombs

        assert expected == outcomes

    def prune(self, numbers: list[int]) -> None:
        self.before_call()
        names = self.pick(numbers, "dead")
        outcomes = self.seed.prune(*names)
        expected = {}
        for job_id in names:
            job = self.model.jobs.get(job_id)
            expected[job_id] = "gone" if job is None else job.state
            if job is not None and job.state == "dead":
                expected[job_id] = "pruned"
                del self.model.jobs[job_id]

        assert expected == outcomes

    @precondition(lambda self: not self.model.paused)
    @rule()
    def pause(self) -> None:
        self.before_call()
        self.model.paused = True
        self.seed.configure(paused=1)

    @precondition(lambda self: self.model.paused)
    @rule()
    def resume(self) -> None:
        self.before_call()
        self.model.paused = False
        self.seed.configure(paused=0)

    @precondition(lambda self: self.model.paused)
    @rule()
    def resume_soon(self) -> None:
        """Resume the queue. Together with `resume`, this rule makes resumes frequent, since few calls affect a paused
        queue."""
        self.resume()

    @rule(ms=st.sampled_from([1, 500, 1_000, 5_000, 10_000, 20_000, 20_001, 100_000]))
    def time_passes(self, ms: int) -> None:
        self.seed.advance(ms)
        self.model.now += ms

    @precondition(some_held)
    @rule(worker=workers)
    def a_lease_passes_while_others_work(self, worker: str) -> None:
        for _ in range(3):
            self.time_passes(LEASE_MS // 3)
            self.claim(worker, 0, False)

    @rule()
    def the_next_reply_is_lost(self) -> None:
        self.transport.lose = 1

    @rule()
    def failover(self) -> None:
        """Simulate a failover to a replica with all data. The replication id changes, and functions lose their data."""
        fail_over(self.seed.control)
        self.stranger = True

    # What holds after every step.

    @invariant()
    def all_agree(self) -> None:
        """Read the queue, and check that it agrees with the model."""
        self.check(self.seed.snapshot())

    def check(self, snapshot: Snapshot) -> None:
        told = {job.id: job.line() for job in self.model.jobs.values()}

        assert told == lines_of(snapshot)
        leases = {j.id: float(j.lease) for j in self.model.in_state("running", "cancelling")}
        assert leases == snapshot["leases"]
        assert_consistent(snapshot)
        self.check_sleepers(snapshot)

    def check_sleepers(self, snapshot: Snapshot) -> None:
        """Check that a wake token exists if a job can be claimed. Without a token, idle workers sleep until their next
        poll."""
        if self.model.in_state("ready") and not self.model.paused:
            assert len(snapshot["wake"]) == 1
