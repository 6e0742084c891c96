"""What one turn of the mirror carries from step to step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from sql_audit.mirror import losses
from sql_audit.mirror.cursor import Cursor
from sql_audit.mirror.fold import Folder
from sql_audit.mirror.gaps import Break
from sql_audit.mirror.intake import Intake, Quarantined
from sql_audit.mirror.reading import Ahead, RawEntry
from sql_audit.store import minutes
from sql_audit.store.chain import rows_digest
from sql_audit.store.copy import Rows


class Projection(NamedTuple):
    """What follows from a batch's events: what is written behind them."""

    digest: str
    """SHA-256 of the events' rows."""
    jobs: tuple[Rows, Rows]
    attempts: tuple[Rows, Rows]
    minutes: list[minutes.Row]

    @classmethod
    def of(cls, folder: Folder, text: str) -> Projection:
        """``text``: the events' rows as COPY has them."""
        return cls(
            rows_digest(text),
            folder.job_rows(),
            folder.attempt_rows(),
            minutes.counted(folder.attempts),
        )


@dataclass(slots=True)
class Batch:
    """What one turn carries from step to step."""

    cursor: Cursor
    """As read; from ``lock`` on, as locked."""
    read: list[RawEntry]
    """From the anchor on, if there is one."""
    moved: bool = False
    """Whether the cursor moved between the two."""
    entries: list[RawEntry] = field(default_factory=list)
    intakes: list[Intake] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    extra: list[Quarantined] = field(default_factory=list)
    """What is kept raw besides the entries' own."""
    rejoined: bool = False
    """Whether Redis' history went on without the anchor."""
    fork: losses.Fork | None = None
    """Where Redis' history left SQL's, if its first entry says so."""
    ahead: Ahead | None = None
    """``read``, if it was read while the batch before was written."""
    more_follow: bool = False
    """Whether there is so much that another batch will follow at once."""
    folder: Folder | None = None
    projection: Projection | None = None
