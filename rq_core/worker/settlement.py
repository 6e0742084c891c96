"""Settlements: a worker's reports of how its claims ended, as arguments of the scripts turn, complete, fail, rollback
and park.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from rq_core.model.durable.boxes import NOTHING_KNOWN, KnownBox
from rq_core.model.job import Claim
from rq_core.model.result_encoding import is_logged
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.claims import Claimed
from rq_core.protocol.engine.plan import Call

VALUES_MAX: Final = 1024 * 1024
"""Maximum number of characters of kept results in one call, unless a single result has more. The limit is needed
because Redis copies the results, and other clients wait meanwhile. A result that is also logged counts LOGGED times."""
LOGGED: Final = 4
NOT_RUN: Final = "(not run)"
"""The text in place of the task's name in a settlement whose handler did not begin."""


class Settlement(NamedTuple):
    """A worker's report of how one claim ended. ``verdict``: complete (success), retry, final (failure), rollback or
    park.
    """

    claim: Claim
    verdict: str
    delay_ms: int = 0
    reason: str = "error"
    error: str = "null"
    """The error as a JSON object, or "null"."""
    lane: str = ""
    """The lane (list of jobs with the same priority and scopes) into which a job that is rolled back must move; empty:
    the job stays in its lane."""
    task: str = NOT_RUN
    ran_s: float = 0.0
    """Seconds that the handler ran."""
    value: str = ""
    """The kept result of a success, as Returned.dump writes it; empty: no result is kept."""
    waits: str = ""
    """Numbers of the saved waits and sleeps for which a parked job waits, separated by commas."""
    known: KnownBox = NOTHING_KNOWN
    """The id of a durable job's box and the numbers of the saved entries that Redis must have before the claim may end.
    For a job that parks, Redis must also have the entries in ``waits``. Empty for a success."""
    save_again: Callable[[Callable[..., Awaitable[Any]]], Awaitable[None]] | None = None
    """A function that saves again the entries of a durable job that Redis has lost. Its argument is the method ``save``
    of a saver."""
    tries: int = 0
    """Number of times that entries of the durable job were saved again, because Redis had lost some."""
    taken: str = ""
    """The costs (units of rates) that the handler has reported, as costs_text writes them; empty: it has reported
    none."""
    pauses: str = ""
    """The scopes that the handler has paused, and for how long: ``SCOPE|MS``, separated by spaces; usually empty."""
    unsaved: Callable[[], Sequence[tuple[str, str]]] | None = None
    """A function that returns the (queue, id) pairs of those children of a durable job whose success the job has not
    saved. If the job ends as cancelled, the worker cancels these children."""


def successes_in(
    settlements: Iterable[Settlement], queues: Collection[str]
) -> tuple[dict[str, list[Settlement]], list[Settlement]]:
    """Divide settlements into two parts. The first part has successes by queue, for the queues in ``queues``: a worker
    sends them in the call that claims from the queue. The second part has all other settlements.

    The results in the first part have at most VALUES_MAX characters; a result that is also logged counts LOGGED times.
    Further successes are in the second part.
    """
    successes: dict[str, list[Settlement]] = {}
    others = []
    room = VALUES_MAX
    for settlement in settlements:
        queue = settlement.claim.queue
        if settlement.value:
            room -= _load(settlement.value)
        if settlement.verdict == "complete" and queue in queues and room >= 0:
            successes.setdefault(queue, []).append(settlement)
        else:
            others.append(settlement)
    return successes, others


def _load(value: str) -> int:
    """Return how many characters of VALUES_MAX a settlement's result takes."""
    return len(value) * (LOGGED if is_logged(value) else 1)


def _reported(successes: Sequence[Settlement]) -> tuple[list[tuple[str, str]], dict[int, str]]:
    """Return two values for the scripts turn and complete: (id, fence) pairs of these successes, and the kept results
    by position in that list, from 1.
    """
    held = [(s.claim.id, s.claim.fence) for s in successes]
    return held, {place: s.value for place, s in enumerate(successes, 1) if s.value}


def _parts(group: Sequence[Settlement]) -> Iterator[list[Settlement]]:
    """Yield successes in several lists. The results of each list fit into one call."""
    part: list[Settlement] = []
    size = 0
    for settlement in group:
        if settlement.value:
            size += _load(settlement.value)
            if size > VALUES_MAX and part:
                yield part
                part, size = [], _load(settlement.value)
        part.append(settlement)
    yield part


def claim_call(
    queue: str, worker: str, limit: int, successes: Sequence[Settlement] = ()
) -> Call[Claimed]:
    """Build the Redis call that claims up to ``limit`` jobs of a queue, and also reports these successes of the
    queue.
    """
    if successes:
        return claims.turn(queue, worker, limit, *_reported(successes))
    return claims.claim(queue, worker, limit)


def spends_of(worker: str, settlements: Iterable[Settlement]) -> list[Call[dict[str, str]]]:
    """Build one Redis call per queue that reports how many units of their rates the jobs have really used, and that
    pauses the scopes that handlers have paused.

    The worker sends these calls before the settlements, because Redis accepts them only while the claims are in force.
    Usually the list is empty.
    """
    taken: dict[str, list[tuple[str, str, str, str]]] = {}
    for each in settlements:
        if each.taken or each.pauses:
            record = each.claim.id, each.claim.fence, each.taken, each.pauses
            taken.setdefault(each.claim.queue, []).append(record)
    return (
        [claims.spend(queue, worker, records) for queue, records in taken.items()] if taken else []
    )


def calls_of(
    worker: str, settlements: Iterable[Settlement]
) -> list[tuple[Call[dict[str, str]], list[Settlement]]]:
    """Build the Redis calls that send these settlements, as few as possible. Each call comes with the settlements that
    it sends.
    """
    groups: defaultdict[tuple[str, str], list[Settlement]] = defaultdict(list)
    for settlement in settlements:
        script = "fail" if settlement.verdict in ("retry", "final") else settlement.verdict
        groups[settlement.claim.queue, script].append(settlement)
    calls: list[tuple[Call[dict[str, str]], list[Settlement]]] = []
    for (queue, script), group in groups.items():
        call: Call[dict[str, str]]
        if script == "complete":
            calls += [
                (claims.complete(queue, worker, *_reported(part)), part) for part in _parts(group)
            ]
            continue
        if script == "fail":
            call = claims.fail(
                queue,
                worker,
                [
                    (s.claim.id, s.claim.fence, s.verdict, s.delay_ms, s.reason, s.error)
                    for s in group
                ],
                [s.known for s in group],
            )
        elif script == "park":
            call = claims.park(
                queue, worker, [(s.claim.id, s.claim.fence, s.waits, *s.known) for s in group]
            )
        else:
            call = claims.rollback(
                queue,
                worker,
                [(s.claim.id, s.claim.fence, s.reason, s.error, s.lane, s.delay_ms) for s in group],
                [s.known for s in group],
            )
        calls.append((call, group))
    return calls


def to_send_again(settlements: Sequence[Settlement]) -> list[Settlement]:
    """Return copies of settlements to send again, without the units of rates that their jobs have used.

    The units are reported at most once, because Redis may have carried out the call whose answer is missing. A pause is
    reported again: a repeated pause only lasts longer.
    """
    return [each._replace(taken="") if each.taken else each for each in settlements]
