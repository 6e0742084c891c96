"""Where the keys of a Redis Cluster are, and what to do when they are elsewhere. No I/O.

All keys of a queue lie in one slot, so every call is a call to one node. :class:`Routing` sorts the commands of an
exchange by node, follows MOVED and ASK, and asks for the map of the slots again when it has shown to be old. Its
methods are generators: each yields commands by node and is sent the replies, so that the loops of both kinds of wire
(:mod:`rq_core.connections.cluster`) are a few lines.

What a cluster cannot do for now (a slot on its way, a shard without a primary) stays in the place of the reply, for
:mod:`rq_core.protocol.delivery` to send again.
"""

from __future__ import annotations

import binascii
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

from rq_core.protocol.plan import Lost, ReplyError, Unsent

T = TypeVar("T")
Command = Sequence[Any]

SLOTS: Final = 16_384
REDIRECTS_MAX: Final = 5
"""Nodes that a command is sent on to in one exchange."""
REFRESH_EVERY_S: Final = 0.1
"""Seconds between two looks at the map while it does not come right."""
ASKED_MAX: Final = 3
"""Nodes that are asked for the map in one exchange: one that is silent costs a timeout."""
ASKING: Final = ("ASKING",)

_KEYLESS: Final = frozenset({
    "ACL", "CLIENT", "CLUSTER", "CONFIG", "FUNCTION", "INFO", "PING", "SCRIPT", "TIME",
})  # fmt: skip
_SCRIPTED: Final = frozenset({"FCALL", "EVALSHA", "EVAL", "EVAL_RO"})
_EVERYWHERE: Final = frozenset({("FUNCTION", "LOAD"), ("SCRIPT", "LOAD")})
"""What each primary must know for itself."""


