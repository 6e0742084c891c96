"""Enqueues jobs in chunks, and reads the outcome of each job."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from itertools import starmap
from typing import Any, Final, NamedTuple

from rq_core import errors
from rq_core.errors import RqCoreError
from rq_core.model.headers import headers_in_digest
from rq_core.model.job import (
    KEEP_TIE,
    NewJob,
    Profile,
    spec_with_headers,
    spec_with_keep,
)
from rq_core.protocol.engine.delivery import Begun, Delivery
from rq_core.protocol.engine.plan import Call, Plan
from rq_core.protocol.engine.prepared_items import PreparedItems

ENQUEUE_CHUNK: Final = 250
"""Maximum number of jobs in one enqueue call, so that no call blocks Redis for long (about 3 ms)."""
LANE_COST: Final = 2
"""The cost of a job that has scopes, and so waits in a lane. A job without scopes costs 1, because Redis enqueues it in
half the time. A call takes jobs up to a total cost of ENQUEUE_CHUNK. (The first job of a lane may take three times as
long as a job without scopes.)"""
RULES_COST: Final = 4
"""Number of rules that take Redis as long as one job without scopes. A rule decides what happens to a job if a scope is
full. A call has at most about 1,000 rules."""
ENQUEUE_CHUNK_BYTES: Final = 4 * 1024 * 1024

_BARE: Final = frozenset({"duplicate", "mismatch"})
"""Outcomes of an enqueue for which a caller gets only the job's id. Other outcomes also name a scope or another job."""

Record = tuple[str, str, str, str, str]


class Accepted(NamedTuple):
    """The outcome of an enqueue of one or more jobs."""

    ids: tuple[str, ...]
    """Ids of the jobs that are now in their queues. The jobs of one queue are in the order in which the caller gave
    them."""
    duplicates: tuple[str, ...] = ()
    """Ids of jobs that were not accepted, because another job with the same id is live or remembered. That job was not
    changed."""
    discarded: tuple[tuple[str, str], ...] = ()
    """Pairs (id, scope) of jobs that were dropped: the scope was full, and its cap says that such jobs are
    discarded."""
    rejected: tuple[tuple[str, str], ...] = ()
    """Pairs (id, scope) of jobs that were refused: the scope was full, and its cap says that such jobs are rejected. A
    pair may name a lane (the jobs of one priority and the same scopes) in place of a scope, if as many jobs wait in the
    lane as ``max_waiting`` allows."""
    held: tuple[tuple[str, str], ...] = ()
    """Pairs (id, id of another job) of unique jobs that were not accepted; the caller gets the other job. The other job
    holds the unique name now, or held it when an earlier call with the same remembered id was made."""
    replaced: tuple[tuple[str, str], ...] = ()
    """Pairs (id of an accepted unique job, id of the job that it replaced). The replaced job has left Redis."""
    mismatched: tuple[str, ...] = ()
    """Ids of jobs that were not accepted, because a live or remembered job with the same id has another task or other
    arguments."""

    @classmethod
    def sum(cls, parts: Sequence[Accepted]) -> Accepted:
        """Return the joined outcome of several chunks, in their order."""
        if len(parts) == 1:
            return parts[0]
        wholes: tuple[list[Any], ...] = ([], [], [], [], [], [], [])
        for part in parts:
            for whole, some in zip(wholes, part, strict=True):
                whole.extend(some)
        return cls(*map(tuple, wholes))

    def others(self) -> dict[str, Accepted]:
        """Return, by id, the outcome of each job that was not accepted or that replaced another job."""
        return (
            {i: Accepted((), (i,)) for i in self.duplicates}
            | {i: Accepted((), (), ((i, on),)) for i, on in self.discarded}
            | {i: Accepted((), (), (), ((i, on),)) for i, on in self.rejected}
            | {i: Accepted((), held=((i, by),)) for i, by in self.held}
            | {i: Accepted((), mismatched=(i,)) for i in self.mismatched}
            | {i: Accepted((i,), replaced=((i, old),)) for i, old in self.replaced}
        )


