"""Signals that a worker sends to parents when their children end. The tests need no server."""

from __future__ import annotations

import pytest

from rq_core.model.durable.children import (
    PARENT_HEADER,
    Parent,
    child_id,
    child_wait,
    parent_header,
)
from rq_core.model.job import Claim
from rq_core.worker.child_ends import last_of_maps, parents_of
from rq_core.worker.settlement import Settlement


def settled(job_id: str, parent: str | None, verdict: str = "complete") -> Settlement:
    headers = "" if parent is None else f'"headers":{{"{PARENT_HEADER}":"{parent}"}},'
    spec = f'{{"keep":1,{headers}"task":"send","args":{{}}}}'
    return Settlement(Claim("parts", job_id, "1-1", 1, 0, 0, spec), verdict)


LIFE = "9f3a0b1c22aa0001"


def waiting(index: int, number: int = 1, job_id: str = "p") -> str:
    return parent_header("home", job_id, child_wait(number, index), LIFE, "parts")


def child(index: int) -> str:
    return child_id(LIFE, "parts", index)


def test_one_call_sends_one_signal_for_all_ended_children_of_a_map() -> None:
    ended = [settled(child(n), waiting(n)) for n in (3, 17, 5)]
    others = [settled(child(2), waiting(2, number=4)), settled(child(9), waiting(9, job_id="q"))]

    found = last_of_maps(parents_of([*ended, *others, settled("plain", None)], {}))

    assert [
        Parent("home", "p", child_wait(1, 17), child(17), LIFE),
        Parent("home", "p", child_wait(4, 2), child(2), LIFE),
        Parent("home", "q", child_wait(1, 9), child(9), LIFE),
    ] == found


@pytest.mark.parametrize(
    ("verdict", "outcome", "is_sent"),
    [
        ("complete", "stale", False),
        ("complete", "gone", False),
        ("retry", "scheduled", False),
        ("retry", "dead", True),
        ("final", "dead", True),
        ("rollback", "ready", False),
        ("rollback", "cancelled", True),
        ("park", "parked", False),
    ],
)
def test_only_the_end_of_a_child_causes_a_signal_to_the_parent(
    verdict: str, outcome: str, *, is_sent: bool
) -> None:
    found = parents_of([settled(child(3), waiting(3), verdict)], {child(3): outcome})

    assert is_sent is bool(found)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "home p",
        "approval home p",
        "rq_core.child.x home p",
        f"rq_core.child.x home p {LIFE} parts",
        waiting(4),
    ],
)
def test_a_header_that_names_no_parent_is_ignored(header: str) -> None:
    assert [] == parents_of([settled(child(3), header)], {})
