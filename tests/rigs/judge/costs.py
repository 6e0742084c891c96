"""Judges from the handlers' lines alone whether a rate that counts a unit was exceeded. The judge's bucket shares no
code with the rate."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from rq_core.model.events import OutboxId
from tests.rigs.naive_bucket import Bucket


class Run(NamedTuple):
    """One run of a handler, with the earliest and the latest time (Unix ms) at which its job can have been claimed."""

    claimed_by: OutboxId
    """The entry of the claim; the order of entries is the order of claims."""
    latest_ms: int
    earliest_ms: int
    key: str
    job: str
    cost: int


def runs(lines: Iterable[Mapping[str, Any]], places: int, since_ms: float = 0) -> Iterator[Run]:
    """Yield the runs of all lines, in the order of claims. ``places`` is the number of handlers that a worker process
    runs at once. No job was claimed before ``since_ms`` (Unix ms).

    A job was claimed before its handler began. Its worker then had a free place: of the jobs that the process had
    claimed earlier, at most ``places`` - 1 still ran.
    """
    ended: defaultdict[int, list[float]] = defaultdict(list)
    ordered = [(OutboxId.parse(line["fence"]), line["began_ms"], line) for line in lines]
    for claimed_by, began_ms, line in sorted(ordered, key=lambda each: each[:2]):
        last = ended[line["pid"]]  # The last ends, of which the first is the one that made place.
        earliest = math.floor(last[0] if len(last) == places else since_ms)
        yield Run(
            claimed_by, math.floor(began_ms), earliest, line["key"], line["job"], line["tokens"]
        )
        heapq.heappush(last, line["at_ms"])
        if len(last) > places:
            heapq.heappop(last)


def too_early(found: Iterable[Run], bucket: Callable[[], Bucket]) -> list[str]:
    """Return a sentence for each handler that began too early: whichever possible times of the claims are assumed, the
    bucket of its key had no room yet."""
    buckets: defaultdict[str, Bucket] = defaultdict(bucket)
    problems = []
    for run in found:
        mine = buckets[run.key]
        opens_ms = mine.opens_ms(run.cost, run.earliest_ms)
        if opens_ms > run.latest_ms:
            problems.append(
                f"{run.job} of {run.key} began {opens_ms - run.latest_ms} ms too early to take {run.cost:,}"
            )
        mine.take(run.cost, min(opens_ms, run.latest_ms))
    return problems
