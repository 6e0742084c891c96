"""The call with which a worker reports the progress of its jobs, and sends chunks of the streams that their handlers
emit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from rq_core.protocol.engine.plan import Call, parse_pairs


class Show(NamedTuple):
    """One report of a running job: its progress, or a chunk of text of its stream."""

    id: str
    fence: str
    claim: int
    start: int
    """The number of the last chunk that earlier claims of the job have sent. Redis reports this number in its answers;
    it is 0 before the first answer."""
    kind: Literal["says", "chunk"]
    number: int
    """The number of this report or chunk among those of the claim, from 1."""
    text: str


def show_jobs(queue: str, worker: str, records: Sequence[Show]) -> Call[Mapping[str, str]]:
    """Build the Redis call that reports progress and chunks of running jobs.

    Its answer has, by job id, the number of the last chunk that earlier claims of the job have sent. If Redis refused
    the records of a job because its claim is not in force, the answer has ``gone`` or ``stale`` in place of the number.
    """
    return Call("show", queue, {"worker": worker}, parse_pairs, records)
