"""The worlds of a handler with a step, two waits for the same signal, and a sleep.

Each call of a script is one step of the world. So any other call may come between two calls of a worker. A worker
chooses its arguments before Redis carries out the call. So late calls of stale workers are included.

The handler has a step, a wait, a wait with a time limit, a sleep and an end. A save begins a wait or a sleep, or ends
it at once. If it has not ended, a second call parks the job. Three signals arrive, and two of them have the same key.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from tests.rigs.durable.checker import Searched, Unsafe

STEP, WAIT, TIMED, SLEEP = range(4)
NAMES = ("step", "wait", "timed", "sleep")
SIGNALS = ("k1", "k1", "k2")


class Entry(NamedTuple):
    """One entry of a box: a step, a wait or a sleep. It is begun, or saved with a value."""

    value: str = ""
    """The saved value. It is empty while the entry is only begun."""
    begun: int = 0
    """The fence of the claim that fixed the time of a wait or a sleep, or 0 if no time is fixed."""


class Job(NamedTuple):
    """The state of the job in Redis."""

    state: str = "ready"
    fence: int = 0
    entries: tuple[Entry | None, ...] = (None, None, None, None)
    mail: tuple[str, ...] = ()
    """The keys of the messages that have arrived and that no wait has taken yet."""
    keys: tuple[str, ...] = ()
    """The keys of all messages that have arrived."""
    asks_mail: bool = False
    """True if the job is parked for an entry that waits for a message."""
    has_time: bool = False
    life: int = 0
    """The id of the job's box, or 0 if the job has no box. A worker takes its fence as the id of a new box.

    The id is always 0 in a world without a failover, in which no box is lost.
    """


SENDERS: Final = -1
"""The id of a box that a signal has begun."""


class Worker(NamedTuple):
    """A worker that runs the job, or that has lost the job and does not know it yet."""

    fence: int
    does: str
    memory: tuple[Entry | None, ...] = ()
    at: int = 0
    """The entry to which the call of the worker belongs."""
    value: str = ""
    life: int = 0
    """The id of the job's box, as the worker knows it."""


class History(NamedTuple):
    """One state of the world: the job, its workers, and the signals on their way."""

    job: Job
    workers: tuple[Worker, ...]
    sent: tuple[str, ...]
    """The signals that are on their way to Redis."""
    past: Job | None
    """The earlier state of the job to which a failover would go back."""
    leases: int
    crashes: int
    failovers: int


def put(entries: tuple[Entry | None, ...], at: int, entry: Entry) -> tuple[Entry | None, ...]:
    """Return the entries, with the entry at one place replaced."""
    return (*entries[:at], entry, *entries[at + 1 :])


def is_saved(entry: Entry | None) -> bool:
    """Return whether an entry exists and has a saved value."""
    return entry is not None and entry.value != ""


