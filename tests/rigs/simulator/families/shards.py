"""Two servers with one queue each, as two shards of a cluster, and the transport to both."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from rq_core.connections.transport import Meanwhile
from rq_core.protocol.engine.plan import Patience
from tests.kit.fleet import QUEUE
from tests.kit.servers import Engine
from tests.rigs.simulator.actors import StepTransport, Waiting
from tests.rigs.simulator.simulation import Stage, staged
from tests.rigs.simulator.strand import Request

PARENTS: Final = QUEUE
PARTS: Final = "parts"
QUEUES: Final = (PARENTS, PARTS)

_TAG: Final = re.compile(r"\{([^}]*)\}")
_EVERYWHERE: Final = ("FUNCTION", "SCRIPT")
_WITH_KEYS: Final = ("FCALL", "FCALL_RO", "EVAL", "EVAL_RO", "EVALSHA", "EVALSHA_RO")


class TwoStages(NamedTuple):
    """The servers of the parents and of their children. The audit database of both is in ``parents.directory``."""

    parents: Stage
    parts: Stage


@contextmanager
def both_staged(engine: Engine | None = None) -> Iterator[TwoStages]:
    """Yield two new servers."""
    with staged(engine) as parents, staged(engine) as parts:
        yield TwoStages(parents, parts)


class Routed(list[Any]):
    """The words of a command, with the queue whose server gets it."""

    def __init__(self, words: Sequence[Any], queue: str) -> None:
        super().__init__(words)
        self.queue = queue


def queues_of(command: Sequence[Any]) -> Sequence[str]:
    """Return the queues whose servers get a command. Each server gets the scripts. Another command without a key goes
    to the server of the parents."""
    if command[0] in _EVERYWHERE:
        return QUEUES
    words = command[1:]
    if command[0] in _WITH_KEYS:
        words = command[3 : 3 + int(command[2])]
    for word in words:
        found = _TAG.search(str(word))
        if found is not None:
            return (found[1],)
    return (PARENTS,)


class ShardTransport(StepTransport):
    """A transport to both servers. The commands for each server are a round trip of their own, which the network may
    disturb without the other."""

    one_slot = True

    def __init__(self, strand: Waiting) -> None:
        super().__init__(strand)
        self._waiting = strand

    def place(self, key: str) -> object:
        return queues_of(["GET", key])[0]

    def exchange(
        self,
        commands: Sequence[Sequence[Any]],
        meanwhile: Meanwhile = None,
        _patience: Patience | None = None,
    ) -> list[Any]:
        if meanwhile is not None:
            meanwhile()
        replies: list[Any] = [None] * len(commands)
        for queue in QUEUES:
            places = [at for at, each in enumerate(commands) if queue in queues_of(each)]
            if places:
                routed: list[list[Any]] = [Routed(commands[at], queue) for at in places]
                for at, reply in zip(places, self._waiting.wait(Request(routed)), strict=True):
                    replies[at] = reply
        return replies
