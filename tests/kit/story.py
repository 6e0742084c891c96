"""Invents the log of a queue with caps, without the scripts. It keeps all rules, or breaks some on purpose."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, Protocol

from rq_core.model.events import OutboxId
from rq_core.model.limits.scopes import lane_name
from sql_audit.mirror.intake import take
from sql_audit.mirror.projection.fold import Folder
from sql_audit.store.job_rows import EventRow

TENANTS = ("acme", "umbrella", "wayne", "stark")


class Appends(Protocol):
    """A log to which a story appends entries: a stream in Redis, or a list in memory."""

    now_ms: int

    def jobs(
        self, kind: str, *jobs: Sequence[Any], by: str = "w-1", why: str | None = None
    ) -> str: ...

    def queue_event(self, kind: str, *values: Any) -> str: ...


class MemoryWriter:
    """Keeps entries in memory, as the rows that the mirror would make of them."""

    def __init__(self, epoch: int = 1_795_225_746_504, queue: str = "mail") -> None:
        self.queue = queue
        self.epoch = epoch
        self.seq = -1
        self.now_ms = epoch
        self.folder = Folder(queue, ())
        self.begin(epoch, "created")

    @property
    def rows(self) -> list[EventRow]:
        return self.folder.events

    def begin(self, epoch: int, reason: str, last: str | None = None) -> str:
        old = self.epoch if self.seq >= 0 else None
        self.epoch, self.seq = epoch, -1
        return self.queue_event("epoch_started", reason, old, None, "replid", last)

    def jobs(self, kind: str, *jobs: Sequence[Any], by: str = "w-1", why: str | None = None) -> str:
        return self._add({"type": kind, "by": by, "jobs": json.dumps(jobs)}, why)

    def queue_event(self, kind: str, *values: Any) -> str:
        return self._add({"type": kind, "by": "-", "data": json.dumps(values)}, None)

    def _add(self, raw: dict[str, str], why: str | None) -> str:
        self.seq += 1
        self.now_ms += 1
        raw["at"] = str(self.now_ms)
        if why is not None:
            raw["why"] = why
        self.folder.add(take(OutboxId(self.epoch, self.seq), raw))
        return f"{self.epoch}-{self.seq}"


class Story:
    """A queue with a rate, and with caps on its task, on each tenant and on the queue itself.

    ``slack`` is the number of jobs by which each scope may exceed its cap. The events have the caps without the slack.
    """

    def __init__(self, log: Appends, seed: int = 0, *, slack: int = 0) -> None:
        self.log = log
        self.random = random.Random(seed)
        self.slack = slack
        self.caps: dict[str, int] = {}
        self.versions: dict[str, int] = {}
        self.rate = (1500, 1000, 6)
        self.arrival_us = 0
        self.number = 0
        self.waiting: list[str] = []
        self.scheduled: list[str] = []
        self.dead: list[str] = []
        self.running: dict[str, str] = {}
        self.workers: dict[str, str] = {}
        """The worker that made the last claim of each job, by job."""
        self.flagged: set[str] = set()
        self.tenants: dict[str, str] = {}
        self.lanes: dict[str, list[str]] = {}
        self.dues: dict[str, int | None] = {}
        self.claims: dict[str, int] = {}
        self.failures: dict[str, int] = {}
        self.losses: dict[str, int] = {}
        self.set_cap("task=send", 6)
        self.set_cap("tenant", 2)
        self.set_cap("queue", 7)
        self.log.queue_event("cap_changed", "task@1s=send", None, "1500/1000ms/6", 1)

    def set_cap(self, scope: str, cap: int) -> str:
        old = self.caps.get(scope)
        self.versions[scope] = self.versions.get(scope, 0) + 1
        self.caps[scope] = cap
        was = None if old is None else str(old)
        return self.log.queue_event("cap_changed", scope, was, str(cap), self.versions[scope])

    def cap_of(self, scope: str) -> int:
        return self.caps.get(scope, self.caps.get(scope.partition("=")[0], 10**9))

    # Steps. Each is one entry or none.

    def enqueue(self, count: int = 1, tenant: str | None = None) -> list[str]:
        arrays = []
        ids = []
        for _ in range(count):
            self.number += 1
            job_id = f"job-{self.number:06}"
            self.tenants[job_id] = tenant or self.random.choice(TENANTS)
            self.lanes[job_id] = ["task=send", f"tenant={self.tenants[job_id]}", "task@1s=send"]
            lane = lane_name(2, self.lanes[job_id])
            due = self.log.now_ms + 5 if self.random.random() < 0.1 else None
            (self.waiting if due is None else self.scheduled).append(job_id)
            self.dues[job_id] = due
            self.claims[job_id] = self.failures[job_id] = self.losses[job_id] = 0
            seq = self.number if due is None else None
            arrays.append([job_id, seq, due, "send", "normal", 3, 3, "d" * 32, lane])
            ids.append(job_id)
        self.log.jobs("enqueued", *arrays, by="producer")
        return ids

    def discard(self) -> None:
        self.number += 1
        tenant = f"tenant={self.random.choice(TENANTS)}"
        lane = lane_name(2, ["task=send", tenant])
        cap = self.cap_of(tenant)
        self.log.jobs("discarded", [f"job-{self.number:06}", "send", lane, tenant, cap])

    def holders(self, scope: str) -> int:
        if scope in {"queue", "task=send"}:
            return len(self.running)
        return sum(f"tenant={self.tenants[i]}" == scope for i in self.running)

    def _admits(self, job_id: str, taken: Sequence[str]) -> bool:
        scopes = ("queue", "task=send", f"tenant={self.tenants[job_id]}")
        for scope in scopes:
            more = sum(scope in ("queue", "task=send", f"tenant={self.tenants[i]}") for i in taken)
            if self.holders(scope) + more >= self.cap_of(scope) + self.slack:
                return False
        limit, window_ms, burst = self.rate
        interval = window_ms * 1000 // limit
        now_us = (self.log.now_ms + 1) * 1000
        if self.arrival_us - (burst - 1) * interval > now_us:
            return False
        self.arrival_us = max(self.arrival_us, now_us) + interval
        return True

    def scopes(self, job_id: str) -> list[list[Any]]:
        tenant = f"tenant={self.tenants[job_id]}"
        return [
            ["task=send", self.cap_of("task=send")],
            ["task@1s=send", *self.rate],
            [tenant, self.cap_of(tenant)],
            ["queue", self.cap_of("queue")],
        ]

    def claim(self, most: int = 3) -> str | None:
        taken: list[str] = []
        for job_id in list(self.waiting):
            if len(taken) < most and self._admits(job_id, taken):
                taken.append(job_id)
        if not taken:
            return None
        arrays = []
        for job_id in taken:
            self.claims[job_id] += 1
            arrays.append([job_id, self.claims[job_id], self.scopes(job_id)])
        worker = f"w-{self.random.randrange(3)}"
        fence = self.log.jobs("claimed", *arrays, by=worker)
        for job_id in taken:
            self.workers[job_id] = worker
            self.waiting.remove(job_id)
            self.running[job_id] = fence
        return fence

    def promote(self) -> None:
        if self.scheduled:
            job_id = self.scheduled.pop(0)
            self.waiting.append(job_id)
            self.log.now_ms = max(self.log.now_ms, self.dues[job_id] or 0)
            self.log.jobs("promoted", [job_id, 1])

    def _any_running(self, *, flagged: bool = False) -> str | None:
        ids = [i for i in self.running if flagged or i not in self.flagged]
        return self.random.choice(ids) if ids else None

    def _settle(self, kind: str, job_id: str, *facts: Any) -> None:
        """Append a settlement of the job by the worker that claimed it."""
        fence = self.running.pop(job_id)
        self.log.jobs(kind, [job_id, fence, *facts], by=self.workers[job_id])

    def succeed(self) -> None:
        if (job_id := self._any_running(flagged=True)) is not None:
            self.flagged.discard(job_id)
            self._settle("succeeded", job_id)

    def retry(self) -> None:
        if (job_id := self._any_running()) is None:
            return
        self.failures[job_id] += 1
        failures = self.failures[job_id]
        error = {"type": "ValueError", "message": "no"}
        if failures >= 3:
            self.dead.append(job_id)
            self._settle("died", job_id, "attempts_spent", failures, error)
        else:
            self.waiting.insert(0, job_id)
            self._settle("retried", job_id, None, failures, error)

    def roll_back(self) -> None:
        if (job_id := self._any_running()) is not None:
            self.waiting.insert(0, job_id)
            self._settle("rolled_back", job_id, None, "stopping", 0)

    def expire(self) -> None:
        if (job_id := self._any_running()) is None:
            return
        self.losses[job_id] += 1
        target = "dead" if self.losses[job_id] >= 3 else "ready"
        (self.dead if target == "dead" else self.waiting).insert(0, job_id)
        fence = self.running.pop(job_id)
        worker = self.workers[job_id]
        self.log.jobs("lease_expired", [job_id, fence, worker, self.losses[job_id], target])

    def cancel(self) -> None:
        if self.waiting and self.random.random() < 0.5:
            self.log.jobs("cancelled", [self.waiting.pop()], by="ada", why="not wanted")
        elif (job_id := self._any_running()) is not None:
            self.flagged.add(job_id)
            self.log.jobs("cancel_requested", [job_id, self.running[job_id]], by="ada")

    def end_flagged(self) -> None:
        if self.flagged:
            job_id = self.flagged.pop()
            self.log.jobs("cancelled", [job_id, self.running.pop(job_id)])

    def requeue(self) -> None:
        if self.dead:
            job_id = self.dead.pop()
            self.failures[job_id] = self.losses[job_id] = 0
            self.waiting.append(job_id)
            self.log.jobs("requeued", [job_id, 1], by="ada")

    def edit(self) -> None:
        """Append an edit that makes a delayed job ready, with another priority."""
        if self.scheduled:
            job_id = self.scheduled.pop(0)
            self.waiting.append(job_id)
            lane = lane_name(1, self.lanes[job_id])
            due = self.dues[job_id]
            self.log.jobs(
                "edited", [job_id, 1, None, "high", lane, None, due, "normal", None], by="ada"
            )

    def change_cap(self) -> None:
        scope = self.random.choice(("task=send", "tenant", "tenant=acme", "queue"))
        self.set_cap(scope, self.random.randrange(1, 7))

    def run(self, steps: int) -> None:
        """Take this number of random steps. Each step appends at most one entry."""
        choices = (
            (self.enqueue, 10), (self.claim, 8), (self.succeed, 10), (self.retry, 2),
            (self.roll_back, 2), (self.expire, 1), (self.cancel, 1), (self.end_flagged, 1),
            (self.requeue, 1), (self.promote, 2), (self.discard, 1), (self.change_cap, 1),
            (self.edit, 1),
        )  # fmt: skip
        steps_, weights = zip(*choices, strict=True)
        for _ in range(steps):
            step = self.random.choices(steps_, weights)[0]
            step()
