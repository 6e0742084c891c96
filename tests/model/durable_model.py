"""A model of a queue with durable jobs, which save steps, sleep, wait for signals, and park."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from rq_core.model.result_encoding import pack_result
from rq_core.model.unique_names import digest_of
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.boxes import NotSaved, Saving, Sent, refusals, save
from tests.kit.snapshots import Snapshot
from tests.model.machine import Job, Queue, picks, rarely, workers

signals = st.sampled_from(["yes", "no"])
times = st.sampled_from(["", "", "+0", "+700", "+5000", "+40000"])
keys = st.sampled_from(["", "", "k-1", "k-2"])
knowledge = st.sampled_from(
    ["", "", "", "the last entry", "the last entry is saved", "the next entry", "another box"]
)


@dataclass
class Entry:
    """One entry of a box."""

    name: str
    word: str
    """``begun``, ``waits``, ``sleeps`` or ``saved``."""
    at: int
    fence: str
    until: int | None = None
    note: str = ""
    value: str | None = None
    message: int | None = None

    def text(self) -> str:
        line = f"{self.name} {self.word} at={self.at} fence={self.fence}"
        if self.word == "saved":
            line += f" digest={self.note}"
            line += "" if self.message is None else f" from={self.message}"
        elif self.until is not None:
            line += f" until={self.until}"
        return line if self.value is None else f"{line}\n{self.value}"


@dataclass
class Signal:
    """One signal in a box."""

    name: str
    at: int
    key: str
    value: str
    waits: bool = True

    def text(self) -> str:
        line = f"{self.name} at={self.at} digest={digest_of(self.value)}"
        line += f" key={self.key}" if self.key else ""
        return f"{line}\n{self.value}" if self.waits else line


@dataclass
class Box:
    """The box of one job."""

    entries: list[Entry] = field(default_factory=list)
    mail: list[Signal] = field(default_factory=list)

    def oldest(self, entry: str) -> int | None:
        """Return the number of the oldest untaken signal that an entry of this name can take, or None."""
        wanted = entry.partition("#")[0]
        found = (n for n, each in enumerate(self.mail, 1) if each.waits and each.name == wanted)
        return next(found, None)

    def unsaved(self) -> list[int]:
        """Return the numbers of the unfinished waits and sleeps."""
        return [n for n, each in enumerate(self.entries, 1) if each.word in ("waits", "sleeps")]

    def content(self, job_id: str, life: str) -> dict[str, str]:
        """Return the fields that Redis must have for this box."""
        size = sum(len(each.value or "") for each in self.entries if each.message is None)
        size += sum(len(each.value) for each in self.mail)
        mail = f" mail={len(self.mail)}" if self.mail else ""
        found = {life: f"job={job_id} entries={len(self.entries)} bytes={size}{mail}"}
        for number, entry in enumerate(self.entries, 1):
            found[f"{life}|{number}"] = entry.text()
        for number, each in enumerate(self.mail, 1):
            found[f"{life}>{number}"] = each.text()
            if each.key:
                found[f"{life}={each.key}"] = str(number)
            if each.waits:
                name = f"{life}>{each.name}"
                found[name] = f"{found[name]} {number}" if name in found else str(number)
        return found


class DurableQueue(Queue):
    """Random histories of durable jobs, on the server and on the model."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.boxes: dict[str, Box] = {}
        """The boxes of all jobs. The keys are the lives that name the boxes."""
        self.count = 0

    def box_of(self, job: Job) -> Box:
        """Return the box of a job. Create an empty box for a job that has no box."""
        if job.life is None:
            self.count += 1
            job.life = f"{self.count:016x}"
        return self.boxes.setdefault(job.life, Box())

    # Saves.

    @rule(
        numbers=picks,
        what=st.sampled_from(["save", "save", "begin", "wait", "wait", "wait", "sleep"]),
        name=signals,
        about=times,
        wrong=rarely,
        again=rarely,
        worker=workers,
    )
    def save(
        self,
        numbers: list[int],
        what: Literal["save", "begin", "wait", "sleep"],
        name: str,
        about: str,
        wrong: bool,
        again: bool,
        worker: str,
    ) -> None:
        """Save one entry for each of some jobs: the first unsaved entry of this kind, or else a new one.

        With ``again``, an entry that was saved before may be sent a second time.
        """
        self.before_call()
        names = self.pick(numbers, "running", "cancelling")
        worker, held = self.model.holder(names, worker), self.held(names, wrong)
        expected, records = {}, []
        for place, (job_id, fence) in enumerate(held):
            job = self.model.in_force(job_id, fence, worker)
            record = self.next_record(job_id, fence, job, what, name, about, again=again)
            records.append(record)
            if job is None:
                why = "stale" if job_id in self.model.jobs else "gone"
                expected[place] = NotSaved(why, None)
            elif refused := self.written(job, record):
                expected[place] = refused

        assert expected == refusals(self.seed.client.run(save(self.seed.queue, worker, records)))

    def next_record(
        self,
        job_id: str,
        fence: str,
        job: Job | None,
        what: Literal["save", "begin", "wait", "sleep"],
        name: str,
        about: str,
        *,
        again: bool,
    ) -> Saving:
        """Return the record that a worker sends next for a job."""
        if job is None:
            return Saving(job_id, fence, "0" * 16, what, 1, name, self.packed(what), about)
        box = self.box_of(job)
        assert job.life is not None
        words = {"save": ("begun",), "begin": (), "wait": ("waits",), "sleep": ("sleeps",)}[what]
        kinds = (*words, "saved") if again else words
        for number, old in enumerate(box.entries, 1):
            is_step = old.name.startswith("step")
            if old.word in kinds and is_step == (what in ("save", "begin")):
                fits = (
                    not old.name.startswith("nap") if what == "wait" else old.name.startswith("nap")
                )
                if is_step or fits:
                    return Saving(
                        job_id, fence, job.life, what, number, old.name, self.packed(what), about
                    )
        number = len(box.entries) + 1
        full = {"wait": f"{name}#{number}", "sleep": f"nap#{number}"}.get(what, f"step-{number}")
        return Saving(job_id, fence, job.life, what, number, full, self.packed(what), about)

    def packed(self, what: str) -> str:
        """Return a new result in packed form for a step, and an empty text for any other record."""
        if what != "save":
            return ""
        self.count += 1
        return pack_result(f'"{self.count}"')

    def written(self, job: Job, record: Saving) -> NotSaved | None:
        """Apply a record to the model. Return the expected refusal, or None."""
        box, now = self.box_of(job), self.model.now
        is_new = record.entry > len(box.entries)
        old = None if is_new else box.entries[record.entry - 1]
        if record.what in ("save", "begin"):
            if old is not None and (record.what == "begin" or old.word == "saved"):
                return None
            entry = Entry(record.name, "begun", now, record.fence)
            if record.what == "save":
                value = _value(record.packed)
                entry.word, entry.note, entry.value = "saved", digest_of(value), value
                self.count_from_here(job)
            box.entries[record.entry - 1 :] = [entry, *box.entries[record.entry :]]
            return None
        if old is not None and old.word == "saved":
            return None
        until = old.until if old else now + int(record.about[1:]) if record.about else None
        oldest = box.oldest(record.name) if record.what == "wait" else None
        entry = Entry(record.name, "saved", now, record.fence)
        refused = None
        if oldest is not None:
            signal = box.mail[oldest - 1]
            signal.waits = False
            entry.note, entry.value, entry.message = digest_of(signal.value), signal.value, oldest
            self.count_from_here(job)
        elif until is not None and until <= now:
            entry.note = "over"
            self.count_from_here(job)
        else:
            refused = NotSaved("waits", until)
            entry = old or Entry(
                record.name,
                "waits" if record.what == "wait" else "sleeps",
                now,
                record.fence,
                until,
            )
        box.entries[record.entry - 1 :] = [entry, *box.entries[record.entry :]]
        return refused

    @staticmethod
    def count_from_here(job: Job) -> None:
        """Reset the count of the job's failures and losses, as a saved step does."""
        if job.failed or job.lost:
            job.base = f"{job.failed}/{job.lost}"

    # Parking.

    @rule(numbers=picks, wrong=rarely, only_last=st.booleans(), knows=knowledge, worker=workers)
    def park(
        self, numbers: list[int], wrong: bool, only_last: bool, knows: str, worker: str
    ) -> None:
        """Park jobs, each for all its waits or for its last one. A job without waits parks for its first entry.

        The worker may know of entries that Redis lacks, as after a failover. Then the job keeps its claim.
        """
        self.before_call()
        names = self.pick(numbers, "running", "cancelling")
        worker, held = self.model.holder(names, worker), self.held(names, wrong)
        records, behind = [], set[str]()
        waits: dict[str, str] = {}
        for job_id, fence in held:
            job = self.model.jobs.get(job_id)
            box = self.boxes.get((job and job.life) or "", Box())
            marks = (box.unsaved()[-1:] if only_last else box.unsaved()) or [1]
            waits[job_id] = ",".join(map(str, marks))
            life = (job and knows != "another box" and job.life) or "f" * 16
            said, is_lost = self.known(box, knows)
            if is_lost or job is None or life != job.life or marks[-1] > len(box.entries):
                behind.add(job_id)
            records.append((job_id, fence, waits[job_id], life, said))
        expected = self.given_back(
            held, worker, lambda job: None if job.id in behind else self.parks(job, waits[job.id])
        )
        expected = {i: "behind" if how == "running" else how for i, how in expected.items()}

        assert expected == self.seed.client.run(claims.park(self.seed.queue, worker, records))

    @staticmethod
    def known(box: Box, knows: str) -> tuple[str, bool]:
        """Return what a worker says that it knows of a box, and whether the box lacks it."""
        last = len(box.entries)
        if knows == "the next entry":
            return str(last + 1), True
        if knows == "the last entry" and last:
            return str(last), False
        if knows == "the last entry is saved" and last:
            return f"1,{last}+", box.entries[-1].word != "saved"
        return "", False

    def parks(self, job: Job, waits: str) -> None:
        """Park a job of the model. The job is ready instead if one of its waits or sleeps has already ended."""
        box = self.boxes.get(job.life or "", Box())
        is_ripe, ends = False, []
        for mark in map(int, waits.split(",")):
            entry = box.entries[mark - 1] if mark <= len(box.entries) else None
            if entry is None or entry.word not in ("waits", "sleeps"):
                is_ripe = True
                continue
            is_ripe = is_ripe or (entry.word == "waits" and box.oldest(entry.name) is not None)
            ends += [] if entry.until is None else [entry.until]
        if is_ripe or any(end <= self.model.now for end in ends):
            self.model.move(job, "ready", returning=True)
        else:
            self.model.move(job, "parked", waits=waits, due=min(ends, default=None))

    @precondition(lambda self: bool(self.model.in_state("ready", "running")))
    @rule(numbers=picks, name=signals, about=times, what=st.sampled_from(["wait", "wait", "sleep"]))
    def take_wait_and_park(
        self, numbers: list[int], name: str, about: str, what: Literal["wait", "sleep"]
    ) -> None:
        """Claim jobs, let them wait, and park them. Three separate rules would rarely pick the same jobs."""
        self.claim("w-1", 4, True)
        self.save(numbers, what, name, about, False, False, "w-1")
        self.park(numbers, False, False, "", "w-1")

    # Signals.

    @rule(numbers=picks, name=signals, key=keys)
    def signal(self, numbers: list[int], name: str, key: str) -> None:
        """Send a signal to jobs in any state, mostly to parked or running jobs."""
        self.before_call()
        names = self.pick(numbers, "parked", "running")
        self.count += 1
        value = f'"{self.count}"'
        sent = self.seed.signal(*names, name=name, key=key, value=value)

        assert sent == [self.signalled(job_id, name, key, value) for job_id in names]

    def signalled(self, job_id: str, name: str, key: str, value: str) -> Sent:
        """Apply a signal to the model, and return the expected answer."""
        job = self.model.jobs.get(job_id)
        if job is None:
            return Sent("gone", None)
        if job.life is None:
            # The sender has made up the life.
            line = self.seed.state(job_id) or ""
            job.life = line.partition(" life=")[2].partition(" ")[0]
            assert job.life not in self.boxes
        box = self.box_of(job)
        for number, each in enumerate(box.mail, 1):
            if key and each.key == key:
                return Sent("known", number)
        box.mail.append(Signal(name, self.model.now, key, value))
        number = len(box.mail)
        marks = [int(mark) for mark in job.waits.split(",")] if job.waits else []
        waiting = [box.entries[mark - 1] for mark in marks]
        if any(each.word == "waits" and each.name.partition("#")[0] == name for each in waiting):
            self.model.move(job, "ready", returning=True)
            return Sent("woken", number)
        return Sent("sent", number)

    # What holds after every step.

    def check(self, snapshot: Snapshot) -> None:
        super().check(snapshot)

        lives = {job.life: job.id for job in self.model.jobs.values() if job.life is not None}
        told: dict[str, str] = {}
        for life, job_id in lives.items():
            told |= self.boxes[life].content(job_id, life)
        there = {name: text for name, text in snapshot["boxes"].items() if name[:16] in lives}
        assert told == there
        assert {j.id: float(j.since) for j in self.model.in_state("parked")} == snapshot["parked"]


def _value(packed: str) -> str:
    """Return the JSON of a value that :meth:`packed` has packed."""
    return packed[packed.index('"') :]
