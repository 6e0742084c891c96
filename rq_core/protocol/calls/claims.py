"""The calls of workers.

- ``claim`` claims jobs.
- ``complete``, ``fail`` and ``rollback`` end claims.
- ``park`` ends claims of jobs that now wait for a moment or a signal.
- ``turn`` reports successes and claims jobs, in one call.
- ``spend`` corrects how much of their rate limits jobs have used.
- ``extend`` extends leases.

A worker sends several of these calls in one round trip: :meth:`rq_core.protocol.engine.delivery.Delivery.carry_out`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from types import MappingProxyType
from typing import Any, Final

from rq_core.model.durable.boxes import NOTHING_KNOWN, KnownBox
from rq_core.model.durable.tries import NO_BASE, read_base
from rq_core.model.ids import epoch_of_fence
from rq_core.model.job import Claim, spec_and_wait
from rq_core.model.result_encoding import unpack_result
from rq_core.protocol.engine.plan import Call, parse_pairs

CLAIM_BYTES: Final = 1024 * 1024
SWEEP_MAX: Final = 250
"""Maximum number of entries of each kind that one claim cleans up or promotes: expired leases, due jobs, expired names
and so on."""


NO_VALUES: Final[Mapping[int, str]] = MappingProxyType({})
NO_TAIL: Final[Mapping[int, tuple[str, str]]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Claimed:
    """The result of a claim."""

    jobs: tuple[Claim, ...]
    now_ms: int
    next_due_ms: int | None
    """Unix ms at which the next entry of the key ``scheduled`` (a job, a rate, a family or a schedule) is due; None:
    there is no entry."""
    more: bool
    """True if the queue has further jobs that could be claimed now."""
    ticks: bool = False
    """True if schedules are due, and this worker must get them from Redis (:func:`schedules.tick`)."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """By job id, the reason why Redis refused a success that was reported together with this claim: ``gone`` or
    ``stale``."""

    @property
    def epoch(self) -> int | None:
        """The queue's epoch in which the jobs were claimed; None if no job was claimed. An epoch is the number of one
        unbroken history of the queue in Redis.
        """
        return int(epoch_of_fence(self.jobs[0].fence)) if self.jobs else None


@dataclass(frozen=True, slots=True)
class Extended:
    """The result of an extension of leases: the ids of jobs that have lost their claim, and of jobs that were asked to
    stop."""

    lost: tuple[str, ...]
    cancelling: tuple[str, ...]


def claim(
    queue: str,
    worker: str,
    limit: int,
    *,
    bytes_max: int = CLAIM_BYTES,
    sweep_max: int = SWEEP_MAX,
) -> Call[Claimed]:
    """Build the Redis call that claims at most ``limit`` jobs. Before it claims, the call ends expired leases and makes
    due jobs ready.
    """
    args = {"worker": worker, "limit": limit, "bytes_max": bytes_max, "sweep_max": sweep_max}
    return Call("claim", queue, args, lambda reply: parse_claimed(queue, reply))


def turn(
    queue: str,
    worker: str,
    limit: int,
    held: Sequence[tuple[str, str]],
    values: Mapping[int, str] = NO_VALUES,
    *,
    bytes_max: int = CLAIM_BYTES,
    sweep_max: int = SWEEP_MAX,
) -> Call[Claimed]:
    """Build the Redis call that reports successes and claims at most ``limit`` jobs. Redis does both or neither.

    ``held`` has the successful jobs as (id, fence) pairs. A fence identifies a claim. ``values`` has the results
    to keep, by the position of the job in ``held``, from 1. A value is the digest of the result and its JSON
    (:mod:`rq_core.model.result_encoding`), or ``!`` and the reason why no result is kept.
    """
    args = {"worker": worker, "limit": limit, "bytes_max": bytes_max, "sweep_max": sweep_max}
    ids = tuple(h[0] for h in held)
    return Call(
        "turn",
        queue,
        args,
        lambda reply: parse_claimed(queue, reply),
        held,
        ids,
        tail=_tail(values),
    )


def complete(
    queue: str,
    worker: str,
    held: Sequence[tuple[str, str]],
    values: Mapping[int, str] = NO_VALUES,
) -> Call[dict[str, str]]:
    """Build the Redis call that reports successes, given as (id, fence) pairs. A fence identifies a claim. The
    answer has, by id, why Redis refused a success. See ``turn`` for ``values``.
    """
    ids = tuple(h[0] for h in held)
    return Call("complete", queue, {"worker": worker}, parse_pairs, held, ids, tail=_tail(values))


def _tail(values: Mapping[int, str]) -> Mapping[int, tuple[str, str]]:
    return {place: unpack_result(value) for place, value in values.items()} if values else NO_TAIL


def fail(
    queue: str,
    worker: str,
    held: Sequence[tuple[str, str, str, int, str, str]],
    known: Sequence[KnownBox] = (),
) -> Call[dict[str, str]]:
    """Build the Redis call that reports failures. Its answer is the outcome by id.

    A failure is (id, fence, ``retry`` or ``final``, delay in ms, reason, error as JSON). The fence identifies the
    claim. ``known`` is for durable jobs: for each job in ``held``, the saved entries that Redis must have. If Redis has
    lost one of these entries, the claim stays in force, and the outcome is ``behind``. An empty ``known`` requires no
    entries.
    """
    records = _with_known(held, known)
    return Call("fail", queue, {"worker": worker}, parse_pairs, records, tuple(h[0] for h in held))


def _with_known(
    held: Sequence[tuple[Any, ...]], known: Sequence[KnownBox]
) -> Sequence[tuple[Any, ...]]:
    boxes = known or repeat(NOTHING_KNOWN, len(held))
    return [(*each, *box) for each, box in zip(held, boxes, strict=True)]


def rollback(
    queue: str,
    worker: str,
    held: Sequence[tuple[str, str, str, str, str, int]],
    known: Sequence[KnownBox] = (),
    *,
    backoff_ms: int = 1_000,
    backoff_max_ms: int = 60_000,
    unknown_max: int = 100,
) -> Call[dict[str, str]]:
    """Build the Redis call that gives claimed jobs back, with no attempt spent. Its answer is the outcome by id.

    A job is (id, fence, reason, error as JSON, lane, delay in ms). The fence identifies the claim. The lane is
    the list of waiting jobs into which the job moves, by the task's present policy; empty: the job stays in its lane.
    ``fail`` explains ``known``.
    """
    records = _with_known(held, known)
    args = {
        "worker": worker,
        "backoff_ms": backoff_ms,
        "backoff_max_ms": backoff_max_ms,
        "unknown_max": unknown_max,
    }
    return Call("rollback", queue, args, parse_pairs, records, tuple(h[0] for h in held))


def park(
    queue: str, worker: str, held: Sequence[tuple[str, str, str, str, str]]
) -> Call[dict[str, str]]:
    """Build the Redis call that parks durable jobs, given as (id, fence, waits, life, knows). Its answer is the outcome
    by id.

    ``fence`` identifies the claim. ``life`` is the id of the job's box, which has its saved entries. ``waits``
    are the numbers of the entries for which the job waits, separated by commas. If one of these waits is already over,
    the job becomes ready at once, and the outcome is ``ready``.

    ``knows`` are the numbers of other entries that the box must have; ``+`` after a number means that the entry must be
    saved, not only begun. If Redis lacks an entry in ``waits`` or ``knows``, the claim stays in force, and the outcome
    is ``behind``.
    """
    return Call("park", queue, {"worker": worker}, parse_pairs, held, tuple(h[0] for h in held))


def spend(
    queue: str, worker: str, held: Sequence[tuple[str, str, str, str]]
) -> Call[dict[str, str]]:
    """Build the Redis call that corrects the use of rates: it reports how much of each unit (such as tokens) running
    jobs have really used. The call may also pause scopes of the jobs.

    A record is (id, fence, costs as text, pauses). The fence identifies the claim. ``pauses`` are ``SCOPE|MS``,
    separated by spaces. A worker sends this call before the call that ends the claims. The answer has, by id, why Redis
    refused a record.
    """
    return Call("spend", queue, {"worker": worker}, parse_pairs, held, tuple(h[0] for h in held))


def extend(queue: str, worker: str, held: Sequence[tuple[str, str]]) -> Call[Extended]:
    """Build the Redis call that extends the leases of claims, given as (job id, fence) pairs. A fence identifies a
    claim.
    """
    return Call("extend", queue, {"worker": worker}, parse_extended, held)


def parse_claimed(queue: str, reply: Sequence[Any]) -> Claimed:
    now, next_due, more, fence, *refused = reply[0].split(" ")
    now_ms, jobs = int(now), []
    # This is done for every job that a worker runs.
    for word, value in zip(reply[1::2], reply[2::2], strict=True):
        try:
            spec, waited_s = spec_and_wait(value, now_ms)
            if " " in word:
                job_id, lane, *counts = word.split(" ")
                claim, failed, lost = map(int, counts[:3]) if counts else (1, 0, 0)
                base, life = NO_BASE, None
                if len(counts) > 3:
                    base, life = read_base(counts[3]), counts[4]
                lane = "" if lane == "-" else lane
                # The line before the JSON is that of its first wait, which a scope or an earlier claim has ended.
                waited_s = None
            else:
                job_id, lane, claim, failed, lost, base, life = word, "", 1, 0, 0, NO_BASE, None
        except ValueError:
            # A JSON that cannot be read ends this claim; the other jobs of the answer are begun.
            said = f"the state of the job reads {word!r}"
            jobs.append(Claim(queue, word.partition(" ")[0], fence, 1, 0, 0, said))
            continue
        jobs.append(
            Claim(queue, job_id, fence, claim, failed, lost, spec, lane, waited_s, base, life)
        )
    due = None if next_due == "-" else int(next_due)
    # Bits: 1, jobs are left; 2, schedules are due.
    return Claimed(tuple(jobs), now_ms, due, more in "13", more in "23", parse_pairs(refused))


def parse_extended(reply: Sequence[Any]) -> Extended:
    outcomes = parse_pairs(reply[1:])
    return Extended(
        lost=tuple(i for i, o in outcomes.items() if o == "lost"),
        cancelling=tuple(i for i, o in outcomes.items() if o == "cancelling"),
    )
