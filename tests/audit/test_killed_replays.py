"""The program that kills replays of jobs half-way, and counts the copies afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.measure.once import replays


@pytest.mark.slow
def test_the_log_has_one_copy_of_each_job_although_a_replay_was_killed(
    valkey_url: str, tmp_path: Path
) -> None:
    found = replays.measure(valkey_url, f"sqlite:///{tmp_path / 'audit.db'}", 600, 1)

    assert found.failures == []
    assert found.copies == 600