class Enqueue:
    """The calls that enqueue jobs."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def chunk(
        self, queue: str, jobs: Sequence[NewJob], by: str | None = None, why: str = ""
    ) -> Call[Accepted]:
        """Build the Redis call that enqueues one chunk: jobs of one queue with equal ``spec_max``. ``by`` and ``why``
        are the producer and the reason for the log, as in ``many``.
        """
        kinds, records = pack_jobs(jobs, why)
        return Call(
            "enqueue",
            queue,
            {
                "by": by or self._delivery.name,
                "spec_max": jobs[0].spec_max if jobs else 0,
                "kinds": kinds,
            },
            lambda others: parse_accepted(jobs, others),
            records,
            tuple([job.id for job in jobs]),
        )

    def fitting(self, jobs: Sequence[NewJob]) -> int:
        """Return how many jobs, counted from the first, fit into one chunk. All jobs are of one queue."""
        return len(next(iter(_chunks(jobs)), ("", []))[1])

    def one(self, job: NewJob) -> Plan[Accepted]:
        """Enqueue one job."""
        return self._delivery.call(self.chunk(job.queue, (job,)))

    def many(
        self,
        jobs: Iterable[NewJob],
        on_chunk: Callable[[str, Accepted], None] = lambda *_: None,
        *,
        by: str | None = None,
        why: str = "",
    ) -> Plan[Accepted]:
        """Enqueue jobs of one or more queues, in chunks. Redis carries out each chunk as a whole or not at all.

        ``on_chunk`` is called after each chunk, with the queue and the chunk's outcome. The log stores ``by`` (default:
        the name of this client) and the reason ``why`` with each job.

        The next chunk is prepared while the server works on the present one. An error that stops the enqueue gets an
        attribute ``accepted``: the outcome of the chunks before the error. Raises InvalidOption for an object that is
        not a job.
        """
        parts: list[Accepted] = []
        calls = PreparedItems(starmap(partial(self.chunk, by=by, why=why), _chunks(jobs)))
        try:
            for call in calls:
                call.meanwhile = calls.prepare
                parts.append((yield from self._delivery.call(call)))
                on_chunk(call.queue, parts[-1])
        except (
            BaseException
        ) as error:  # Also what the generator of the jobs raises, and what ends the program.
            tell_accepted(error, parts)
            raise
        return Accepted.sum(parts)


def tell_accepted(error: BaseException, parts: Sequence[Accepted]) -> None:
    """Add the attribute ``accepted`` to an error that stopped an enqueue of many jobs: the outcome of the chunks that
    Redis carried out before the error.
    """
    # A producer's own error may be one that cannot be changed; it must come through all the same.
    with contextlib.suppress(Exception):
        error.accepted = Accepted.sum(parts)  # type: ignore[attr-defined]


def parse_accepted(jobs: Sequence[NewJob], others: Sequence[Any]) -> Accepted:
    """Return the outcome of an enqueued chunk, from the answer of Redis.

    ``others`` is a flat list of (position of the job from 1, outcome, scope or other job). It has three items for each
    job that was not accepted, or that replaced another job. All other jobs were accepted.
    """
    if not others:
        return Accepted(tuple([job.id for job in jobs]))
    outcomes: dict[str, list[Any]] = {
        "duplicate": [], "discarded": [], "rejected": [], "held": [], "replaced": [], "mismatch": [],
    }  # fmt: skip
    left: dict[int, bool] = {}
    for at in range(0, len(others), 3):
        place, outcome, scope = int(others[at]) - 1, others[at + 1], others[at + 2]
        if outcome != "replaced":
            left[place] = True
        job_id = jobs[place].id
        outcomes[outcome].append(job_id if outcome in _BARE else (job_id, scope))
    ids = tuple(job.id for place, job in enumerate(jobs) if place not in left)
    return Accepted(ids, *map(tuple, outcomes.values()))


class _Chunk:
    """The jobs of one queue that are collected for one call, with the total of their bytes and of their costs."""

    __slots__ = ("cost", "jobs", "size")

    def __init__(self) -> None:
        self.jobs: list[NewJob] = []
        self.size = 0
        self.cost = 0


def _chunks(jobs: Iterable[NewJob]) -> Iterable[tuple[str, list[NewJob]]]:
    """Yield (queue, jobs) in chunks that are small enough for one call. Jobs of one queue keep their order."""
    waiting: dict[str, _Chunk] = {}
    for job in jobs:
        given: object = job
        if not isinstance(given, NewJob):
            raise errors.InvalidOption.of(
                "jobs", type(given), "must be jobs, each as task.job(…) or app.job(…) makes it"
            )
        queue = job.queue
        chunk = waiting.get(queue)
        if chunk is not None and chunk.jobs[0].spec_max != job.spec_max:
            yield queue, waiting.pop(queue).jobs
            chunk = None
        if chunk is None:
            chunk = waiting[queue] = _Chunk()
        chunk.jobs.append(job)
        chunk.size += len(job.args_json)
        if job.headers_json:
            chunk.size += len(job.headers_json)
        chunk.cost += LANE_COST + job.full.count(" ") // RULES_COST if job.lane else 1
        if chunk.cost >= ENQUEUE_CHUNK or chunk.size >= ENQUEUE_CHUNK_BYTES:
            yield queue, waiting.pop(queue).jobs
    for queue, chunk in waiting.items():
        yield queue, chunk.jobs


def pack_jobs(jobs: Sequence[NewJob], why: str = "") -> tuple[str, list[Record]]:
    """Encode jobs for a call that enqueues them. Returns the argument ``kinds`` and the records. ``why`` is the reason
    of the call.

    ``kinds`` is JSON. A kind has the options that several jobs share: [priority, delay in ms, head, detail, full] (see
    Profile and NewJob). If the jobs have them, the due time (Unix ms) and the ties follow. Ties are further options as
    a JSON object (see ``ties_of``).

    A record has five texts of one job: the id; the number of the job's kind, from 1; the digest; the lane (priority and
    scopes); and the job's JSON. The digest is that of the arguments, the timeout and the header of a fork or a child.
    If the job has a ``name`` or a ``call``, these follow in the text of the digest.
    """
    kinds: list[str] = []
    places: dict[tuple[int, int, str, int, str], str] = {}
    records: list[Record] = []
    sha256 = hashlib.sha256
    last = None
    kind = before = after = ""
    for (
        job_id,
        _,
        profile,
        args_json,
        delay_ms,
        lane,
        full,
        _,
        headers_json,
        due_ms,
        ties,
        name,
        call,
    ) in jobs:
        # Profiles are cached, and equal ones that are not the same only make one kind more.
        which = (id(profile), delay_ms, full, due_ms, ties)
        if which != last:
            last = which
            known = places.get(which)
            if known is None:
                kinds.append(_kind(profile, delay_ms, full, due_ms, ties))
                known = places[which] = str(len(kinds))
            kind = known
            before, after = profile.spec_parts
        digested = f"{args_json}{after}"
        spec = f"{before}{digested}}}"
        if headers_json:
            spec = spec_with_headers(spec, headers_json)
            digested += headers_in_digest(headers_json)
        digest = sha256(digested.encode()).hexdigest()[:32]
        if name:
            digest = f"{digest} {name}"
        if call:
            digest = f"{digest} {call}"
        if ties and KEEP_TIE in ties:
            spec = spec_with_keep(spec, ties)
        records.append((job_id, kind, digest, lane, spec))
    if why:
        kinds.append(json.dumps(why))
    return f"[{','.join(kinds)}]", records


def kinds_of(profile: Profile, delay_ms: int, full: str, due_ms: int, ties: str) -> str:
    """Return the argument ``kinds`` of an enqueue whose jobs all have the same options: these options as JSON."""
    return f"[{_kind(profile, delay_ms, full, due_ms, ties)}]"


@lru_cache(maxsize=1024)
def _kind(profile: Profile, delay_ms: int, full: str, due_ms: int, ties: str) -> str:
    kind: tuple[Any, ...] = (profile.rank, delay_ms, profile.head, profile.detail, full)
    if due_ms or ties:
        kind = (*kind, due_ms)
    if ties:
        kind = (*kind, json.loads(ties))
    return json.dumps(kind, separators=(",", ":"))


# One job's enqueue as one command, without a plan: what producers send most often.
#
# A plan takes a producer longer than the command that it makes. So the command is made here, from cached parts.
# For any answer but that the job was accepted, the plan continues with the same slot and number, as if it had
# sent the command itself: only :mod:`rq_core.protocol.engine.delivery` handles all that can happen to a call.

ACCEPTED: Final = [["ok"]]
"""The replies of Redis to an enqueue command whose job was accepted."""
KINDS_MAX: Final = 1_000
"""Maximum number of cached texts. Each text describes the options that several jobs share. When the cache is full, it
is emptied."""


class Single:
    """Enqueues one job with one command that the client sends itself, which is faster than a plan."""

    def __init__(self, delivery: Delivery, enqueue: Enqueue) -> None:
        self._delivery = delivery
        self._enqueue = enqueue
        self._kinds: dict[tuple[int, int, str, int, str], tuple[Profile, str]] = {}
        """Cached texts of the argument ``kinds``, by the ``id()`` of the job's profile and by the other options in the
        text. The profile is kept with the text, so that no other object gets its ``id()``."""

    def begin(self, job: NewJob) -> Begun | None:
        """Return the command that enqueues a job, for the client to send at once. Returns None if this client has made
        no handshake with the queue yet; then a plan must enqueue the job.

        If the reply is not ACCEPTED, ``rest`` finishes the call. In any case, call ``end`` afterwards.
        """
        delivery = self._delivery
        if not delivery.has_met(job.queue):
            return None
        (
            job_id,
            _,
            profile,
            args_json,
            delay_ms,
            lane,
            full,
            spec_max,
            headers_json,
            due_ms,
            ties,
            name,
            call,
        ) = job
        which = (id(profile), delay_ms, full, due_ms, ties)
        kept = self._kinds.get(which)
        if kept is None:
            if len(self._kinds) >= KINDS_MAX:
                self._kinds = {}
            kept = self._kinds[which] = (profile, kinds_of(profile, delay_ms, full, due_ms, ties))
        before, after = profile.spec_parts
        digested = f"{args_json}{after}"
        spec = f"{before}{digested}}}"
        if headers_json:
            spec = spec_with_headers(spec, headers_json)
            digested += headers_in_digest(headers_json)
        if ties and KEEP_TIE in ties:
            spec = spec_with_keep(spec, ties)
        digest = hashlib.sha256(digested.encode()).hexdigest()[:32]
        if name:
            digest = f"{digest} {name}"
        if call:
            digest = f"{digest} {call}"
        slot = delivery.take_slot(job.queue, "enqueue")
        command = (
            *delivery.head("enqueue", job.queue),
            slot.name, slot.number, delivery.name, spec_max, kept[1], job_id, "1", digest, lane, spec,
        )  # fmt: skip
        return Begun(command, slot, delivery.asking.clock())

    def rest(self, job: NewJob, begun: Begun) -> Plan[Accepted]:
        """Finish a call that ``begin`` began, and return the job's outcome. Raises the error with which the job was
        refused.

        The plan first yields the command that was sent already. Do not send it again: give the plan the replies that
        came.
        """
        result = yield from self._delivery.go_on(self._enqueue.chunk(job.queue, (job,)), begun)
        if isinstance(result, RqCoreError):
            raise result
        accepted: Accepted = result
        return accepted

    def end(self, job: NewJob, begun: Begun) -> None:
        """Mark the call as finished, so that its numbered slot can be used for another call."""
        self._delivery.end("enqueue", job.queue, begun)
