"""Counts the claims that a worker process ended, by outcome. The worker shares the memory of the counts with its
supervisor.

The counts outlive the process. Each process writes a table of its own, so no lock is needed: a number is one aligned
double, written by one thread. A row of the table has the counts of one queue and one task. Once all rows are taken,
claims without a row are counted under OTHER. The numbers of the whole process (:class:`Vitals`) are at the beginning of
the table, before the rows.

A handler in native code may overwrite the table, and a process may be killed while it writes. So a reader replaces
impossible numbers by 0: no content of a table can stop the supervisor.
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
"""Upper bounds of the histogram buckets of waits and run times, in seconds. One more bucket counts longer times."""
OUTCOMES: Final = ("succeeded", "retried", "died", "cancelled", "rolled_back", "refused", "parked")
"""The outcomes by which a worker's claims are counted. ``refused``: Redis refused the settlement, because the claim was
no longer in force."""
ROWS_MAX: Final = 256
OTHER: Final = "(other)"
"""The queue and task of the row that counts all other claims, once ROWS_MAX - 1 rows are taken."""

_NAME: Final = 128
_BUCKETS: Final = len(BOUNDS_S) + 1

# Indexes within a row.
_CLAIMED: Final = 0
_ENDED: Final = 1
_RAN_S: Final = _ENDED + len(OUTCOMES)
_RUNS: Final = _RAN_S + 1
_WAITED_S: Final = _RUNS + _BUCKETS
_WAITS: Final = _WAITED_S + 1
_WIDTH: Final = _WAITS + _BUCKETS

# Indexes of the numbers before the rows.
_USED: Final = 0
_TURNS, _TURNS_S, _ANSWERED_AT, _DUE_AT, _LAG_S, _RESIDENT = range(1, 7)
_ROWS: Final = 7

_PLACE: Final[dict[tuple[str, str | None], int]] = {
    ("complete", None): OUTCOMES.index("succeeded"),
    **{(how, "dead"): OUTCOMES.index("died") for how in ("retry", "final", "rollback")},
    **{
        (how, "cancelled"): OUTCOMES.index("cancelled")
        for how in ("retry", "final", "rollback", "park")
    },
    **{
        (how, to): OUTCOMES.index("retried")
        for how in ("retry", "final")
        for to in ("ready", "scheduled")
    },
    **{("park", to): OUTCOMES.index("parked") for to in ("ready", "parked")},
    **{("rollback", to): OUTCOMES.index("rolled_back") for to in ("ready", "scheduled")},
}
"""(verdict of the worker, answer of Redis to the settlement) → index in OUTCOMES. Any other pair counts as refused."""
_REFUSED: Final = OUTCOMES.index("refused")
_SUCCEEDED: Final = _ENDED + OUTCOMES.index("succeeded")

Row = tuple[float, ...]
"""The counts of one queue and one task, as a tuple of numbers. :class:`Parts` has the same numbers by name."""


class Parts(NamedTuple):
    """The counts of one queue and one task, by name."""

    claims: float
    outcomes: dict[str, float]
    """Outcome (of OUTCOMES) → number of claims."""
    ran_s: float
    """Seconds that handlers ran, in total."""
    runs: Sequence[float]
    """Number of claims in each bucket of run times (bounds: BOUNDS_S)."""
    waited_s: float
    """Seconds that jobs had been ready before they were claimed, in total."""
    waits: Sequence[float]
    """Number of claims in each bucket of waits (bounds: BOUNDS_S)."""


class Vitals(NamedTuple):
    """The health of one worker process. Times are seconds of the monotonic clock, which all processes of a machine
    share.
    """

    turns: float
    """Number of round trips in which the worker claimed or settled."""
    turns_s: float
    """Seconds that the round trips took, in total."""
    answered_at: float
    """Time of Redis' last answer to a claim, or of the worker's start; 0: the worker has not started, or claims no
    more."""
    due_at: float
    """Time at which the lateness of the event loop should be measured next."""
    lag_s: float
    """Greatest lateness of the loop, in seconds, among the last measurements."""
    resident: float
    """Bytes of resident memory."""

    def lagging_s(self, now: float) -> float:
        """Return the seconds by which the event loop is late. An overdue measurement counts as lag: a blocked loop
        cannot measure."""
        return max(self.lag_s, now - self.due_at)


class _Counts(NamedTuple):
    """The counts of one queue and one task in ordinary memory. The worker counts there, then copies the numbers into
    the shared memory.
    """

    start: int
    """Index of the row's first number in the table."""
    numbers: list[float]


