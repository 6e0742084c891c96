"""Chooses the columns of a table that fit a terminal, and their widths.

A column is left out before a word is broken. rich alone would narrow all columns, down to two letters, so that words
would be unreadable.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from rich.table import Table

WORD_MAX: Final = 24
"""Words up to this number of characters are never broken. A longer word is broken before a column is left out."""
CUT_MIN: Final = 12
"""Minimum number of characters that must be left of a shortened cell. If fewer fit, a column is left out."""
_BETWEEN: Final = 3
"""Number of characters of margin for each column; the first column needs one less."""


class Column(NamedTuple):
    """One column of a table: its head, and one cell for each row."""

    title: str
    cells: Sequence[str]
    right: bool = False
    """True if the cells are right-aligned, as numbers are."""
    whole: bool = False
    """True if cells are always shown in full, neither wrapped to several lines nor cut."""
    cut: bool = False
    """True if a cell that is too long is cut. If false, it is wrapped to several lines."""

    @property
    def most(self) -> int:
        """The width in characters of the widest cell, or of the head if it is wider."""
        from rich.cells import cell_len

        return max(map(cell_len, (self.title, *self.cells)))

    @property
    def least(self) -> int:
        """The smallest width, in characters, at which the column is readable: no word up to WORD_MAX characters is
        broken. A cut column needs CUT_MIN characters, and a ``whole`` column its full width."""
        from rich.cells import cell_len

        if self.whole:
            return self.most
        if self.cut:
            return min(self.most, CUT_MIN)
        words = [word for text in (self.title, *self.cells) for word in text.split()]
        return min(max(map(cell_len, words), default=0), WORD_MAX)


def chosen(columns: Sequence[Column], width: int, drop: Sequence[str] = ()) -> list[Column]:
    """Return the columns that fit ``width`` (characters).

    Columns named in ``drop`` are left out one after another, until the remaining columns fit.
    """
    left = list(columns)
    for title in drop:
        if _total([each.least for each in left]) <= width:
            break
        left = [each for each in left if each.title != title]
    return left


def widths(columns: Sequence[Column], width: int) -> list[int] | None:
    """Return the width of each column in characters; None if the columns do not fit ``width`` without broken words.

    Spare characters go first to the column that needs the fewest of them to show every cell on one line.
    """
    found = [each.least for each in columns]
    spare = width - _total(found)
    if spare < 0:
        return None
    missing = [each.most - least for each, least in zip(columns, found, strict=True)]
    for at in sorted(range(len(columns)), key=missing.__getitem__):
        more = min(missing[at], spare)
        found[at] += more
        spare -= more
    return found


def _total(of_columns: Collection[int]) -> int:
    return sum(of_columns) + _BETWEEN * len(of_columns) - 1


def table_of(columns: Sequence[Column], width: int) -> Table:
    """Return a table of these columns, ``width`` characters wide. If they do not fit, cells are wrapped or cut, except
    in ``whole`` columns."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    room = widths(columns, width)
    for at, each in enumerate(columns):
        table.add_column(
            each.title,
            justify="right" if each.right else "left",
            overflow="ellipsis" if each.cut else "fold",
            no_wrap=each.whole or each.cut,
            width=None if room is None else room[at],
        )
    for row in zip(*(each.cells for each in columns), strict=True):
        table.add_row(*map(Text, row))
    return table
