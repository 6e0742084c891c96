"""Signals that a worker sends to parents when their children end. The tests need no server."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

from rq_core.model.durable.children import (
    Parent,
    child_id,
    child_wait,
    parent_header,
)
from rq_core.model.headers import PARENT_HEADER
from rq_core.model.job import Claim
from rq_core.worker.child_ends import NO_SIGNALS, ChildEnds, last_of_maps, parents_of
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


def test_of_the_children_that_end_in_one_call_only_the_last_child_of_each_map_signals_the_parent() -> (
    None
):
    ended = [settled(child(n), waiting(n)) for n in (3, 17, 5)]
    others = [settled(child(2), waiting(2, number=4)), settled(child(9), waiting(9, job_id="q"))]

    found = last_of_maps(parents_of([*ended, *others, settled("plain", None)], {}))

    assert [
        Parent("home", "p", child_wait(1, 17), child(17), LIFE),
        Parent("home", "p", child_wait(4, 2), child(2), LIFE),
        Parent("home", "q", child_wait(1, 9), child(9), LIFE),
    ] == found


def test_the_signal_of_a_forged_child_does_not_replace_the_signal_of_a_true_child() -> None:
    """Any producer can choose the name of a box, and make a job that seems to be a later child of the parent."""
    other = "9f3a0b1c22aa0002"
    forged = parent_header("home", "p", child_wait(1, 999), other, "parts")
    ended = [settled(child(5), waiting(5)), settled(child_id(other, "parts", 999), forged)]

    found = last_of_maps(parents_of(ended, {}))

    assert [LIFE, other] == [parent.life for parent in found]


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
def test_only_an_outcome_that_ends_the_child_causes_a_signal_to_the_parent(
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
        waiting(3).replace("home", "ho\u00fcme"),
        waiting(3).replace(" p ", " \\ud800 "),
        waiting(3).replace("1.3", "1.3#2"),
        waiting(3).replace("1.3", "1.\u00b3"),
        waiting(3).replace(LIFE, "L"),
    ],
)
def test_a_header_that_does_not_name_a_parent_causes_no_signal(header: str) -> None:
    assert [] == parents_of([settled(child(3), header)], {})


class Client:
    """The part of a client that signals behind settlements need."""

    def __init__(self, *, one_slot: bool) -> None:
        self.one_slot = one_slot


def test_signals_sent_behind_settlements_name_the_last_child_of_each_call() -> None:
    first = [settled(child(n), waiting(n)) for n in (3, 5)]
    second = [settled(child(4), waiting(4)), settled("plain", None)]
    failed = [settled(child(9), waiting(9), "final")]

    calls, told = ChildEnds(Client(one_slot=False), "w-1").signals_behind([first, second, failed])

    (call,) = calls
    assert ("signal", "home", ("p", "p")) == (call.script, call.queue, call.ids)
    assert [child_wait(1, 5), child_wait(1, 4)] == [record[1] for record in call.each]
    assert {child(3), child(4), child(5)} == set(told)


def test_in_a_cluster_no_signal_is_sent_in_the_pipeline_of_a_settlement() -> None:
    ends = ChildEnds(Client(one_slot=True), "w-1")

    assert NO_SIGNALS == ends.signals_behind([[settled(child(3), waiting(3))]])


def test_a_parent_whose_signal_was_sent_behind_the_settlement_gets_no_second_signal() -> None:
    started: list[Any] = []

    class Noting(ChildEnds):
        def _start(self, work: Coroutine[Any, Any, None]) -> None:
            started.append(work)
            work.close()

    ends = Noting(Client(one_slot=False), "w-1")
    group = [settled(child(3), waiting(3))]

    ends.note(group, {}, {child(3)})
    assert [] == started
    ends.note(group, {})
    assert 1 == len(started)


def test_a_child_signals_its_parent_itself_if_the_settlement_of_the_last_child_was_refused() -> (
    None
):
    """The signal behind the settlements was only for the last child of the map, which had ended elsewhere."""
    sent: list[list[Parent]] = []

    class Noting(ChildEnds):
        async def _tell(self, parents: Any) -> None:
            sent.append(list(parents))

        def _start(self, work: Coroutine[Any, Any, None]) -> None:
            with pytest.raises(StopIteration):
                work.send(None)

    ends = Noting(Client(one_slot=False), "w-1")
    group = [settled(child(n), waiting(n)) for n in (5, 7)]
    _, told = ends.signals_behind([group])

    for outcome in ("stale", "gone"):
        ends.note(group, {child(7): outcome}, told)
    assert [[child(5)], [child(5)]] == [[each.child for each in parents] for parents in sent]
