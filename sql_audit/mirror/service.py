"""The mirror as a service: all queues of a server, for as long as it is wanted.

    run(source, "audit.db", stop=threading.Event(), once=True)

It never ends because Redis or SQL does not answer: it says so, waits a little longer each time, and
goes on. Before it stops it mirrors what is there.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from rq_core.errors import AuditOff, OutcomeUnknown, ServerUnavailable, UnknownQueue
from sql_audit.errors import QueuesElsewhere, SourceDiffers
from sql_audit.mirror import source_registry
from sql_audit.mirror.reading import BatchLimits
from sql_audit.mirror.redis_access import OutboxSource
from sql_audit.mirror.turn import Mirror, TurnOutcome
from sql_audit.store import migrate, partitions
from sql_audit.store.connection import database_identity
from sql_audit.store.connection.database import STALLED_MS, Database
from sql_audit.store.connection.driver_errors import describe_error
from sql_audit.store.log_queues import mirrored

logger = logging.getLogger("rq_core.audit")

WAIT_S: Final = 1.0
"""Seconds that one wait for news lasts; how late a stop or a new queue may be noticed."""
OFF_WAIT_S: Final = 1.0
"""Seconds after which a queue whose log is switched off is looked at again."""
HELD_WAIT_S: Final = 0.25
"""Seconds before a queue that another mirror works on is tried again."""
BACKOFF_S: Final = 0.2
BACKOFF_S_MAX: Final = 10.0
PARTITIONS_EVERY_S: Final = 3600.0
"""Seconds between two checks that PostgreSQL has partitions for the months to come."""
PARTITIONS_AGAIN_S: Final = 30.0
"""Seconds after which it tries again to make one that it could not, for a reader's lock or a right that it lacked."""
LAG_EVERY_S: Final = 10.0
"""Seconds between two measurements of the mirror's lag."""
LAG_TOLD: Final = 10_000
"""Lag, in events, from which on the mirror logs it."""
DRAIN_S: Final = 10.0
"""Seconds after a stop within which what is left is mirrored."""
RECLAIM_S: Final = 2.0
"""Seconds that a mirror which finds an empty Redis waits for one that still has the log's queues in another Redis. That
one looks once a second."""
_OFF: Final = "off"
"""In the place of an error: an operator switched the log off."""


@dataclass(slots=True)
class Mirrored:
    """The work that a run has done."""

    entries: int = 0
    events: int = 0
    failures: int = 0


@dataclass(slots=True)
class _Queue:
    """One queue: its mirror, and when to try it next."""

    mirror: Mirror
    not_before: float = 0.0
    backoff_s: float = BACKOFF_S
    idle: bool = False
    """Nothing was new in its last turn."""
    held_since: float | None = None
    """The time (monotonic, s) since which every turn found another mirror working on it."""
    is_told: bool = False
    """Whether the log says that the queue is mirrored: after the first turn in which Redis and SQL answered."""
    error: str | None = None
    is_silent: bool = False
    """Its server did not answer in its last turn, or in that of another queue that is there."""
    behind: int = 0
    """Events that waited to be mirrored at the last measurement."""

    def put_off(self, pause_s: float) -> None:
        # Spread, so that several mirrors do not come back at the same moment.
        self.not_before = time.monotonic() + pause_s * random.uniform(0.75, 1.25)  # noqa: S311 - no secret


