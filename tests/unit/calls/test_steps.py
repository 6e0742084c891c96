"""Reads that need several round trips. A read runs alone, or shares its round trips with other reads."""

from collections.abc import Callable
from typing import Any

import pytest

from rq_core.errors import QueueDamaged
from rq_core.protocol.engine.plan import ReplyError
from rq_core.protocol.reads.steps import TOGETHER_MAX, Steps, ask
from tests.unit.calls.scripted import Server, plans


def reads_of(count: int) -> Steps[list[Any]]:
    """Return a read that sends ``count`` commands and returns their replies."""
    return list((yield [["GET", n] for n in range(count)]))


@pytest.mark.parametrize(
    ("count", "trips"), [(0, 0), (1, 1), (TOGETHER_MAX, 1), (2 * TOGETHER_MAX + 1, 3)]
)
def test_many_read_commands_of_a_step_are_sent_in_the_expected_number_of_round_trips(
    count: int, trips: int
) -> None:
    server = Server(GET=[lambda command: command[1]])

    found = server.run(plans(server).reads.exactly("q", reads_of(count)))

    assert (found, server.trips) == ([*range(count)], trips)


def test_each_reply_is_returned_under_the_name_of_its_command() -> None:
    def steps() -> Steps[tuple[Any, ...]]:
        found = yield from ask(one=["GET", 1], many=[["GET", 2], ["GET", 3]], none=[])
        return found.one, found.many, found.none

    server = Server(GET=[lambda command: command[1]])

    assert server.run(plans(server).reads.exactly("q", steps())) == (1, [2, 3], [])
    assert server.trips == 1


def refused(_: list[Any]) -> Any:
    return ReplyError("WRONGTYPE Operation against a key")


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (refused, "key b: WRONGTYPE Operation against a key"),
        (lambda _: "x", "a key holds something unexpected (ValueError: "),
    ],
)
def test_a_concurrent_read_that_fails_ends_no_other_read(
    reply: Callable[[list[Any]], Any], why: str
) -> None:
    """The reads share their round trips, and need different numbers of them."""

    def steps(key: str, count: int) -> Steps[int]:
        total = 0
        for _ in range(count):
            (found,) = yield [["GET", key]]
            total += int(found)
        return total

    answers = {"a": lambda _: "1", "b": reply, "c": lambda _: "1"}
    server = Server(GET=[lambda command: answers[command[1]](command)])
    reads = {"a": steps("a", 3), "b": steps("b", 1), "c": steps("c", 1)}

    found, unreadable = server.run(plans(server).reads.side_by_side(reads))

    assert (found, list(unreadable), server.trips) == ([3, 1], ["b"], 3)
    assert unreadable["b"].startswith(why)


def test_an_unreadable_value_raises_an_error() -> None:
    server = Server(GET=[refused])

    with pytest.raises(QueueDamaged):
        server.run(plans(server).reads.exactly("q", reads_of(1)))