class Node(NamedTuple):
    """The address of a server."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, otherwise: str) -> Node:
        """Read HOST:PORT. A node that does not know its name says nothing for HOST: it is ``otherwise`` then."""
        host, _, port = text.rpartition(":")
        return cls(host.strip("[]") or otherwise, int(port))


Round = dict[Node, list[Command]]
Replies = dict[Node, list[Any]]
Steps = Generator[Round, Replies, T]


@lru_cache(maxsize=16_384)
def slot_of(key: str) -> int:
    """The slot of a key: that of its hash tag, if it has one."""
    _, opened, rest = key.partition("{")
    tag, closed, _ = rest.partition("}")
    hashed = tag if opened and closed and tag else key
    return binascii.crc_hqx(hashed.encode("utf-8", "surrogateescape"), 0) % SLOTS


def key_of(command: Command) -> str | None:
    """The first key of a command, None if it has none."""
    name = command[0]
    if name in _KEYLESS:
        return None
    if name in _SCRIPTED:
        return str(command[3]) if int(command[2]) else None
    if name == "XREAD":
        return str(command[list(command).index("STREAMS") + 1])
    return str(command[1])


class _Unit(NamedTuple):
    """What must be carried out together: one command, or one transaction."""

    at: int
    """Its place in the exchange."""
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
    """Where an error reply says that a slot is."""

    slot: int
    node: Node
    asking: bool
    """For this command only: the slot is on its way there."""


def _redirect(reply: Any, asked: Node) -> _Redirect | None:
    if not isinstance(reply, ReplyError):
        return None
    words = str(reply).split()
    if len(words) < 3 or words[0] not in ("MOVED", "ASK"):
        return None
    return _Redirect(int(words[1]), Node.parse(words[2], asked.host), words[0] == "ASK")


class Routing:
    """The map of one cluster's slots, as far as it is known."""

    def __init__(
        self, seeds: Sequence[Node], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``seeds`` are asked for the map at first, and again when all other nodes are silent."""
        self._seeds = tuple(seeds)
        self._clock = clock
        self._slots: list[Node | None] = [None] * SLOTS
        self._known: tuple[Node, ...] = ()
        """All nodes of the last map, those that answered last first."""
        self._primaries: tuple[Node, ...] = ()
        self._turn = 0
        self._stale = True
        self._looked = float("-inf")

    def node_of(self, key: str) -> Node | None:
        """Where a key was when it was last looked, None if that is not known."""
        return self._slots[slot_of(key)]

    def distrust(self) -> None:
        """Something is not where the map says: look again before the next exchange."""
        self._stale = True

    def exchange(self, commands: Sequence[Command]) -> Steps[list[Any]]:
        """Carry out commands where their keys are; an exception stands in the place of a reply that did not come.

        Commands without a key go where others of the exchange go (TIME asks for that clock), else to any primary; those
        that load scripts go to all.
        """
        trouble = yield from self._refresh()
        if trouble is not None:
            return [trouble] * len(commands)
        results: list[Any] = [None] * len(commands)
        # Where each unit goes, and whether as an exception.
        todo: list[tuple[_Unit, Node, bool]] = []
        units = list(_units(commands))
        slot = next((unit.slot for unit in units if unit.slot is not None), None)
        for unit in units:
            slot = slot if unit.slot is None else unit.slot
            home = self._any() if slot is None else self._slots[slot]
            if unit.everywhere:
                replies = yield {node: list(unit.commands) for node in self._primaries}
                results[unit.at] = self._all(replies)
            elif home is None:
                self._stale = True
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
        """Send units and take note of replies. Returns those that are to be sent elsewhere."""
        commands: Round = {}
        places = []
        for unit, node, asking in todo:
            batch = commands.setdefault(node, [])
            if asking:
                batch.append(ASKING)
            places.append(len(batch))
            batch += unit.commands
        replies = yield commands
        again = []
        for (unit, node, _), start in zip(todo, places, strict=True):
            got = replies[node][start : start + len(unit.commands)]
            redirect = next((r for r in (_redirect(reply, node) for reply in got) if r), None)
            if redirect is None:
                if any(isinstance(reply, (Lost, Unsent)) for reply in got):
                    self._stale = True
                results[unit.at : unit.at + len(got)] = got
            elif not redirect.asking:
                self._stale = True
                self._slots[redirect.slot] = redirect.node
                again.append((unit, redirect.node, False))
            elif len(unit.commands) == 1:
                again.append((unit, redirect.node, True))
            else:
                # A transaction cannot be asked for elsewhere: ASKING holds for one command, and MULTI would queue it.
                moving = ReplyError(f"TRYAGAIN slot {redirect.slot} is on its way")
                results[unit.at : unit.at + len(got)] = [moving] * len(got)
        return again

    def locate(self, command: Command) -> Steps[Node]:
        """The node for a command that is sent on a connection of its own. Raises Unsent, or ReplyError."""
        trouble = yield from self._refresh()
        if trouble is not None:
            raise trouble
        key = key_of(command)
        node = self._any() if key is None else self.node_of(key)
        if node is None:
            self._stale = True
            raise ReplyError(f"CLUSTERDOWN no node serves the slot of {key}")
        return node

    def follow(self, reply: ReplyError, asked: Node) -> bool:
        """Take note of an error reply to such a command. True: it is to be sent again, to where its key is now."""
        redirect = _redirect(reply, asked)
        if redirect is None:
            return False
        self._stale = True
        if redirect.asking:
            return False
        self._slots[redirect.slot] = redirect.node
        return True

    def _any(self) -> Node:
        self._turn += 1
        return self._primaries[self._turn % len(self._primaries)]

    def _all(self, replies: Replies) -> Any:
        """One reply for those of all primaries: what stays wrong, else that it was done, else what is wrong for now.

        A call to a node on which it was not done says so, and that it is loaded begins again.
        """
        each = [reply for (reply,) in replies.values()]
        if any(isinstance(reply, (Lost, Unsent)) for reply in each):
            self._stale = True
        wrong = [reply for reply in each if isinstance(reply, ReplyError)]
        done = [reply for reply in each if not isinstance(reply, Exception)]
        return (wrong or done or each)[0]

    # The map.

    def _refresh(self) -> Steps[Exception | None]:
        """Ask for the map if it is stale. Returns why there is none."""
        now = self._clock()
        if not self._stale or (self._primaries and now - self._looked < REFRESH_EVERY_S):
            return None
        # Others go on with the map as it is meanwhile.
        self._looked = now
        trouble: Exception = Unsent("no node of the cluster answers")
        for node in self._candidates()[:ASKED_MAX]:
            (reply,) = (yield {node: [("CLUSTER", "SLOTS")]})[node]
            if isinstance(reply, list) and reply:
                self._learn(reply, node)
                return None
            if isinstance(reply, Exception):
                trouble = reply
            # A node that does not know is asked last the next time.
            others = [other for other in self._candidates() if other != node]
            self._known = (*others, node)
        return None if self._primaries else _explained(trouble)

    def _candidates(self) -> list[Node]:
        return list(dict.fromkeys((*self._known, *self._seeds)))

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


def _explained(trouble: Exception) -> Exception:
    if "cluster support disabled" in str(trouble):
        return ReplyError("ERR it is no Redis Cluster: write redis:// instead of redis+cluster://")
    return trouble
