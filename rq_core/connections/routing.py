"""Finds the nodes of a Redis Cluster that have given keys, and follows keys that have moved. This module does no I/O.

All keys of a queue are in one cluster slot, so every call is for one node. :class:`Routing` sorts the commands of an
exchange by node, with its :class:`SlotMap`, and follows the errors MOVED and ASK. Its methods are generators, which
yield commands by node and receive the replies by ``send``. The transports of :mod:`rq_core.connections.cluster` run
these generators, for threads or for asyncio.

A temporary error takes the place of the reply: for example, a slot is being moved, or a shard has no primary.
:mod:`rq_core.protocol.engine.delivery` then sends the command again.
"""

from __future__ import annotations

import binascii
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

from rq_core.protocol.engine.plan import Lost, Patience, ReplyError, Unsent

# The map of a cluster's slots: which node serves which slot, and which nodes are doubted. No I/O.
#
# A node that is silent, or reports that the cluster is down, is *doubted*: other nodes are asked for the map first. One
# exchange asks, and waits at most a second for each node; other exchanges use the existing map meanwhile. So a frozen
# node, or a primary that is cut off from its cluster, delays only the calls to its own slots.

T = TypeVar("T")
Command = Sequence[Any]

SLOTS: Final = 16_384
REFRESH_EVERY_S: Final = 0.1
"""Minimum seconds between two requests for the cluster's slot map."""
ASKED_MAX: Final = 3
"""Maximum number of nodes that are asked for the slot map in one exchange. Each node that does not answer costs a
timeout."""
BRIEF: Final = Patience(unsent=1.0, unknown=1.0)
"""The timeouts for a node if another node could answer instead."""
_ASK: Final = ("CLUSTER", "SLOTS")


