"""What the audit log says of a queue, where Redis tells it differently and its outbox does not say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rq_core.doctor.unlike import Told
from rq_core.model.ends import End
from rq_core.model.plugins import Differences


class Audited(NamedTuple):
    """What the doctor is told. Each part holds as long as Redis still has what it had when both were compared."""

    lines: Mapping[str, Told]
    """How jobs stand, by id."""
    results: Mapping[str, tuple[str, End | None]]
    """By id, the line that `results` had, and how the id's last job ended; None: no job of the id can have left it."""
    names: Mapping[str, tuple[str, int]]
    """By field of `slots`, what it had, and the instant until which that name stands (Unix ms)."""

    @classmethod
    def of(cls, differences: Differences | None) -> Audited | None:
        """What a comparison says; None if there was none, or it could not be told."""
        if differences is None or differences.lines is None:
            return None
        lines = {job_id: Told(*lines) for job_id, lines in differences.lines.items()}
        return cls(lines, differences.results, differences.names)
