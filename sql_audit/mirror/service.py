"""The mirror as a service: mirrors all queues of a server until it is stopped.

    run_mirror(source, "audit.db", stop=threading.Event(), once=True)

If Redis or SQL does not answer, the service logs the error and tries again. The pause grows with each failure. Before
the service stops, it mirrors the entries that are left.
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
from sql_audit.errors import QueuesElsewhere, SchemaAhead, SchemaBehind, SourceDiffers
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
"""Maximum seconds of one wait for new entries. The mirror may notice a stop or a new queue up to this time later."""
OFF_WAIT_S: Final = 1.0
"""Seconds until the mirror tries a queue again, if the queue's log is switched off."""
HELD_WAIT_S: Final = 0.25
"""Seconds until the mirror tries a queue again after another mirror had locked the queue's cursor."""
BACKOFF_S: Final = 0.2
BACKOFF_S_MAX: Final = 10.0
PARTITIONS_EVERY_S: Final = 3600.0
"""Seconds between two checks that PostgreSQL has partitions for the months to come."""
PARTITIONS_AGAIN_S: Final = 30.0
"""Seconds until the mirror tries again to make a partition, after a reader's lock or a missing right prevented it."""
LAG_EVERY_S: Final = 10.0
"""Seconds between two measurements of the mirror's lag."""
LAG_TOLD: Final = 10_000
"""Minimum number of events of a queue that are not mirrored yet for which the mirror logs a warning."""
DRAIN_S: Final = 10.0
"""Maximum seconds that the mirror continues after a request to stop, to mirror the entries that are left."""
RECLAIM_S: Final = 2.0
"""Seconds that a mirror waits when it starts on an empty Redis, before it takes over the log's queues. If another
mirror works on a Redis that still has these queues, it takes them back within this time."""
_OFF: Final = "off"
"""The value of ``_Queue.error`` after an operator switched the queue's audit log off."""


@dataclass(slots=True)
class Mirrored:
    """How many entries and events one run of the mirror wrote to SQL, and how many turns failed."""

    entries: int = 0
    events: int = 0
    failures: int = 0


@dataclass(slots=True)
class _Queue:
    """The state of one queue in the service: its mirror, when its next turn is due (monotonic clock, s), and its last
    result."""

    mirror: Mirror
    not_before: float = 0.0
    backoff_s: float = BACKOFF_S
    idle: bool = False
    """True if the queue's last turn found nothing new."""
    held_since: float | None = None
    """When this mirror first found that another mirror had locked the queue (monotonic clock, s). It is set again when
    this mirror ends stalled connections because the lock lasts. None if the last turn was not locked out."""
    is_told: bool = False
    """True if the mirror has logged that it mirrors the queue. It logs this once, after the first successful turn."""
    error: str | None = None
    is_silent: bool = False
    """True if the queue's Redis node did not answer in the last turn of this queue or of another queue on the node."""
    behind: int = 0
    """Number of events that were not mirrored yet at the last measurement."""

    def put_off(self, pause_s: float) -> None:
        # The pause is random, so that several mirrors do not try again at the same moment.
        self.not_before = time.monotonic() + pause_s * random.uniform(0.75, 1.25)  # noqa: S311 - no secret


