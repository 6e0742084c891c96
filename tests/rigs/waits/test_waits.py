"""A short form of scripts/prove/live waits: no wait is lost under any of the faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.servers import engines
from tests.rigs.waits.stages import ALONE, STAGES, prove

JOBS = 1_000


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", [name for name in STAGES if name != ALONE])
@pytest.mark.slow
def test_no_wait_is_lost_in_a_short_run(name: str, tmp_path: Path) -> None:
    """Checks only that the waits end, since their durations would include the load of other tests."""
    found, short = prove(name, engines()[0], tmp_path, JOBS)

    assert [] == list(short), found.line(name)
    assert found.asked >= JOBS