class Waits(Searched[History]):
    """The world of one job. With ``fails_over``, a failover may set the job back once to an earlier state."""

    def __init__(
        self,
        planted: frozenset[str] = frozenset(),
        *,
        fails_over: bool = False,
        program: tuple[int, ...] = (STEP, WAIT, TIMED, SLEEP),
        signals: tuple[str, ...] = SIGNALS,
    ) -> None:
        super().__init__(planted)
        self.fails_over = fails_over
        self.program = program
        self.signals = signals

    def start(self) -> History:
        job = Job()
        if self.fails_over:
            return History(job, (), self.signals, job, 1, 0, 1)
        return History(job, (), self.signals, None, 1, 1, 0)

    def is_end(self, history: History) -> bool:
        return history.job.state == "gone"

    # What is not a worker's.

    def steps(self, history: History) -> Iterator[tuple[bool, History]]:
        job = history.job
        for place, key in enumerate(history.sent):
            rest = history.sent[:place] + history.sent[place + 1 :]
            yield True, history._replace(job=self.signalled(job, key), sent=rest)
        if job.state == "parked" and job.has_time:
            yield True, history._replace(job=self.due(job))
        if job.state == "running" and not any(each.fence == job.fence for each in history.workers):
            yield True, history._replace(job=job._replace(state="ready"))
        if job.state == "ready" and len(history.workers) < 2:
            fence = self.unused(history)
            claimed = job._replace(state="running", fence=fence)
            yield (
                True,
                history._replace(job=claimed, workers=(*history.workers, Worker(fence, "load"))),
            )
        for place, worker in enumerate(history.workers):
            yield from self.work(history, place, worker)
        if history.leases and job.state == "running":
            yield (
                False,
                history._replace(job=job._replace(state="ready"), leases=history.leases - 1),
            )
        yield from self.failover(history)

    def failover(self, history: History) -> Iterator[tuple[bool, History]]:
        job, past = history.job, history.past
        if not history.failovers or past is None or past == job:
            return
        yield False, history._replace(past=job)
        forgotten = [key for key in job.keys if key not in past.keys]
        sent = tuple(sorted([*history.sent, *forgotten]))  # their senders send them again
        yield False, history._replace(job=past, past=None, sent=sent, failovers=0)

    @staticmethod
    def unused(history: History) -> int:
        """Return the smallest fence that no worker, job or entry has.

        The world only compares fences for equality. So it can use small fences again, and the number of states stays
        finite.
        """
        known = {number for each in history.workers for number in (each.fence, each.life)}
        for job in (history.job, history.past):
            if job is not None:
                known |= {job.fence, job.life, *(entry.begun for entry in job.entries if entry)}
        fence = 1
        while fence in known:
            fence += 1
        return fence

    # The scripts.

    def ripe(self, job: Job) -> Job:
        """Make a parked job ready if a signal that it waits for has arrived."""
        if job.state == "parked" and job.asks_mail and job.mail:
            return self.woken(job)
        return job

    @staticmethod
    def woken(job: Job) -> Job:
        return job._replace(state="ready", asks_mail=False, has_time=False)

    def signalled(self, job: Job, key: str) -> Job:
        if job.state == "gone" or (key in job.keys and not self.has("keys are not remembered")):
            return job
        keys = tuple(sorted({*job.keys, key}))
        if job.state == "running" and self.has("a running job gets no message"):
            return job._replace(keys=keys)
        job = job._replace(
            mail=(*job.mail, key), keys=keys, life=(job.life or SENDERS) if self.fails_over else 0
        )
        return job if self.has("signal does not wake") else self.ripe(job)

    def due(self, job: Job) -> Job:
        job = self.woken(job)
        return job._replace(mail=()) if self.has("a time that is over empties the mail") else job

    def written(self, job: Job, at: int, value: str) -> Job:
        old = job.entries[at]
        if old is not None and old.value and (old.value != value or at == STEP):
            raise Unsafe(f"{NAMES[at]} was saved twice: {old.value}, then {value}")
        return job._replace(entries=put(job.entries, at, Entry(value, old.begun if old else 0)))

    # A worker's calls.

    def work(self, history: History, place: int, worker: Worker) -> Iterator[tuple[bool, History]]:
        job = history.job
        others = history.workers[:place] + history.workers[place + 1 :]
        gone = history._replace(workers=others)
        holds = job.state == "running" and job.fence == worker.fence
        if history.crashes:
            crashed = job._replace(state="ready") if holds else job
            yield False, gone._replace(job=crashed, crashes=0)
        for changed, follows in self.call(job, worker, holds=holds):
            workers = (
                others
                if follows is None
                else (*history.workers[:place], follows, *history.workers[place + 1 :])
            )
            yield True, history._replace(job=changed, workers=workers)

    def call(self, job: Job, worker: Worker, *, holds: bool) -> Iterator[tuple[Job, Worker | None]]:
        """Yield each possible result of a worker's next call as (job, worker). None means that the worker has left the
        job."""
        if worker.does == "load":
            life = (job.life or worker.fence) if self.fails_over else 0
            loaded = worker._replace(does="run", memory=job.entries, life=life)
            yield job, loaded if holds else None
        elif worker.does == "run":
            yield job, self.next_call(worker)
        elif worker.does == "over":
            if holds:
                self.judge_end(job, worker)
            yield job._replace(state="gone") if holds else job, None
        elif worker.does == "park":
            is_behind = job.life != worker.life or bool(self.missing(job, worker))
            again = worker._replace(does="again") if holds and is_behind else None
            # If Redis has lost entries, the claim stays in force, and the worker saves them again.
            yield job if again else self.park(job, worker, holds=holds), again
        elif holds and (mended := self.mended(job, worker)) is not None:
            yield mended
        elif worker.does == "again":
            yield (self.waits_again(job, worker) if holds else job), worker._replace(does="park")
        elif worker.does == "save":
            unfenced = self.has("save without the fence") and job.state != "gone"
            if holds or unfenced:
                yield self.written(job, worker.at, worker.value), self.goes_on(worker, worker.value)
            else:
                yield job, None
        else:
            yield from self.take(job, worker, holds=holds)

    def mended(self, job: Job, worker: Worker) -> tuple[Job, Worker] | None:
        """Return the result of a call that makes the job's box agree with what the worker knows; None if the box agrees
        already."""
        if job.life != worker.life:
            return self.of_other_box(job, worker)
        missing = self.missing(job, worker)
        if not missing or self.has("nothing that Redis forgot is put back"):
            return None
        return self.put_back(job, worker, missing), worker

    def of_other_box(self, job: Job, worker: Worker) -> tuple[Job, Worker]:
        """Return the result of a save if the job has no box, or a box that a signal began and that the worker does not
        know.

        A worker that knows no entries loads the box. Any other worker gives the box the id that it knows.
        """
        if not job.life:
            return job._replace(life=worker.life), worker
        if not any(worker.memory):
            return job, worker._replace(does="load", memory=(), at=0, value="", life=0)
        if self.has("a box that a signal began is not moved") or any(job.entries):
            raise Unsafe("a worker that holds the claim cannot save what it has done")
        moved = job._replace(life=worker.life)
        return (
            moved._replace(mail=()) if self.has("a moved box leaves its mail") else moved
        ), worker

    @staticmethod
    def goes_on(worker: Worker, value: str) -> Worker:
        memory = put(worker.memory, worker.at, Entry(value))
        return worker._replace(does="run", memory=memory, at=0, value="")

    def next_call(self, worker: Worker) -> Worker:
        """Return the worker with its next call, which is about the first entry without a known value."""
        for at in self.program:
            if not is_saved(worker.memory[at]):
                if at == STEP:
                    return worker._replace(does="save", at=at, value=f"by {worker.fence}")
                return worker._replace(does="take", at=at)
        return worker._replace(does="over")

    def missing(self, job: Job, worker: Worker) -> list[int]:
        """Return the places of entries that the worker knows and that Redis has forgotten."""
        return [
            at
            for at, entry in enumerate(worker.memory)
            if (entry is not None and job.entries[at] is None)
            or (is_saved(entry) and not is_saved(job.entries[at]))
        ]

    @staticmethod
    def put_back(job: Job, worker: Worker, missing: list[int]) -> Job:
        for at in missing:
            entry = worker.memory[at]
            assert entry is not None
            keys = {*job.keys, entry.value} if entry.value in SIGNALS else set(job.keys)
            mail = tuple(key for key in job.mail if key != entry.value)
            job = job._replace(
                entries=put(job.entries, at, entry), mail=mail, keys=tuple(sorted(keys))
            )
        return job

    def take(self, job: Job, worker: Worker, *, holds: bool) -> Iterator[tuple[Job, Worker | None]]:
        if not holds:
            yield job, None
            return
        at, entry = worker.at, job.entries[worker.at]
        may_be_late = at in (TIMED, SLEEP) and entry is not None
        late_first = may_be_late and self.has("a time that is over wins against a message")
        if job.mail and at != SLEEP and not late_first:
            key = job.mail[0]
            taken = job if self.has("take leaves the message") else job._replace(mail=job.mail[1:])
            if self.has("take saves in a second call"):
                yield taken, worker._replace(does="save", value=key)
            else:
                yield self.written(taken, at, key), self.goes_on(worker, key)
            return
        if may_be_late:  # the time may be over, or not
            if job.mail and at != SLEEP:
                raise Unsafe("a wait ended late beside a message")
            yield self.written(job, at, "late"), self.goes_on(worker, "late")
        if entry is None or (at == SLEEP and self.has("a retry begins a sleep anew")):
            if entry is not None and entry.begun != worker.fence:
                raise Unsafe("a sleep was begun anew")
            entry = Entry(begun=worker.fence if at in (TIMED, SLEEP) else 0)
        memory = put(worker.memory, at, entry)
        begun = job._replace(entries=put(job.entries, at, entry))
        yield begun, worker._replace(does="park", memory=memory)

    def waits_again(self, job: Job, worker: Worker) -> Job:
        """Return the job after the wait for which it parks was saved again: a signal may have come meanwhile."""
        if worker.at == SLEEP or not job.mail or is_saved(job.entries[worker.at]):
            return job
        return self.written(job._replace(mail=job.mail[1:]), worker.at, job.mail[0])

    def park(self, job: Job, worker: Worker, *, holds: bool) -> Job:
        unfenced = self.has("park without the fence") and job.state != "gone"
        if not holds and not unfenced:
            return job
        if not holds and job.state == "running":
            raise Unsafe("a stale worker parks a job that another worker holds")
        at, entry = worker.at, job.entries[worker.at]
        if entry is None or entry.value:
            # Redis has lost the entry, or has the saved entry again: the handler asks again.
            return self.woken(job)
        job = job._replace(state="parked", asks_mail=at != SLEEP, has_time=at in (TIMED, SLEEP))
        return job if self.has("park does not look into the box") else self.ripe(job)

    # What is judged.

    def judge_end(self, job: Job, worker: Worker) -> None:
        seen = [
            entry.value for entry in worker.memory[WAIT:SLEEP] if entry and entry.value != "late"
        ]
        if len(set(seen)) != len(seen):
            raise Unsafe(f"a signal was taken twice: {seen}")
        saved, known = (
            [each.value if each else "" for each in some[:SLEEP]]
            for some in (job.entries, worker.memory)
        )
        if not self.fails_over and saved != known:
            raise Unsafe(f"the handler has {worker.memory}, Redis has {job.entries}")

    def judge(self, history: History) -> None:
        job = history.job
        if job.state == "parked" and job.asks_mail and job.mail:
            raise Unsafe("parked with a message in its box")
        if job.state == "parked" and any(
            each.fence == job.fence and each.does == "over" for each in history.workers
        ):
            raise Unsafe("parked, and its claim goes on")
        taken = [
            entry.value
            for entry in job.entries[WAIT:SLEEP]
            if entry and entry.value not in ("", "late")
        ]
        if len(set(taken)) != len(taken):
            raise Unsafe(f"a signal was taken twice: {taken}")
        lost = [key for key in job.keys if key not in job.mail and key not in taken]
        in_hand = any(each.does == "save" and each.at != STEP for each in history.workers)
        if job.state != "gone" and lost and not in_hand:
            raise Unsafe(f"a signal is nowhere: {lost}")
