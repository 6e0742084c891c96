"""Makes the text of rows in PostgreSQL's COPY format. The mirror sends this text to COPY, and the hash of a batch is
computed from this text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

Row = Sequence[Any]


class Rows(list[Row]):
    """Rows that will be written into one table."""

    _text: str | None = None

    def text(self) -> str:
        """Return the rows in the text format of COPY. The text is computed once."""
        if self._text is None:
            self._text = self._make_text()
        return self._text

    def _make_text(self) -> str:
        return copy_text(self)


class EventRows(Rows):
    """Rows of ``job_event`` to write. Their lines in PostgreSQL's COPY format may already be known."""

    def __init__(self, rows: Iterable[Row], lines: Sequence[str] | None = None) -> None:
        """Make the list of ``rows``. ``lines`` are the lines that :func:`plain_line` makes of the rows; None: not known
        yet.
        """
        super().__init__(rows)
        self._lines = lines

    def _make_text(self) -> str:
        return copy_text(self, self._lines)


_ESCAPES: Final = str.maketrans(
    {"\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\v": "\\v", "\f": "\\f", "\r": "\\r"}
)
_ESCAPED_SELDOM: Final = ("\\", "\b", "\v", "\f", "\r")
_odd: Final = re.compile(r"[\\\x08\n\v\f\r]").search
_NULL: Final = "\0"
_CHUNK: Final = 64
"""Number of rows that are checked together: if none of them needs an escape, their lines are used unchanged."""
_PART: Final = 8
"""Number of rows that are checked together if some of a chunk need an escape."""


def copy_text(rows: Sequence[Row], lines: Sequence[str] | None = None) -> str:
    """Return rows in the text format of PostgreSQL's COPY. Each line, including the last one, ends with a line break.

    ``lines`` are the rows' lines from :func:`plain_line` or :func:`event_line`, if they are already known.
    """
    if lines is None:
        lines = list(map(plain_line, rows))
    return "".join(
        [
            _escaped(rows[begin : begin + _CHUNK], lines[begin : begin + _CHUNK])
            for begin in range(0, len(rows), _CHUNK)
        ]
    )


def plain_line(row: Row) -> str:
    """Return a row as a line of COPY in which nothing is escaped yet. A null value is the character NUL."""
    return "\t".join(["\0" if value is None else str(value) for value in row])


def event_line(row: Row) -> str:
    """Return a row of ``job_event`` as a line of COPY in which nothing is escaped yet, as :func:`plain_line` does, but
    faster.
    """
    queue, epoch, seq, ordinal, kind, at_ms, job_id, claim, worker, task, detail = row
    return (
        f"{queue}\t{epoch}\t{seq}\t{ordinal}\t{kind}\t{at_ms}\t{job_id if job_id is not None else _NULL}"
        f"\t{claim if claim is not None else _NULL}\t{worker if worker is not None else _NULL}"
        f"\t{task if task is not None else _NULL}\t{detail if detail is not None else _NULL}"
    )


def _escaped(rows: Sequence[Row], lines: Sequence[str]) -> str:
    text = "\n".join([*lines, ""])
    # If a value has a separator or NUL in it, the counts are too high.
    if (
        text.count("\n") == len(rows)
        and text.count("\t") == sum(map(len, rows)) - len(rows)
        and text.count("\0") == sum([row.count(None) for row in rows])
        and not any([char in text for char in _ESCAPED_SELDOM])  # noqa: C419 - quicker as a list
    ):
        return text.replace("\0", "\\N")
    # Few rows need escapes (such as an error with line breaks); the lines of the others are used unchanged.
    if len(rows) > _PART:
        return "".join(
            [
                _escaped(rows[begin : begin + _PART], lines[begin : begin + _PART])
                for begin in range(0, len(rows), _PART)
            ]
        )
    escaped = [
        line.replace("\0", "\\N")
        if not _odd(line) and line.count("\t") < len(row) and line.count("\0") == row.count(None)
        else "\t".join(["\\N" if v is None else str(v).translate(_ESCAPES) for v in row])
        for row, line in zip(rows, lines, strict=True)
    ]
    return "\n".join([*escaped, ""])
