"""A model of a queue with unique jobs, whose waiting jobs operators and producers edit."""

from hypothesis import strategies as st
from hypothesis.stateful import rule

from rq_core.protocol.calls.enqueue import Accepted
from tests.model.machine import Job, Queue, ids, picks

UNIQUE = ["t/a", "t/b", "t/c"]
named = st.tuples(
    ids, st.sampled_from(UNIQUE), st.sampled_from([0, 0, 700]), st.sampled_from([0, 0, 5_700])
)
moments = st.sampled_from(["", "", "+0", "+1", "+700", "+5000"])
priorities = st.sampled_from(["", "", "critical", "normal", "low"])


class OnceQueue(Queue):
    """Random histories of edits of jobs with names, on the server and on the model."""

    @rule(how=st.sampled_from(["keep", "replace"]), wanted=st.lists(named, min_size=1, max_size=5))
    def enqueue_unique(self, how: str, wanted: list[tuple[str, str, int, int]]) -> None:
        self.before_call()
        accepted = self.seed.enqueue(
            *(
                self.seed.job(i, unique=how, name=name, delay_ms=d, expires_in_ms=e)
                for i, name, d, e in wanted
            )
        )
        first = {job_id: at for at, (job_id, *_) in reversed(list(enumerate(wanted)))}
        self.model.yield_ids(i for i, *_ in wanted)
        live = set(self.model.jobs)
        sure = {
            name: at
            for at, (job_id, name, *_) in enumerate(wanted)
            if how == "replace" and job_id not in live and first[job_id] == at
        }
        """For each name: the position of the last job that is certain to be accepted and to replace the holder of the
        name."""
        replaceable = {j.id for j in self.model.in_state("ready", "scheduled") if not j.claim}
        deferred: set[str] = set()
        expected = Expected()
        for at, (job_id, name, delay, expires) in enumerate(wanted):
            if job_id in live or job_id in expected.ids:
                continue
            holder = self.model.holder_of(name)
            is_before = sure.get(name, at) > at
            if is_before and name in deferred:
                expected.held.append((at + 1, wanted[sure[name]][0]))
            elif holder is not None and not (how == "replace" and holder.id in replaceable):
                expected.held.append((at + 1, holder.id))
            elif is_before:
                deferred.add(name)
                expected.held.append((at + 1, wanted[sure[name]][0]))
            else:
                self.model.let_yield(name)
                if holder is not None:
                    self.leave(holder)
                    # Its id is free for what follows in this call.
                    live.discard(holder.id)
                    replaceable.discard(holder.id)
                expected.ids.append(job_id)
                self.model.put(job_id, delay, expires, unique=name)

        expected.check(accepted)

    def leave(self, job: Job) -> None:
        """Remove a job that another job replaces."""
        if job.state == "ready":
            self.model.tombs.add(job.id)
        del self.model.jobs[job.id]

    @rule(numbers=picks, priority=priorities, due=moments, expires=moments | st.just("-"))
    def edit(self, numbers: list[int], priority: str, due: str, expires: str) -> None:
        self.before_call()
        names = self.pick(numbers, "ready", "scheduled")
        outcomes = self.seed.edit(*names, priority=priority, due=due, expires=expires)

        assert {i: self.edited(i, priority, due, expires) for i in names} == outcomes

    def edited(self, job_id: str, priority: str, due: str, expires: str) -> str:
        """Edit a job of the model, and return the expected answer."""
        now, job = self.model.now, self.model.jobs.get(job_id)
        if job is None:
            return "gone"
        if job.state not in {"ready", "scheduled"}:
            return job.state
        at = now + int(due[1:]) if due else job.due
        new_due = at if not due or (at is not None and at > now) else None
        new_expires = None if expires == "-" else now + int(expires[1:]) if expires else job.expires
        if new_expires is not None and new_expires <= max(now, new_due or 0):
            return "never"
        moves = priority not in ("", job.priority)
        if not moves and (new_due, new_expires) == (job.due, job.expires):
            return "same"
        was_ready, old_seq = job.state == "ready", job.seq
        leaves_line = was_ready and (moves or new_due is not None)
        if leaves_line:
            self.model.tombs.add(job_id)
        if moves:
            job.priority, job.seq = priority, None
        returning = job.returning and not leaves_line
        self.model.move(job, "scheduled" if new_due else "ready", due=new_due, expires=new_expires)
        if new_due is None and job.seq is None:
            job.seq = self.model.next_place()
            job.returning = False
        elif new_due is None:
            job.returning = returning or not was_ready
        assert job.seq == old_seq or moves or not was_ready
        job.old_entry = job.old_entry or (job_id in self.model.tombs and leaves_line)
        if moves:
            job.old_entry = job_id in self.model.tombs
        return "edited"


class Expected:
    """The expected answer to an enqueue."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.held: list[tuple[int, str]] = []

    def check(self, accepted: Accepted) -> None:
        assert self.ids == list(accepted.ids)
        assert [holder for _, holder in self.held] == [holder for _, holder in accepted.held]
