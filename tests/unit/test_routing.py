"""Routing: how a client finds the cluster node for a command. The tests use a small fake of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from redis.crc import key_slot

from rq_core.connections.routing import (
    ASKED_MAX,
    BRIEF,
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
from rq_core.model.lib.url import cluster_url
from rq_core.protocol.engine.plan import Lost, ReplyError, Unsent

T = TypeVar("T")
A, B, C = Node("10.0.0.1", 7000), Node("10.0.0.2", 7000), Node("10.0.0.3", 7000)
HALF = SLOTS // 2
MAP = [[0, HALF - 1, [A.host, A.port, "id-a"]], [HALF, SLOTS - 1, [B.host, B.port, "id-b"]]]
LOW, HIGH = "rqc:{mail}:meta", "rqc:{a}:meta"


class Nodes:
    """A fake cluster. It answers in place of each node, and records which commands each node gets."""

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
                step = next(steps) if replies is None else steps.send(replies)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            replies = {n: [self._reply(n, c) for c in of] for n, of in step.commands.items()}

    def exchange(self, *commands: Command) -> list[Any]:
        return self.drive(self.routing.exchange(commands))

    def _reply(self, node: Node, command: Command) -> Any:
        if command[0] == "CLUSTER":
            self.maps += 1
            return self.map
        self.sent.append((node, command))
        return self.answer(node, command)


@pytest.mark.parametrize("key", ["a", "rqc:{mail}:meta", "{}x", "x{}{y}", "{", "}{", "é{ü}", ""])
def test_the_function_slot_of_computes_the_same_slots_as_redis(key: str) -> None:
    assert key_slot(key.encode()) == slot_of(key)


def test_the_keys_that_these_tests_use_are_on_different_nodes_of_the_cluster() -> None:
    assert slot_of(LOW) < HALF <= slot_of(HIGH) or slot_of(HIGH) < HALF <= slot_of(LOW)


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (["FCALL", "f", 2, "k1", "k2", "arg"], "k1"),
        (["EVALSHA", "sha", 0, "arg"], None),
        (["EVALSHA_RO", "sha", 1, "k1", "arg"], "k1"),
        (["XREAD", "COUNT", 1, "BLOCK", 5, "STREAMS", "k", "0-0"], "k"),
        (["BLPOP", "k", 1], "k"),
        (["TIME"], None),
    ],
)
def test_the_client_finds_the_first_key_of_a_command(command: list[Any], key: str | None) -> None:
    assert key == key_of(command)


def test_replies_are_returned_in_the_order_of_their_commands() -> None:
    nodes = Nodes(lambda node, command: (node, command[1]))

    replies = nodes.exchange(["GET", HIGH], ["GET", LOW], ["HGET", HIGH])

    assert [HIGH, LOW, HIGH] == [key for _, key in replies]
    assert replies[0][0] == replies[2][0] != replies[1][0]
    assert nodes.maps == 1


def test_the_command_time_goes_to_the_node_that_gets_the_other_command_of_the_same_pipeline() -> (
    None
):
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
def test_a_command_to_all_primaries_returns_one_answer(
    by_node: dict[Node, Any], answer: Any
) -> None:
    """If a node gives a permanent error, this error is the answer. The caller then uses scripts instead of functions.

    A temporary error of one node is ignored if another primary has accepted the command.
    """
    (reply,) = Nodes(lambda node, _: by_node[node]).exchange(["FUNCTION", "LOAD", "…"])

    assert repr(answer) == repr(reply)


def test_a_moved_answer_is_followed_and_its_node_is_remembered() -> None:
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


def test_a_moved_answer_without_a_host_refers_to_the_host_of_the_answering_node() -> None:
    slot = slot_of(LOW)
    moved = Node(A.host, 7009)
    nodes = Nodes(lambda node, _: "here" if node == moved else ReplyError(f"MOVED {slot} :7009"))
    nodes.map = [[0, SLOTS - 1, [None, A.port]]]

    assert ["here"] == nodes.exchange(["GET", LOW])


def test_an_ask_answer_is_followed_once_and_its_node_is_not_remembered() -> None:
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


def test_a_transaction_on_a_migrating_slot_is_reported_as_an_outage() -> None:
    """The call is repeated later. (Each command would need an ASKING before it, which a transaction cannot have.)"""
    slot = slot_of(LOW)

    def answer(_node: Node, command: Command) -> Any:
        if command[0] == "GET":
            return ReplyError(f"ASK {slot} {C.host}:{C.port}")
        return ReplyError("EXECABORT") if command[0] == "EXEC" else "OK"

    replies = Nodes(answer).exchange(["MULTI"], ["GET", LOW], ["EXEC"])

    assert 3 == len(replies)
    assert all(str(reply).startswith("TRYAGAIN") for reply in replies)


def test_a_slot_that_keeps_moving_is_reported_as_an_outage() -> None:
    slot = slot_of(LOW)

    def answer(node: Node, _command: Command) -> Any:
        other = C if node != C else B
        return ReplyError(f"MOVED {slot} {other.host}:{other.port}")

    nodes = Nodes(answer)
    (reply,) = nodes.exchange(["GET", LOW])

    assert str(reply).startswith("TRYAGAIN")
    assert REDIRECTS_MAX == len(nodes.sent)


def test_a_slot_that_no_node_serves_is_reported_as_an_outage() -> None:
    nodes = Nodes()
    nodes.map = [[HALF, SLOTS - 1, [B.host, B.port]]]
    gone, served = (LOW, HIGH) if slot_of(LOW) < HALF else (HIGH, LOW)

    replies = nodes.exchange(["GET", gone], ["GET", served])

    assert str(replies[0]).startswith("CLUSTERDOWN")
    assert B.host == replies[1]


def asked_for_the_map(nodes: Nodes, silent: set[Node]) -> list[Node]:
    """Return the nodes that the client asks for the slot map, in order. The nodes in ``silent`` do not answer."""
    asked = []
    steps = nodes.routing.exchange([["GET", LOW]])
    step = next(steps)
    while step.brief:
        ((node, (command,)),) = step.commands.items()
        assert command == ("CLUSTER", "SLOTS")
        asked.append(node)
        step = steps.send({node: [Unsent("silent") if node in silent else nodes.map]})
    return asked


def home_and_other(nodes: Nodes) -> tuple[Node, Node]:
    """Return the node with the key LOW, and then the other node."""
    home = nodes.routing.node_of(LOW)
    return (A, B) if home == A else (B, A)


def test_the_slot_map_is_read_from_nodes_that_answer() -> None:
    """Each silent node costs a timeout. So it is asked last at the next time."""
    nodes = Nodes()
    nodes.exchange(["TIME"])
    for expected in ([A, B], [B]):
        nodes.now += 10.0
        # B was heard before A.
        for node in (B, A):
            if node in expected:
                nodes.routing.map.note(node, "an answer")
                nodes.now += 1.0
        nodes.routing.map.distrust()

        assert asked_for_the_map(nodes, silent={A}) == expected


def test_a_silent_node_is_asked_last_for_the_slot_map() -> None:
    """The node was once the first to answer. To ask it first again would cost each call a timeout."""
    nodes = Nodes()
    nodes.exchange(["GET", LOW])
    home, other = home_and_other(nodes)
    nodes.answer = lambda node, _: Lost("frozen") if node == home else "here"
    nodes.now = 10.0
    nodes.exchange(["GET", LOW])
    nodes.now = 20.0

    assert asked_for_the_map(nodes, silent={home}) == [other]


def test_the_slot_map_of_a_node_that_reports_the_cluster_down_is_not_used() -> None:
    """The node is a primary that is cut off from its cluster, and its slot map is old."""
    nodes = Nodes()
    nodes.exchange(["GET", LOW])
    home, other = home_and_other(nodes)
    nodes.answer = lambda node, _: ReplyError("CLUSTERDOWN") if node == home else "here"
    nodes.now = 10.0
    (refusal,) = nodes.exchange(["GET", LOW])
    nodes.map = [[0, SLOTS - 1, [other.host, other.port]]]
    nodes.now = 20.0

    assert str(refusal) == "CLUSTERDOWN"
    assert asked_for_the_map(nodes, silent=set()) == [other]
    assert nodes.exchange(["GET", LOW]) == ["here"]


def test_a_node_with_an_outdated_slot_map_is_asked_after_other_nodes() -> None:
    """The node's slot map names a silent node. So the node may be cut off from the cluster, too."""
    nodes = Nodes()
    nodes.map = [[0, SLOTS - 1, [A.host, A.port], [B.host, B.port], [C.host, C.port]]]
    nodes.exchange(["GET", LOW])
    nodes.answer = lambda *_: Lost("dead")
    asked = []
    for _ in range(4):
        nodes.now += 10.0
        nodes.exchange(["GET", LOW])
        nodes.now += 10.0
        asked += asked_for_the_map(nodes, silent=set())

    assert asked == [B, C, B, C]


