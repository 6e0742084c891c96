"""Where the keys of a Redis Cluster are, and what to do when they are elsewhere. No I/O.

All keys of a queue lie in one slot, so every call is a call to one node. :class:`Routing` sorts the commands of an
exchange by node by what its map says (:mod:`rq_core.connections.slot_map`), and follows MOVED and ASK. Its methods are
generators: each yields commands by node and is sent the replies, so that the loops of both kinds of wire
(:mod:`rq_core.connections.cluster`) are a few lines.

What a cluster cannot do for now (a slot on its way, a shard without a primary) stays in the place of the reply, for
:mod:`rq_core.protocol.delivery` to send again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from rq_core.connections.slot_map import (
    Command,
    Node,
    Replies,
    Round,
    SlotMap,
    Steps,
    says_down,
    slot_of,
)
from rq_core.protocol.plan import ReplyError

REDIRECTS_MAX: Final = 5
"""Nodes that a command is sent on to in one exchange."""
ASKING: Final = ("ASKING",)

_KEYLESS: Final = frozenset({
    "ACL", "CLIENT", "CLUSTER", "CONFIG", "FUNCTION", "INFO", "PING", "SCRIPT", "TIME",
})  # fmt: skip
_SCRIPTED: Final = frozenset({"FCALL", "EVALSHA", "EVAL", "EVAL_RO"})
_EVERYWHERE: Final = frozenset({("FUNCTION", "LOAD"), ("SCRIPT", "LOAD"), ("CONFIG", "GET")})
"""What each primary must know for itself."""


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
    """Finds the nodes of one cluster for commands."""

    def __init__(
        self, seeds: Sequence[Node], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``seeds`` are asked for the map at first, and again when all other nodes are silent."""
        self.map = SlotMap(seeds, clock=clock)

    def node_of(self, key: str) -> Node | None:
        """Where a key was when it was last looked, None if that is not known."""
        return self.map.home(slot_of(key))

    def exchange(self, commands: Sequence[Command]) -> Steps[list[Any]]:
        """Carry out commands where their keys are; an exception stands in the place of a reply that did not come.

        Commands without a key go where others of the exchange go (TIME asks for that clock), else to any primary; those
        that load scripts go to all primaries, and so does CONFIG GET, whose answers come one behind the other.
        """
        trouble = yield from self.map.refresh()
        if trouble is not None:
            return [trouble] * len(commands)
        results: list[Any] = [None] * len(commands)
        # Where each unit goes, and whether as an exception.
        todo: list[tuple[_Unit, Node, bool]] = []
        units = list(_units(commands))
        slot = next((unit.slot for unit in units if unit.slot is not None), None)
        for unit in units:
            slot = slot if unit.slot is None else unit.slot
            home = self.map.any() if slot is None else self.map.home(slot)
            if unit.everywhere:
                # A node that does not hear of it says so at its next call, and is told then.
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
        """Send units and take note of replies. Returns those that are to be sent elsewhere."""
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
            # The last one: a connection that breaks leaves no answer behind the break.
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
                # A transaction cannot be asked for elsewhere: ASKING holds for one command, and MULTI would queue it.
                moving = ReplyError(f"TRYAGAIN slot {redirect.slot} is on its way")
                results[unit.at : unit.at + len(got)] = [moving] * len(got)
        return again

    def locate(self, command: Command) -> Steps[Node]:
        """The node for a command that is sent on a connection of its own. Raises Unsent, or ReplyError."""
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
        """Take note of an error reply to such a command. True: it is to be sent again, to where its key is now."""
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
        """One reply for those of all primaries: what stays wrong, else that it was done (lists come one behind the
        other), else what is wrong for now.

        A call to a node on which it was not done says so, and that it is loaded begins again.
        """
        each = [reply for (reply,) in replies.values()]
        for node, (reply,) in replies.items():
            self.map.note(node, reply)
        wrong = [reply for reply in each if isinstance(reply, ReplyError)]
        done = [reply for reply in each if not isinstance(reply, Exception)]
        if done and not wrong and isinstance(done[0], list):
            return [word for reply in done for word in reply]
        return (wrong or done or each)[0]
