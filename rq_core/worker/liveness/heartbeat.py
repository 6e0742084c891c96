"""Extends the leases of a worker's claims, from a separate thread.

So a handler keeps its lease even if it blocks the event loop, or computes for minutes in a thread. A handler that holds
the GIL stops the heartbeat, too. Then a supervisor extends the leases (:mod:`rq_core.process.lease_guard`). Without a
supervisor, the leases expire if the handler holds the GIL for longer than a lease.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from rq_core.connections.client import Client
from rq_core.errors import RqCoreError
from rq_core.model.job import Claim
from rq_core.model.keys import queue_keys
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.claims import Extended
from rq_core.protocol.engine.plan import Call
from rq_core.worker.liveness.lease_table import LeaseTable
from rq_core.worker.liveness.presence import Attendance

log = logging.getLogger(__name__)

EXTEND_CHUNK: Final = 1_000
BEATS_IN_LEASE: Final = 3
"""Number of heartbeats during one lease: the interval is the length of a lease divided by this number."""
BEAT_AGAIN_S: Final = 0.5
"""Maximum seconds after which a failed heartbeat is tried again."""


class LeaseKeeper:
    """Extends the leases of all claims that a worker holds, every third of a lease, in one round trip per server.

    In a second round trip, the keeper reads the length of the queues' leases. So the interval follows an operator's
    changes.

    ``on_lost`` is called for a claim that is no longer in force, and ``on_cancelling`` for a job that is being
    cancelled. Their arguments are the queue, the job id and the claim's fence. Both are called from the keeper's
    thread. ``hold_all`` may call ``on_lost`` in its caller's thread, too.
    """

    def __init__(
        self,
        client: Client,
        worker: str,
        *,
        on_lost: Callable[[str, str, str], None],
        on_cancelling: Callable[[str, str, str], None],
        clock: Callable[[], float] = time.monotonic,
        table: LeaseTable | None = None,
        attendance: Attendance | None = None,
    ) -> None:
        """``table`` has the leases for a supervisor, which extends them when this thread cannot run. ``attendance``
        reports from this thread that the worker is alive. ``clock`` returns seconds.
        """
        self._client = client
        self._worker = worker
        self._on_lost = on_lost
        self._on_cancelling = on_cancelling
        self._clock = clock
        self._table = table
        self._attendance = attendance
        self._lock = threading.Lock()
        self._held: dict[str, dict[str, tuple[str, float | None]]] = {}
        self._known: dict[str, float] = {}
        """Queue → length of the queue's leases in seconds, as last read."""
        self._failed: set[object] = set()
        """The servers that did not answer the last heartbeat."""
        self._refused: dict[str, float] = {}
        """The queues whose leases Redis refused to extend at the last heartbeat. Queue → time (on ``clock``) from which
        its leases count: the value of ``last_success`` before the first refusal."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rq-core-leases", daemon=True)
        self.interval = 10.0
        """Seconds between two heartbeats: a third of the shortest lease."""
        self.last_success = clock()
        """Time (on ``clock``) at which the worker sent the last heartbeat that all servers answered. ``extended_at``
        returns the time from which the leases of one queue count."""

    def start(self) -> None:
        """Start the thread; call this once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait up to 5 s for its end."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def hold(self, claim: Claim, until: float | None) -> None:
        """Extend this claim's lease at each heartbeat, until the time ``until`` on ``clock`` (None: until ``drop`` is
        called).
        """
        self.hold_all([(claim, until)])

    def hold_all(self, claims: Iterable[tuple[Claim, float | None]]) -> None:
        """Extend the leases of several claims at each heartbeat, as ``hold`` does for one. If an older claim of the
        same job is held, report the older claim as lost.
        """
        lost: list[tuple[str, str, str]] = []
        with self._lock:
            for claim, until in claims:
                held = self._held.setdefault(claim.queue, {})
                if claim.id in held and held[claim.id][0] != claim.fence:
                    lost.append((claim.queue, claim.id, held[claim.id][0]))
                held[claim.id] = (claim.fence, until)
                if self._table is not None:
                    self._table.hold(claim, until)
        for each in lost:
            self._on_lost(*each)

    def drop(self, *claims: Claim) -> None:
        """Stop extending these claims' leases."""
        with self._lock:
            for claim in claims:
                held = self._held.get(claim.queue, {})
                if claim.id in held and held[claim.id][0] == claim.fence:
                    del held[claim.id]
                    if self._table is not None:
                        self._table.drop(claim)

    def extended_at(self, queue: str) -> float:
        """Return the time (on ``clock``) at which the queue's leases were last extended: the time of the last heartbeat
        that has certainly done so.
        """
        return self._refused.get(queue, self.last_success)

    def beat(self) -> None:
        """Extend the leases of all held claims once.

        Raises RqCoreError if a server does not answer, or if Redis refuses to extend a queue's leases.
        """
        now = self._clock()
        with self._lock:
            held = {
                queue: [
                    (job_id, fence)
                    for job_id, (fence, until) in jobs.items()
                    if until is None or now < until
                ]
                for queue, jobs in self._held.items()
            }
        trouble: RqCoreError | None = None
        refused: dict[str, RqCoreError] = {}
        failed: set[object] = set()
        for place, queues in self._by_place(held):
            calls: list[Call[Extended]] = []
            for queue in queues:
                for start in range(0, len(held[queue]), EXTEND_CHUNK):
                    jobs = held[queue][start : start + EXTEND_CHUNK]
                    extend = claims.extend(queue, self._worker, jobs)
                    calls.append(extend)
            try:
                answers = self._client.run(self._client.calls.delivery.carry_out(calls))
                refused |= self._tell(calls, answers)
                self._follow_leases([queue for queue in queues if queue not in refused])
            except RqCoreError as error:
                # A shard that is away must not cost the leases of the other shards.
                trouble = error
                failed.add(place)
        self._failed = failed
        if trouble is not None:
            raise trouble
        self._refused = {queue: self._refused[queue] for queue in refused}
        # Leases count from the sending: the process may have been stopped between the heartbeat and the answers.
        self.last_success = now
        for refusal in refused.values():
            raise refusal

    def _by_place(self, held: Mapping[str, Sequence[object]]) -> list[tuple[object, list[str]]]:
        """Return (server, queues) pairs for all held claims. Servers that did not answer the last heartbeat come
        last.
        """
        places: dict[object, list[str]] = {}
        for queue, jobs in held.items():
            if jobs:
                places.setdefault(self._client.place(queue), []).append(queue)
        return sorted(places.items(), key=lambda each: each[0] in self._failed)

    def _tell(
        self, calls: Sequence[Call[Extended]], answers: Sequence[Extended | RqCoreError]
    ) -> dict[str, RqCoreError]:
        """Process the answers to a heartbeat: call ``on_lost`` for lost claims, and ``on_cancelling`` for jobs that are
        being cancelled. Return queue → error, for the queues whose leases were not extended.
        """
        refused: dict[str, RqCoreError] = {}
        for call, answer in zip(calls, answers, strict=True):
            if isinstance(answer, RqCoreError):
                log.error("leases of queue %s were not extended: %s", call.queue, answer)
                refused[call.queue] = answer
                self._refused.setdefault(call.queue, self.last_success)
                continue
            fences: dict[str, str] = dict(call.each)
            for job_id in answer.lost:
                self._on_lost(call.queue, job_id, fences[job_id])
            for job_id in answer.cancelling:
                self._on_cancelling(call.queue, job_id, fences[job_id])
        return refused

    def _follow_leases(self, queues: Sequence[str]) -> None:
        """Read the length of the queues' leases, and set the heartbeat interval to a third of the shortest lease."""
        if not queues:
            return
        prefix = self._client.prefix
        commands = [["HGET", queue_keys(queue, prefix)("meta"), "lease_ms"] for queue in queues]
        leases = self._client.run(self._client.calls.delivery.ask(commands))
        self._known |= {q: int(ms) / 1000 for q, ms in zip(queues, leases, strict=True) if ms}
        held = [self._known[queue] for queue in self._held if queue in self._known]
        if held:
            self.interval = min(held) / BEATS_IN_LEASE

    def _run(self) -> None:
        beat_at = self._clock() + self.interval
        self._note_beat()
        self._attend()
        while not self._stop.wait(self._pause(beat_at)):
            self._note_beat()
            late = self._clock() - beat_at
            if late > (BEATS_IN_LEASE - 1) * self.interval:
                log.warning(
                    "the heartbeat is %.1f s late: this process was stopped, a handler held the GIL, or Redis did not"
                    " answer. Jobs whose lease is over run elsewhere",
                    late,
                )
            if late < 0:
                self._attend()
                continue
            # After an outage the remaining time of the leases is short: do not wait for a third of a lease.
            pause = min(self.interval, BEAT_AGAIN_S)
            try:
                self.beat()
                pause = self.interval
            except RqCoreError as error:
                log.warning("heartbeat failed, trying again: %s", error)
            except Exception:
                # If the thread ended here, this worker would lose all its leases.
                log.exception("heartbeat failed, trying again")
            beat_at = self._clock() + pause
        if self._attendance is not None:
            self._attendance.leave(self._failed)

    def _pause(self, beat_at: float) -> float:
        """Return the seconds until the next heartbeat, or the next report that the worker is alive."""
        due = beat_at if self._attendance is None else min(beat_at, self._attendance.due)
        return max(0.0, due - self._clock())

    def _attend(self) -> None:
        if self._attendance is not None and self._clock() >= self._attendance.due:
            self._attendance.tell(self._failed)

    def _note_beat(self) -> None:
        if self._table is not None:
            self._table.beat(self._worker, self.interval)
