"""Sizes of measurements: `quick` within a minute, `full` for published figures, `tiny` to see that each works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Numbers of jobs, and seconds where a name says so."""

    repeats: int
    thorough: bool
    """Also what has no target of its own: drains under caps, mirrors of small entries; and four workers."""
    bulk: int
    one: int
    drain: int
    scaled: int
    """Per worker, of jobs that take time; 0 leaves them out."""
    paced: int
    redis: int
    memory: int
    depths: tuple[int, ...]
    """How many wait; as many as at last are then scheduled as well."""
    probe: int
    """Jobs that are measured at a depth."""
    idle_s: float
    mirror: int
    end_to_end: int
    relayed: int
    """Rows of an inbox."""
    polled: int
    """Rows of an inbox whose commits wake no relay, each of which waits for up to half a second."""
    starts: int
    peer: int
    """Jobs of a part of a peer; a slow one is measured with a tenth."""


SIZES = {
    "tiny": Sizes(
        repeats=1, thorough=False, bulk=2_000, one=50, drain=1_000, scaled=0, paced=20, redis=200,
        memory=2_000, depths=(0, 500), probe=200, idle_s=0.5, mirror=200, end_to_end=500, relayed=500, polled=3,
        starts=1, peer=200,
    ),
    "quick": Sizes(
        repeats=1, thorough=False, bulk=20_000, one=1_000, drain=15_000, scaled=500, paced=150, redis=2_000,
        memory=10_000, depths=(0, 1_000, 20_000), probe=2_000, idle_s=2.0, mirror=5_000, end_to_end=8_000,
        relayed=10_000, polled=5, starts=3, peer=3_000,
    ),
    "full": Sizes(
        repeats=5, thorough=True, bulk=200_000, one=5_000, drain=60_000, scaled=4_000, paced=1_000, redis=20_000,
        memory=100_000, depths=(0, 10_000, 1_000_000), probe=10_000, idle_s=15.0, mirror=40_000, end_to_end=60_000,
        relayed=100_000, polled=40, starts=5, peer=20_000,
    ),
}  # fmt: skip
