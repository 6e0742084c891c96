"""The map of a cluster's slots: which node serves which, and which nodes can be relied on. No I/O.

A node that is silent, or says that the cluster is down, is *doubted*: other nodes are asked for the map before it. One
call asks, and waits a second at most for each node; others go on meanwhile with the map that is there. So a frozen
node, or a primary that is cut off from its cluster, holds up the calls to its own slots only.
"""

from __future__ import annotations

import binascii
import time
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

from rq_core.protocol.plan import Lost, Patience, ReplyError, Unsent

T = TypeVar("T")
Command = Sequence[Any]

SLOTS: Final = 16_384
REFRESH_EVERY_S: Final = 0.1
"""Seconds between two looks at the map while it does not come right."""
ASKED_MAX: Final = 3
"""Nodes that are asked for the map in one exchange: one that is silent costs a timeout."""
BRIEF: Final = Patience(unsent=1.0, unknown=1.0)
"""How long a node is waited for that others can stand in for."""
_ASK: Final = ("CLUSTER", "SLOTS")


class Node(NamedTuple):
    """The address of a server."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, otherwise: str) -> Node:
        """Read HOST:PORT. A node that does not know its name says nothing for HOST: it is ``otherwise`` then."""
        host, _, port = text.rpartition(":")
        return cls(host.strip("[]") or otherwise, int(port))


class Round(NamedTuple):
    """Commands that are sent at the same time."""

    commands: dict[Node, list[Command]]
    brief: bool = False
    """Whether no node is waited for longer than ``BRIEF``."""


Replies = dict[Node, list[Any]]
Steps = Generator[Round, Replies, T]


@lru_cache(maxsize=16_384)
def slot_of(key: str) -> int:
    """The slot of a key: that of its hash tag, if it has one."""
    _, opened, rest = key.partition("{")
    tag, closed, _ = rest.partition("}")
    hashed = tag if opened and closed and tag else key
    return binascii.crc_hqx(hashed.encode("utf-8", "surrogateescape"), 0) % SLOTS


class SlotMap:
    """The map of one cluster's slots, as far as it is known."""

    def __init__(
        self, seeds: Sequence[Node], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``seeds`` are asked for the map at first, and again when all other nodes are silent."""
        self._seeds = tuple(seeds)
        self._clock = clock
        self._slots: list[Node | None] = [None] * SLOTS
        self._known: tuple[Node, ...] = ()
        """All nodes of the last map."""
        self._primaries: tuple[Node, ...] = ()
        self._heard: dict[Node, float] = {}
        """When nodes answered last."""
        self._doubted: dict[Node, float] = {}
        """Nodes that were silent, or said that the cluster is down, and have not answered since; and when."""
        self._outdated: dict[Node, float] = {}
        """Nodes whose map named a doubted node as a primary, and when: others may know more."""
        self._turn = 0
        self._stale = True
        self._look_at = float("-inf")
        """When the map may be asked for again, if there is one."""

    def home(self, slot: int) -> Node | None:
        """The node that serves a slot by what was heard last; None: no node is known to."""
        return self._slots[slot]

    def distrust(self) -> None:
        """Something is not where the map says: the next exchange asks for it again."""
        self._stale = True

    def move(self, slot: int, node: Node) -> None:
        """A slot has another node, and so may others: the next exchange asks for the whole map."""
        self._slots[slot] = node
        self._stale = True

    def any(self) -> Node:
        """Some primary that can be relied on, another at each call. There must be a map."""
        self._turn += 1
        sound = self.sound()
        return sound[self._turn % len(sound)]

    def sound(self) -> Sequence[Node]:
        """The primaries that are not doubted; all of them if each is."""
        if not self._doubted:
            return self._primaries
        return [n for n in self._primaries if n not in self._doubted] or self._primaries

    def note(self, node: Node, reply: Any) -> None:
        """Learn from a reply, or from the exception in its place, whether the node can be relied on."""
        if isinstance(reply, Lost | Unsent) or says_down(reply):
            self._doubted[node] = self._clock()
            self._stale = True
        else:
            self._doubted.pop(node, None)
            self._heard[node] = self._clock()

    def refresh(self) -> Steps[Exception | None]:
        """Ask for the map if it is stale. Returns why there is none."""
        if not self._stale:
            return None
        began = self._clock()
        if self._primaries:
            if began < self._look_at:
                return None
            # Others go on with the map as it is meanwhile.
            self._look_at = began + ASKED_MAX * BRIEF.unsent
        trouble: Exception = Unsent("no node of the cluster answers")
        try:
            for node in self._candidates()[:ASKED_MAX]:
                (reply,) = (yield Round({node: [_ASK]}, brief=True))[node]
                if isinstance(reply, list) and reply:
                    self._learn(reply, node)
                    return None
                self.note(node, reply)
                if isinstance(reply, Exception):
                    trouble = reply
        finally:
            self._look_at = began + REFRESH_EVERY_S
        return None if self._primaries else _explained(trouble)

    def _candidates(self) -> list[Node]:
        """Whom to ask for the map, in order: who answered last, who has an old map, who is doubted."""

        def order(node: Node) -> tuple[float, float, float]:
            never = float("-inf")
            return (
                self._doubted.get(node, never),
                self._outdated.get(node, never),
                -self._heard.get(node, never),
            )

        return sorted(dict.fromkeys((*self._known, *self._seeds)), key=order)

    def _learn(self, reply: list[Any], asked: Node) -> None:
        """Read the reply to CLUSTER SLOTS: [first slot, last slot, primary, replica…], each node [host, port, …]."""
        slots: list[Node | None] = [None] * SLOTS
        known: dict[Node, None] = {asked: None}
        primaries: dict[Node, None] = {}
        for first, last, *nodes in reply:
            # A node that does not know its own name, or shall not say it, is where it was asked.
            found = [Node(each[0] or asked.host, int(each[1])) for each in nodes if each[0] != "?"]
            known |= dict.fromkeys(found)
            if found:
                primaries[found[0]] = None
                slots[int(first) : int(last) + 1] = [found[0]] * (int(last) - int(first) + 1)
        self._slots, self._known, self._primaries = slots, tuple(known), tuple(primaries)
        self._stale = not primaries
        # A map is no answer to a command: a node that says that the cluster is down has one, too.
        self._heard[asked] = self._clock()
        if self._doubted.keys() & primaries.keys():
            self._outdated[asked] = self._clock()
        else:
            self._outdated.pop(asked, None)
        for about in (self._heard, self._doubted, self._outdated):
            for gone in about.keys() - known.keys() - set(self._seeds):
                about.pop(gone, None)


def says_down(reply: Any) -> bool:
    """Whether a node answered that its cluster is down: it may be the only one that thinks so."""
    return isinstance(reply, ReplyError) and str(reply).startswith("CLUSTERDOWN")


def _explained(trouble: Exception) -> Exception:
    if "cluster support disabled" in str(trouble):
        return ReplyError("ERR it is no Redis Cluster: write redis:// instead of redis+cluster://")
    return trouble