def test_one_call_reads_the_slot_map_while_other_calls_use_the_old_map() -> None:
    nodes = Nodes()
    nodes.exchange(["GET", LOW])
    home, _ = home_and_other(nodes)
    nodes.routing.map.note(home, Lost("frozen"))
    nodes.now = 10.0
    asking = nodes.routing.exchange([["GET", LOW]])
    assert next(asking).brief
    nodes.now += ASKED_MAX * BRIEF.unsent - 0.1

    assert next(nodes.routing.exchange([["GET", HIGH]])).commands.keys() == {
        nodes.routing.node_of(HIGH)
    }
    nodes.now += 0.2
    assert next(nodes.routing.exchange([["GET", HIGH]])).brief, "the first one was given up"


def test_a_cancelled_read_of_the_slot_map_is_repeated_by_the_next_call() -> None:
    nodes = Nodes()
    nodes.exchange(["GET", LOW])
    nodes.routing.map.distrust()
    nodes.now = 10.0
    asking = nodes.routing.exchange([["GET", LOW]])
    assert next(asking).brief
    asking.close()
    nodes.now += 0.2

    assert next(nodes.routing.exchange([["GET", LOW]])).brief


def test_a_command_that_any_node_can_answer_is_not_sent_to_a_silent_node() -> None:
    nodes = Nodes(lambda node, _: Lost("frozen") if node == A else "here")
    nodes.routing.map.note(A, Lost("frozen"))

    assert [nodes.exchange(["TIME"]) for _ in range(4)] == [["here"]] * 4
    nodes.exchange(["SCRIPT", "LOAD", "return 1"])
    assert {node for node, _ in nodes.sent} == {B}


def test_without_a_slot_map_every_command_is_reported_as_an_outage() -> None:
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
def test_the_function_cluster_url_suggests_the_url_of_the_cluster(url: str, instead: str) -> None:
    assert instead == cluster_url(url)
