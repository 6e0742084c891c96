"""Unique jobs with real worker processes, in a short form of `scripts/prove/live once`."""

from __future__ import annotations

from pathlib import Path

import pytest

from rq_core.model.result_encoding import DIGEST, FULL, VALUE_MAX
from tests.rigs.once.expiring import expire
from tests.rigs.once.keeping import CALL_MS, keep
from tests.rigs.once.race import race


@pytest.mark.slow
def test_only_one_job_holds_a_contended_unique_name_while_workers_are_killed(
    valkey_url: str, tmp_path: Path
) -> None:
    """Checks that two live jobs never hold the name at once. At each moment, the name is free or its holder is a live
    job."""
    found = race(valkey_url, tmp_path, 2_000, 5)

    assert [] == found.problems + found.names.breaches
    assert found.enqueues >= 2_000
    assert found.kills == 5
    assert found.names.counts["lease_expired"] > 0
    assert found.accepted > 15
    assert found.samples > 1_000


@pytest.mark.alone
@pytest.mark.slow
def test_jobs_expire_as_fast_as_they_are_enqueued(valkey_url: str, tmp_path: Path) -> None:
    """Checks more than 2,500 jobs per second. A sweep removes 250 jobs, and ten sweeps per second are too few."""
    found = expire(valkey_url, tmp_path, 4_000, 4)

    assert [] == found.left
    assert found.rate > 2_600
    assert max(second.jobs for second in found.seconds) < 2 * found.rate
    assert found.drained_s < 3


@pytest.mark.alone
@pytest.mark.parametrize(
    "size, chunk, log", [(60, 250, DIGEST), (VALUE_MAX, 16, DIGEST), (VALUE_MAX, 16, FULL)]
)
@pytest.mark.slow
def test_results_with_a_short_retention_expire_as_fast_as_they_are_stored(
    valkey_url: str, size: int, chunk: int, log: str
) -> None:
    """Checks also the median time of the calls that end jobs. The longest time depends on the machine's load."""
    found = keep(valkey_url, 2.5, size, log=log, chunk=chunk)
    usual = found.calls_ms[len(found.calls_ms) // 2]

    assert 0 == found.left
    assert max(found.entries) <= 2 * max(found.rate, chunk) + 2 * chunk
    assert usual < CALL_MS