class FlowTable:
    """The counts of one worker process. The worker writes the table. The worker's supervisor, if there is one, creates
    and reads the table.
    """

    def __init__(self, context: SpawnContext | None = None, rows: int = ROWS_MAX) -> None:
        """Create an empty table of ``rows`` rows. Only with ``context`` can another process read the table."""
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

    # The worker's side, on its event loop.

    def claimed(self, queue: str, count: int) -> None:
        """Count ``count`` claims of a queue."""
        counts = self._counts(queue, NOT_RUN)
        counts.numbers[_CLAIMED] += count
        self._show(counts)

    def answered(self) -> None:
        """Store the present time as the time of Redis' last answer to a claim, so that a supervisor sees that the
        worker works. Do nothing after ``at_rest``.
        """
        if not self._resting:
            self._numbers[_ANSWERED_AT] = time.monotonic()

    def turned(self, took_s: float) -> None:
        """Count a round trip that took ``took_s`` seconds."""
        self._numbers[_TURNS] += 1
        self._numbers[_TURNS_S] += took_s

    def measured(self, due_at: float, lag_s: float, resident: int) -> None:
        """Store the time of the loop's next measurement, the loop's greatest lag (seconds) and the resident memory
        (bytes).
        """
        self._numbers[_LAG_S], self._numbers[_RESIDENT] = lag_s, resident
        self._numbers[_DUE_AT] = due_at

    def at_rest(self) -> None:
        """Record that the worker claims no more, so that a supervisor does not take the missing claims for a fault."""
        self._resting = True
        self._numbers[_ANSWERED_AT] = 0.0

    def ended(self, settled: Sequence[Settlement], answers: Mapping[str, str]) -> None:
        """Count claims that have ended. Redis has answered all these settlements. ``answers``: job id → the answer of
        Redis; successes are left out.
        """
        # This runs for every job; most jobs have the queue and the task of the job before.
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
        """Copy the counts into the shared memory, where the supervisor reads them."""
        self._numbers[counts.start : counts.start + _WIDTH] = counts.numbers

    def _counts(self, queue: str, task: str) -> _Counts:
        """Return the counts of a queue and task. The first use takes a new row, or the row of OTHER if the table is
        full."""
        counts = self._known.get((queue, task))
        if counts is not None:
            return counts
        used = len({each.start for each in self._known.values()})
        asked = queue, task
        # The last row is for the claims of all other queues and tasks.
        if used >= self._rows - 1:
            queue, task = OTHER, OTHER
        counts = self._known.get((queue, task))
        if counts is None:
            counts = self._known[queue, task] = _Counts(_ROWS + used * _WIDTH, [0.0] * _WIDTH)
            for at, name in ((0, queue), (1, task)):
                start = (2 * used + at) * _NAME
                self._names[start : start + _NAME] = name.encode()[:_NAME].ljust(_NAME, b"\0")
            # After the name is written: a reader reads this number of rows.
            self._numbers[_USED] = used + 1
        self._known[asked] = counts
        return counts

    # The reader's side.

    def read(self) -> dict[tuple[str, str], Row]:
        """Return the rows by (queue, task)."""
        found: dict[tuple[str, str], Row] = {}
        for row in range(min(int(_believed(self._numbers[_USED])), self._rows)):
            at = 2 * row * _NAME
            names = self._names[at : at + _NAME], self._names[at + _NAME : at + 2 * _NAME]
            queue, task = (name.rstrip(b"\0").decode("utf-8", "replace") for name in names)
            start = _ROWS + row * _WIDTH
            numbers = tuple(map(_believed, self._numbers[start : start + _WIDTH]))
            # An overwritten name may equal the name of another row.
            found[queue, task] = added(found.get((queue, task)), numbers)
        return found

    def vitals(self) -> Vitals:
        """Return the health of the process."""
        return Vitals(*map(_believed, self._numbers[_TURNS:_ROWS]))


def _count_ends(
    numbers: list[float], settled: Sequence[Settlement], answers: Mapping[str, str]
) -> None:
    """Add the outcomes of settlements to a row's numbers."""
    if not answers and {each.verdict for each in settled} == {"complete"}:
        numbers[_SUCCEEDED] += len(settled)
        return
    for each in settled:
        numbers[_ENDED + _PLACE.get((each.verdict, answers.get(each.claim.id)), _REFUSED)] += 1


def _count_times(numbers: list[float], total: int, times: Sequence[float]) -> None:
    """Add times (seconds) to the counts of a row: to the sum at the index ``total``, and to the histogram buckets after
    that index.
    """
    if not times:
        return
    numbers[total] += sum(times)
    # Jobs that are settled together often have similar run times and waits.
    first, last = bisect_left(BOUNDS_S, min(times)), bisect_left(BOUNDS_S, max(times))
    if first == last:
        numbers[total + 1 + first] += len(times)
        return
    for each in times:
        numbers[total + 1 + bisect_left(BOUNDS_S, each)] += 1


def _believed(number: float) -> float:
    """Return the number, or 0 if the number is negative, infinite or not a number."""
    return number if math.isfinite(number) and number >= 0 else 0.0


def added(one: Row | None, other: Row) -> Row:
    """Return the sum of two rows."""
    return other if one is None else tuple(a + b for a, b in zip(one, other, strict=True))


def parts_of(row: Row) -> Parts:
    """Return a row's numbers by name."""
    return Parts(
        row[_CLAIMED],
        dict(zip(OUTCOMES, row[_ENDED:_RAN_S], strict=True)),
        row[_RAN_S],
        row[_RUNS:_WAITED_S],
        row[_WAITED_S],
        row[_WAITS:],
    )
