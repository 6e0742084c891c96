"""Prints lines and tables for people."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import click

from rq_core.views.text import fit

if TYPE_CHECKING:
    from rich.console import Console

FIELD_MAX: Final = 1_000
"""Maximum number of characters in a cell of a table."""
PROSE_WIDTH: Final = 140
"""Minimum width of a terminal, in characters, for a table with a column of sentences."""
PIPED_WIDTH: Final = 1_000
"""Width of a line, in characters, if the output is not a terminal. It is so large that nothing is cut."""


def terminal() -> Console:
    """Return the console that prints tables, as wide as the terminal, or PIPED_WIDTH if the output is not a terminal.

    The environment variable COLUMNS sets another width, from 1 to PIPED_WIDTH.
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
    """Print rows as a table, or ``empty`` if there are no rows.

    Columns in ``right``, and numbers, are right-aligned. Columns in ``whole`` are never wrapped. If the terminal is too
    narrow, columns are left out in the order of ``drop``, and a last line names them. Use ``drop`` only in commands
    whose option --json prints all columns.
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
    """Print rows as a table whose last column has sentences.

    On a terminal narrower than PROSE_WIDTH, print each row on several lines: the first cell, then the other cells with
    their heads, then the sentences.
    """
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


def say(line: object = "", *, err: bool = False) -> None:
    """Print one line, with control characters escaped.

    All commands print with this function, so that control characters in a job's text cannot affect the terminal.
    """
    click.echo(fit(line), err=err)
