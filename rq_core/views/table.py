"""The type of a list that people and programs are shown: a question, columns, and a JSON document."""

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
    """The line in place of a table without rows; empty: no line."""
    notes: Sequence[str] = ()
    """The lines below the table."""
    unread: Sequence[str] = ()
    """Rows that could not be read, each with its error: a failure."""
    denied: Sequence[str] = ()
    """Queues that the user may not read: no failure."""


@dataclass(frozen=True)
class ListView(Generic[R]):
    """A list."""

    query: Callable[..., Any]
    """Asks for the rows, and returns what was found (:class:`Found`): a plan for those of Redis, for which the first
    argument is a client's calls; of the audit log, for which it is an engine, the rows themselves."""
    columns: Mapping[str, Callable[[R, float], object]]
    """By its head, the cell of each column for a row, at a time (Unix ms)."""
    document: Callable[[R], dict[str, Any]]
    """A row for programs. Times are Unix ms, lengths of time ms."""
    whole: Sequence[str] = ()
    """Columns that are never folded."""
    drop: Sequence[str] = ()
    """Columns that are left out, in this order, where there is no room."""
    prose: bool = False
    """Whether the last column is prose."""

    def cells(self, row: R, now_ms: float) -> list[object]:
        """Return the cells of a row, in the order of the columns."""
        return [cell(row, now_ms) for cell in self.columns.values()]
