"""A model of unique names: which job holds a name, how each call ends, and what frees the name.

The model has the holder and the rule of each name, and the deadline of each job. All jobs have one priority and no
lane. After each step, the names in Redis equal those of the model, and all indexes agree with the jobs.
"""

from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rq_core.model.job import Claim
from tests.kit.consistency import assert_consistent
from tests.kit.seed import LEASE_MS, START_MS, Seed
from tests.kit.snapshots import fields_of, lines_of

WORDS: Final[dict[str, dict[str, Any]]] = {
    "unique": {"unique": "keep"},
    "replace": {"unique": "replace"},
    "throttle": {"unique": "keep", "window_ms": 15_000},
    "debounce": {"unique": "replace", "after_ms": 4_000, "most_ms": 9_000},
    "latest": {"unique": "replace", "after_ms": 0, "most_ms": 0},
}
NAMES: Final = [f"t/n={n}" for n in range(3)]
picks = st.integers(0, 999)
deadlines = st.sampled_from([0, 0, 500, 4_500])


@dataclass
class Named:
    """A job of the model."""

    name: str
    word: str
    until: int
    """For a throttled name: the time until which the name is held. For a debounced name: the latest time at which the
    job is due."""
    expires: int | None = None
    claims: int = 0
    has_name: bool = True
    """False after an operator has freed the name of this job, or another job has taken it."""


