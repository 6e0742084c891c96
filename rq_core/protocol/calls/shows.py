"""The call with which a worker shows how far its jobs have come, and the chunks of their streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from rq_core.protocol.engine.plan import Call, parse_pairs


class Show(NamedTuple):
    """One report of a running job."""

    id: str
    fence: str
    claim: int
    start: int
    """The number before the claim's first chunk, as an earlier call has answered it; 0 before the first answer."""
    kind: Literal["says", "chunk"]
    number: int
    """The number of the report, or of the chunk, within the claim, from 1."""
    text: str


def show_jobs(queue: str, worker: str, records: Sequence[Show]) -> Call[Mapping[str, str]]:
    """Return the call that shows something of running jobs. Its answer has, by the job's id, the number before the
    claim's first chunk; or why the job's reports are refused: ``gone`` or ``stale``, the claim is not in force."""
    return Call("show", queue, {"worker": worker}, parse_pairs, records)
