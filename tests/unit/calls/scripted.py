"""A server with prepared replies, and plans that call it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from rq_core.model.job import NewJob, profile
from rq_core.protocol.engine.delivery import Delivery
from rq_core.protocol.engine.plan import Patience, Pause, Plan, ReplyError, Send, T
from rq_core.protocol.operations import Operations
from rq_core.scripts.script import Script, function

OK = ["ok"]
EPOCH = ["epoch"]
GREETING = ["ok", "7", "1000", "30000", "0", "off", "-", "-"]


class Server:
    """Answers commands with prepared replies: ``Server(HGET=["1", "2"])`` answers HGET first with 1, and then always
    with 2.

    A reply may also be a function of the command.
    """

    def __init__(self, **replies: Any) -> None:
        self.replies: dict[str, deque[Any]] = {
            "INFO": deque(["redis_version:7.2.0\r\nmaxmemory_policy:noeviction"]),
            "SADD": deque([1]),
            "FUNCTION": deque(["rq_core"]),
            "SCRIPT": deque(["sha"]),
            "handshake": deque([GREETING]),
            **{name: deque(given) for name, given in replies.items()},
        }
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.trips = 0
        self.lets_prepare = True
        self.slept = 0.0
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def exchange(
        self,
        commands: Sequence[Sequence[Any]],
        meanwhile: Callable[[], None] | None = None,
        _patience: Patience | None = None,
    ) -> list[Any]:
        self.trips += 1
        replies = [self._answer(list(command)) for command in commands]
        if meanwhile is not None and self.lets_prepare:
            meanwhile()
        return replies

    def _answer(self, command: list[Any]) -> Any:
        name, args = read(command)
        self.seen.append((name, args))
        replies = self.replies[name]
        reply = replies.popleft() if len(replies) > 1 else replies[0]
        return reply(command) if callable(reply) else reply

    def run(self, plan: Plan[T]) -> T:
        reply: Any = None
        for _ in range(2_000):
            try:
                step = plan.send(reply)
            except StopIteration as end:
                value: T = end.value
                return value
            if isinstance(step, Send):
                reply = self.exchange(*step)
            else:
                assert isinstance(step, Pause)
                self.slept += step.seconds
                self.now += step.seconds
                reply = None
        raise AssertionError(f"the plan does not end; it sent {self.names()[-6:]}")

    def names(self) -> list[str]:
        return [name for name, _ in self.seen]

    def sent(self, name: str) -> list[dict[str, Any]]:
        return [args for seen, args in self.seen if seen == name]


_KNOWN: dict[str, Script] = {
    verb: function(name)
    for name in ("enqueue", "handshake", "claim", "complete")
    for verb in (function(name).function, function(name).sha)
}


def read(command: list[Any]) -> tuple[str, dict[str, Any]]:
    if command[0] not in {"FCALL", "EVALSHA"}:
        return str(command[0]), {}
    found = _KNOWN[command[1]]
    values = command[3 + command[2] :]
    args = dict(zip(found.args, values, strict=False))
    args["each"] = values[len(found.args) :]
    return found.name, args


def plans(server: Server, **options: Any) -> Operations:
    return Operations(Delivery(url="redis://test", clock=server.clock, **options))


def job(number: int, queue: str = "q") -> NewJob:
    return NewJob(f"job-{number}", queue, profile("task"), "{}")


def calls(server: Server, name: str = "enqueue") -> list[tuple[str, int]]:
    """Return the slot and the number of each call of the script ``name``."""
    return [(args["slot"], args["number"]) for args in server.sent(name)]


FORGOTTEN = ReplyError("ERR Function not found")
