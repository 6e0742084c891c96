"""How commands find their node in a cluster, told by a cluster that is a few lines of this file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from redis.crc import key_slot

from rq_core.connections.routing import (
    REDIRECTS_MAX,
    SLOTS,
    Command,
    Node,
    Replies,
    Routing,
    Steps,
    key_of,
    slot_of,
)
from rq_core.model.url import cluster_url
from rq_core.protocol.plan import Lost, ReplyError, Unsent

T = TypeVar("T")
A, B, C = Node("10.0.0.1", 7000), Node("10.0.0.2", 7000), Node("10.0.0.3", 7000)
HALF = SLOTS // 2
MAP = [[0, HALF - 1, [A.host, A.port, "id-a"]], [HALF, SLOTS - 1, [B.host, B.port, "id-b"]]]
LOW, HIGH = "rqc:{mail}:meta", "rqc:{a}:meta"


class Nodes:
    """Answers for all nodes, and remembers what they were sent."""

    def __init__(self, answer: Callable[[Node, Command], Any] | None = None) -> None:
        self.answer = answer or (lambda node, _: str(node.host))
        self.map: Any = MAP
        self.maps = 0
        self.sent: list[tuple[Node, Command]] = []
        self.now = 0.0
        self.routing = Routing([A], clock=lambda: self.now)

    def drive(self, steps: Steps[T]) -> T:
        replies: Replies | None = None
        while True:
            try:
                commands = next(steps) if replies is None else steps.send(replies)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            replies = {node: [self._reply(node, c) for c in of] for node, of in commands.items()}

    def exchange(self, *commands: Command) -> list[Any]:
        return self.drive(self.routing.exchange(commands))

    def _reply(self, node: Node, command: Command) -> Any:
        if command[0] == "CLUSTER":
            self.maps += 1
            return self.map
        self.sent.append((node, command))
        return self.answer(node, command)


@pytest.mark.parametrize("key", ["a", "rqc:{mail}:meta", "{}x", "x{}{y}", "{", "}{", "é{ü}", ""])
def test_slots_are_those_that_redis_counts(key: str) -> None:
    assert key_slot(key.encode()) == slot_of(key)


def test_names_of_the_tests_lie_apart() -> None:
    assert slot_of(LOW) < HALF <= slot_of(HIGH) or slot_of(HIGH) < HALF <= slot_of(LOW)


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (["FCALL", "f", 2, "k1", "k2", "arg"], "k1"),
        (["EVALSHA", "sha", 0, "arg"], None),
        (["XREAD", "COUNT", 1, "BLOCK", 5, "STREAMS", "k", "0-0"], "k"),
        (["BLPOP", "k", 1], "k"),
        (["TIME"], None),
    ],
)
def test_first_key_of_a_command(command: list[Any], key: str | None) -> None:
    assert key == key_of(command)


def test_replies_come_in_the_order_of_the_commands() -> None:
    nodes = Nodes(lambda node, command: (node, command[1]))

    replies = nodes.exchange(["GET", HIGH], ["GET", LOW], ["HGET", HIGH])

    assert [HIGH, LOW, HIGH] == [key for _, key in replies]
    assert replies[0][0] == replies[2][0] != replies[1][0]
    assert nodes.maps == 1


def test_time_is_asked_of_the_node_that_has_the_keys_beside_it() -> None:
    for key in (LOW, HIGH):
        clock, other = Nodes().exchange(["TIME"], ["GET", key])
        assert clock == other


def test_scripts_are_loaded_on_all_primaries() -> None:
    nodes = Nodes(lambda *_: "sha")

    assert ["sha"] == nodes.exchange(["SCRIPT", "LOAD", "return 1"])
    assert {A, B} == {node for node, _ in nodes.sent}


@pytest.mark.parametrize(
    ("by_node", "answer"),
    [
        ({A: Unsent("away"), B: "sha"}, "sha"),
        ({A: ReplyError("OOM full"), B: "sha"}, ReplyError("OOM full")),
        ({A: Unsent("away"), B: Lost("gone")}, Unsent("away")),
    ],
)
def test_one_answer_for_what_all_primaries_said(by_node: dict[Node, Any], answer: Any) -> None:
    """What stays wrong is said, so that the caller goes on without functions; what is wrong for now is not, as long
    as one took it."""
    (reply,) = Nodes(lambda node, _: by_node[node]).exchange(["FUNCTION", "LOAD", "…"])

    assert repr(answer) == repr(reply)


def test_moved_is_followed_and_remembered() -> None:
    slot = slot_of(LOW)
    nodes = Nodes(
        lambda node, _: "here" if node == C else ReplyError(f"MOVED {slot} {C.host}:{C.port}")
    )
    nodes.exchange(["TIME"])
    nodes.now = 10.0

    assert ["here"] == nodes.exchange(["GET", LOW])
    assert C == nodes.routing.node_of(LOW)
    nodes.exchange(["TIME"])
    assert nodes.maps == 2, "the whole map is asked for again: others have moved, too"


def test_a_node_that_says_no_host_means_its_own() -> None:
    slot = slot_of(LOW)
    moved = Node(A.host, 7009)
    nodes = Nodes(lambda node, _: "here" if node == moved else ReplyError(f"MOVED {slot} :7009"))
    nodes.map = [[0, SLOTS - 1, [None, A.port]]]

    assert ["here"] == nodes.exchange(["GET", LOW])


def test_ask_is_followed_once_and_not_remembered() -> None:
    slot = slot_of(LOW)
    home = Nodes()
    home.exchange(["GET", LOW])
    source = home.routing.node_of(LOW)
    nodes = Nodes(
        lambda node, c: (
            f"{node.host} {c[0]}" if node == C else ReplyError(f"ASK {slot} {C.host}:{C.port}")
        )
    )

    assert [f"{C.host} GET"] == nodes.exchange(["GET", LOW])
    assert [(source, "GET"), (C, "ASKING"), (C, "GET")] == [(n, c[0]) for n, c in nodes.sent]
    assert source == nodes.routing.node_of(LOW)


def test_a_transaction_whose_slot_is_on_its_way_is_an_outage() -> None:
    """MULTI would queue ASKING, so it cannot be sent after its keys; the call is made again later."""
    slot = slot_of(LOW)

    def answer(_node: Node, command: Command) -> Any:
        if command[0] == "GET":
            return ReplyError(f"ASK {slot} {C.host}:{C.port}")
        return ReplyError("EXECABORT") if command[0] == "EXEC" else "OK"

    replies = Nodes(answer).exchange(["MULTI"], ["GET", LOW], ["EXEC"])

    assert 3 == len(replies)
    assert all(str(reply).startswith("TRYAGAIN") for reply in replies)


def test_a_slot_that_keeps_moving_is_an_outage() -> None:
    slot = slot_of(LOW)

    def answer(node: Node, _command: Command) -> Any:
        other = C if node != C else B
        return ReplyError(f"MOVED {slot} {other.host}:{other.port}")

    nodes = Nodes(answer)
    (reply,) = nodes.exchange(["GET", LOW])

    assert str(reply).startswith("TRYAGAIN")
    assert REDIRECTS_MAX == len(nodes.sent)


def test_a_slot_that_no_node_serves_is_an_outage() -> None:
    nodes = Nodes()
    nodes.map = [[HALF, SLOTS - 1, [B.host, B.port]]]
    gone, served = (LOW, HIGH) if slot_of(LOW) < HALF else (HIGH, LOW)

    replies = nodes.exchange(["GET", gone], ["GET", served])

    assert str(replies[0]).startswith("CLUSTERDOWN")
    assert B.host == replies[1]


def test_the_map_is_asked_of_the_nodes_until_one_answers() -> None:
    """Those that are silent are asked last the next time, since each costs a timeout."""
    nodes = Nodes()
    nodes.exchange(["TIME"])
    asked: list[Node] = []
    nodes.routing.distrust()
    nodes.now = 10.0
    steps = nodes.routing.exchange([["GET", LOW]])
    commands = next(steps)
    while any(c[0][0] == "CLUSTER" for c in commands.values()):
        ((node, _),) = commands.items()
        asked.append(node)
        commands = steps.send({node: [Unsent("silent") if node == A else MAP]})

    assert [A, B] == asked


def test_no_map_at_all_is_an_outage_of_every_command() -> None:
    nodes = Nodes()
    nodes.map = Unsent("nobody is there")

    assert ["nobody is there"] * 2 == [str(r) for r in nodes.exchange(["GET", LOW], ["TIME"])]


@pytest.mark.parametrize(
    ("url", "instead"),
    [
        ("redis://host:7000/0?x=1", "redis+cluster://host:7000"),
        ("rediss://me:***@host", "rediss+cluster://me:***@host"),
        ("unix:///tmp/redis", "redis+cluster://HOST:PORT"),
    ],
)
def test_url_to_write_instead_of_a_nodes(url: str, instead: str) -> None:
    assert instead == cluster_url(url)
