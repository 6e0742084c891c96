"""Random histories of a queue with caps agree with a model that has no lanes."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from rq_core.app.limits.lane_assignment import full_rules
from rq_core.errors import NothingDeclared
from rq_core.model.events import Entry
from rq_core.model.limits.scopes import lane_name
from rq_core.model.table.machine import PRIORITIES, Event
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.claims import CLAIM_BYTES, SWEEP_MAX
from rq_core.protocol.calls.enqueue import Accepted
from rq_core.scripts.header import Variant
from rq_core.scripts.script import Script, build_function, include
from tests.kit.clock import CLOCK, timed
from tests.kit.consistency import entries_of, entry_of
from tests.kit.lanes import breaches
from tests.kit.servers import Engine
from tests.kit.snapshots import Snapshot, lines_of
from tests.model.caps_model import CapsModel
from tests.model.fair_model import FairModel
from tests.model.machine import (
    LIMITS,
    RETENTION_MS,
    Job,
    Queue,
    delays,
    picks,
    settlements,
    workers,
)
from tests.model.running import LIMIT_S, run
from tests.rigs.judge.caps import unproved

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_S)]

IDS = [f"j-{n}" for n in range(14)]
RATE = "tenant@10s"
KEYS = ["x", "y", "z", ""]
limits = st.sampled_from(["0", "1", "1", "1", "2", "2", "3", "none", "code"])
rates = st.sampled_from(["5/10000ms/1", "2/10000ms/2", "10/10000ms/3", "0", "none", "code"])
targets = st.sampled_from(
    ["task=a", "task=b", "tenant", "tenant", "tenant=x", "host", "host=h", "queue"]
)
rate_targets = st.sampled_from([RATE, f"{RATE}=x"])
changes = st.one_of(
    st.tuples(targets, limits), st.tuples(targets, limits), st.tuples(rate_targets, rates)
)


@st.composite
def wanted(draw: Callable[..., Any], *, fair: bool = False) -> dict[str, Any]:
    """Draw a job to enqueue. In a fair queue it has a key and the scope of its task."""
    task = draw(st.sampled_from(["a", "a", "b"]))
    tenant = draw(st.sampled_from(["x", "x", "y"]))
    all_scopes = [f"task={task}", f"tenant={tenant}", "host=h", f"{RATE}={tenant}"]
    scopes = draw(st.lists(st.sampled_from(all_scopes), max_size=3))
    if fair:
        scopes = [*all_scopes[:1], *scopes, f"fair={draw(st.sampled_from(KEYS))}"]
    priority = draw(st.sampled_from(["normal", "normal", "normal", *map(str, PRIORITIES)]))
    delay = draw(delays)
    lane = lane_name(list(map(str, PRIORITIES)).index(priority), scopes)
    rules = []
    if lane and not delay and draw(st.integers(0, 3)) == 3:
        kinds = [st.tuples(st.just("most"), st.integers(0, 2))]
        kinds.append(
            st.tuples(st.sampled_from(["discard", "reject"]), st.sampled_from(scopes))  # type: ignore[arg-type]
        )
        rules = draw(st.lists(st.one_of(kinds), min_size=1, max_size=2))
    return {
        "id": draw(st.sampled_from(IDS)),
        "task": task,
        "priority": priority,
        "delay": delay,
        "attempts": draw(st.integers(1, 3)),
        "losses": draw(st.integers(1, 3)),
        "lane": lane,
        "rules": rules,
    }


def _of_one_scope() -> Variant:
    lanes = include("lane_opening")
    text = re.sub(r"FAMILY_MAX = \d+ ", "FAMILY_MAX = 1 ", lanes)
    assert text != lanes
    return Variant(includes={"clock": CLOCK, "lane_opening": text})


ONE_SCOPE = _of_one_scope()


def in_small_sweeps(name: str) -> Script:
    """Return the script of this name. Of `cap`, return a variant that updates only one scope of a family per call."""
    return build_function(name, ONE_SCOPE) if name == "cap" else timed(name)


class CapsQueue(Queue):
    """Random histories of one queue with caps, on the server and on the model."""

    model: CapsModel

    def __init__(self, url: str) -> None:
        super().__init__(url, scripts=in_small_sweeps, ids=IDS)
        self.model = CapsModel()
        self.known_due: int | None = None
        """Time at which a sleeping worker claims without a wake token, as the answer of the last claim said."""
        self.logged = 0

    # Rules.

    @initialize(
        caps=st.lists(changes, max_size=4),
        jobs=st.lists(wanted(), min_size=2, max_size=8, unique_by=lambda w: w["id"]),
        limit=st.integers(0, 4),
    )
    def begin(  # type: ignore[override]
        self, caps: list[tuple[str, str]], jobs: list[dict[str, Any]], limit: int
    ) -> None:
        for change in caps:
            self.set_caps([(*change, "any", "live")])
        self.enqueue(jobs)
        self.claim("w-1", limit, True)

    @rule(jobs=st.lists(wanted(), min_size=1, max_size=5))
    def enqueue(self, jobs: list[dict[str, Any]]) -> None:  # type: ignore[override]
        self.before_call()
        made = [
            self.seed.job(
                w["id"],
                task=w["task"],
                priority=w["priority"],
                delay_ms=w["delay"],
                attempts=w["attempts"],
                losses=w["losses"],
                lane=w["lane"],
                full=full_rules(w["rules"]),
            )
            for w in jobs
        ]
        told = self.seed.enqueue(*made)
        expected: dict[str, list[Any]] = {
            "ids": [], "duplicates": [], "discarded": [], "rejected": [],
        }  # fmt: skip
        for w in jobs:
            job = self.new_job(w)
            if job.id in self.model.jobs:
                expected["duplicates"].append(job.id)
                continue
            kept_out = self.model.kept_out(job.lane or "", w["rules"])
            if kept_out:
                expected[kept_out[0]].append((job.id, kept_out[1]))
                continue
            expected["ids"].append(job.id)
            if job.state == "ready":
                job.seq = self.model.next_place()
            self.model.jobs[job.id] = job

        assert Accepted(**{name: tuple(value) for name, value in expected.items()}) == told

    def new_job(self, w: dict[str, Any]) -> Job:
        job = Job(
            w["id"],
            "scheduled" if w["delay"] else "ready",
            self.model.now,
            task=w["task"],
            priority=w["priority"],
            lane=w["lane"] or None,
            attempts=w["attempts"],
            losses=w["losses"],
        )
        if job.lane is None:
            # A producer that knows of no scope: its job goes where the task's cap, if there is one, puts it.
            job.lane = self.model.lane(job)
        job.old_entry = job.id in self.model.tombs
        if w["delay"]:
            job.due = self.model.now + w["delay"]
        return job

    @rule(worker=workers, limit=st.integers(0, 6).map(lambda n: 6 - n), woken=st.booleans())
    def claim(self, worker: str, limit: int, woken: bool) -> None:
        self.before_call()
        if woken:
            self.seed.take_token()
        self.take(worker, limit, [])

    def take(self, worker: str, limit: int, held: list[tuple[str, str]]) -> None:
        self.take_within(worker, limit, held, CLAIM_BYTES, SWEEP_MAX)

    @rule(
        worker=workers,
        limit=st.integers(1, 6),
        bytes_max=st.sampled_from([1, 40, CLAIM_BYTES]),
        sweep_max=st.sampled_from([1, 2, SWEEP_MAX]),
    )
    def claim_little(self, worker: str, limit: int, bytes_max: int, sweep_max: int) -> None:
        """Claim few jobs, with small limits on bytes and on entries of the sweep."""
        self.before_call()
        self.seed.take_token()
        self.take_within(worker, limit, [], bytes_max, sweep_max)

    def take_within(
        self,
        worker: str,
        limit: int,
        held: list[tuple[str, str]],
        bytes_max: int,
        sweep_max: int,
    ) -> None:
        self.model.note_waiting()
        self.model.begin_claim()
        call = partial(self.seed.turn, *held) if held else self.seed.claim
        claimed = call(limit=limit, worker=worker, bytes_max=bytes_max, sweep_max=sweep_max)
        assert self.succeed(held, worker) == claimed.refused
        snapshot = self.seed.snapshot()
        entries = self.new_entries(snapshot)
        ample = sweep_max == SWEEP_MAX
        if ample:
            self.model.sweep()
        else:
            promoted = [j.job_id for e in entries if e.event is Event.PROMOTED for j in e.jobs]
            over = {j.id for j in self.model.in_state("dead") if self.is_over(j)}
            pruned = {j.job_id for e in entries if e.event is Event.PRUNED for j in e.jobs}
            assert pruned <= over
            self.model.sweep_within(sweep_max, promoted, pruned)
        self.model.note_waiting()

        size = 0
        room = self.model.limit("queue").most
        free = len(self.model.jobs) if room is None else room - len(self.model.claimed())
        for taken in claimed.jobs:
            assert size < bytes_max
            job = self.model.jobs[taken.id]
            ahead = self.model.before(job)
            if not ample:
                # Lanes that were not reached stay behind; the order within a lane is kept.
                ahead = [j for j in ahead if j.lane == job.lane is not None and j.rank == job.rank]
            assert not ahead, f"{job.line()} was claimed before {[j.line() for j in ahead]}"
            self.check_limits(entries, job)
            self.model.take(job, taken.fence, worker)
            assert (taken.number, taken.failures, taken.losses, taken.lane) == (
                job.claim,
                job.failed,
                job.lost,
                job.lane or "",
            )
            self.fences[job.id] = taken.fence
            # The value in `jobs`, which may have a line before its JSON.
            size += len(snapshot["jobs"][job.id])
        self.check_whole(claimed, min(limit, max(0, free)), size >= bytes_max, ample)
        due = snapshot["scheduled"].values()
        if due and ample:
            assert claimed.next_due_ms is not None
            assert claimed.next_due_ms <= min(due)
        self.take_up(snapshot)
        self.model.end_claim(sweep_max)
        self.known_due = claimed.next_due_ms

    def new_entries(self, snapshot: Snapshot) -> list[Entry]:
        """Return the entries of the log since the last call of this method."""
        fresh = snapshot["outbox"][self.logged :]
        self.logged = len(snapshot["outbox"])
        return [entry_of(entry_id, raw) for entry_id, raw in fresh]

    def is_over(self, job: Job) -> bool:
        return job.since + RETENTION_MS <= self.model.now

    def check_whole(self, claimed: Any, limit: int, cut: bool, ample: bool) -> None:
        """Check that a claim returns as many jobs as it can, or says in its answer that more jobs are ready."""
        rest = [] if self.model.gated() else self.model.runnable()
        if not ample:
            soon = claimed.next_due_ms is not None and claimed.next_due_ms <= self.model.now
            assert not rest or claimed.more or soon
            return
        if len(claimed.jobs) < limit and not cut:
            assert not rest, f"{[j.line() for j in rest]} were left behind"
            assert not claimed.more
        assert not rest or claimed.more

    def check_limits(self, entries: Sequence[Entry], job: Job) -> None:
        """Check that the event `claimed` of this job has the scopes and limits in force."""
        (told,) = [
            j.fields["scopes"]
            for e in entries
            if e.event is Event.CLAIMED
            for j in e.jobs
            if j.job_id == job.id
        ]
        assert told == self.model.limits_in_force(job)

    def other_lane(self, job: Job, scopes: list[str]) -> str:
        """Return the lane that the policy of the job's task makes from these scopes."""
        return lane_name(job.rank, [f"task={job.task}", *scopes])

    def take_up(self, snapshot: Snapshot) -> None:
        """Move jobs of the model into other lanes, if a claim has moved these jobs on the server."""
        for job_id, line in lines_of(snapshot).items():
            job = self.model.jobs[job_id]
            if job.state == "ready" and f" lane={self.model.lane(job)} " in line:
                job.lane = self.model.lane(job)

    @rule(how=settlements, numbers=picks, delay=delays, worker=workers, limit=st.integers(1, 4))
    def take_and_settle(
        self, how: str, numbers: list[int], delay: int, worker: str, limit: int
    ) -> None:
        self.claim(worker, limit, True)
        self.settle(how, numbers, False, delay, worker)

    @rule(how=settlements, numbers=picks, delay=delays, worker=workers)
    def settle_some(self, how: str, numbers: list[int], delay: int, worker: str) -> None:
        self.settle(how, numbers, False, delay, worker)

    @rule(
        numbers=picks,
        scopes=st.lists(st.sampled_from(["tenant=x", "tenant=y", "host=h"])),
        worker=workers,
    )
    def change_lanes(self, numbers: list[int], scopes: list[str], worker: str) -> None:
        """Give running jobs back after the policy of their task has changed. Each returns to the lane of the new
        policy."""
        self.before_call()
        names = self.pick(numbers, "running")
        worker, held = self.model.holder(names, worker), self.held(names, False)
        lanes = {
            i: self.other_lane(self.model.jobs[i], scopes) for i, _ in held if i in self.model.jobs
        }
        outcomes = self.seed.client.run(
            claims.rollback(
                self.seed.queue,
                worker,
                [(i, f, "lane_changed", "null", lanes.get(i, ""), 0) for i, f in held],
                **LIMITS,
            )
        )

        def change(job: Job) -> None:
            job.lane = lanes[job.id]
            self.model.move(job, "ready", returning=True)

        assert self.given_back(held, worker, change) == outcomes

    @rule(
        change=changes,
        version=st.sampled_from(["any", "any", "right", "wrong"]),
        source=st.sampled_from(["live", "live", "code"]),
    )
    def change_cap(self, change: tuple[str, str], version: str, source: str) -> None:
        self.set_caps([(*change, version, source)])

    def set_caps(self, wanted: list[tuple[str, str, str, str]]) -> None:
        self.before_call()
        for scope, limit, version, source in wanted:
            stored = self.model.caps.get(scope)
            current = stored.version if stored else 0
            number = {"any": -1, "right": current, "wrong": current + 1}[version]
            # Only people give a limit back to code.
            source = "live" if limit == "code" else source  # noqa: PLW2901 - as it is told
            expected = self.model.set_cap(scope, limit, number, source, "ada")
            if expected is None:
                with pytest.raises(NothingDeclared):
                    self.seed.cap(scope, limit, number, source=source, by="ada")
                continue
            told = self.seed.cap(scope, limit, number, source=source, by="ada")

            assert (told.outcome, told.version, str(told.limit)) == expected
        self.model.over = self.model.breached()

    # What holds after every step.

    def check(self, snapshot: Snapshot) -> None:
        super().check(snapshot)
        self.new_entries(snapshot)
        self.model.note_waiting()
        # I3: more than the cap hold a scope only after it was lowered.
        self.model.over &= self.model.breached()
        assert self.model.over - {"queue"} == {b.partition(":")[0] for b in breaches(snapshot)}
        assert unproved(entries_of(snapshot)) == []
        assert {name: str(e) for name, e in self.model.caps.items()} == snapshot["caps"]
        spent = {s: at for s, at in self.model.arrivals.items() if at > self.model.now * 1000}
        assert spent.items() <= {s: int(at) for s, at in snapshot["rates"].items()}.items()

    def check_sleepers(self, snapshot: Snapshot) -> None:
        """Check that a wake token exists if jobs can be claimed.

        No token is needed if the last claim's answer said when the jobs can be claimed.
        """
        if snapshot["wake"] or self.model.gated():
            return
        due = snapshot["scheduled"]
        resuming = {m.removeprefix("rate|") for m in due if m.startswith("rate|")}
        asleep = [
            job.line()
            for job in self.model.runnable()
            if resuming.isdisjoint(self.model.scopes(job))
        ]
        assert not asleep
        if due:
            assert self.known_due is not None
            assert self.known_due <= min(due.values())


