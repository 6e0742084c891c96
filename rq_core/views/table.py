"""The type that describes a list for people and programs: a query, columns, and a JSON document."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

R = TypeVar("R")


@dataclass(frozen=True)
class Found(Generic[R]):
    """The rows of a list, and the notes beside them."""

    rows: Sequence[R]
    empty: str = ""
    """The line that is shown if there are no rows; empty: no line."""
    notes: Sequence[str] = ()
    """The lines below the table."""
    unread: Sequence[str] = ()
    """The errors of rows that could not be read; they count as a failure of the command."""
    denied: Sequence[str] = ()
    """Queues that the user may not read; they do not count as a failure."""


@dataclass(frozen=True)
class ListView(Generic[R]):
    """The description of a list."""

    query: Callable[..., Any]
    """The function that returns the rows (:class:`Found`). For Redis it takes a client's calls and returns a plan;
    for the audit log it takes an engine and returns the rows themselves."""
    columns: Mapping[str, Callable[[R, float], object]]
    """Head of a column → the function that returns its cell for a row and the present time (Unix ms)."""
    document: Callable[[R], dict[str, Any]]
    """The function that returns a row as a JSON document. Times are Unix ms, durations ms."""
    whole: Sequence[str] = ()
    """Columns that are never folded."""
    drop: Sequence[str] = ()
    """Columns that are left out, in this order, if the terminal is too narrow."""
    prose: bool = False
    """Whether the last column is prose."""

    def cells(self, row: R, now_ms: float) -> list[object]:
        """Return the cells of a row, in the order of the columns."""
        return [cell(row, now_ms) for cell in self.columns.values()]
