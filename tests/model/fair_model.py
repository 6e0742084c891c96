"""A model of start-time fair queueing (Goyal, Vin, Cheng 1996). Keys have weights, and jobs have virtual times.

The job with the least start time is served first. The clock of the model is the latest start time of a served job. A
lane has the waiting jobs of one priority with the same scopes. The start time of its first job is the clock or the
finish time of its key's last job, whichever is later. The finish time of a job counts from the clock. So a key saves up
no virtual time while the scopes of its jobs are full.
"""

import math
from dataclasses import dataclass, field

from rq_core.model.limits.scopes import scopes_of
from tests.model.caps_model import CapsModel
from tests.model.machine import Job

STEP = 10_000
"""Virtual time that a job takes if the weight of its key is 1."""


@dataclass
class FairModel(CapsModel):
    """A fair queue, in which every job has a key."""

    clock: int = 0
    starts: dict[str, int] = field(default_factory=dict)
    """For each lane with waiting jobs: the start time of its first job."""
    finishes: dict[str, int] = field(default_factory=dict)
    """For each key: the finish time of its last served job. When this time is behind the clock, a later claim removes
    the entry."""
    forgotten: dict[str, int] = field(default_factory=dict)
    """For each lane with waiting jobs: a finish time of its key that a claim removed from ``finishes`` while the jobs
    waited. A claim may still order the lane by this time."""
    stored: dict[str, int] = field(default_factory=dict)
    """A copy of ``finishes``, made before the current claim."""
    served: set[str] = field(default_factory=set)
    """The keys whose jobs the current claim has served."""

    def key(self, job: Job) -> str:
        (key,) = [s[5:] for s in scopes_of(job.lane or "") if s.startswith("fair=")]
        return key

    def weight(self, key: str) -> int:
        entry = self.caps.get(f"weight={key}")
        return max(1, int(entry.limit)) if entry else 1

    def note_waiting(self) -> None:
        """Give a start time to each lane that begins to wait, and forget lanes without waiting jobs."""
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
