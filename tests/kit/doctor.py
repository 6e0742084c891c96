"""Helpers for tests of the doctor: run an examination or a repair, and shorten the findings."""

from collections.abc import Iterable

from rq_core.doctor import Finding, Kind, diagnose, repair
from tests.kit.seed import Seed


def look(seed: Seed) -> list[Finding]:
    return diagnose(seed.client, seed.queue, sleep=lambda _: None)


def mend(seed: Seed) -> list[Finding]:
    return repair(seed.client, seed.queue, look(seed), by="ada")


def named(found: Iterable[Finding]) -> set[str]:
    """Return the keys of the indexes and boxes that differ and can be repaired, and the kinds of the other findings."""
    keyed = {Kind.INDEX, Kind.BOX_DIFFERS}
    return {
        name for f in found for name in (f.keys if f.kind in keyed and f.keys else [str(f.kind)])
    }
