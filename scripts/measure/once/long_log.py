"""A long, realistic log for measurements: the entries that three queues would have appended to their outboxes (event
streams) in some days.

The days are simulated, without a server and without waiting. A mirror reads :class:`LongLog` instead of Redis. Jobs
wait for workers, for tenants' caps and for their retries. A few die, are cancelled, or lose their worker. The same seed
gives the same log.

    >>> log = LongLog(events=1000)
    >>> log.queues()
    ['images', 'mail', 'reports']
"""

# ruff: noqa: ARG002 - the protocol names its arguments; a simulation needs few of them

from __future__ import annotations

import hashlib
import heapq
import json
import random
from collections import deque
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from rq_core.model.events import OutboxId

EPOCH = 1_795_000_000_000
ERRORS = ("TimeoutError", "ConnectionError", "ValueError", "KeyError")
QUEUES: Mapping[str, tuple[tuple[str, ...], int, float, int]] = {
    "images": (("resize", "thumbnail"), 24, 900, 1),
    "mail": (("send", "digest"), 120, 2_500, 6),
    "reports": (("render",), 24, 4_000, 1),
}
"""For each queue: its tasks, the number of jobs that its workers run at once, the average duration of a job (ms), and
the queue's share of the events, in eighths."""
TENANTS = 200
TENANT_CAP = 4
TASK_CAP = 80
STEP_MS = 4_000
"""The average time (ms) between two calls of the workers."""
JOBS_PER_STEP = 5
"""The average number of new jobs in a step during the day, for each eighth of the events that a queue has."""

_dumps = json.JSONEncoder(separators=(",", ":")).encode
Raw = dict[str, str]


class QueueLog:
    """One simulated queue, with the entries of its outbox."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.tasks, self.places, self.takes_ms, self.share = QUEUES[name]
        self.dice = random.Random(f"{name}-{seed}")  # noqa: S311 - it shall repeat
        self.now_ms = EPOCH
        self.seq = -1
        self.events = 0
        self.jobs = 0
        self.workers = [f"w-{n}-{hashlib.sha256(name.encode()).hexdigest()[:12]}" for n in range(4)]
        self.held = dict.fromkeys(self.workers, 0)
        self.holders: dict[str, int] = {}
        self.ready: deque[list[Any]] = deque()
        self.later: list[tuple[int, int, list[Any]]] = []
        self.running: list[tuple[int, int, list[Any]]] = []
        self.entries: deque[tuple[OutboxId, Raw]] = deque()
        capped = name == "mail"
        self.lane_of = self._tenant_lane if capped else lambda: None
        self._emit("epoch_started", "-", data=["created", None, None, "replid", None])
        if capped:
            for scope, cap in ((f"task={self.tasks[0]}", TASK_CAP), ("tenant", TENANT_CAP)):
                self._emit("cap_changed", "deploy", data=[scope, None, str(cap), 1])

    def _tenant_lane(self) -> str:
        # Some tenants have many more jobs than others.
        return f"t{int(TENANTS * self.dice.random() ** 2)}"

    def _emit(self, kind: str, by: str, jobs: list[Any] | None = None, data: Any = None) -> str:
        self.seq += 1
        entry_id = OutboxId(EPOCH, self.seq)
        raw = {"type": kind, "at": str(self.now_ms), "by": by}
        raw["data" if jobs is None else "jobs"] = _dumps(data if jobs is None else jobs)
        self.entries.append((entry_id, raw))
        self.events += 1 if jobs is None else len(jobs)
        return str(entry_id)

    def step(self) -> None:
        """Simulate the next part of the queue's time, of random length up to eight seconds."""
        self.now_ms += self.dice.randrange(STEP_MS * 2)
        self._end_claims()
        self._promote()
        self._enqueue()
        self._claim()

    def _enqueue(self) -> None:
        # Calmer at night, and now and then somebody enqueues many at once.
        hour = self.now_ms / 3_600_000 % 24
        rate = JOBS_PER_STEP * self.share * (1.0 if 8 <= hour < 20 else 0.4)
        count = int(self.dice.expovariate(1 / rate))
        if self.dice.random() < 0.0005:
            count += 300
        if not count:
            return
        new, task = [], self.dice.choice(self.tasks)
        for _ in range(count):
            self.jobs += 1
            tenant = self.lane_of()
            scopes = [] if tenant is None else [f"task={task}", f"tenant={tenant}"]
            if task != self.tasks[0]:
                scopes = scopes[1:]
            digest = f"{self.dice.getrandbits(128):032x}"
            job_id = f"{self.now_ms:012x}7{self.jobs:09x}{digest[:10]}"
            lane = "+".join(["2", *scopes]) if scopes else None
            # id, task, scopes, claims, failures, losses
            self.ready.append([job_id, task, scopes, 0, 0, 0, self.now_ms])
            new.append([job_id, self.jobs, None, task, "normal", 3, 3, digest])
            if lane is not None:
                new[-1].append(lane)
        for begin in range(0, count, 100):
            self._emit("enqueued", f"c-{self.name}", new[begin : begin + 100])

    def _promote(self) -> None:
        due = []
        while self.later and self.later[0][0] <= self.now_ms:
            _, _, job = heapq.heappop(self.later)
            self.jobs += 1
            due.append([job[0], self.jobs])
            self.ready.append(job)
        if due:
            self._emit("promoted", self.workers[0], due)

    def _claim(self) -> None:
        for worker in self.workers:
            free = self.places // len(self.workers) - self.held[worker]
            taken: list[list[Any]] = []
            passed: list[list[Any]] = []
            for _ in range(min(len(self.ready), 100)):
                if len(taken) == free:
                    break
                job = self.ready.popleft()
                if any(self.holders.get(s, 0) >= _cap(s) for s in job[2]):
                    passed.append(job)
                else:
                    for scope in job[2]:
                        self.holders[scope] = self.holders.get(scope, 0) + 1
                    taken.append(job)
            self.ready.extendleft(reversed(passed))
            if not taken:
                continue
            self.held[worker] += len(taken)
            claims = []
            for job in taken:
                job[3] += 1
                claim = [job[0], job[3]]
                if job[2]:
                    claim.append([[s, _cap(s)] for s in job[2]])
                claims.append(claim)
            fence = self._emit("claimed", worker, claims)
            for job in taken:
                lasts = int(self.dice.expovariate(1 / self.takes_ms)) + 1
                self.jobs += 1
                heapq.heappush(self.running, (self.now_ms + lasts, self.jobs, [job, worker, fence]))

    def _end_claims(self) -> None:
        ended: dict[tuple[str, str], list[list[Any]]] = {}
        while self.running and self.running[0][0] <= self.now_ms:
            _, _, (job, worker, fence) = heapq.heappop(self.running)
            self.held[worker] -= 1
            for scope in job[2]:
                self.holders[scope] -= 1
            kind, array = self._outcome(job, worker, fence)
            ended.setdefault((kind, worker), []).append(array)
        for (kind, worker), jobs in ended.items():
            by = self.workers[0] if kind == "lease_expired" else worker
            self._emit(kind, by, jobs)

    def _outcome(self, job: list[Any], worker: str, fence: str) -> tuple[str, list[Any]]:
        roll = self.dice.random()
        if roll > 0.02:
            return "succeeded", [job[0], fence]
        if roll < 0.0002 and job[5] < 2:
            job[5] += 1
            self.ready.append(job)
            return "lease_expired", [job[0], fence, worker, job[5], "ready"]
        kind = self.dice.choice(ERRORS)
        error = {"type": kind, "message": f"{kind} of {job[1]}", "traceback": 'File "x.py"\n  …'}
        job[4] += 1
        if job[4] >= 3 or roll < 0.001:
            reason = "attempts" if job[4] >= 3 else "final"
            return "died", [job[0], fence, reason, job[4], error]
        due = self.now_ms + 1_000 * 2 ** job[4]
        self.jobs += 1
        heapq.heappush(self.later, (due, self.jobs, job))
        return "retried", [job[0], fence, due, job[4], error]


