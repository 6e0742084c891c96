"""How many claims a worker process ended, and how: counted in memory that its supervisor can read and that outlives it.

Each process writes a table of its own, so no lock is needed: a number is one aligned double, written by one thread. A
row belongs to a queue and a task. A claim without a row is counted under OTHER, so the table is bounded whatever tasks
there are. The numbers of the whole process (:class:`Vitals`) are before the rows.

A handler in native code may write over the table, and a process may be killed while it writes. So a reader believes no
number that cannot be one: whatever a table holds, it is read, and the supervisor goes on.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from ctypes import c_char, c_double
from multiprocessing.context import SpawnContext
from typing import Any, Final, NamedTuple

from rq_core.worker.settlement import NOT_RUN, Settlement

BOUNDS_S: Final = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 7_200.0,
)  # fmt: skip
"""Upper bounds of the buckets of waits and run times, in seconds; one more bucket is for longer times."""
OUTCOMES: Final = ("succeeded", "retried", "died", "cancelled", "rolled_back", "refused")
"""How a claim that a worker settles may end. ``refused``: the claim was no longer in force."""
ROWS_MAX: Final = 256
OTHER: Final = "(other)"
"""In the place of a task, once ROWS_MAX rows are taken."""

_NAME: Final = 128
_BUCKETS: Final = len(BOUNDS_S) + 1

# Of a row.
_CLAIMED: Final = 0
_ENDED: Final = 1
_RAN_S: Final = _ENDED + len(OUTCOMES)
_RUNS: Final = _RAN_S + 1
_WAITED_S: Final = _RUNS + _BUCKETS
_WAITS: Final = _WAITED_S + 1
_WIDTH: Final = _WAITS + _BUCKETS

# Before the rows.
_USED: Final = 0
_TURNS, _TURNS_S, _ANSWERED_AT, _DUE_AT, _LAG_S, _RESIDENT = range(1, 7)
_ROWS: Final = 7

_PLACE: Final[dict[tuple[str, str | None], int]] = {
    ("complete", None): OUTCOMES.index("succeeded"),
    **{(how, "dead"): OUTCOMES.index("died") for how in ("retry", "final", "rollback")},
    **{(how, "cancelled"): OUTCOMES.index("cancelled") for how in ("retry", "final", "rollback")},
    **{
        (how, to): OUTCOMES.index("retried")
        for how in ("retry", "final")
        for to in ("ready", "scheduled")
    },
    **{("rollback", to): OUTCOMES.index("rolled_back") for to in ("ready", "scheduled")},
}
"""The column after _ENDED, by verdict and the script's answer."""
_REFUSED: Final = OUTCOMES.index("refused")
_SUCCEEDED: Final = _ENDED + OUTCOMES.index("succeeded")

Row = tuple[float, ...]
"""The numbers of a queue and a task: see :class:`Parts`."""


class Parts(NamedTuple):
    """A row taken apart."""

    claims: float
    outcomes: dict[str, float]
    """The number of claims that ended with each of OUTCOMES."""
    ran_s: float
    """Seconds that handlers ran."""
    runs: Sequence[float]
    """The number of claims in each bucket of run times, by BOUNDS_S."""
    waited_s: float
    """Seconds that jobs had been ready before they were claimed."""
    waits: Sequence[float]
    """The number of claims in each bucket of waits, by BOUNDS_S."""


class Vitals(NamedTuple):
    """How one process does. Times are on the monotonic clock, which all processes of a machine share."""

    turns: float
    """Round trips in which it claimed or settled."""
    turns_s: float
    """Seconds that these took."""
    answered_at: float
    """When Redis last answered a claim, or the worker began. 0: it has not begun, or claims no more."""
    due_at: float
    """When the event loop should be measured next."""
    lag_s: float
    """How late the loop was, at the worst of the last measurements."""
    resident: float
    """Bytes of memory that are resident."""

    def lagging_s(self, now: float) -> float:
        """Return how late the event loop is. A blocked loop measures nothing, so an overdue measurement counts, too."""
        return max(self.lag_s, now - self.due_at)


class _Counts(NamedTuple):
    """The numbers of a row: counted here, where that costs less, and then copied into the shared memory."""

    start: int
    """The place of its first number."""
    numbers: list[float]


