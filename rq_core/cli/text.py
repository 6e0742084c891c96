"""Lines, times and tables for people."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

from rq_core.masking import masked
from rq_core.model.text import printable

if TYPE_CHECKING:
    from rich.console import Console

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
LINE_MAX: Final = 4_000
"""Characters of a line that is printed; --json prints all."""
FIELD_MAX: Final = 1_000
"""Characters of a table's cell, whatever is in it."""
CELL_MAX: Final = 100
"""Characters of a text from elsewhere in a cell of a table."""
PROSE_WIDTH: Final = 140
"""Columns from which on a table has room for a column of prose."""
PIPED_WIDTH: Final = 1_000
"""Columns where the output is no terminal: wide enough that nothing is cut."""


def span(ms: float) -> str:
    """Return a length of time in its two largest units, like ``2 h 5 min``."""
    left = int(abs(ms) // 1000)
    words = []
    for seconds, unit in _UNITS:
        if left >= seconds:
            words.append(f"{left // seconds} {unit}")
            left %= seconds
    return " ".join(words[:2]) or "0 s"


def oldest(ms: int | None, *, exact: bool) -> str:
    """Return the age of the oldest job that was looked at; with ``>=`` if there may be an older one."""
    if ms is None:
        return "" if exact else "?"
    return span(ms) if exact else f">= {span(ms)}"


def utc(at_ms: float) -> str:
    """Return a moment (Unix ms) like ``2026-11-21 10:00:00 UTC``."""
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{at_ms:.0f} ms"


def ago(at_ms: float, now_ms: float) -> str:
    """Return a moment and how far off it is."""
    away = span(now_ms - at_ms)
    return f"{away} ago ({utc(at_ms)})" if at_ms <= now_ms else f"in {away} ({utc(at_ms)})"


def terminal() -> Console:
    """Return what prints tables: as wide as the terminal, or as wide as a line may get where a program reads.

    Where the environment variable COLUMNS is a number, it is the width of both.
    """
    from rich.console import Console

    given = os.environ.get("COLUMNS", "")
    if given.isascii() and given.isdigit() and 0 < int(given) <= PIPED_WIDTH:
        return Console(width=int(given), highlight=False)
    return Console(width=None if sys.stdout.isatty() else PIPED_WIDTH, highlight=False)


def print_table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    empty: str,
    whole: Collection[str] = (),
    drop: Sequence[str] = (),
    right: Collection[str] = (),
) -> None:
    """Print rows under their heads; numbers, and the columns named in ``right``, to the right. ``empty`` is said when
    there are none.

    On a narrow terminal the columns named in ``drop`` are left out, in this order, until no word of the others is
    broken, and a line names them: only for commands with --json, which prints all. Those named in ``whole`` are never
    folded.
    """
    found = [list(row) for row in rows]
    if not found:
        if empty:
            say(empty)
        return
    from rq_core.cli.columns import Column, chosen, table_of

    columns = [
        Column(
            title,
            [
                fit(f"{row[at]:,}" if isinstance(row[at], int) else row[at], FIELD_MAX)
                for row in found
            ],
            right=title in right or all(isinstance(row[at], int) for row in found),
            whole=title in whole,
        )
        for at, title in enumerate(head)
    ]
    console = terminal()
    shown = chosen(columns, console.width, drop)
    console.print(table_of(shown, console.width))
    left_out = [each.title for each in columns if each not in shown]
    if left_out:
        say(f"no room for: {', '.join(left_out)}; --json prints all")


def print_records(
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    empty: str,
    whole: Collection[str] = (),
) -> None:
    """Print rows as a table whose last column is prose. On a terminal where that would be a narrow strip, print each
    row as a few lines: what stands under the first head, the others with their heads, and the prose."""
    import textwrap

    width = terminal().width
    if width >= PROSE_WIDTH or not rows:
        print_table(head, rows, empty=empty, whole=whole)
        return
    for first, *others, prose in rows:
        facts = ", ".join(
            f"{title} {value}" for title, value in zip(head[1:-1], others, strict=True)
        )
        say(first)
        for text in (facts, fit(prose, FIELD_MAX)):
            for line in textwrap.wrap(text, max(width - 2, 1)):
                say(f"  {line}")


def fit(text: object, most: int = LINE_MAX) -> str:
    """Return a text as one line that cannot steer a terminal. Of one with more than ``most`` characters, it has the
    beginning and the end: jobs and servers may say anything, at any length."""
    whole = str(text)
    if len(whole) > most:
        half = most // 2
        whole = f"{whole[:half]} … {len(whole) - 2 * half:,} characters left out … {whole[-half:]}"
    return printable(whole)


def say(line: object = "", *, err: bool = False) -> None:
    """Print one line, made fit. Commands print nothing by another way, so that no text of a job reaches a terminal."""
    click.echo(fit(line), err=err)


def shortened(text: str) -> str:
    """Return the beginning of a text, as one line that can be printed."""
    line = one_line(text)
    return line if len(line) <= CELL_MAX else f"{line[: CELL_MAX - 1]}…"


def one_line(text: str) -> str:
    """Return the text as one line that can be printed, without passwords."""
    return fit(masked(" ".join(text.split())))
