"""Runs the doctor in tests, and shortens its findings."""

from collections.abc import Iterable

from rq_core.doctor import Finding, Kind, diagnose, repair
from tests.kit.seed import Seed


def look(seed: Seed) -> list[Finding]:
    return diagnose(seed.client, seed.queue, sleep=lambda _: None)


def mend(seed: Seed) -> list[Finding]:
    return repair(seed.client, seed.queue, look(seed), by="ada")


def named(found: Iterable[Finding]) -> set[str]:
    """Return the findings in a short form: the keys that can be repaired, and the kinds of all other findings."""
    keyed = {Kind.INDEX, Kind.BOX_DIFFERS}
    return {
        name for f in found for name in (f.keys if f.kind in keyed and f.keys else [str(f.kind)])
    }