class FlowTable:
    """One worker process' counts. Made by the supervisor if there is one, written by the worker."""

    def __init__(self, context: SpawnContext | None = None, rows: int = ROWS_MAX) -> None:
        """Without ``context`` only this process can read it."""
        names, numbers = rows * 2 * _NAME, _ROWS + rows * _WIDTH
        self._names: Any
        self._numbers: Any
        if context is None:
            self._names, self._numbers = (c_char * names)(), (c_double * numbers)()
        else:
            self._names = context.RawArray(c_char, names)
            self._numbers = context.RawArray(c_double, numbers)
        self._rows = rows
        self._known: dict[tuple[str, str], _Counts] = {}
        self._resting = False

    # The worker's side; on its event loop.

    def claimed(self, queue: str, count: int) -> None:
        """Count claims."""
        counts = self._counts(queue, NOT_RUN)
        counts.numbers[_CLAIMED] += count
        self._show(counts)

    def answered(self) -> None:
        """Note that Redis has answered a claim."""
        if not self._resting:
            self._numbers[_ANSWERED_AT] = time.monotonic()

    def turned(self, took_s: float) -> None:
        """Count a round trip."""
        self._numbers[_TURNS] += 1
        self._numbers[_TURNS_S] += took_s

    def measured(self, due_at: float, lag_s: float, resident: int) -> None:
        """Note how late the event loop is at worst, when it is measured next, and the memory of the process."""
        self._numbers[_LAG_S], self._numbers[_RESIDENT] = lag_s, resident
        self._numbers[_DUE_AT] = due_at

    def at_rest(self) -> None:
        """Note that the worker is no longer expected to claim: it has ended, or is about to."""
        self._resting = True
        self._numbers[_ANSWERED_AT] = 0.0

    def ended(self, settled: Sequence[Settlement], answers: Mapping[str, str]) -> None:
        """Count claims whose settlement Redis has answered; ``answers`` is what the script said, by job id."""
        # This is done for every job that a worker runs, and most have the queue and the task of the one before.
        rows = {(each.claim.queue, each.task) for each in settled}
        for queue, task in rows:
            of_row = settled
            if len(rows) > 1:
                of_row = [s for s in settled if s.task == task and s.claim.queue == queue]
            counts = self._counts(queue, task)
            _count_ends(counts.numbers, of_row, answers)
            if task is not NOT_RUN:
                _count_times(counts.numbers, _RAN_S, [each.ran_s for each in of_row])
                waits = [w for each in of_row if (w := each.claim.waited_s) is not None]
                _count_times(counts.numbers, _WAITED_S, waits)
            self._show(counts)

    def _show(self, counts: _Counts) -> None:
        """Let readers see the counts."""
        self._numbers[counts.start : counts.start + _WIDTH] = counts.numbers

    def _counts(self, queue: str, task: str) -> _Counts:
        """The counts of a row."""
        counts = self._known.get((queue, task))
        if counts is not None:
            return counts
        used = len({each.start for each in self._known.values()})
        asked = queue, task
        # The last row is kept for claims that find no other.
        if used >= self._rows - 1:
            queue, task = OTHER, OTHER
        counts = self._known.get((queue, task))
        if counts is None:
            counts = self._known[queue, task] = _Counts(_ROWS + used * _WIDTH, [0.0] * _WIDTH)
            for at, name in ((0, queue), (1, task)):
                start = (2 * used + at) * _NAME
                self._names[start : start + _NAME] = name.encode()[:_NAME].ljust(_NAME, b"\0")
            # Not before its name is there: a reader takes this many.
            self._numbers[_USED] = used + 1
        self._known[asked] = counts
        return counts

    # The reader's side.

    def read(self) -> dict[tuple[str, str], Row]:
        """Return the counts by queue and task."""
        found: dict[tuple[str, str], Row] = {}
        for row in range(min(int(_believed(self._numbers[_USED])), self._rows)):
            at = 2 * row * _NAME
            names = self._names[at : at + _NAME], self._names[at + _NAME : at + 2 * _NAME]
            queue, task = (name.rstrip(b"\0").decode("utf-8", "replace") for name in names)
            start = _ROWS + row * _WIDTH
            numbers = tuple(map(_believed, self._numbers[start : start + _WIDTH]))
            # A name that was written over may be that of another row.
            found[queue, task] = added(found.get((queue, task)), numbers)
        return found

    def vitals(self) -> Vitals:
        """How the process does."""
        return Vitals(*map(_believed, self._numbers[_TURNS:_ROWS]))


def _count_ends(
    numbers: list[float], settled: Sequence[Settlement], answers: Mapping[str, str]
) -> None:
    """Count how claims ended."""
    if not answers and {each.verdict for each in settled} == {"complete"}:
        numbers[_SUCCEEDED] += len(settled)
        return
    for each in settled:
        numbers[_ENDED + _PLACE.get((each.verdict, answers.get(each.claim.id)), _REFUSED)] += 1


def _count_times(numbers: list[float], total: int, times: Sequence[float]) -> None:
    """Count how long something took: ``total`` is the place of the sum, and the buckets follow it."""
    if not times:
        return
    numbers[total] += sum(times)
    # Jobs that are settled together often took and waited about as long.
    first, last = bisect_left(BOUNDS_S, min(times)), bisect_left(BOUNDS_S, max(times))
    if first == last:
        numbers[total + 1 + first] += len(times)
        return
    for each in times:
        numbers[total + 1 + bisect_left(BOUNDS_S, each)] += 1


def _believed(number: float) -> float:
    """Return a number, or 0 in the place of an impossible one."""
    return number if math.isfinite(number) and number >= 0 else 0.0


def added(one: Row | None, other: Row) -> Row:
    """The sum of two rows."""
    return other if one is None else tuple(a + b for a, b in zip(one, other, strict=True))


def parts_of(row: Row) -> Parts:
    """Take a row apart."""
    return Parts(
        row[_CLAIMED],
        dict(zip(OUTCOMES, row[_ENDED:_RAN_S], strict=True)),
        row[_RAN_S],
        row[_RUNS:_WAITED_S],
        row[_WAITED_S],
        row[_WAITS:],
    )
