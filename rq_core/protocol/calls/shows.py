"""The call with which a worker reports the progress of its jobs, and chunks of their streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from rq_core.protocol.engine.plan import Call, parse_pairs


class Show(NamedTuple):
    """One report of a running job: its progress or a chunk of its stream."""

    id: str
    fence: str
    claim: int
    start: int
    """The number of the stream's last chunk before the claim's first chunk, as the answer to an earlier call said; 0
    before the first answer."""
    kind: Literal["says", "chunk"]
    number: int
    """The number of the report, or of the chunk, within the claim, from 1."""
    text: str


def show_jobs(queue: str, worker: str, records: Sequence[Show]) -> Call[Mapping[str, str]]:
    """Return the call that reports progress and chunks of running jobs.

    Its answer is job id → number of the stream's last chunk before the claim's first chunk. If the claim is not in
    force, the answer has ``gone`` or ``stale`` in place of the number.
    """
    return Call("show", queue, {"worker": worker}, parse_pairs, records)
