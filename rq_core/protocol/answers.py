"""What calls to a queue return, and how it is read from a reply."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, NamedTuple

from rq_core.model.job import Claim, NewJob
from rq_core.model.limits import Limit


@dataclass(frozen=True, slots=True)
class Handshake:
    """What a queue says of itself."""

    epoch: int
    now_ms: int
    lease_ms: int
    paused: bool
    audit: bool
    audit_id: str | None
    started: str | None
    """Why this handshake started an epoch, if it did."""


class Accepted(NamedTuple):
    """What became of an enqueue."""

    ids: tuple[str, ...]
    """The jobs that are now in their queues, in the order given."""
    duplicates: tuple[str, ...] = ()
    """Ids that were live already; their jobs were not touched."""
    discarded: tuple[tuple[str, str], ...] = ()
    """(id, scope) of jobs that were dropped because that scope was full and its cap says discard."""
    rejected: tuple[tuple[str, str], ...] = ()
    """(id, scope) of jobs that were not taken: that scope is full and its cap says reject, or, where the scope is a
    lane, as many wait there as its max_waiting allows."""

    @classmethod
    def sum(cls, parts: Sequence[Accepted]) -> Accepted:
        """Several, one after the other, as one."""
        if len(parts) == 1:
            return parts[0]
        wholes: tuple[list[Any], ...] = ([], [], [], [])
        for part in parts:
            for whole, some in zip(wholes, part, strict=True):
                whole.extend(some)
        return cls(*map(tuple, wholes))

    def others(self) -> dict[str, Accepted]:
        """The outcome of each job that was not accepted, by id."""
        return (
            {i: Accepted((), (i,)) for i in self.duplicates}
            | {i: Accepted((), (), ((i, on),)) for i, on in self.discarded}
            | {i: Accepted((), (), (), ((i, on),)) for i, on in self.rejected}
        )


def tell_accepted(error: Exception, parts: Sequence[Accepted]) -> None:
    """Let what stopped an enqueue carry, as ``accepted``, what was accepted before."""
    # A producer's own error may be one that cannot be changed; it must come through all the same.
    with contextlib.suppress(Exception):
        error.accepted = Accepted.sum(parts)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a claim brought."""

    jobs: tuple[Claim, ...]
    now_ms: int
    next_due_ms: int | None
    """When the next scheduled job is due, if one is."""
    more: bool
    """Whether claimable jobs are left."""

    @property
    def epoch(self) -> int | None:
        """The history of Redis in which the jobs were claimed, None if there are none."""
        return int(self.jobs[0].fence.partition("-")[0]) if self.jobs else None


class CapChange(NamedTuple):
    """What became of a change of a limit, and what is stored now."""

    outcome: str
    """changed, same, kept or conflict."""
    version: int
    limit: Limit


class Restoration(NamedTuple):
    """What restore.lua is to do about one job: see rq_core.protocol.restoration."""

    id: str
    kind: str
    """restore, missing or remove."""
    due_ms: int
    line: str
    """restore, missing: its state line, without place, due time and since when; remove: as it reads now."""
    detail: str
    """The rest of the event's fields, as JSON."""
    spec: str = ""


class Restored(NamedTuple):
    """What became of a restore."""

    last: str
    """The ``after`` of the next one."""
    outcomes: dict[str, str]
    """By id: restored, removed, gone, or the state that it is in and was left in."""


@dataclass(frozen=True, slots=True)
class Extended:
    """What a worker learns when it extends its leases."""

    lost: tuple[str, ...]
    cancelling: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """How many jobs a queue has, by where they stand, and its main facts."""

    queue: str
    ready: dict[str, int]
    """By priority, those without scopes. Includes the entries of cancelled jobs until claim passes over them."""
    scheduled: int
    running: int
    dead: int
    paused: bool
    audit: bool
    backlog: int
    """Events that wait to be mirrored."""
    epoch: int
    waiting: int = 0
    """Ready jobs with scopes, whether their scopes have room or not."""
    open_lanes: int = 0
    """Lanes of such jobs that may be served."""
    cap: int | None = None
    """How many of its jobs may run at once; None: any number."""
    settings: dict[str, int] = field(default_factory=dict)


def parse_cap_changes(reply: Sequence[Any]) -> dict[str, CapChange]:
    return {
        reply[at]: CapChange(reply[at + 1], int(reply[at + 2]), Limit.parse(reply[at + 3]))
        for at in range(0, len(reply), 4)
    }


def parse_nothing(_reply: Sequence[Any]) -> None:
    return None


def parse_pairs(reply: Sequence[Any]) -> dict[str, str]:
    return dict(zip(reply[::2], reply[1::2], strict=True))


def parse_handshake(reply: Sequence[Any]) -> Handshake:
    epoch, now_ms, lease_ms, paused, audit, audit_id, started = reply
    return Handshake(
        epoch=int(epoch),
        now_ms=int(now_ms),
        lease_ms=int(lease_ms),
        paused=int(paused) == 1,
        audit=audit == "on",
        audit_id=None if audit_id == "-" else audit_id,
        started=None if started == "-" else started,
    )


def parse_restored(reply: Sequence[Any]) -> Restored:
    return Restored(reply[0], parse_pairs(reply[1:]))


def parse_accepted(jobs: Sequence[NewJob], others: Sequence[Any]) -> Accepted:
    """``others`` are (position from 1, outcome, scope) of the jobs that were not accepted, flat."""
    if not others:
        return Accepted(tuple([job.id for job in jobs]))
    outcomes: dict[str, list[Any]] = {"duplicate": [], "discarded": [], "rejected": []}
    left: dict[int, bool] = {}
    for at in range(0, len(others), 3):
        place, outcome, scope = int(others[at]) - 1, others[at + 1], others[at + 2]
        left[place] = True
        job_id = jobs[place].id
        outcomes[outcome].append(job_id if outcome == "duplicate" else (job_id, scope))
    ids = tuple(job.id for place, job in enumerate(jobs) if place not in left)
    return Accepted(ids, *map(tuple, outcomes.values()))


def parse_claimed(queue: str, reply: Sequence[Any]) -> Claimed:
    now_ms, next_due, more, fence = reply[:4]
    flat = reply[4:]
    ids, claims, failed, lost, specs, lanes = [flat[at::6] for at in range(6)]
    # Column by column: this is done for every job that a worker runs.
    numbers = map(int, claims), map(int, failed), map(int, lost)
    jobs = tuple(map(Claim, repeat(queue), ids, repeat(fence), *numbers, specs, lanes))
    due = None if next_due == "-" else int(float(next_due))
    return Claimed(jobs, int(now_ms), due, int(more) == 1)


def parse_extended(reply: Sequence[Any]) -> Extended:
    outcomes = parse_pairs(reply[1:])
    return Extended(
        lost=tuple(i for i, o in outcomes.items() if o == "lost"),
        cancelling=tuple(i for i, o in outcomes.items() if o == "cancelling"),
    )
