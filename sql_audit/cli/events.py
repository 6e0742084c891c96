"""The commands that print events of the log: ``history`` of a job, and ``tail`` of a queue."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from rq_core.cli.options import LIST_MAX, json_option, print_json, queue_option
from rq_core.cli.text import FIELD_MAX, say, terminal
from rq_core.views.text import fit
from sql_audit.cli.options import asking, audit_option, known_watermarks
from sql_audit.cli.text import print_answer, print_marks
from sql_audit.times import readable

if TYPE_CHECKING:
    from rich.console import Console

    from rq_core.views.table import ListView
    from sql_audit.queries.history import LoggedEvent

FOLLOW_S: Final = 0.5
"""Seconds between two reads of ``audit tail --follow``."""


@click.command("history")
@click.argument("job")
@audit_option
@queue_option
@json_option
def history_command(job: str, url: str | None, queue: str | None, as_json: bool) -> None:
    """Show all events of JOB, oldest first."""
    with asking(url) as engine:
        from sql_audit.queries import history as queries

        events = queries.history(engine, job, queue)
        marks = queries.watermarks_of(engine, {event.queue for event in events})
        cuts = queries.cut_short(engine, events)
    if as_json:
        pruned = [dataclasses.asdict(cut) for cut in cuts]
        print_answer({"events": [dataclasses.asdict(e) for e in events], "pruned": pruned}, marks)
        return
    console = terminal()
    print_history(console, events, f"job {job}")
    _print_traceback(events)
    for cut in cuts:
        say(f"some events may be missing: {cut.says}")
    print_marks(console, marks)


@click.command("tail")
@audit_option
@queue_option
@click.option(
    "--lines",
    "-n",
    type=click.IntRange(0, LIST_MAX),
    default=20,
    show_default=True,
    help="Number of past events to show first.",
)
@click.option(
    "--follow", "-f", is_flag=True, help="Also show new events as they are mirrored, until Ctrl-C."
)
@json_option
def tail_command(
    url: str | None,
    queue: str | None,
    lines: int,
    follow: bool,
    as_json: bool,
) -> None:
    """Show the last events of a queue, or of all. With --json, print one JSON document per line."""
    with asking(url) as engine:
        from sql_audit.queries import history as queries
        from sql_audit.queries.event_list import EVENTS

        marks = known_watermarks(engine, queue)
        events = EVENTS.query(engine, [mark.queue for mark in marks], max(lines, 1)).rows
        _print_lines(EVENTS, events[-lines:] if lines else [], as_json=as_json)
        if not follow:
            if not as_json:
                print_marks(terminal(), marks)
            return
        with contextlib.suppress(KeyboardInterrupt):
            # By place in each queue's log, since the times of events may go back.
            last = {
                mark.queue: max(
                    (e.place for e in events if e.queue == mark.queue), default=queries.BEFORE_ALL
                )
                for mark in marks
            }
            for fresh in queries.follow(engine, queue, last):
                _print_lines(EVENTS, fresh, as_json=as_json)
                if not fresh:
                    time.sleep(FOLLOW_S)


def _print_lines(view: ListView[Any], rows: Sequence[Any], *, as_json: bool) -> None:
    """Print each row as one line. Unlike a table, the output can be continued as events arrive."""
    for row in rows:
        if as_json:
            print_json(view.document(row))
        else:
            say("  ".join(str(cell) for cell in view.cells(row, time.time() * 1000) if cell))


def _print_traceback(events: Sequence[LoggedEvent]) -> None:
    """Print the traceback of a job's last error, if there is one."""
    errors = [event.detail.get("error") for event in events]
    found = [error["traceback"] for error in errors if error and error.get("traceback")]
    if found:
        say("traceback of the last error")
        for line in found[-1].splitlines():
            say(f"  {fit(line)}")


_HEADS: Final = ("at", "queue", "number", "event", "claim", "by", "task", "detail")
_DETAIL_MIN: Final = 30
"""Minimum width of the table's details column, in characters. On a narrower console, each event's details go on a line
below the event."""


def print_history(console: Console, events: Sequence[LoggedEvent], title: str) -> None:
    """Print events as a table; if the console is too narrow, print each event as a line with its details below."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    rows = [_row(event) for event in events]
    widths = [max(map(len, column)) for column in zip(_HEADS, *rows, strict=True)][:-1]
    # Text objects: the text of a job is never read as markup.
    if sum(widths) + len(widths) + _DETAIL_MIN <= console.width:
        table = Table(title=Text(fit(title)), title_justify="left", box=None, pad_edge=False)
        for name in _HEADS:
            table.add_column(name, no_wrap=name != "detail", overflow="fold")
        for row in rows:
            table.add_row(*(Text(fit(word, FIELD_MAX)) for word in row))
        console.print(table)
        return
    console.print(Text(fit(title)))
    for at, queue, number, happened, claim, by, task, detail in rows:
        console.print(Text(fit(f"{at}  {happened}"), style="bold"))
        facts = {"claim": claim, "by": by, "task": task}
        said = [f"{name} {value}" for name, value in facts.items() if value]
        for line in (f"{queue} {number}", ", ".join(said), detail):
            if line:
                console.print(Padding(Text(fit(line), overflow="fold"), (0, 0, 0, 4)))


def _row(event: LoggedEvent) -> tuple[str, ...]:
    """Return the table cells of one event, in the order of the column heads ``_HEADS``."""
    from sql_audit.queries.event_list import detail_of, short

    detail = ", ".join(
        f"under {value}" if name == "under" else f"{name}={short(value)}"
        for name, value in detail_of(event).items()
    )
    return (
        readable(event.at_ms),
        event.queue,
        event.number,
        f"{event.type} (orphaned)" if event.orphaned else event.type,
        "" if event.claim is None else str(event.claim),
        event.worker or "",
        event.task or "",
        detail,
    )