@dataclass(slots=True)
class Service:
    """The loop over all queues. See :func:`run_mirror`."""

    source: OutboxSource
    database: Database
    only: Sequence[str] | None = None
    limits: BatchLimits | None = None
    on_step: Callable[[str], None] | None = None
    made: Sequence[str] = ()
    """Queues that were made for this run just now. (See sources.check.)"""
    done: Mirrored = field(default_factory=Mirrored)
    _queues: dict[str, _Queue] = field(default_factory=dict)
    _awaited: set[str] = field(default_factory=set)
    """Queues that were logged as missing; the empty name: no queue exists at all."""
    _of_sql: list[str] | None = None
    """The queues whose log had to go on when this run began; None: not read yet."""
    _is_source: bool = False
    """Whether this Redis is known to be where the log's queues come from."""
    _listed: float = float("-inf")
    _partitions_due: float = float("-inf")
    _partitions_left: dict[str, str] = field(default_factory=dict)
    """Months without a partition, and why, as they were logged last."""
    _lag_told: float = float("-inf")
    _redis_error: str | None = None
    _redis_backoff_s: float = BACKOFF_S

    def run(self, stop: threading.Event, *, once: bool = False) -> Mirrored:
        """Mirror until ``stop`` is set (``once``: until nothing is left), then drain."""
        while not stop.is_set():
            self._make_partitions()
            self._find_queues(raise_errors=once)
            moved = self._turn_all(raise_errors=once)
            self._note_lag()
            if not moved:
                if once and all(queue.idle for queue in self._queues.values()):
                    return self.done
                self._wait(stop)
        self._drain()
        return self.done

    def _make_partitions(self) -> None:
        """Make the months ahead, now and then. Without them events go to the default partition."""
        if time.monotonic() < self._partitions_due:
            return
        self._partitions_due = time.monotonic() + PARTITIONS_EVERY_S
        try:
            ahead = partitions.create_ahead(self.database, int(time.time() * 1000))
            left = {month.table: why for month, why in ahead.left.items()}
        except Exception as error:  # noqa: BLE001 - mirroring does not depend on it
            left = {"no months are made ahead": describe_error(error)}
        if left:
            self._partitions_due = time.monotonic() + PARTITIONS_AGAIN_S
        for name, why in left.items():
            # Once per reason, however often it is tried.
            if self._partitions_left.get(name) != why:
                logger.warning("%s: no partition: %s", name, why)
        for name in self._partitions_left.keys() - left.keys():
            logger.info("%s: has its partition", name)
        self._partitions_left = left

    def _drain(self) -> None:
        deadline = time.monotonic() + DRAIN_S
        # A mirror that is stopped while it starts knows no queue yet.
        self._find_queues(raise_errors=False)
        for queue in self._queues.values():
            # One whose server was away may be there again: a stop does not wait for its next try.
            queue.not_before = 0.0
        while time.monotonic() < deadline and self._turn_all():
            pass

    def _find_queues(self, *, raise_errors: bool) -> None:
        if time.monotonic() - self._listed < WAIT_S:
            return
        try:
            self._meet_source()
            known = self._known_queues()
        except Exception as error:
            if raise_errors or isinstance(error, SourceDiffers | QueuesElsewhere):
                raise
            self._note_redis(describe_error(error))
            return
        self._listed = time.monotonic()
        wanted = known if self.only is None else self.only
        for name in self._queues.keys() - known:
            self._leave_if_deleted(name)
        if not known and self.only is None and not (self._queues or self._awaited):
            self._awaited.add("")
            logger.info("no queue is there yet to be mirrored into %s", self.database.url)
        for name in wanted:
            if name not in known:
                if raise_errors:
                    raise UnknownQueue(queue=name, known=", ".join(known) or "none")
                if name not in self._awaited:
                    self._awaited.add(name)
                    logger.warning(
                        "queue %s: not there yet; known are %s", name, ", ".join(known) or "none"
                    )
            elif name not in self._queues:
                mirror = Mirror(
                    self.source,
                    self.database,
                    name,
                    limits=self.limits,
                    on_step=self.on_step,
                    # Another mirror may have taken the queue for its Redis since the sources were compared.
                    confirm_loss=partial(
                        source_registry.check_source,
                        self.source,
                        self.database,
                        only=[name],
                        made=self.made,
                    ),
                )
                self._queues[name] = _Queue(mirror)

    def _meet_source(self) -> None:
        """Refuse a Redis that is not where the log's queues come from, or has queues that another database mirrors,
        before anything in it or in SQL changes."""
        if self._is_source:
            return
        check = partial(
            source_registry.check_source,
            self.source,
            self.database,
            only=self.only,
            made=self.made,
            takes=True,
        )
        if not check():
            lost = source_registry.release(self.source, self.database)
            logger.warning(
                "Redis has no queue, and the log has %s: unless another mirror has them, they are lost",
                ", ".join(lost),
            )
            time.sleep(RECLAIM_S)
            if not check():
                why = f"another mirror has {', '.join(lost)} there, and this Redis is empty"
                raise source_registry.refusal(self.source, self.database, why)
        self._is_source = True

    def _known_queues(self) -> list[str]:
        """Return the queues of Redis, and those of SQL: a Redis that lost everything lists no queue."""
        known = set(self.source.queues())
        if self._of_sql is None:
            # Once is enough: a queue that is lost later has been mirrored here before.
            with self.database.readers.connect() as connection:
                self._of_sql = mirrored(connection, self.source.prefix)
        for name in self._of_sql:
            if name not in known and name not in self._queues:
                logger.warning(
                    "queue %s: the log has it, and Redis does not list it: looking what Redis has lost",
                    name,
                )
        return sorted(known.union(self._of_sql))

    def _leave_if_deleted(self, name: str) -> None:
        try:
            deleted = self._queues[name].mirror.queue_is_deleted()
        except Exception:  # noqa: BLE001 - the next turn says what is wrong with SQL
            return
        if deleted:
            del self._queues[name]
            logger.info("queue %s: was deleted; SQL keeps its history", name)

    def _turn_all(self, *, raise_errors: bool = False) -> bool:
        """One turn of each queue that may have one. Returns whether any moved on."""
        moved = False
        for name, queue in self._queues.items():
            if queue.not_before <= time.monotonic():
                moved |= self._turn(name, queue, raise_errors=raise_errors)
        return moved

    def _turn(self, name: str, queue: _Queue, *, raise_errors: bool) -> bool:
        queue.idle = False
        try:
            turn = queue.mirror.turn()
        except Exception as error:
            # Whatever it is, the next turn begins again from what is committed.
            if raise_errors:
                raise
            if isinstance(error, AuditOff):
                self._note_off(name, queue)
            else:
                self._note_failure(name, queue, error)
            return False
        queue.is_silent = False
        if not queue.is_told:
            logger.info("queue %s: is mirrored into %s", name, self.database.url)
        elif queue.error is not None:
            logger.info("queue %s: mirrored again", name)
        queue.is_told, queue.error = True, None
        queue.backoff_s = BACKOFF_S
        self.done.entries += turn.entries
        self.done.events += turn.events
        if turn.outcome is TurnOutcome.HELD:
            self._note_held(name, queue)
            queue.put_off(HELD_WAIT_S)
        else:
            queue.held_since = None
        queue.idle = turn.outcome is TurnOutcome.IDLE
        return turn.outcome not in (TurnOutcome.IDLE, TurnOutcome.HELD)

    def _note_held(self, name: str, queue: _Queue) -> None:
        """Another mirror has the queue. If for long, it may have stopped where only we can end it."""
        now = time.monotonic()
        if queue.held_since is None:
            queue.held_since = now
        elif now - queue.held_since > STALLED_MS / 1000:
            queue.held_since = now
            ended = self.database.end_stalled(STALLED_MS)
            logger.warning("queue %s: held by another mirror; %d stalled ones ended", name, ended)

    def _note_lag(self) -> None:
        """Log the lag of queues with a lag, and the end of a lag."""
        if time.monotonic() - self._lag_told < LAG_EVERY_S:
            return
        self._lag_told = time.monotonic()
        for name, queue in self._queues.items():
            if queue.is_silent:
                continue
            try:
                behind = self.source.counts(name).backlog
            except Exception:  # noqa: BLE001 - that Redis does not answer is logged elsewhere
                return
            if behind >= LAG_TOLD:
                logger.warning("queue %s: %d events behind", name, behind)
            elif queue.behind >= LAG_TOLD:
                logger.info("queue %s: level again", name)
            queue.behind = behind

    def _note_off(self, name: str, queue: _Queue) -> None:
        """An operator switched the log off. Whether it is on again is looked at now and then."""
        if queue.error != _OFF:
            logger.info(
                "queue %s: its log is switched off; `rq-core audit on %s` switches it on",
                name,
                name,
            )
            queue.error = _OFF
        queue.put_off(OFF_WAIT_S)

    def _note_failure(self, name: str, queue: _Queue, error: Exception) -> None:
        self.done.failures += 1
        text = f"{type(error).__name__}: {describe_error(error)}"
        if text != queue.error:
            # Once per reason: an outage of an hour is one line, not thousands.
            logger.error("queue %s: not mirrored: %s", name, text)
            queue.error = text
        queue.put_off(queue.backoff_s)
        queue.backoff_s = min(queue.backoff_s * 2, BACKOFF_S_MAX)
        queue.is_silent = isinstance(error, ServerUnavailable | OutcomeUnknown)
        if queue.is_silent:
            self._put_off_neighbours(name, queue)

    def _put_off_neighbours(self, name: str, queue: _Queue) -> None:
        """Queues on the same node of a cluster would each wait for it, and those of others behind them."""
        place = self.source.place(name)
        for other, neighbour in self._queues.items():
            if place is not None and neighbour is not queue and self.source.place(other) == place:
                neighbour.idle, neighbour.is_silent = False, True
                neighbour.not_before = max(neighbour.not_before, queue.not_before)

    def _note_redis(self, text: str) -> None:
        if text != self._redis_error:
            logger.error("Redis does not say what to mirror: %s", text)
            self._redis_error = text

    def _wait(self, stop: threading.Event) -> None:
        """Wait until there is news, a queue may be tried again, or a second is over."""
        now = time.monotonic()
        later = [q.not_before - now for q in self._queues.values() if q.not_before > now]
        wait_s = max(0.01, min([WAIT_S, *later]))
        waiting = {
            name: str(queue.mirror.position or "0-0")
            for name, queue in self._queues.items()
            if queue.idle
        }
        if not waiting:
            stop.wait(wait_s)
            return
        try:
            self.source.wait_outbox(waiting, wait_s)
        except Exception as error:  # noqa: BLE001 - waiting may fail in any way and be tried again
            self._note_redis(describe_error(error))
            stop.wait(self._redis_backoff_s)
            self._redis_backoff_s = min(self._redis_backoff_s * 2, BACKOFF_S_MAX)
        else:
            self._redis_error, self._redis_backoff_s = None, BACKOFF_S


def run_mirror(
    source: OutboxSource,
    url: str | Database,
    *,
    stop: threading.Event,
    queues: Sequence[str] | None = None,
    once: bool = False,
    limits: BatchLimits | None = None,
    on_step: Callable[[str], None] | None = None,
    made: Sequence[str] = (),
) -> Mirrored:
    """Mirror the queues of a server into an audit database until ``stop`` is set; ``once``: until
    all is there. ``made`` are queues that were made just now, whose past is not known.

    ``queues`` None: all that exist, new ones too. A database without tables gets them. Raises
    AuditError at the start if the database cannot be used, and, when Redis answers, SourceDiffers if
    it is another than the log's, and QueuesElsewhere if another database mirrors a queue of it;
    later failures are logged and tried again, but for ``once``, which raises what went wrong.
    """
    database = url if isinstance(url, Database) else Database(url)
    try:
        migrate.ensure_schema(database)
        database_identity.check_identity(database)
        return Service(source, database, queues, limits, on_step, made).run(stop, once=once)
    finally:
        if database is not url:
            database.close()


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Make Python's garbage collector rare, in a process that only mirrors or verifies.

    A batch is many thousand small objects that free themselves; looking through them for cycles
    after every 700 takes a quarter of the time.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(1_000_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