class Node(NamedTuple):
    """The host and port of a server."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, otherwise: str) -> Node:
        """Parse HOST:PORT. A node that does not know its own host sends an empty HOST; ``otherwise`` then takes its
        place."""
        host, _, port = text.rpartition(":")
        return cls(host.strip("[]") or otherwise, int(port))


class Round(NamedTuple):
    """Commands by node, which are all sent at the same time."""

    commands: dict[Node, list[Command]]
    brief: bool = False
    """True if each node has at most the patience ``BRIEF`` to answer."""


Replies = dict[Node, list[Any]]
Steps = Generator[Round, Replies, T]


@lru_cache(maxsize=16_384)
def slot_of(key: str) -> int:
    """Return the cluster slot of a key. If the key has a hash tag, only the hash tag counts."""
    _, opened, rest = key.partition("{")
    tag, closed, _ = rest.partition("}")
    hashed = tag if opened and closed and tag else key
    return binascii.crc_hqx(hashed.encode("utf-8", "surrogateescape"), 0) % SLOTS


class SlotMap:
    """The client's map of one cluster: which node serves each slot. It also notes which nodes answer."""

    def __init__(
        self, seeds: Sequence[Node], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Create an empty map. ``seeds``: the nodes that are asked for the slot map first, and again when no other node
        answers."""
        self._seeds = tuple(seeds)
        self._clock = clock
        self._slots: list[Node | None] = [None] * SLOTS
        self._known: tuple[Node, ...] = ()
        """All nodes in the latest slot map, and the node that returned this map."""
        self._primaries: tuple[Node, ...] = ()
        self._heard: dict[Node, float] = {}
        """Node → clock time of its last answer."""
        self._doubted: dict[Node, float] = {}
        """Node that did not answer, or reported that the cluster is down → clock time at which this was last noted. The
        node is removed from here once it answers."""
        self._outdated: dict[Node, float] = {}
        """Node → clock time at which it returned a slot map with a doubted node as a primary. Another node may have a
        newer map."""
        self._turn = 0
        self._stale = True
        self._look_at = float("-inf")
        """Clock time before which the slot map is not requested again, if there already is one."""

    def home(self, slot: int) -> Node | None:
        """Return the node that serves a slot according to the latest map; None if the map names no node for the
        slot."""
        return self._slots[slot]

    def distrust(self) -> None:
        """Mark the map as stale, because it is wrong about a slot. The next exchange requests a new map."""
        self._stale = True

    def move(self, slot: int, node: Node) -> None:
        """Store that ``node`` now serves a slot. Mark the map as stale, because other slots may have moved, too."""
        self._slots[slot] = node
        self._stale = True

    def any(self) -> Node:
        """Return one of the primaries in ``sound``, each call the next one. There must be a map already."""
        self._turn += 1
        sound = self.sound()
        return sound[self._turn % len(sound)]

    def sound(self) -> Sequence[Node]:
        """Return the primaries that answer. If all are doubted, return all primaries."""
        if not self._doubted:
            return self._primaries
        return [n for n in self._primaries if n not in self._doubted] or self._primaries

    def note(self, node: Node, reply: Any) -> None:
        """Note whether a node answers: mark it as doubted if ``reply`` is Lost, Unsent or CLUSTERDOWN, otherwise as
        sound."""
        if isinstance(reply, Lost | Unsent) or says_down(reply):
            self._doubted[node] = self._clock()
            self._stale = True
        else:
            self._doubted.pop(node, None)
            self._heard[node] = self._clock()

    def refresh(self) -> Steps[Exception | None]:
        """Request the slot map if it is stale. Return an error only if no node returned a map and there is no older
        one."""
        if not self._stale:
            return None
        began = self._clock()
        if self._primaries:
            if began < self._look_at:
                return None
            # Meanwhile, other exchanges use the existing map.
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
        """Return all known nodes in the order in which to ask them for the slot map.

        Nodes that answer come first, beginning with the latest answer. Then come nodes whose map was outdated, then
        doubted nodes.
        """

        def order(node: Node) -> tuple[float, float, float]:
            never = float("-inf")
            return (
                self._doubted.get(node, never),
                self._outdated.get(node, never),
                -self._heard.get(node, never),
            )

        return sorted(dict.fromkeys((*self._known, *self._seeds)), key=order)

    def _learn(self, reply: list[Any], asked: Node) -> None:
        """Store the slot map from the reply of the node ``asked`` to CLUSTER SLOTS.

        The reply is a list of [first slot, last slot, primary, replica…]. Each node in it is [host, port, …].
        """
        slots: list[Node | None] = [None] * SLOTS
        known: dict[Node, None] = {asked: None}
        primaries: dict[Node, None] = {}
        for first, last, *nodes in reply:
            # A node that does not know or does not announce its own name has the address at which it was asked.
            found = [Node(each[0] or asked.host, int(each[1])) for each in nodes if each[0] != "?"]
            known |= dict.fromkeys(found)
            if found:
                primaries[found[0]] = None
                slots[int(first) : int(last) + 1] = [found[0]] * (int(last) - int(first) + 1)
        self._slots, self._known, self._primaries = slots, tuple(known), tuple(primaries)
        self._stale = not primaries
        # A map is not an answer to a command: a node that reports that the cluster is down has a map, too.
        self._heard[asked] = self._clock()
        if self._doubted.keys() & primaries.keys():
            self._outdated[asked] = self._clock()
        else:
            self._outdated.pop(asked, None)
        for about in (self._heard, self._doubted, self._outdated):
            for gone in about.keys() - known.keys() - set(self._seeds):
                about.pop(gone, None)


def says_down(reply: Any) -> bool:
    """Return whether a node reports that the cluster is down. Other nodes may disagree."""
    return isinstance(reply, ReplyError) and str(reply).startswith("CLUSTERDOWN")


def _explained(trouble: Exception) -> Exception:
    if "cluster support disabled" in str(trouble):
        return ReplyError("ERR it is no Redis Cluster: write redis:// instead of redis+cluster://")
    return trouble


REDIRECTS_MAX: Final = 5
"""Maximum number of redirects of a command within one exchange."""
ASKING: Final = ("ASKING",)

_KEYLESS: Final = frozenset({
    "ACL", "CLIENT", "CLUSTER", "CONFIG", "FUNCTION", "INFO", "PING", "SCRIPT", "TIME",
})  # fmt: skip
_SCRIPTED: Final = frozenset({"FCALL", "EVALSHA", "EVALSHA_RO", "EVAL", "EVAL_RO"})
_EVERYWHERE: Final = frozenset({("FUNCTION", "LOAD"), ("SCRIPT", "LOAD"), ("CONFIG", "GET")})
"""Commands that are sent to every primary that answers."""


def key_of(command: Command) -> str | None:
    """Return the first key of a command; None if it has no key."""
    name = command[0]
    if name in _KEYLESS:
        return None
    if name in _SCRIPTED:
        return str(command[3]) if int(command[2]) else None
    if name == "XREAD":
        return str(command[list(command).index("STREAMS") + 1])
    return str(command[1])


class _Unit(NamedTuple):
    """Commands that one node must carry out together: a single command, or a transaction."""

    at: int
    """Index of the unit's first command in the exchange."""
    commands: tuple[Command, ...]
    slot: int | None
    everywhere: bool


def _units(commands: Sequence[Command]) -> Iterator[_Unit]:
    at = 0
    while at < len(commands):
        end = at + 1
        if commands[at][0] == "MULTI":
            while commands[end - 1][0] != "EXEC":
                end += 1
            of: Iterable[Command] = commands[at + 1 : end - 1]
        else:
            of = commands[at:end]
        key = next((key for key in map(key_of, of) if key is not None), None)
        everywhere = tuple(commands[at][:2]) in _EVERYWHERE
        yield _Unit(at, tuple(commands[at:end]), None if key is None else slot_of(key), everywhere)
        at = end


class _Redirect(NamedTuple):
    """The slot in an error reply MOVED or ASK, and the node to which this reply redirects the client."""

    slot: int
    node: Node
    asking: bool
    """True for ASK, which redirects only this command, because the slot is being moved to the node."""


def _redirect(reply: Any, asked: Node) -> _Redirect | None:
    if not isinstance(reply, ReplyError):
        return None
    words = str(reply).split()
    if len(words) < 3 or words[0] not in ("MOVED", "ASK"):
        return None
    return _Redirect(int(words[1]), Node.parse(words[2], asked.host), words[0] == "ASK")


class Routing:
    """Finds the node for each command of a client of one cluster."""

    def __init__(
        self, seeds: Sequence[Node], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start with an empty slot map. ``seeds``: the nodes that are asked for the map first, and again when no other
        node answers."""
        self.map = SlotMap(seeds, clock=clock)

    def node_of(self, key: str) -> Node | None:
        """Return the node that has the key according to the latest slot map; None if the map names no node for the
        key."""
        return self.map.home(slot_of(key))

    def exchange(self, commands: Sequence[Command]) -> Steps[list[Any]]:
        """Carry out each command on the node that has its key. Return the replies. A missing reply is replaced by an
        exception.

        A command without a key goes to the node of the other commands in the exchange, so that TIME reads this node's
        clock. If no command has a key, it goes to any primary. Commands that load scripts, and CONFIG GET, go to all
        primaries that answer, and their replies are joined.
        """
        trouble = yield from self.map.refresh()
        if trouble is not None:
            return [trouble] * len(commands)
        results: list[Any] = [None] * len(commands)
        # (unit, its node, whether it follows an ASK).
        todo: list[tuple[_Unit, Node, bool]] = []
        units = list(_units(commands))
        slot = next((unit.slot for unit in units if unit.slot is not None), None)
        for unit in units:
            slot = slot if unit.slot is None else unit.slot
            home = self.map.any() if slot is None else self.map.home(slot)
            if unit.everywhere:
                # A node that misses the script reports this at its next call, and receives the script then.
                replies = yield Round(
                    {n: list(unit.commands) for n in self.map.sound()}, brief=True
                )
                results[unit.at] = self._all(replies)
            elif home is None:
                self.map.distrust()
                unserved = ReplyError(f"CLUSTERDOWN no node serves slot {slot}")
                results[unit.at : unit.at + len(unit.commands)] = [unserved] * len(unit.commands)
            else:
                todo.append((unit, home, False))
        for _ in range(REDIRECTS_MAX):
            if not todo:
                return results
            todo = yield from self._send(todo, results)
        for unit, _node, _asking in todo:
            moving = ReplyError(f"TRYAGAIN slot {unit.slot} keeps moving")
            results[unit.at : unit.at + len(unit.commands)] = [moving] * len(unit.commands)
        return results

    def _send(
        self, todo: list[tuple[_Unit, Node, bool]], results: list[Any]
    ) -> Steps[list[tuple[_Unit, Node, bool]]]:
        """Send units (commands or transactions) to nodes, and store the replies in ``results``. Return the units that
        must be sent again to another node.

        ``todo``: (unit, node, whether an ASK redirected the unit to the node).
        """
        commands: dict[Node, list[Command]] = {}
        places = []
        for unit, node, asking in todo:
            batch = commands.setdefault(node, [])
            if asking:
                batch.append(ASKING)
            places.append(len(batch))
            batch += unit.commands
        replies = yield Round(commands)
        for node, got in replies.items():
            # The last reply: a connection that breaks has no replies after the break.
            self.map.note(node, next(filter(says_down, got), got[-1]))
        again = []
        for (unit, node, _), start in zip(todo, places, strict=True):
            got = replies[node][start : start + len(unit.commands)]
            redirect = next((r for r in (_redirect(reply, node) for reply in got) if r), None)
            if redirect is None:
                results[unit.at : unit.at + len(got)] = got
            elif not redirect.asking:
                self.map.move(redirect.slot, redirect.node)
                again.append((unit, redirect.node, False))
            elif len(unit.commands) == 1:
                again.append((unit, redirect.node, True))
            else:
                # A transaction cannot follow an ASK: ASKING is for one command, and MULTI would queue it.
                moving = ReplyError(f"TRYAGAIN slot {redirect.slot} is on its way")
                results[unit.at : unit.at + len(got)] = [moving] * len(got)
        return again

    def locate(self, command: Command) -> Steps[Node]:
        """Return the node for a command that uses a connection of its own, such as a blocking command. Raises Unsent or
        ReplyError if no node is known."""
        trouble = yield from self.map.refresh()
        if trouble is not None:
            raise trouble
        key = key_of(command)
        node = self.map.any() if key is None else self.node_of(key)
        if node is None:
            self.map.distrust()
            raise ReplyError(f"CLUSTERDOWN no node serves the slot of {key}")
        return node

    def follow(self, reply: ReplyError, asked: Node) -> bool:
        """Update the slot map from an error reply to a command that uses a connection of its own.

        ``asked``: the node that sent the reply. Return True if the command must be sent again, to another node.
        """
        self.map.note(asked, reply)
        redirect = _redirect(reply, asked)
        if redirect is None:
            return False
        if redirect.asking:
            self.map.distrust()
            return False
        self.map.move(redirect.slot, redirect.node)
        return True

    def _all(self, replies: Replies) -> Any:
        """Join the replies of several primaries to one reply.

        If a primary sent an error reply, the result is the first error reply. Otherwise the result is a success, if
        there was one; lists are joined. Otherwise it is Unsent or Lost. A success may hide that a node did not load a
        script. That node reports the missing script at the next call, and the script is loaded then.
        """
        each = [reply for (reply,) in replies.values()]
        for node, (reply,) in replies.items():
            self.map.note(node, reply)
        wrong = [reply for reply in each if isinstance(reply, ReplyError)]
        done = [reply for reply in each if not isinstance(reply, Exception)]
        if done and not wrong and isinstance(done[0], list):
            return [word for reply in done for word in reply]
        return (wrong or done or each)[0]
