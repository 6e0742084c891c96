"""The program that kills replays of jobs half-way, and counts the copies afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.measure.once import replays


@pytest.mark.slow
def test_a_replay_that_was_killed_leaves_exactly_one_copy_of_each_job_in_the_log(
    valkey_url: str, tmp_path: Path
) -> None:
    found = replays.measure(valkey_url, f"sqlite:///{tmp_path / 'audit.db'}", 600, 1)

    assert found.failures == []
    assert found.copies == 600
