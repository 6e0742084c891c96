"""Settings that an operator wrote with HSET, and that are not numbers. Each counts as its default, so no call fails
half-way."""

import pytest

from tests.kit.seed import LEASE_MS, Seed


@pytest.mark.parametrize("value", ["nan", "-nan", "inf", "-inf", "1e999", "garbage"])
def test_a_claim_uses_the_default_if_lease_ms_is_no_number(seed: Seed, value: str) -> None:
    """Lua reads even ``nan`` as a number. With it a claim would fail after its first writes."""
    seed.enqueue("a")
    seed.control.hset(seed.keys("meta"), "lease_ms", value)
    seed.control.hdel(seed.keys("meta"), "v")

    (held,) = seed.claim(1).jobs

    assert held.id == "a"
    assert seed.control.zscore(seed.keys("leases"), "a") == seed.clock.now_ms + LEASE_MS
