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
"""Smallest width of a terminal, in characters, at which a table has a column of sentences."""
PIPED_WIDTH: Final = 1_000
"""Width of a line, in characters, if the output is no terminal. It is so large that nothing is cut."""


def terminal() -> Console:
    """Return the console that prints tables. It is as wide as the terminal; without a terminal, its width is
    PIPED_WIDTH.

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
    """Print rows as a table with heads; without rows, print ``empty``.

    Numbers, and the columns named in ``right``, are aligned to the right. Cells of the columns named in ``whole`` are
    never wrapped. On a narrow terminal, columns are left out in the order of ``drop``, until the words of the others
    fit. Then a line names the missing columns. Pass ``drop`` only in commands whose option --json prints all columns.
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

    On a terminal narrower than PROSE_WIDTH, print each row as several lines: the first cell, the other cells with their
    heads, and the sentences.
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

    All commands print text with this function, so that no control character in a job's text reaches the terminal.
    """
    click.echo(fit(line), err=err)
