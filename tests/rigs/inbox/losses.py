"""Flushes Redis, or lets it fail over, at each point of a relay's turn. No row of the inbox may be lost.

Redis may lose jobs that it has acknowledged, as with every producer. ``audit restore`` must then list the lost jobs,
and the log must show which jobs ran twice. The module compares both with the jobs that really ran.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from sqlalchemy import text

from sql_audit.errors import SourceDiffers
from sql_audit.mirror.redis_access import Outbox, open_source
from sql_audit.mirror.service import run_mirror
from sql_audit.mirror.source_registry import adopt
from sql_audit.store.connection.database import Database
from sql_audit.upkeep.survey import survey
from tests.kit.inbox import QUEUE, Stage, at
from tests.kit.proxy import Proxy
from tests.kit.servers import Engine, RedisServer
from tests.kit.wait import wait_until
from tests.rigs.inbox.points import JOBS, Point

_TWICE: Final = text(
    "SELECT job_id FROM job_event WHERE type = 'succeeded' GROUP BY job_id HAVING count(*) > 1"
)


class Loss(StrEnum):
    """The ways in which Redis loses data, or hands over to a replica."""

    FLUSH = "flush"
    FAILOVER = "failover"
    """A failover to a replica that has all writes."""
    FAILOVER_BEHIND = "failover behind"
    """A failover to a replica that has received no data since before the batch, and so lacks the batch."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one loss of Redis at one point of a turn."""

    point: str
    loss: str
    jobs_had_run: bool
    """True if the jobs that Redis had were run before Redis lost them."""
    lost: int
    """The number of committed rows whose jobs never ran."""
    twice: int
    said_lost: int
    """The number of jobs that ``audit restore`` would enqueue again."""
    said_twice: int
    """The number of jobs that have succeeded twice, according to the log."""
    acknowledged: bool
    """True if Redis had answered all calls of the batch before the loss."""

    @property
    def holds(self) -> bool:
        """Return whether no job was lost without reason, and whether the log is right about lost and repeated jobs.

        Redis may lose only jobs that it had acknowledged, and no job in a failover to a complete replica.
        """
        excused = self.acknowledged and self.loss is not Loss.FAILOVER
        unharmed = self.loss is Loss.FAILOVER and (self.lost or self.twice)
        logged = (self.lost, self.twice) == (self.said_lost, self.said_twice)
        return logged and not unharmed and (not self.lost or excused)

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


class Pair:
    """A primary and its replica, behind a proxy with one address for both. Use ``up`` in a ``with`` statement."""

    def __init__(self, engine: Engine, place: Path) -> None:
        self._servers = []
        for name in ("primary", "replica"):
            (place / name).mkdir()
            self._servers.append(RedisServer(engine, place / name))

    @contextmanager
    def up(self) -> Iterator[Pair]:
        primary, replica = self._servers
        with ExitStack() as stack:
            for server in self._servers:
                stack.callback(server.kill)
                server.start()
            self.proxy = stack.enter_context(Proxy(primary.port))
            self._control = stack.enter_context(primary.client())
            self._other = stack.enter_context(replica.client())
            self._other.replicaof("127.0.0.1", str(primary.port))
            yield self

    def wait_level(self) -> None:
        def is_level() -> bool:
            ours, theirs = self._other.info("replication"), self._control.info("replication")
            return bool(
                ours["master_link_status"] == "up"
                and ours["slave_repl_offset"] == theirs["master_repl_offset"]
            )

        wait_until(is_level, "the replica has all writes", timeout=20)

    def cut_off(self) -> None:
        """Wait until the replica has all writes, and then end the replication."""
        self.wait_level()
        self._other.replicaof("NO", "ONE")

    def lose(self, loss: Loss) -> None:
        if loss is Loss.FLUSH:
            self._control.flushall()
            return
        if loss is Loss.FAILOVER:
            self.cut_off()
        primary, replica = self._servers
        self.proxy.lead_to(replica.port)
        primary.kill()


def lose_at(
    url: str, engine: Engine, place: Path, point: Point, loss: Loss, *, runs: bool
) -> Outcome:
    """Let Redis lose data at a point of a relay's turn, and return the result.

    With ``runs``, the jobs in Redis are run just before the loss.
    """
    log = str(place / "log.db")
    with Pair(engine, place).up() as pair:
        stage = Stage(url, pair.proxy.url)
        source = open_source(stage.redis_url, "rqc")
        ran: Counter[str] = Counter()
        said: list[str] = []

        def mirror() -> None:
            try:
                run_mirror(source, log, stop=threading.Event(), once=True)
            except SourceDiffers:
                # Redis was flushed, and has the queue again: an operator says that it is the log's Redis.
                with closing(Database(log)) as database:
                    adopt(Outbox(stage.client), database)
                run_mirror(source, log, stop=threading.Event(), once=True)

        def lose() -> None:
            said.append("lost")
            if runs:
                ran.update(stage.drain())
            mirror()
            pair.lose(loss)

        # The queue, the log and the relay's first batch are older than the replica's last news.
        stage.insert("before")
        stage.hand_over()
        stage.drain()
        mirror()
        if loss is Loss.FAILOVER_BEHIND:
            pair.cut_off()
        stage.insert(*JOBS)
        stage.hand_over(_with_answers(at(point.step, point.times, lose), said))
        mirror()
        with closing(Database(log)) as database:
            found = survey(stage.client, database, QUEUE)
            ran.update(stage.drain())
            mirror()
            with database.readers.connect() as connection:
                said_twice = len(connection.execute(_TWICE).all())
        assert not stage.rows()
        assert not stage.parked()
        source.close()
        stage.close()
    answered = "answered" in said[: said.index("lost")] or point.step == "answered"
    return Outcome(
        point.name,
        loss,
        runs,
        lost=len(set(JOBS) - ran.keys()),
        twice=sum(1 for times in ran.values() if times > 1),
        said_lost=sum(1 for job in found.lost if job.over is None),
        said_twice=said_twice,
        acknowledged=answered,
    )


def _with_answers(does: Callable[[str], None], said: list[str]) -> Callable[[str], None]:
    def on_step(step: str) -> None:
        does(step)
        if step == "answered":
            said.append(step)

    return on_step


def directory(place: Path, *names: object) -> Path:
    """Create a new directory in ``place``, named after ``names``, and return its path."""
    made = place / f"{'-'.join(map(str, names)).replace(' ', '-')}-{os.urandom(3).hex()}"
    made.mkdir()
    return made


RUNS: Final = (False, True)
