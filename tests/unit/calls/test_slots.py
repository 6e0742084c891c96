"""Slots of calls. Two calls under way never share a slot, neither in threads nor in forked processes."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

import pytest

from rq_core.protocol.engine import delivery
from rq_core.protocol.engine.plan import Lost, Send, Slot, named_slot
from tests.kit.forked import forked
from tests.unit.calls.scripted import OK, Server, calls, job, plans


def test_a_forked_child_does_not_use_the_slots_of_its_parent() -> None:
    """A child with the slots and numbers of its parent would get answers to the parent's calls."""
    server = Server(enqueue=[OK])
    operations = plans(server)
    server.run(operations.enqueue.many([job(1)]))

    def in_child() -> str:
        server.run(operations.enqueue.many([job(2)]))
        return calls(server)[-1][0]

    of_child = forked(in_child)
    server.run(operations.enqueue.many([job(3)]))

    assert of_child != calls(server)[0][0]
    assert calls(server)[-1] == (calls(server)[0][0], 2)


def test_threads_of_a_forked_child_share_no_slot_with_its_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One thread of the child makes a call while another thread is still discarding the parent's slots."""
    operations = plans(Server())
    of_parent = operations.delivery.take_slot("q", "enqueue")
    operations.delivery._free["q", "enqueue"].append(of_parent)
    operations.delivery._pid = -1
    taken: list[Slot] = []
    other = threading.Thread(
        target=lambda: taken.append(operations.delivery.take_slot("q", "enqueue"))
    )

    def half_way(kind: type[list[Slot]]) -> defaultdict[Any, list[Slot]]:
        if other.ident is None:
            other.start()
            other.join()
        return defaultdict(kind)

    monkeypatch.setattr(delivery, "defaultdict", half_way)
    taken.append(operations.delivery.take_slot("q", "enqueue"))
    other.join()

    assert len({slot.name for slot in (of_parent, *taken)}) == 3


def test_the_call_after_an_interrupted_call_has_a_higher_number() -> None:
    """The interrupted call may arrive late. The server then refuses it, because of its lower number."""
    server = Server(enqueue=[OK])
    operations = plans(server)
    server.run(operations.delivery.handshake("q"))
    plan = operations.enqueue.many([job(1)])
    step = next(plan)
    assert isinstance(step, Send)
    server.exchange(step.commands)
    plan.close()

    server.run(operations.enqueue.many([job(2)]))

    first, second = calls(server)
    assert (first[0], first[1] + 1) == second


def test_a_caller_may_name_the_slot_and_the_number_of_a_call() -> None:
    """A call without an answer is repeated with its number. No other call ever gets the caller's slot."""
    server = Server(enqueue=[Lost("gone"), OK])
    operations = plans(server)
    call = operations.enqueue.chunk("q", [job(1)])
    call.slot = named_slot("inbox.a", 7)
    server.run(operations.delivery.call(call))
    server.run(operations.enqueue.many([job(2)]))

    first, again, other = calls(server)
    assert first == again == ("inbox.a", 7)
    assert other[0].startswith(operations.delivery.name)


def test_a_slot_that_one_caller_has_named_is_not_given_to_the_calls_of_other_callers() -> None:
    operations = plans(Server())
    call = operations.enqueue.chunk("q", [job(1)])
    call.slot = named_slot("inbox.a", 7)
    operations.delivery.end("enqueue", "q", operations.delivery.begin(call))

    assert operations.delivery.take_slot("q", "enqueue").name != "inbox.a"
