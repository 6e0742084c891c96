"""Rates that count a unit in a simulation: jobs with costs, handlers that say what their jobs have really taken or
pause a rate, and the judge of the log."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from rq_core.model.events import Entry, JobEvent
from rq_core.model.job import NewJob, ties_of
from rq_core.model.limits.limit import Limit
from rq_core.model.limits.scopes import lane_name, scopes_of
from rq_core.model.table.machine import Event
from rq_core.worker.settlement import Settlement
from tests.rigs.naive_bucket import Bucket

if TYPE_CHECKING:
    from rq_core.connections.client import Client

FAMILY: Final = "tenant@10s:tokens"
LIMITS: Final = ("60/10000ms/20", "300/10000ms/30", "300/10000ms/1", "0", "none")
COST_MAX: Final = 60
PAUSES_MS: Final = (50, 800, 4_000)
TOLERANCE_MS: Final = 1
"""Milliseconds by which a claim may be early: a pause ends at a whole number of microseconds."""


def add_cost(job: NewJob, dice: random.Random) -> NewJob:
    """Give two of three jobs a rate that counts tokens, and most of these jobs a cost."""
    if dice.random() < 1 / 3:
        return job
    scopes = sorted([*scopes_of(job.lane), f"{FAMILY}={dice.choice('xy')}"])
    job = job._replace(lane=lane_name(job.profile.rank, scopes))
    if dice.random() < 0.2:
        return job
    cost = ties_of(cost=f"tokens:{dice.randint(1, COST_MAX)}")
    ties = json.loads(job.ties or "{}") | json.loads(cost)
    return job._replace(ties=json.dumps(ties, separators=(",", ":")))


def add_truth(settlement: Settlement, dice: random.Random, *, may_pause: bool) -> Settlement:
    """Let the handler of a job with the rate say what the job has really taken, or pause the rate, or do both."""
    rates = [scope for scope in scopes_of(settlement.claim.lane or "") if FAMILY in scope]
    if not rates:
        return settlement
    if dice.random() < 0.6:
        settlement = settlement._replace(taken=f"tokens:{dice.randint(0, 2 * COST_MAX)}")
    if may_pause and dice.random() < 0.4:
        ms = dice.choice(PAUSES_MS)
        pauses = f"{rates[0]}|{ms}"
        return Settlement(
            settlement.claim, "rollback", ms, "scope_paused", taken=settlement.taken, pauses=pauses
        )
    return settlement


def change_limit(client: Client, queue: str, dice: random.Random) -> None:
    """Change the limit of all tenants, or of one, as an operator does."""
    scope = dice.choice((FAMILY, FAMILY, f"{FAMILY}=x"))
    client.run(client.calls.caps.set(queue, [(scope, dice.choice(LIMITS), -1)]))


class Costs:
    """Judges claims by buckets that share no code with the rates. A bucket counts as full after a change of its limit,
    a clock that was set back, and at the beginning of an epoch, since the log does not say what is in use then."""

    def __init__(self) -> None:
        self._costs: dict[str, int] = {}
        self._rates: dict[str, list[str]] = {}
        """The rates of each job, by its lane."""
        self._buckets: dict[str, Bucket] = {}
        self._limits: dict[str, Limit] = {}
        self._until: dict[str, int] = {}
        """Unix ms at which the last pause of a scope ends."""
        self._emptied: dict[str, int] = {}
        """The same, for pauses after which no claim has come, unless the limit has changed: Redis may then have
        forgotten the pause."""
        self._at_ms = 0

    def add(self, entry: Entry) -> list[str]:
        """Add the next entry. Return a sentence for each claim that came too early or took a wrong cost, and for each
        pause that shortens an earlier pause."""
        if entry.event is Event.EPOCH_STARTED or entry.at_ms < self._at_ms:
            self._buckets, self._until, self._emptied = {}, {}, {}
        self._at_ms = entry.at_ms
        match entry.event:
            case Event.CAP_CHANGED:
                changed = entry.data["scope"]
                for known in (self._buckets, self._emptied):
                    for scope in [s for s in known if s.startswith(changed)]:
                        known.pop(scope, None)
            case Event.ENQUEUED | Event.RESTORED | Event.BASELINE:
                for event in entry.jobs:
                    self._note_cost(event.job_id, event.fields)
            case Event.CLAIMED:
                return [why for event in entry.jobs for why in self._claim(event)]
            case Event.COST_SETTLED:
                for event in entry.jobs:
                    self._settle(event)
            case Event.SCOPE_PAUSED:
                return [why for event in entry.jobs for why in self._pause(event.fields)]
        return []

    def _note_cost(self, job_id: str, fields: Mapping[str, Any]) -> None:
        text = fields.get("cost")
        self._costs[job_id] = int(text.partition(":")[2]) if text else 1
        scopes = scopes_of(fields.get("lane") or "")
        self._rates[job_id] = [scope for scope in scopes if FAMILY in scope]

    def _claim(self, event: JobEvent) -> Iterator[str]:
        for scope, *facts in event.fields["scopes"] or []:
            if FAMILY not in scope or len(facts) < 3:
                continue
            cost = self._costs.get(event.job_id)
            if cost is None:
                self._buckets.pop(scope, None)
                continue
            if (*facts, 1)[3] != cost:
                yield f"{event.job_id} costs {cost}, and the claim took {facts[3:]}"
            if self._at_ms < self._until.get(scope, 0):
                yield f"{event.job_id} was claimed in a pause until {self._until[scope]}"
            bucket = self._bucket(scope, Limit(*facts[:3]))
            if until_ms := self._emptied.pop(scope, None):
                bucket.empty(until_ms, self._at_ms)
            opens_ms = bucket.opens_ms(cost, self._at_ms)
            if opens_ms > self._at_ms + TOLERANCE_MS:
                yield f"{event.job_id} was claimed {opens_ms - self._at_ms} ms too early for {scope}"
            bucket.take(cost, self._at_ms)

    def _bucket(self, scope: str, limit: Limit) -> Bucket:
        if scope not in self._buckets or self._limits[scope] != limit:
            most, window_ms = limit.most, limit.window_ms
            assert most is not None
            assert window_ms is not None
            self._buckets[scope] = Bucket(most, window_ms, limit.burst)
            self._buckets[scope].at_ms = self._at_ms
            self._limits[scope] = limit
        return self._buckets[scope]

    def _settle(self, event: JobEvent) -> None:
        cost = self._costs.get(event.job_id)
        told = int(event.fields["taken"].partition(":")[2])
        for scope in self._rates.get(event.job_id, ()):
            bucket = self._buckets.get(scope)
            if bucket is not None and cost is not None:
                bucket.correct(told - cost, self._at_ms)

    def _pause(self, fields: Mapping[str, Any]) -> Iterator[str]:
        scope, until_ms = fields["scope"], fields["until_ms"]
        if until_ms < self._until.get(scope, 0):
            yield f"the pause of {scope} until {self._until[scope]} was shortened to {until_ms}"
        self._until[scope] = self._emptied[scope] = until_ms
