"""Stages on which waits for jobs are tested. A stage has servers, and a fault that is applied to them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import redis

from rq_core.model.keys import queue_keys
from rq_core.protocol.engine import acl_roles
from tests.kit.clusters import RedisCluster
from tests.kit.sentinels import SentinelGroup
from tests.kit.servers import Engine, RedisServer
from tests.rigs.stage import served
from tests.rigs.waits import crowd
from tests.rigs.waits.crowd import QUEUE, Found, fell_short

KILL_EVERY_S: Final = 0.05
FAIL_OVER_EVERY_S: Final = 15.0
MOVE_EVERY_S: Final = 0.5
SECONDS_MAX: Final = 600.0
ALONE_SHARE: Final = 20
"""The divisor of the number of jobs on the stage `ALONE`, since its only caller has one job under way at a time."""
CHANNEL: Final = queue_keys(QUEUE).channel
RIGHT: Final = "&rqc:{*}:ended"


@dataclass
class Stage:
    """The servers of one run, and the fault.

    The callers who wait and the process that settles jobs have different URLs.
    """

    waits_at: str
    settles_at: str
    subscribed: Callable[[], int]
    strike: Callable[[], None] = lambda: None
    """The function that applies the fault once. A separate thread calls it repeatedly."""
    every: float = 0.0
    """The seconds between two faults, or 0 if there are no faults."""
    may_forget: bool = False
    """True if Redis may lose accepted data on this stage."""


def subscribed_at(*servers: RedisServer) -> int:
    """Return how many clients of these servers have subscribed to the queue's channel."""
    count = 0
    for server in servers:
        if server.running:
            with server.client() as client:
                count += int(client.execute_command("PUBSUB", "SHARDNUMSUB", CHANNEL)[1])
    return count


@contextlib.contextmanager
def quiet(engine: Engine, place: Path) -> Iterator[Stage]:
    """Yield a stage without a fault."""
    with served(engine, place) as server:
        yield Stage(server.url, server.url, lambda: subscribed_at(server))


@contextlib.contextmanager
def killed(engine: Engine, place: Path) -> Iterator[Stage]:
    """Yield a stage on which each connection that listens for messages is killed every 50 ms."""
    with served(engine, place) as server, server.client() as control:

        def strike() -> None:
            control.execute_command("CLIENT", "KILL", "TYPE", "pubsub")

        yield Stage(server.url, server.url, lambda: subscribed_at(server), strike, KILL_EVERY_S)


def _user(server: RedisServer, role: str, *, without: str) -> str:
    """Create a user with all rights of a role except one, and return a URL with its password."""
    rules = [rule for rule in acl_roles.rules(role) if rule != without]
    assert len(rules) < len(acl_roles.rules(role))
    with server.client() as control:
        control.execute_command("ACL", "SETUSER", role, "reset", "on", ">x", *rules)
    return f"redis://{role}:x@127.0.0.1:{server.port}/0"


@contextlib.contextmanager
def waiter_without_the_right(engine: Engine, place: Path) -> Iterator[Stage]:
    """Yield a stage whose waiting callers may not subscribe to the channel."""
    with served(engine, place) as server:
        url = _user(server, "producer", without=RIGHT)
        yield Stage(url, server.url, lambda: subscribed_at(server))


@contextlib.contextmanager
def worker_without_the_right(engine: Engine, place: Path) -> Iterator[Stage]:
    """Yield a stage whose settling process may not publish to the channel."""
    with served(engine, place) as server:
        url = _user(server, "worker", without=RIGHT)
        yield Stage(server.url, url, lambda: subscribed_at(server))


@contextlib.contextmanager
def failover(engine: Engine, place: Path) -> Iterator[Stage]:
    """Yield a stage whose primary is killed again and again. Its replica replaces it, and the killed server becomes a
    replica."""
    group = SentinelGroup(engine, place)
    with group.up():

        def strike() -> None:
            group.wait_whole()
            lost = group.lose_primary()
            group.wait_promoted(lost)
            lost.start()

        yield Stage(
            group.url,
            group.url,
            lambda: subscribed_at(*group.servers),
            strike,
            FAIL_OVER_EVERY_S,
            may_forget=True,
        )


@contextlib.contextmanager
def slot(engine: Engine, place: Path) -> Iterator[Stage]:
    """Yield a stage on which the queue's cluster slot moves from shard to shard, again and again."""
    cluster = RedisCluster(engine, place).start()
    try:
        cluster.reset()
        tag = queue_keys(QUEUE)("meta")

        def strike() -> None:
            home = cluster.primary_of(tag)
            others = [each for each in cluster.primaries() if each.port != home.port]
            with contextlib.suppress(redis.ResponseError):
                cluster.migrate(tag, others[0])

        yield Stage(
            cluster.url,
            cluster.url,
            lambda: subscribed_at(*cluster.primaries()),
            strike,
            MOVE_EVERY_S,
        )
    finally:
        cluster.stop()


ALONE: Final = "alone"
"""The stage without a fault and with one caller. It shows how soon a wait ends, since no callers wait for each
other."""
STAGES: Final[dict[str, Callable[[Engine, Path], Any]]] = {
    ALONE: quiet,
    "quiet": quiet,
    "killed": killed,
    "failover": failover,
    "slot": slot,
    "waiter-without-the-right": waiter_without_the_right,
    "worker-without-the-right": worker_without_the_right,
}


class Striker(threading.Thread):
    """A thread that applies the stage's fault again and again until it is stopped."""

    def __init__(self, stage: Stage, first_s: float) -> None:
        """Apply the first fault after at most ``first_s`` seconds."""
        super().__init__(daemon=True)
        self._stage = stage
        self._first_s = min(first_s, stage.every)
        self._over = threading.Event()
        self.count = 0
        self.trouble: BaseException | None = None

    def run(self) -> None:
        while self._stage.every and not self._over.wait(
            self._stage.every if self.count else self._first_s
        ):
            try:
                self._stage.strike()
            except BaseException as error:
                self.trouble = error
                return
            self.count += 1

    def stop(self) -> None:
        self._over.set()
        began = time.monotonic()
        self.join(120)
        assert not self.is_alive(), f"a fault lasts for {time.monotonic() - began:.0f} s"
        if self.trouble is not None:
            raise self.trouble


def prove(
    name: str,
    engine: Engine,
    place: Path,
    jobs: int,
    *,
    faults: int = 1,
    callers: int = 16,
    seconds_max: float = SECONDS_MAX,
    first_s: float = SECONDS_MAX,
) -> tuple[Found, Sequence[str]]:
    """Let callers wait ``jobs`` times on a stage, or longer until ``faults`` faults have happened.

    The first fault comes after at most ``first_s`` seconds. Returns the figures, and the promises that were not met.
    """
    if name == ALONE:
        jobs, callers = jobs // ALONE_SHARE, 1
    where = place / "servers"
    where.mkdir()
    with STAGES[name](engine, where) as stage:
        striker = Striker(stage, first_s)
        striker.start()
        try:
            found = crowd.run(
                stage.waits_at,
                stage.settles_at,
                place,
                jobs,
                callers=callers,
                subscribed=stage.subscribed,
                seconds_max=seconds_max,
                more=lambda: bool(stage.every) and striker.is_alive() and striker.count < faults,
            )
        finally:
            striker.stop()
    found.faults = striker.count
    return found, fell_short(found, alone=name == ALONE, may_forget=stage.may_forget)
