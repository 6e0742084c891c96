"""Durations: the accepted values, and their milliseconds."""

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import click
import pytest

from rq_core import InvalidOption
from rq_core.cli.options import Instant
from rq_core.model.lib.durations import instant_ms_of, ms_of, seconds_of
from rq_core.model.lib.moments import moment_of


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, 0), (1, 1000), (1.1, 1100), (0.0001, 1), (timedelta(minutes=1), 60_000)],
)
def test_a_duration_becomes_whole_milliseconds_and_a_tiny_duration_becomes_1_ms(
    value: Any, expected: int
) -> None:
    assert ms_of("delay", value) == expected


@pytest.mark.parametrize(
    "value", [-1, True, None, "5", math.nan, math.inf, 1e300, timedelta.max, timedelta(-1)]
)
def test_an_invalid_duration_is_refused(value: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^delay=.* must be seconds"):
        seconds_of("delay", value)


def test_the_error_of_a_duration_below_its_minimum_states_the_minimum() -> None:
    with pytest.raises(InvalidOption, match=r"from 0\.2 to"):
        seconds_of("lease", 0.1, minimum=0.2)


@pytest.mark.parametrize(("text", "same"), [
    ("now", "2026-11-21 10:00:30"), ("10m ago", "2026-11-21 09:50:30"), ("1d ago", "2026-11-20 10:00:30"),
    ("10:00", "2026-11-21 10:00"), ("10:00:30.5", "2026-11-20 10:00:30.5"), ("11:30", "2026-11-20 11:30"),
    ("11:30+02:00", "2026-11-21 09:30"), ("2026-11-21", "2026-11-21 00:00Z"),
])  # fmt: skip
def test_a_moment_may_be_a_clock_time_or_an_age(text: str, same: str) -> None:
    now = datetime(2026, 11, 21, 10, 0, 30, tzinfo=UTC)

    found = datetime.fromtimestamp(moment_of(text, now) / 1000, UTC)

    assert found == datetime.fromisoformat(same).replace(tzinfo=UTC)


def test_the_error_for_a_duration_without_the_word_ago_shows_the_right_form() -> None:
    with pytest.raises(click.BadParameter, match="'1h' is not a time: write '1h ago'"):
        Instant().convert("1h", None, None)


@pytest.mark.parametrize(
    "text", ["", "ago", "10 ago", "10mago", "25:00", "10:", "2026-11", "10m ago x"]
)
def test_an_invalid_moment_is_refused_with_examples(text: str) -> None:
    with pytest.raises(
        click.BadParameter, match="write 2026-11-21 10:00, 10:00, '10m ago' or Unix ms"
    ):
        Instant().convert(text, None, None)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (datetime(2026, 11, 21, 20, 23, 52, 150_000, tzinfo=UTC), 1_795_292_632_150),
        (datetime(2026, 11, 21, 20, 23, 52, 150_001, tzinfo=UTC), 1_795_292_632_151),
        (datetime(2026, 11, 21, 22, 23, 52, tzinfo=timezone(timedelta(hours=2))), 1_795_292_632_000),
        # Both of the hour that comes twice.
        (datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")), 1_792_888_200_000),
        (datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")), 1_792_891_800_000),
        (datetime(1970, 1, 1, tzinfo=UTC), 1),
        (datetime.min.replace(tzinfo=UTC), 1),
    ],
)  # fmt: skip
def test_an_instant_is_rounded_up_to_unix_milliseconds(value: Any, expected: int) -> None:
    assert instant_ms_of("at", value) == expected


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (datetime(2026, 11, 21), "must have a time zone"),  # noqa: DTZ001 - it is what is refused
        (datetime(2286, 1, 1, tzinfo=UTC), "must lie before the year 2286"),
        (1_795_292_632, "must be a datetime"),
        ("2026-11-21", "must be a datetime"),
    ],
)
def test_an_invalid_instant_is_refused(value: Any, words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        instant_ms_of("at", value)
