"""Sizes of a benchmark run: `quick` takes less than a minute, `full` gives published figures, `tiny` only tries the
code.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """The sizes of all measurements. A field is a number of jobs unless its name or its docstring says otherwise."""

    repeats: int
    thorough: bool
    """True if the run also measures: jobs under caps, mirrors of small entries, mirrors with one event per transaction,
    and four workers."""
    bulk: int
    one: int
    drain: int
    scaled: int
    """The number of jobs per worker, for jobs that take time; 0: this measurement is left out."""
    paced: int
    redis: int
    memory: int
    depths: tuple[int, ...]
    """The numbers of waiting jobs for which a job's cost is measured. At the last number, as many scheduled jobs are
    added for a further measurement."""
    probe: int
    """The number of jobs that are measured at each number of waiting jobs."""
    idle_s: float
    mirror: int
    end_to_end: int
    relayed: int
    """The number of rows that a relay passes from an inbox to Redis."""
    polled: int
    """The number of rows of an inbox whose commits do not wake the relay. Each row waits for up to half a second."""
    beside: int
    """The number of jobs whose latency is measured for each library, near and far from the server."""
    settle_s: float
    """The time (s) that a worker is idle before its memory is measured."""
    starts: int
    peer: int
    """The number of jobs with which a peer (another queue) is measured while its worker empties the queue. A slow peer
    has a tenth. Enqueues in bulk have four times this number, and single enqueues a quarter."""


SIZES = {
    "tiny": Sizes(
        repeats=1, thorough=False, bulk=2_000, one=50, drain=1_000, scaled=0, paced=20, redis=200,
        memory=2_000, depths=(0, 500), probe=200, idle_s=0.5, mirror=200, end_to_end=500, relayed=500, polled=3,
        starts=1, peer=200, beside=10, settle_s=0.1,
    ),
    "quick": Sizes(
        repeats=1, thorough=False, bulk=20_000, one=1_000, drain=15_000, scaled=500, paced=150, redis=2_000,
        memory=10_000, depths=(0, 1_000, 20_000), probe=2_000, idle_s=2.0, mirror=5_000, end_to_end=8_000,
        relayed=10_000, polled=5, starts=3, peer=3_000, beside=60, settle_s=1.0,
    ),
    "full": Sizes(
        repeats=5, thorough=True, bulk=200_000, one=5_000, drain=60_000, scaled=4_000, paced=1_000, redis=20_000,
        memory=100_000, depths=(0, 10_000, 1_000_000), probe=10_000, idle_s=15.0, mirror=40_000, end_to_end=60_000,
        relayed=100_000, polled=40, starts=5, peer=20_000, beside=300, settle_s=3.0,
    ),
}  # fmt: skip
