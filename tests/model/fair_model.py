"""A model of start-time fair queueing: keys have weights, jobs have virtual times, and the least is served first.

A job that becomes the first of its kind starts at the clock, or when its key's last job finishes, whichever is later.
The clock is the latest start of a served job. If the scopes of a job were full for long, its finish time is counted
from the clock, so that its key saves up nothing. (Goyal, Vin, Cheng 1996.)
"""

import math
from dataclasses import dataclass, field

from rq_core.model.limits.scopes import scopes_of
from tests.model.caps_model import CapsModel
from tests.model.machine import Job

STEP = 10_000
"""Virtual time that a job of weight 1 takes."""


@dataclass
class FairModel(CapsModel):
    """A fair queue, in which every job has a key."""

    clock: int = 0
    starts: dict[str, int] = field(default_factory=dict)
    """Of jobs with the same scopes and priority, as long as any wait: when the first starts."""
    finishes: dict[str, int] = field(default_factory=dict)
    """By key. Forgotten by the claim after the one that left them behind the clock."""
    forgotten: dict[str, int] = field(default_factory=dict)
    """Of the waiting: a finish of their key that was forgotten meanwhile. A claim that met them still goes by it."""
    stored: dict[str, int] = field(default_factory=dict)
    """What was in finishes before the claim that is being looked at."""
    served: set[str] = field(default_factory=set)
    """The keys that it served."""

    def key(self, job: Job) -> str:
        (key,) = [s[5:] for s in scopes_of(job.lane or "") if s.startswith("fair=")]
        return key

    def weight(self, key: str) -> int:
        entry = self.caps.get(f"weight={key}")
        return max(1, int(entry.limit)) if entry else 1

    def note_waiting(self) -> None:
        """Give each job that began to wait in this step its start time."""
        ready = {job.lane or "": job for job in self.in_state("ready")}
        self.starts = {lane: at for lane, at in self.starts.items() if lane in ready}
        self.forgotten = {lane: at for lane, at in self.forgotten.items() if lane in ready}
        for lane, job in ready.items():
            self.starts.setdefault(lane, max(self.clock, self.finishes.get(self.key(job), 0)))

    def start(self, job: Job) -> int:
        return max(self.starts[job.lane or ""], self.finishes.get(self.key(job), 0))

    def precedes(self, first: Job, job: Job) -> bool:
        if first.rank != job.rank:
            return first.rank < job.rank
        if first.lane == job.lane:
            return (first.seq or 0) < (job.seq or 0)
        return max(self.start(first), self.forgotten.get(first.lane or "", 0)) < self.start(job)

    def take(self, job: Job, fence: str, worker: str) -> None:
        start, key = self.start(job), self.key(job)
        super().take(job, fence, worker)
        self.clock = max(self.clock, start)
        self.finishes[key] = self.clock + math.ceil(STEP / self.weight(key))
        self.served.add(key)
        self.starts[job.lane or ""] = self.finishes[key]
        self.note_waiting()

    def begin_claim(self) -> None:
        self.served = set()
        self.stored = dict(self.finishes)

    def end_claim(self, most: int) -> None:
        behind = sorted((at, key) for key, at in self.stored.items() if at <= self.clock)
        for at, key in behind[:most]:
            if key in self.served:
                continue
            del self.finishes[key]
            for job in self.in_state("ready"):
                if self.key(job) == key:
                    lane = job.lane or ""
                    self.forgotten[lane] = max(at, self.forgotten.get(lane, 0))
