"""Everything is broken under load, and every job is accounted for: `scripts/chaos` in short."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults import chaos
from tests.faults.nemesis import KINDS, Nemesis
from tests.support.servers import engines


@pytest.mark.alone
def test_nothing_is_lost_whatever_breaks(tmp_path: Path) -> None:
    """Two producers, four workers, two mirrors; faults of all kinds, one at a time, from a seed."""
    found = chaos.run(
        tmp_path,
        minutes=0.5,
        seed=7,
        audit_url=f"sqlite:///{tmp_path / 'audit.db'}",
        engine=engines()[0],
    )

    assert found.problems == []
    assert found.clean
    document = found.document()
    assert (document["lost"], document["unreported_loss"], document["verify"]) == (0, 0, "holds")
    # It ran at all: under load, faults of many kinds, each with work after it.
    ended = document["succeeded"] + document["dead"]
    assert 200 < document["acknowledged"] <= ended <= document["attempted"]
    assert document["faults"] >= 5
    for kind, recovery in found.findings.recoveries.items():
        assert len(recovery.seconds) == recovery.times, f"nothing went on after {kind}"


def test_a_seed_tells_the_order_of_the_faults() -> None:
    def first(seed: int) -> list[str]:
        order = Nemesis(None, None, random.Random(seed)).schedule()  # type: ignore[arg-type]
        return [next(order) for _ in range(2 * len(KINDS))]

    assert first(1) == first(1) != first(2)
    assert sorted(first(1)[: len(KINDS)]) == sorted(first(1)[len(KINDS) :]) == sorted(KINDS)
