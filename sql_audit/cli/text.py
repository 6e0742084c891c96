"""Output that several audit commands print: JSON answers with the queues' watermarks, and progress bars."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rq_core.cli.options import print_json
from rq_core.views.text import fit

if TYPE_CHECKING:
    from rich.console import Console

    from sql_audit.queries.history import Watermark


def print_answer(document: dict[str, Any], marks: Sequence[Watermark]) -> None:
    """Print an answer as one JSON document, together with the last mirrored event of each queue (its watermark): the
    answer is valid up to that event.
    """
    print_json(document | {"watermarks": [dataclasses.asdict(mark) for mark in marks]})


def print_marks(console: Console, marks: Sequence[Watermark]) -> None:
    for mark in marks:
        console.print(fit(mark), style="dim", markup=False)


def in_ms(value: int | None) -> str:
    if value is None:
        return "-"
    return f"{value} ms" if value < 10_000 else f"{value / 1000:.1f} s"


@contextlib.contextmanager
def progress(*, shown: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function (queue, done, total) that draws a progress bar for each queue.

    The function draws nothing if ``shown`` is False or standard error is no terminal.
    """
    if not shown or not sys.stderr.isatty():
        yield lambda _queue, _done, _of: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Remaining()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bars: dict[str, Any] = {}

        def show(queue: str, done: int, of: int) -> None:
            if queue not in bars:
                bars[queue] = progress.add_task(queue, total=of)
            progress.update(bars[queue], completed=done)

        yield show
