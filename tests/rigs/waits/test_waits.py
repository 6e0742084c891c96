"""A short form of scripts/prove/live waits: no wait is lost, whatever the fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.servers import engines
from tests.rigs.waits.stages import ALONE, STAGES, prove

JOBS = 400
FIRST_S = 2.0
"""The longest time (s) until the first fault. Callers continue until there was one."""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", [name for name in STAGES if name != ALONE])
@pytest.mark.slow
def test_no_wait_is_lost_in_a_short_run(name: str, tmp_path: Path) -> None:
    """Checks only that all waits end. How long they take would depend on the other tests that run meanwhile."""
    found, short = prove(name, engines()[0], tmp_path, JOBS, first_s=FIRST_S)

    assert [] == list(short), found.line(name)
    assert found.asked >= JOBS
