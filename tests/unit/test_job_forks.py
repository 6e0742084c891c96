"""The header that names the origin of a fork, and the box of an origin as its events in the log describe it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rq_core.model.durable.forks import (
    ForkOrigin,
    box_in_log,
    origin_header,
    origin_of,
    without_value,
)
from rq_core.model.headers import FORK_HEADER
from rq_core.model.unique_names import digest_of

LIFE, LATER = "9f3a0b1c22aa0001", "0" * 16


def saved(entry: int, value: str, life: str = LIFE, *, orphaned: bool = False) -> Any:
    detail = {
        "life": life, "entry": entry, "name": f"s{entry}", "fence": "1-1", "bytes": 1,
        "digest": digest_of(value), "value": value,
    }  # fmt: skip
    return SimpleNamespace(type="step_saved", at_ms=5, detail=detail, orphaned=orphaned)


def test_a_fork_header_is_read_as_the_origin_of_a_fork_and_an_invalid_header_as_no_origin() -> None:
    origin = ForkOrigin("o-1", LIFE, 3, 2)

    assert origin == origin_of({FORK_HEADER: origin_header(origin)})
    assert origin_of({}) is None
    for text in (
        "",
        "o-1",
        f"{LIFE} 3 2 ",
        f"{LIFE} 99999 2 o-1",
        f"{LIFE} -1 2 o-1",
        f"{LIFE} 3 2 a b",
        f"{LIFE} 3 2 a\0b",
    ):
        assert origin_of({FORK_HEADER: text}) is None, text


@pytest.mark.parametrize("life", [None, LATER])
def test_the_latest_saved_steps_of_a_job_are_found_in_the_log(life: str | None) -> None:
    found = box_in_log([saved(1, "1"), saved(1, "2", LATER)], life)

    assert found is not None
    assert (LATER, "2") == (found[0], found[1].steps[1].value)
    assert box_in_log([saved(1, "1")], LATER) is None
    assert box_in_log([SimpleNamespace(type="claimed", orphaned=False)]) is None


def test_a_saved_step_that_redis_lost_counts_until_the_job_saves_it_again() -> None:
    forgotten = [saved(1, "1", orphaned=True), saved(2, "2", orphaned=True)]
    found = box_in_log([*forgotten, saved(1, "3"), saved(1, "4", LATER, orphaned=True)], LIFE)

    assert found is not None
    assert {1: "3", 2: "2"} == {number: step.value for number, step in found[1].steps.items()}


def test_a_fork_does_not_need_the_values_of_steps_that_it_leaves_out() -> None:
    """Checks the wait for a child. Its entry has a value that no log keeps, and a fork leaves the entry out."""
    events = [saved(1, "1"), saved(2, "2"), saved(3, "3")]
    for each, name in zip(events, ("charge", "rq_core.child.1.0", "pack"), strict=True):
        each.detail["name"] = name
    for each in events[1:]:
        each.detail["value"] = None
    found = box_in_log(events, LIFE)

    assert found is not None
    assert [] == without_value(found[1], 3)
    assert ["pack"] == without_value(found[1], 4)