class Names(RuleBasedStateMachine):
    """Random histories of jobs with names, on the server and on the model."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.seed = Seed(url)
        self.seed.control.flushall()
        self.seed.clock.set(START_MS)
        self.jobs: dict[str, Named] = {}
        self.holders: dict[str, tuple[str, int | None]] = {}
        """For each name: the id of its job, and the time until which the job holds the name. The time is None if the
        name has no window."""
        self.held: list[Claim] = []
        self.count = 0

    def teardown(self) -> None:
        self.seed.client.close()
        self.seed.control.close()

    @property
    def now(self) -> int:
        return self.seed.now

    def stands(self, name: str) -> str | None:
        """Return the id of the job that now holds a name, or None."""
        job_id, until = self.holders.get(name, (None, None))
        return None if until is not None and until <= self.now else job_id

    def state(self, job_id: str) -> str:
        return str(fields_of(lines_of(self.seed.snapshot())[job_id])["state"])

    def keeps_out(self, name: str) -> str | None:
        """Return the job that bars other jobs from a name, or None.

        An overdue job bars no other job, unless it holds the name until a fixed time.
        """
        holder = self.stands(name)
        return None if holder is not None and self.is_overdue(holder, name) else holder

    def is_overdue(self, job_id: str, name: str) -> bool:
        job = self.jobs.get(job_id)
        if job is None or job.expires is None or self.holders[name][1] is not None:
            return False
        return job.expires <= self.now and self.state(job_id) in ("ready", "scheduled")

    def take(self, name: str, job_id: str, until: int | None) -> None:
        """Give a name to a job, and take it from the job that holds it, if any."""
        other = self.stands(name)
        if other in self.jobs and other != job_id:
            self.jobs[other].has_name = False
        self.holders[name] = (job_id, until)

    def give_up(self, job_id: str) -> None:
        """Free the name of a job that has ended or begun, unless it is held until a fixed time."""
        name = self.jobs[job_id].name
        if self.holders.get(name) == (job_id, None):
            del self.holders[name]

    def end(self, job_id: str) -> None:
        self.give_up(job_id)
        del self.jobs[job_id]

    # Rules.

    @rule(
        calls=st.lists(
            st.tuples(st.sampled_from(NAMES), st.sampled_from(list(WORDS)), deadlines),
            min_size=1,
            max_size=3,
        )
    )
    def enqueue(self, calls: list[tuple[str, str, int]]) -> None:
        """Enqueue several jobs in one call, with different names. Other tests cover a repeated name."""
        calls = list({name: (name, word, ms) for name, word, ms in calls}.values())
        wanted = {f"j-{self.count + n}": call for n, call in enumerate(calls)}
        self.count += len(calls)
        keeps_out = {name: self.keeps_out(name) for name, *_ in calls}
        told = self.seed.enqueue(
            *(
                self.seed.job(i, name=name, expires_in_ms=ms, **WORDS[word])
                for i, (name, word, ms) in wanted.items()
            )
        )
        ids, held, replaced = [], [], []
        for job_id, (name, word, ms) in wanted.items():
            rule_ = WORDS[word]
            holder = keeps_out[name]
            old = self.jobs.get(holder) if holder else None
            may_replace = (
                old is not None and rule_["unique"] == "replace" and old.word != "throttle"
                and old.claims == 0
            )  # fmt: skip
            if holder is not None and not may_replace:
                held.append((job_id, holder))
                continue
            until = self.now + rule_.get("window_ms", rule_.get("most_ms", 0))
            if old is not None and holder is not None:
                replaced.append((job_id, holder))
                if {old.word, word} <= {"debounce", "latest"}:
                    until = old.until
                del self.jobs[holder]
            ids.append(job_id)
            self.jobs[job_id] = Named(name, word, until, self.now + ms if ms else None)
            self.take(name, job_id, until if word == "throttle" else None)

        assert (ids, held, replaced) == (list(told.ids), list(told.held), list(told.replaced))

    @rule(limit=st.integers(1, 3))
    def claim(self, limit: int) -> None:
        claimed = self.seed.claim(limit).jobs
        self.held += claimed
        for each in claimed:
            job = self.jobs[each.id]
            assert job.expires is None or self.now < job.expires
            job.claims += 1
            if job.word in ("debounce", "latest"):
                assert job.claims > 1 or job.word == "latest" or self.now >= job.until - 9_000
                self.give_up(each.id)
        self.see_ends()

    def see_ends(self) -> None:
        """Remove from the model each job that has left the server, and free the names of dead jobs."""
        lines = lines_of(self.seed.snapshot())
        for job_id in list(self.jobs):
            if job_id not in lines:
                self.end(job_id)
            elif lines[job_id].startswith("dead "):
                self.give_up(job_id)

    @precondition(lambda self: self.held)
    @rule(number=picks, how=st.sampled_from(["complete", "retry", "final", "rollback"]))
    def settle(self, number: int, how: str) -> None:
        claim = self.held.pop(number % len(self.held))
        if how == "complete":
            done = self.seed.complete(claim) == {}
        elif how == "rollback":
            done = self.seed.rollback(claim)[claim.id] == "ready"
        else:
            told = self.seed.fail(claim, verdict=how, delay_ms=500)[claim.id]
            done = told in ("scheduled", "dead", "ready")
            if done and told == "dead":
                self.give_up(claim.id)
        if done and how == "complete":
            self.end(claim.id)
        elif not done and claim.id in self.jobs and claim.id not in lines_of(self.seed.snapshot()):
            self.end(claim.id)  # It was to be cancelled.

    @precondition(lambda self: self.jobs)
    @rule(number=picks)
    def cancel(self, number: int) -> None:
        job_id = list(self.jobs)[number % len(self.jobs)]
        if self.seed.cancel(job_id)[job_id] == "cancelled":
            self.end(job_id)

    @precondition(lambda self: self.jobs)
    @rule(number=picks)
    def requeue(self, number: int) -> None:
        job_id = list(self.jobs)[number % len(self.jobs)]
        job, was = self.jobs[job_id], self.state(job_id)
        keeps_out = self.keeps_out(job.name)
        told = self.seed.requeue(job_id)[job_id]
        takes = was == "dead" and job.has_name and job.word in ("unique", "replace")
        if takes and keeps_out is not None:
            assert told == "held"
        elif was == "dead":
            assert told == "requeued"
            job.expires = None
            if takes:
                self.take(job.name, job_id, None)

    @rule(name=st.sampled_from(NAMES))
    def free(self, name: str) -> None:
        holder = self.stands(name)

        assert {name: holder} == self.seed.free(name)
        if holder is not None:
            del self.holders[name]
            if holder in self.jobs:
                self.jobs[holder].has_name = False

    @precondition(lambda self: self.held)
    @rule()
    def workers_are_lost(self) -> None:
        self.seed.live(LEASE_MS)
        self.seed.claim(0)
        self.held.clear()
        self.see_ends()

    @rule(ms=st.sampled_from([1, 500, 3_999, 4_000, 9_000, 15_000]))
    def time_passes(self, ms: int) -> None:
        self.seed.advance(ms)

    # What holds after every step.

    @invariant()
    def all_agree(self) -> None:
        snapshot = self.seed.snapshot()
        found = {}
        for field, value in snapshot["slots"].items():
            if field.startswith("unique|"):
                job_id, _, until = value.partition(" ")
                if not until or int(until) > self.now:
                    found[field.removeprefix("unique|")] = job_id
        expected = {name: by for name in NAMES if (by := self.stands(name)) is not None}

        assert expected == found
        assert self.jobs.keys() == snapshot["jobs"].keys()
        assert_consistent(snapshot)
