"""Random calls of workers, producers and operators to one queue on a real server."""

import json
import random
from collections.abc import Mapping
from typing import Any, Final

from rq_core.connections.client import Client
from rq_core.model.ids import JobIds
from rq_core.model.job import NewJob, Profile, ties_of
from rq_core.model.limits.scopes import lane_name
from rq_core.model.result_encoding import DIGEST, FULL, pack_result
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.admin import Change

QUEUE = "q"
TENANTS = ("acme", "umbrella", "wayne")
ids = JobIds()
NAMED: Final[tuple[Mapping[str, Any], ...]] = (
    {}, {}, {"unique": "keep"}, {"unique": "replace"}, {"unique": "keep", "window_ms": 20},
    {"unique": "replace", "after_ms": 1, "most_ms": 5}, {"unique": "replace", "after_ms": 0, "most_ms": 0},
)  # fmt: skip
"""The options for unique names from which the fleet chooses at random."""


class Fleet:
    """Makes random calls to one queue, as several workers and operators would."""

    def __init__(
        self, client: Client, seed: int, *, lanes: bool = True, ties: bool = False
    ) -> None:
        self.client = client
        self.random = random.Random(seed)
        self.ties = random.Random(seed) if ties else None
        """The random numbers for deadlines, names and remembered ids, or None if jobs have none of these."""
        self.kept = random.Random(seed)
        """The random numbers for kept results. They come from a generator of their own, so that kept results do not
        change the other calls."""
        self.lanes = lanes
        self.held: list[tuple[str, str]] = []
        self.known: list[str] = []

    def set_cap(self, scope: str, limit: str) -> None:
        self.client.run(self.client.calls.caps.set(QUEUE, [(scope, limit, -1)], why="a test"))

    def enqueue(self) -> None:
        jobs = []
        for _ in range(self.random.randrange(1, 5)):
            task, tenant = self.random.choice(("send", "resize")), self.random.choice(TENANTS)
            scopes = [f"task={task}", f"tenant={tenant}", f"tenant@1s={tenant}"]
            lane = lane_name(2, self.random.choice((scopes, scopes[1:2], [])) if self.lanes else [])
            rule = f"discard|tenant={tenant}" if "tenant=" in lane else ""
            full = self.random.choice(("", "", rule))
            delay = 0 if full else self.random.choice((0, 0, 1))
            job = NewJob(ids(), QUEUE, Profile(task), "{}", delay, lane, full)
            jobs.append(job if full or self.ties is None else self._tied(job, self.ties))
        self.known += self.client.run(self.client.calls.enqueue.many(jobs)).ids
        if self.ties is not None and self.ties.random() < 0.1:
            name = f"send/{self.ties.randrange(20)}"
            self.client.run(self.client.calls.names.free(QUEUE, [name]))

    def _tied(self, job: NewJob, dice: random.Random) -> NewJob:
        named = dice.choice(NAMED)
        expires_ms = dice.choice((0, 0, 0, 1, 50))
        name = f"{job.profile.task}/{dice.randrange(20)}" if named else ""
        kept: dict[str, Any] = {"keep_ms": self.kept.choice((0, 0, 20, 60_000))}
        if kept["keep_ms"] and self.kept.random() < 0.5:
            kept["audit_result"] = FULL
        job = job._replace(ties=ties_of(expires_in_ms=expires_ms, **named, **kept), name=name)
        remember_ms = dice.choice((0, 0, 0, 20, 60_000))
        if not remember_ms:
            return job
        ties = ties_of(expires_in_ms=expires_ms, remember_ms=remember_ms, **named, **kept)
        call = dice.choice(("=", "=70c5", "=70c6"))
        return job._replace(id=f"k-{dice.randrange(40)}", ties=ties, call=call)

    def claim(self) -> None:
        claimed = self.client.run(claims.claim(QUEUE, "w-1", 4))
        self.held += [(claim.id, claim.fence) for claim in claimed.jobs]

    def _take(self) -> tuple[str, str] | None:
        return self.held.pop(self.random.randrange(len(self.held))) if self.held else None

    def complete(self) -> None:
        if held := self._take():
            values = claims.NO_VALUES
            if self.ties is not None:
                # Whether it is kept says the job.
                values = {1: pack_result(json.dumps(held), self.kept.choice((DIGEST, FULL)))}
            self.client.run(claims.complete(QUEUE, "w-1", [held], values))

    def fail(self) -> None:
        if held := self._take():
            delay = self.random.choice((0, 1))
            record = (*held, "retry", delay, "-", '{"type":"ValueError","message":"no"}')
            self.client.run(claims.fail(QUEUE, "w-1", [record]))

    def roll_back(self) -> None:
        if held := self._take():
            lane = self.random.choice(("", lane_name(2, ["tenant=acme"]) if self.lanes else ""))
            reason = "lane_changed" if lane else "stopping"
            record = (*held, reason, "null", lane, 0)
            self.client.run(claims.rollback(QUEUE, "w-1", [record]))

    def cancel(self) -> None:
        if self.known:
            self.client.run(self.client.calls.admin.cancel(QUEUE, [self.random.choice(self.known)]))

    def edit(self) -> None:
        """Edit a job, if jobs have ties. The random numbers come from ``ties``, so that edits do not change the choices
        that ``random`` makes."""
        if self.known and self.ties:
            job_id, dice = self.ties.choice(self.known), self.ties
            change = Change(
                priority=dice.choice(("", "critical", "low")),
                due=dice.choice(("", "+0", "+1", "+5")),
                expires=dice.choice(("+20", "+60000")),
            )
            self.client.run(self.client.calls.admin.edit(QUEUE, [job_id], change))

    def change_cap(self) -> None:
        scopes = ("queue", "task=send", "tenant", "tenant=acme", "tenant@1s")
        scope = self.random.choice(scopes if self.lanes else scopes[:1])
        rate = f"{self.random.randrange(100, 1000)}/1000ms/2"
        self.set_cap(scope, rate if "@" in scope else str(self.random.randrange(1, 6)))

    def run(self, steps: int) -> None:
        choices = (
            (self.enqueue, 6), (self.claim, 8), (self.complete, 8), (self.fail, 2),
            (self.roll_back, 2), (self.cancel, 1), (self.change_cap, 1),
        )  # fmt: skip
        steps_, weights = zip(*choices, strict=True)
        for _ in range(steps):
            self.random.choices(steps_, weights)[0]()
            if self.ties and self.ties.random() < 0.2:
                self.edit()
