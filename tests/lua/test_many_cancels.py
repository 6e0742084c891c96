"""The programme that measures a cancel of very many jobs while workers drain the queue."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scripts.measure.once import many_cancels
from tests.kit.servers import RedisServer


@pytest.mark.slow
def test_the_measurement_of_a_bulk_cancel_cancels_half_of_the_jobs_while_a_worker_drains_the_rest(
    start_redis: Callable[..., RedisServer],
) -> None:
    found = many_cancels.measure(start_redis(), 2_000, turn_s=0.1, slow_us=0)

    assert (found.cancelled, found.jobs) == (1_000, 2_000)
    assert found.first_claims == 1
    assert len(found.alone) == len(found.beside) + 1
    assert max(found.alone) > 0
    assert found.share > 0
    # In the turns by itself the longest call is one of a known script, and took processor time.
    assert found.longest_cpu.ms > 0
    assert found.longest_cpu.name
    assert found.beside_longest.ms > 0
