"""How a claim ends, from the worker's side: what is sent to turn, complete, fail and rollback."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from rq_core.model.job import Claim
from rq_core.protocol import claims
from rq_core.protocol.claims import Claimed
from rq_core.protocol.plan import Call

NOT_RUN: Final = "(not run)"
"""In the place of a task: no handler began."""


class Settlement(NamedTuple):
    """One claim's end. ``verdict``: complete, retry, final or rollback."""

    claim: Claim
    verdict: str
    delay_ms: int = 0
    reason: str = "error"
    error: str = "null"
    """A JSON object."""
    lane: str = ""
    """Of a rollback: the lane that the job belongs into, if its task's policy has changed."""
    task: str = NOT_RUN
    ran_s: float = 0.0
    """How long its handler ran."""


def successes_in(
    settlements: Iterable[Settlement], queues: Collection[str]
) -> tuple[dict[str, list[Settlement]], list[Settlement]]:
    """Divide settlements: successes of these queues, which go with a claim of theirs, by queue; and the others."""
    successes: dict[str, list[Settlement]] = {}
    others = []
    for settlement in settlements:
        queue = settlement.claim.queue
        if settlement.verdict == "complete" and queue in queues:
            successes.setdefault(queue, []).append(settlement)
        else:
            others.append(settlement)
    return successes, others


def claim_call(
    queue: str, worker: str, limit: int, successes: Iterable[Settlement] = ()
) -> Call[Claimed]:
    """The call that claims up to ``limit`` jobs, and reports these successes of the queue if there are any."""
    held = [(s.claim.id, s.claim.fence) for s in successes]
    if held:
        return claims.turn(queue, worker, limit, held)
    return claims.claim(queue, worker, limit)


def calls_of(
    worker: str, settlements: Iterable[Settlement]
) -> list[tuple[Call[dict[str, str]], list[Settlement]]]:
    """The fewest calls that report all of these, each with what it reports."""
    groups: defaultdict[tuple[str, str], list[Settlement]] = defaultdict(list)
    for settlement in settlements:
        script = "fail" if settlement.verdict in ("retry", "final") else settlement.verdict
        groups[settlement.claim.queue, script].append(settlement)
    calls = []
    for (queue, script), group in groups.items():
        call: Call[dict[str, str]]
        if script == "complete":
            call = claims.complete(queue, worker, [(s.claim.id, s.claim.fence) for s in group])
        elif script == "fail":
            call = claims.fail(
                queue,
                worker,
                [
                    (s.claim.id, s.claim.fence, s.verdict, s.delay_ms, s.reason, s.error)
                    for s in group
                ],
            )
        else:
            call = claims.rollback(
                queue,
                worker,
                [(s.claim.id, s.claim.fence, s.reason, s.error, s.lane, s.delay_ms) for s in group],
            )
        calls.append((call, group))
    return calls
