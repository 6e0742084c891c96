"""Replays the log of a queue: who held places in caps, whether a cap was exceeded, and how long a place was free.

All times are Redis' own times (ms), so the clocks of workers do not matter.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rq_core.model.events import Entry, JobRecord, fold
from rq_core.model.limits.limit import Limit
from rq_core.model.limits.scopes import family_of, scopes_of
from rq_core.model.table.machine import CLAIMED_STATES, Event, State
from tests.rigs.judge.caps import Holders


@dataclass
class Replay:
    """The state of a queue with caps, as its log shows it so far. The scope ``queue`` is the whole queue."""

    caps: dict[str, int | None] = field(default_factory=dict)
    """The limit now in force, by scope or family, according to events of the type cap_changed."""
    breaches: list[str] = field(default_factory=list)
    peak: Counter[str] = field(default_factory=Counter)
    """The highest number of simultaneous holders, by scope."""
    refilled: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """For each scope: the times (ms) from an end that freed a place in the scope to the claim that took the place."""
    room_ms: list[int] = field(default_factory=list)
    """The times (ms) in which a job could have been claimed, each until the next claim."""
    refused: int = 0
    expired: list[tuple[str, int]] = field(default_factory=list)
    """The worker and the time of each lease that expired."""
    claims: int = 0
    ends: int = 0
    near_ends: int = 0
    """The number of times that an enqueue and the success of a job were within a millisecond of each other."""
    at_ms: int = 0

    def __post_init__(self) -> None:
        self.holders = Holders()
        self.waiting: Counter[tuple[str, ...]] = Counter()
        """The number of ready jobs, by their scopes."""
        self.records: dict[str, JobRecord] = {}
        self._room_since: int | None = None
        self._freed: dict[str, deque[int]] = defaultdict(deque)
        self._ended_ms = self._enqueued_ms = 0

    def cap_of(self, scope: str) -> int | None:
        if scope in self.caps or family_of(scope) == "task":
            return self.caps.get(scope)
        return self.caps.get(family_of(scope))

    def has_room(self, scope: str) -> bool:
        cap = self.cap_of(scope)
        return cap is None or self.holders.held[scope] < cap

    def claimable(self) -> bool:
        """Return whether a claim at this point of the log would find a job."""
        return self.has_room("queue") and any(
            n > 0 and all(map(self.has_room, scopes)) for scopes, n in self.waiting.items()
        )

    def feed(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._one(entry)

    def _one(self, entry: Entry) -> None:
        self.at_ms = entry.at_ms
        if entry.event is Event.CAP_CHANGED:
            self.caps[entry.data["scope"]] = Limit.parse(entry.data["new"]).most
        if entry.event is Event.SETTLEMENT_REFUSED:
            self.refused += len(entry.jobs)
        if entry.event is Event.LEASE_EXPIRED:
            self.expired += [(event.fields["worker"], entry.at_ms) for event in entry.jobs]
        if entry.event is Event.ENQUEUED:
            self._enqueued_ms = entry.at_ms
            self.near_ends += entry.at_ms - self._ended_ms <= 1
        elif entry.event is Event.SUCCEEDED:
            self._ended_ms = entry.at_ms
            self.near_ends += entry.at_ms - self._enqueued_ms <= 1
        for event in entry.jobs:
            record = self.records.get(event.job_id)
            before = record.state if record else None
            lane = record.lane if record else None
            record, problem = fold(record, entry, event)
            if problem:
                self.breaches.append(f"{entry.id} {event.job_id}: {problem}")
            self._move(event.job_id, before, lane, record, entry, event.fields.get("scopes"))
            if record.state is None:
                self.records.pop(event.job_id, None)
            else:
                self.records[event.job_id] = record
        self._look_at_room(entry)

    def _move(
        self,
        job_id: str,
        before: State | None,
        lane: str | None,
        record: JobRecord,
        entry: Entry,
        limits: Sequence[Sequence[object]] | None,
    ) -> None:
        if before is State.READY and record.state is not State.READY:
            self.waiting[scopes_of(lane or "")] -= 1
        elif record.state is State.READY and before is not State.READY:
            self.waiting[scopes_of(record.lane or "")] += 1
        if before in CLAIMED_STATES and record.state not in CLAIMED_STATES:
            self.ends += 1
            held = self.holders.end(job_id)
            if not held:
                self.breaches.append(f"{entry.id}: the claim of {job_id} that ends was never made")
            for scope in held:
                self._freed[scope].append(entry.at_ms)
        elif entry.event is Event.CLAIMED:
            self.claims += 1
            caps = {str(name): cap for name, cap, *rest in limits or () if not rest}
            scopes = dict.fromkeys((*caps, "queue"))
            self.holders.claim(job_id, scopes)
            for scope in scopes:
                holders = self.holders.held[scope]
                self.peak[scope] = max(self.peak[scope], holders)
                cap = caps.get(scope)
                if cap != self.cap_of(scope):
                    self.breaches.append(f"{entry.id}: {scope} has {cap}, not {self.cap_of(scope)}")
                if isinstance(cap, int) and holders > cap:
                    self.breaches.append(f"{entry.id}: {holders} hold {scope} of {cap}")
                if self._freed[scope]:
                    self.refilled[scope].append(entry.at_ms - self._freed[scope].popleft())

    def _look_at_room(self, entry: Entry) -> None:
        claimed = entry.event is Event.CLAIMED
        if self._room_since is not None and claimed:
            self.room_ms.append(entry.at_ms - self._room_since)
        if not self.claimable():
            self._room_since = None
        elif claimed or self._room_since is None:
            self._room_since = entry.at_ms

    def standing_ms(self, now_ms: int) -> int:
        """Return for how long (ms) a job could have been claimed, up to ``now_ms``. Return 0 if no job can be
        claimed."""
        return 0 if self._room_since is None else now_ms - self._room_since
