"""Which columns of a table have room on a terminal, and how wide each is: words are not broken while a column can go.

Rich alone makes all columns narrower, down to two letters, so that neither heads nor words can be read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from rich.table import Table

WORD_MAX: Final = 24
"""Characters from which on a word is broken before a column is left out."""
CUT_MIN: Final = 12
"""Characters that are left at least of a cell that is cut, before a column is left out."""
_BETWEEN: Final = 3
"""Characters that each column but the first takes beside its cells; the first takes one less."""


class Column(NamedTuple):
    """A head and its cells, one a row."""

    title: str
    cells: Sequence[str]
    right: bool = False
    """Whether the cells are aligned to the right, as numbers are."""
    whole: bool = False
    """Whether no cell is folded or cut, however long it is."""
    cut: bool = False
    """Whether a cell that is too long is cut, and not folded."""

    @property
    def most(self) -> int:
        """The width of the widest cell."""
        from rich.cells import cell_len

        return max(map(cell_len, (self.title, *self.cells)))

    @property
    def least(self) -> int:
        """How wide the column must be so that no word is broken."""
        from rich.cells import cell_len

        if self.whole:
            return self.most
        if self.cut:
            return min(self.most, CUT_MIN)
        words = [word for text in (self.title, *self.cells) for word in text.split()]
        return min(max(map(cell_len, words), default=0), WORD_MAX)


def chosen(columns: Sequence[Column], width: int, drop: Sequence[str] = ()) -> list[Column]:
    """Return the columns that have room in ``width``. Those named in ``drop`` go, in this order, until the others
    have."""
    left = list(columns)
    for title in drop:
        if _total([each.least for each in left]) <= width:
            break
        left = [each for each in left if each.title != title]
    return left


def widths(columns: Sequence[Column], width: int) -> list[int] | None:
    """Return how wide each column is, or None if they have no room without broken words. What is left over goes to
    the columns that need the least more."""
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
    """Return a table of these columns. Where they have no room, all but the whole ones are folded, or cut."""
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
