"""Each damage of the table is found by the outbox, and mended as far as the log knows what was there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.consistency import assert_consistent
from tests.kit.damages import DAMAGES, fill
from tests.kit.doctor import look, mend
from tests.kit.seed import Seed


@pytest.fixture
def seed(valkey_url: str) -> Iterator[Seed]:
    """On one engine: the doctor reads a snapshot."""
    with Seed(valkey_url) as made:
        fill(made)
        yield made


def contents(seed: Seed) -> dict[str, object]:
    """All that a queue has but its log, and what each repair counts or renews."""
    moves = {"outbox", "meta", "wake"}
    return {key: value for key, value in seed.snapshot().items() if key not in moves}


def test_a_queue_without_damage_has_no_findings(seed: Seed) -> None:
    assert look(seed) == []
    assert_consistent(seed.snapshot())


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_and_mended(seed: Seed, name: str) -> None:
    damage, before = DAMAGES[name], contents(seed)
    damage.plant(seed)
    planted = contents(seed)

    assert any(damage.says in found.says for found in look(seed))
    left = mend(seed)

    assert bool(left) is not damage.is_mended
    assert contents(seed) == (before if damage.is_mended else planted)
    if damage.is_mended:
        assert_consistent(seed.snapshot())
