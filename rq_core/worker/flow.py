"""How many claims a worker process ended, and how: counted in memory that its supervisor can read and that outlives it.

Each process writes a table of its own, so no lock is needed: a number is one aligned double, written by one thread. A
row belongs to a queue and a task. What finds no row is counted under OTHER, so the table is bounded whatever tasks
there are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from ctypes import c_char, c_double
from multiprocessing.context import SpawnContext
from typing import Any, Final

from rq_core.worker.settlement import NOT_RUN, Settlement

BOUNDS_S: Final = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 7_200.0,
)  # fmt: skip
"""Upper bounds of the buckets of run times, in seconds; one more bucket has what took longer."""
OUTCOMES: Final = ("succeeded", "retried", "died", "cancelled", "rolled_back", "refused")
"""How a claim that a worker settles may end. ``refused``: the claim was no longer in force."""
ROWS_MAX: Final = 256
OTHER: Final = "(other)"
"""In the place of a task, once ROWS_MAX rows are taken."""

_NAME: Final = 128
_CLAIMED: Final = 0
_ENDED: Final = 1
_RAN_S: Final = _ENDED + len(OUTCOMES)
_BUCKETS: Final = _RAN_S + 1
_WIDTH: Final = _BUCKETS + len(BOUNDS_S) + 1

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
"""By verdict and the script's answer: the column after _ENDED."""
_REFUSED: Final = OUTCOMES.index("refused")

Row = tuple[float, ...]
"""Claims, how they ended (by OUTCOMES), the seconds that handlers ran, and how many ran how long (by BOUNDS_S)."""


class FlowTable:
    """One worker process' counts. Made by the supervisor if there is one, written by the worker."""

    def __init__(self, context: SpawnContext | None = None, rows: int = ROWS_MAX) -> None:
        """Without ``context`` only this process can read it."""
        names, numbers = rows * 2 * _NAME, 1 + rows * _WIDTH
        self._names: Any
        self._numbers: Any
        if context is None:
            self._names, self._numbers = (c_char * names)(), (c_double * numbers)()
        else:
            self._names = context.RawArray(c_char, names)
            self._numbers = context.RawArray(c_double, numbers)
        self._rows = rows
        self._known: dict[tuple[str, str], int] = {}

    # The worker's side; on its event loop.

    def claimed(self, queue: str, count: int) -> None:
        """Count claims."""
        self._numbers[self._row(queue, NOT_RUN) + _CLAIMED] += count

    def ended(self, settled: Iterable[Settlement], answers: Mapping[str, str]) -> None:
        """Count claims whose settlement Redis has answered; ``answers`` is what the script said, by job id."""
        numbers, known = self._numbers, self._known
        for claim, verdict, *_, task, ran_s in settled:
            row = known.get((claim.queue, task))
            if row is None:
                row = self._row(claim.queue, task)
            how = _PLACE.get((verdict, answers.get(claim.id)), _REFUSED)
            numbers[row + _ENDED + how] += 1
            if task != NOT_RUN:
                numbers[row + _RAN_S] += ran_s
                numbers[row + _BUCKETS + bisect_left(BOUNDS_S, ran_s)] += 1

    def _row(self, queue: str, task: str) -> int:
        """The place of a row's first number."""
        row = self._known.get((queue, task))
        if row is not None:
            return row
        used = len(set(self._known.values()))
        # The last row is kept for what finds no other.
        if used >= self._rows - 1:
            queue, task = OTHER, OTHER
        row = self._known.get((queue, task))
        if row is None:
            row = self._known[queue, task] = 1 + used * _WIDTH
            for at, name in ((0, queue), (1, task)):
                start = (2 * used + at) * _NAME
                self._names[start : start + _NAME] = name.encode()[:_NAME].ljust(_NAME, b"\0")
            # Not before its name is there: a reader takes this many.
            self._numbers[0] = used + 1
        self._known[queue, task] = row
        return row

    # The reader's side.

    def read(self) -> dict[tuple[str, str], Row]:
        """What was counted, by queue and task."""
        found = {}
        for row in range(int(self._numbers[0])):
            at = 2 * row * _NAME
            names = self._names[at : at + _NAME], self._names[at + _NAME : at + 2 * _NAME]
            queue, task = (name.rstrip(b"\0").decode("utf-8", "replace") for name in names)
            start = 1 + row * _WIDTH
            found[queue, task] = tuple(self._numbers[start : start + _WIDTH])
        return found


def parts_of(row: Row) -> tuple[float, dict[str, float], float, tuple[float, ...]]:
    """A row taken apart: claims, how many ended how, the seconds that handlers ran, how many ran how long."""
    return (
        row[_CLAIMED],
        dict(zip(OUTCOMES, row[_ENDED:_RAN_S], strict=True)),
        row[_RAN_S],
        row[_BUCKETS:],
    )
