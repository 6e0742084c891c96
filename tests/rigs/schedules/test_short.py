"""The proofs of schedules in a short form. `scripts/prove/live schedules` is the long form."""

from __future__ import annotations

from pathlib import Path

import pytest

from rq_core.model.recurrence import recurrence
from tests.kit.servers import engines
from tests.rigs.schedules import declaring, many, minute, restarts
from tests.rigs.schedules.restarts import Instant, unaccounted
from tests.rigs.schedules.tasks import NAME


def test_many_schedules_are_stored_with_one_call_and_take_few_bytes(valkey_url: str) -> None:
    found = many.declare(valkey_url, 5_000)

    assert [] == found.problems
    assert found.runs[0].bytes_each <= many.BYTES_MAX


@pytest.mark.slow
def test_all_instants_of_a_minute_are_logged_once(tmp_path: Path) -> None:
    found = minute.fire(tmp_path, engines()[0], 1_000, at_once=True)

    assert [] == found.problems
    assert {"fired": 1_000} == found.outcomes


@pytest.mark.slow
def test_rolling_restarts_of_workers_leave_no_instant_unaccounted_for(tmp_path: Path) -> None:
    found = restarts.restart(tmp_path, engines()[0], 2, seconds=0.3, every=1.0)

    assert ([], "holds") == (found.problems, found.verify)
    assert len(found.instants) > 1


def test_old_and_new_code_that_declare_a_schedule_at_the_same_time_leave_one_version(
    valkey_url: str,
) -> None:
    found = declaring.declare(valkey_url, rounds=20, clients=10)

    assert [] == found.problems
    assert found.outcomes["kept"] > 0


def fired(*nominal_ms: int, missed: int = 0) -> list[Instant]:
    return [Instant(each, 0, "fired", missed) for each in nominal_ms]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (fired(0, 10, 20), 0),
        ([*fired(0), *fired(20, missed=1)], 0),
        ([*fired(0), Instant(10, 60, "missed", 2)], 0),
        (fired(0, 20), 1),
        (fired(0, 10), 1),
        (fired(0, 10, 10, 20), 1),
        (fired(0, 10, 15, 20), 1),
        ([*fired(0, 10), *fired(20, missed=1)], 1),
    ],
)
def test_the_check_of_restarts_finds_an_instant_that_is_missing_or_logged_twice(
    rows: list[Instant], found: int
) -> None:
    """Checks logs of a schedule with an interval of 10 s, from second 0 to second 30."""
    start = recurrence(NAME, every=10).next_after(0) or 0
    shifted = [
        Instant(start + each.nominal_ms * 1_000, each.late_ms, each.outcome, each.missed)
        for each in rows
    ]

    assert found == len(unaccounted(shifted, start, start + 30_000, 10_000))
