"""Durations: what is accepted, and what it is in milliseconds."""

import math
from datetime import timedelta
from typing import Any

import pytest

from rq_core import InvalidOption
from rq_core.model.durations import ms_of, seconds_of


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, 0), (1, 1000), (1.1, 1100), (0.0001, 1), (timedelta(minutes=1), 60_000)],
)
def test_a_duration_is_whole_milliseconds_and_never_rounded_to_nothing(
    value: Any, expected: int
) -> None:
    assert ms_of("delay", value) == expected


@pytest.mark.parametrize(
    "value", [-1, True, None, "5", math.nan, math.inf, 1e300, timedelta.max, timedelta(-1)]
)
def test_what_is_no_duration_is_refused(value: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^delay=.* must be seconds"):
        seconds_of("delay", value)


def test_a_duration_below_its_minimum_is_refused_with_the_minimum() -> None:
    with pytest.raises(InvalidOption, match=r"from 0\.2 to"):
        seconds_of("lease", 0.1, minimum=0.2)
