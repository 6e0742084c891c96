"""The type that describes a list: a query, columns, and a JSON document."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

R = TypeVar("R")


@dataclass(frozen=True)
class Found(Generic[R]):
    """The rows of a list, and the notes shown with them."""

    rows: Sequence[R]
    empty: str = ""
    """The line that is shown if there are no rows; empty: no line."""
    notes: Sequence[str] = ()
    """The lines below the table."""
    unread: Sequence[str] = ()
    """The errors of rows that could not be read. If there is an error, the command fails."""
    denied: Sequence[str] = ()
    """Queues that the user may not read. The command does not fail because of these queues."""


@dataclass(frozen=True)
class ListView(Generic[R]):
    """The description of a list that a command prints, or the web page shows."""

    query: Callable[..., Any]
    """The function that reads the rows. For rows from Redis, it takes a client's calls and returns a plan, whose result
    is a :class:`Found`. For rows from the audit log, it takes an engine and returns the Found itself."""
    columns: Mapping[str, Callable[[R, float], object]]
    """The columns: the head of each column, with the function that takes a row and the present time (Unix ms) and
    returns the cell."""
    document: Callable[[R], dict[str, Any]]
    """The function that returns a row as a JSON document. Times are Unix ms, durations ms."""
    whole: Sequence[str] = ()
    """Columns whose cells are never wrapped to several lines."""
    drop: Sequence[str] = ()
    """Columns that may be left out if the terminal is too narrow, the first to be left out first."""
    prose: bool = False
    """True if the last column has sentences."""

    def cells(self, row: R, now_ms: float) -> list[object]:
        """Return the cells of a row, in the order of the columns."""
        return [cell(row, now_ms) for cell in self.columns.values()]