class FairQueue(CapsQueue):
    """Random histories of one fair queue with caps, on the server and on the model."""

    model: FairModel

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.model = FairModel()
        self.seed.configure(fair=1)

    @initialize(
        caps=st.lists(changes, max_size=3),
        jobs=st.lists(wanted(fair=True), min_size=2, max_size=10, unique_by=lambda w: w["id"]),
        limit=st.integers(0, 4),
    )
    def begin(self, caps: list[tuple[str, str]], jobs: list[dict[str, Any]], limit: int) -> None:
        super().begin(caps, jobs, limit)

    @rule(jobs=st.lists(wanted(fair=True), min_size=1, max_size=6))
    def enqueue(self, jobs: list[dict[str, Any]]) -> None:
        super().enqueue(jobs)

    def other_lane(self, job: Job, scopes: list[str]) -> str:
        return super().other_lane(job, [*scopes, f"fair={self.model.key(job)}"])

    @rule(key=st.sampled_from(KEYS[:3]), weight=st.integers(1, 3))
    def change_weight(self, key: str, weight: int) -> None:
        self.set_caps([(f"weight={key}", str(weight), "any", "live")])

    def check(self, snapshot: Snapshot) -> None:
        super().check(snapshot)
        told = (int(snapshot["meta"].get("fair_clock", 0)), snapshot["fair"])
        assert told == (self.model.clock, self.model.finishes), f"{told}, {self.model}"


def test_random_histories_with_caps_agree_with_the_model(engine: Engine, redis_url: str) -> None:
    run(lambda: CapsQueue(redis_url), examples=25 if engine.name == "valkey" else 5)


def test_random_histories_of_fair_queues_agree_with_the_model(valkey_url: str) -> None:
    run(lambda: FairQueue(valkey_url), examples=15)