@dataclass(slots=True)
class Service:
    """The loop that makes turns for all queues. See :func:`run_mirror`."""

    source: OutboxSource
    database: Database
    only: Sequence[str] | None = None
    limits: BatchLimits | None = None
    on_step: Callable[[str], None] | None = None
    made: Sequence[str] = ()
    """Queues that the caller has just created for this run. Redis cannot have lost them; see
    :func:`source_registry.check_source`."""
    on_ready: Callable[[], None] | None = None
    """A function to call once, after the first turn of the queues. See :func:`run_mirror`."""
    done: Mirrored = field(default_factory=Mirrored)
    _queues: dict[str, _Queue] = field(default_factory=dict)
    _awaited: set[str] = field(default_factory=set)
    """Names of queues that were logged as missing in Redis; an empty name means that Redis had no queue at all."""
    _of_sql: list[str] | None = None
    """The queues whose log was still being mirrored, according to SQL, when this run began; None if not read yet."""
    _is_source: bool = False
    """True if the mirror has checked that the log's queues come from this Redis."""
    _listed: float = float("-inf")
    _partitions_due: float = float("-inf")
    _partitions_left: dict[str, str] = field(default_factory=dict)
    """By table name: the last logged reason why the partition of a month could not be made."""
    _lag_told: float = float("-inf")
    _redis_error: str | None = None
    _redis_backoff_s: float = BACKOFF_S

    def run(self, stop: threading.Event, *, once: bool = False) -> Mirrored:
        """Mirror until ``stop`` is set, then mirror what is left. With ``once``, return when nothing is left. Return
        the numbers of mirrored entries and events."""
        while not stop.is_set():
            self._make_partitions()
            self._find_queues(raise_errors=once)
            moved = self._turn_all(raise_errors=once)
            if self.on_ready is not None and self._is_source:
                self.on_ready()
                self.on_ready = None
            self._note_lag()
            if not moved:
                if once and all(queue.idle for queue in self._queues.values()):
                    return self.done
                self._wait(stop)
        self._drain()
        return self.done

    def _make_partitions(self) -> None:
        """If a check is due, make the partitions of the coming months for ``job_event`` on PostgreSQL."""
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
            # A reason is logged once, regardless of the number of tries.
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
            # A server that did not answer may answer again: after a stop, its queues are tried at once.
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
        """Check, before anything changes, that the log's queues come from this Redis. Raise SourceDiffers if they come
        from another Redis. Raise QueuesElsewhere if another database mirrors one of the queues."""
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
        """Return the names of the queues that Redis or SQL has. A queue that only SQL has may be lost in Redis."""
        known = set(self.source.queues())
        if self._of_sql is None:
            # One read is enough: a queue that Redis loses later is in self._queues already.
            with self.database.readers.connect() as connection:
                self._of_sql = mirrored(connection, self.source.prefix)
        for name in self._of_sql:
            if name not in known and name not in self._queues:
                logger.warning(
                    "queue %s: the log has it, and Redis does not list it: checking what Redis has lost",
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
        """Mirror one batch of each queue whose pause is over. Return whether anything was written to SQL."""
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
            # After any other error, the next turn begins again from the committed state.
            if raise_errors or isinstance(error, SchemaAhead | SchemaBehind):
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
        """Note that another mirror has locked the queue. After STALLED_MS, end the database connections of mirrors that
        hang within a COPY: the other mirror may be one of them."""
        now = time.monotonic()
        if queue.held_since is None:
            queue.held_since = now
        elif now - queue.held_since > STALLED_MS / 1000:
            queue.held_since = now
            ended = self.database.end_stalled(STALLED_MS)
            logger.warning("queue %s: held by another mirror; %d stalled ones ended", name, ended)

    def _note_lag(self) -> None:
        """Log a warning for each queue with at least LAG_TOLD events not mirrored yet; log when it has caught up."""
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
                logger.info("queue %s: has caught up", name)
            queue.behind = behind

    def _note_off(self, name: str, queue: _Queue) -> None:
        """Log once that an operator switched the queue's log off. Put the queue off for OFF_WAIT_S seconds."""
        if queue.error != _OFF:
            on = f"rq-core audit on {name}"
            logger.info("queue %s: its log is switched off; `%s` switches it on", name, on)
            queue.error = _OFF
        queue.put_off(OFF_WAIT_S)

    def _note_failure(self, name: str, queue: _Queue, error: Exception) -> None:
        self.done.failures += 1
        text = f"{type(error).__name__}: {describe_error(error)}"
        if text != queue.error:
            migrate.refuse_changed(self.database, error)
            # A reason is logged once: an outage of an hour is one line, not thousands.
            logger.error("queue %s: not mirrored: %s", name, text)
            queue.error = text
        queue.put_off(queue.backoff_s)
        queue.backoff_s = min(queue.backoff_s * 2, BACKOFF_S_MAX)
        queue.is_silent = isinstance(error, ServerUnavailable | OutcomeUnknown)
        if queue.is_silent:
            self._put_off_neighbours(name, queue)

    def _put_off_neighbours(self, name: str, queue: _Queue) -> None:
        """Delay the turns of all queues on a cluster node that did not answer, so that other queues need not wait."""
        place = self.source.place(name)
        for other, neighbour in self._queues.items():
            if place is not None and neighbour is not queue and self.source.place(other) == place:
                neighbour.idle, neighbour.is_silent = False, True
                neighbour.not_before = max(neighbour.not_before, queue.not_before)

    def _note_redis(self, text: str) -> None:
        if text != self._redis_error:
            logger.error("Redis does not answer which queues it has: %s", text)
            self._redis_error = text

    def _wait(self, stop: threading.Event) -> None:
        """Wait until a queue has new entries or its pause is over, but at most WAIT_S seconds; longer if Redis does not
        answer."""
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
    on_ready: Callable[[], None] | None = None,
) -> Mirrored:
    """Mirror the queues of a server into an audit database until ``stop`` is set. Return the numbers of entries and
    events.

    With ``once``, return as soon as SQL has every entry. ``queues`` are the queues to mirror; None means all queues,
    also those created later. ``made`` are queues that the caller has just created, so that Redis cannot have lost them.
    A database without tables gets them. ``on_ready`` is called once, after the first turn of the queues. By then, the
    mirror has checked that the log comes from this Redis.

    At the start, raise AuditError if the database cannot be used. When Redis answers, raise SourceDiffers if the log
    comes from another Redis. Raise QueuesElsewhere if another database mirrors one of the queues. Later errors are
    logged, and the turn is made again; with ``once`` they are raised. SchemaAhead and SchemaBehind are always
    raised: an operator changed the schema while the mirror ran.
    """
    database = url if isinstance(url, Database) else Database(url)
    try:
        migrate.ensure_schema(database)
        database_identity.check_identity(database)
        return Service(source, database, queues, limits, on_step, made, on_ready).run(
            stop, once=once
        )
    finally:
        if database is not url:
            database.close()


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Make Python's garbage collector run rarely, in a process that only mirrors, verifies or relays.

    A batch has many thousands of small objects and no cycles. A search for cycles after every 700 allocations would
    take a quarter of the time.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(1_000_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