def _cap(scope: str) -> int:
    return TENANT_CAP if scope.startswith("tenant=") else TASK_CAP


class LongLog:
    """A simulated log of about ``events`` events, which a mirror reads instead of Redis."""

    prefix, url = "rqc", "redis://nowhere"

    def __init__(self, events: int, seed: int = 1) -> None:
        self.wanted = {
            name: events * share // sum(q[3] for q in QUEUES.values())
            for name, (*_, share) in QUEUES.items()
        }
        self.logs = {name: QueueLog(name, seed) for name in QUEUES}

    def queues(self) -> list[str]:
        return sorted(self.logs)

    def stamp(self, queue: str) -> str:
        return f"of {queue}"

    def holder(self, queue: str) -> None:
        """Return None: no database mirrors the queue."""

    def attach(self, queue: str, audit_id: str, known: int = 0, stamp: str = "") -> None:
        """Do nothing: any audit database may mirror the queue."""

    def read_outbox(
        self, queue: str, start: str, count: int
    ) -> Sequence[tuple[str, Mapping[str, str]]]:
        log = self.logs[queue]
        while len(log.entries) <= count + PAGES and log.events < self.wanted[queue]:
            log.step()
        first = log.entries[0][0] if log.entries else OutboxId(EPOCH, 0)
        skipped = 0 if start == "-" else max(0, OutboxId.parse(start).seq - first.seq)
        if start != "-" and OutboxId.parse(start).epoch > EPOCH:
            return []
        found = []
        for place in range(skipped, min(skipped + count, len(log.entries))):
            entry_id, raw = log.entries[place]
            found.append((str(entry_id), raw))
        return found

    def read_outbox_back(
        self, queue: str, before: str, count: int
    ) -> Sequence[tuple[str, Mapping[str, str]]]:
        return []

    def trim(self, queue: str, audit_id: str, upto: str, jobs: int, size: int) -> None:
        log, last = self.logs[queue], OutboxId.parse(upto)
        while log.entries and log.entries[0][0] < last:
            log.entries.popleft()

    def counts(self, queue: str) -> SimpleNamespace:
        return SimpleNamespace(backlog=0)

    def place(self, queue: str) -> object:
        """Return None: the queues are on no cluster node."""
        return None

    def wait_outbox(self, last: Mapping[str, str], wait_s: float) -> set[str]:
        return set()

    def close(self) -> None:
        """Do nothing: no connection is open."""


PAGES = 8_000
"""The number of entries that are created ahead of the mirror. It is more than the mirror reads for one batch."""
