"""Every call to a queue, as a plan without I/O.

Each method of :class:`Operations` is a generator: it yields :class:`Send` (commands for one round trip; it is sent
their replies, an exception in the place of one that failed) or :class:`Pause`, and returns a typed value.
:class:`rq_core.connections.client.Client` and :class:`rq_core.connections.async_client.AsyncClient` are small loops
that drive it.

How a plan is carried out, once for both, is decided in :mod:`rq_core.protocol.delivery`; here is what can be asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import starmap
from typing import Final

from rq_core import errors
from rq_core.model.job import NewJob
from rq_core.model.keys import check_name
from rq_core.model.limits import DECLARED, Limit
from rq_core.model.scopes import is_scope
from rq_core.model.settings import FLAGS, SETTINGS, VALUE_MAX
from rq_core.protocol.ahead import Ahead
from rq_core.protocol.answers import (
    Accepted,
    CapChange,
    Claimed,
    Extended,
    parse_accepted,
    parse_cap_changes,
    parse_claimed,
    parse_extended,
    parse_pairs,
    tell_accepted,
)
from rq_core.protocol.audit import Mirroring
from rq_core.protocol.packing import pack
from rq_core.protocol.plan import Call, Plan
from rq_core.protocol.reads import Reads

ENQUEUE_CHUNK: Final = 250
"""Most jobs in one enqueue call, so that none keeps Redis from others for long: about 3 ms of its time."""
LANE_COST: Final = 2
"""A job that goes into a lane counts for so many in a chunk: it takes Redis so much longer, up to three times if the
lane is its own."""
IDS_CHUNK: Final = 250
"""Most jobs that a person cancels, requeues or prunes in one call."""
WHY_MAX: Final = 4_000
"""Most characters of what a person says of a change."""
ENQUEUE_CHUNK_BYTES: Final = 4 * 1024 * 1024
CLAIM_BYTES: Final = 1024 * 1024
SWEEP_MAX: Final = 250
"""Most expired, due or forgotten things that one claim takes care of, of each kind."""


class Operations(Reads, Mirroring):
    """The plans of all calls."""

    def enqueue_call(self, queue: str, jobs: Sequence[NewJob]) -> Call[Accepted]:
        """One chunk of jobs of one queue, with one ``spec_max``."""
        kinds, records = pack(jobs)
        return Call(
            "enqueue",
            queue,
            {"by": self.name, "spec_max": jobs[0].spec_max if jobs else 0, "kinds": kinds},
            lambda others: parse_accepted(jobs, others),
            records,
            tuple([job.id for job in jobs]),
        )

    def enqueue_one(self, job: NewJob) -> Plan[Accepted]:
        """Hand over one job."""
        return self.one(self.enqueue_call(job.queue, (job,)))

    def enqueue(self, jobs: Iterable[NewJob]) -> Plan[Accepted]:
        """Hand over jobs, of one queue or several, in chunks that are each accepted whole or not at all.

        One chunk is on its way at a time; the next is made ready meanwhile. An error that stops it half-way carries
        what was accepted before in ``accepted``.
        Raises InvalidOption for what is no job.
        """
        parts: list[Accepted] = []
        calls = Ahead(starmap(self.enqueue_call, _chunks(jobs)))
        try:
            for call in calls:
                call.meanwhile = calls.prepare
                parts.append((yield from self.one(call)))
        except Exception as error:  # Also whatever the generator of the jobs raises.
            tell_accepted(error, parts)
            raise
        return Accepted.sum(parts)

    def claim_call(
        self,
        queue: str,
        worker: str,
        limit: int,
        *,
        bytes_max: int = CLAIM_BYTES,
        sweep_max: int = SWEEP_MAX,
    ) -> Call[Claimed]:
        """Take up to ``limit`` jobs, and do what is due for everybody."""
        return Call(
            "claim",
            queue,
            {"worker": worker, "limit": limit, "bytes_max": bytes_max, "sweep_max": sweep_max},
            lambda reply: parse_claimed(queue, reply),
        )

    def complete_call(
        self, queue: str, worker: str, held: Sequence[tuple[str, str]]
    ) -> Call[dict[str, str]]:
        """Report success of (id, fence) pairs; the answer is why some were refused, by id."""
        return Call(
            "complete", queue, {"worker": worker}, parse_pairs, held, tuple(h[0] for h in held)
        )

    def fail_call(
        self, queue: str, worker: str, held: Sequence[tuple[str, str, str, int, str, str]]
    ) -> Call[dict[str, str]]:
        """Report failure of (id, fence, retry|final, delay_ms, reason, error JSON); the answer is the outcomes."""
        return Call("fail", queue, {"worker": worker}, parse_pairs, held, tuple(h[0] for h in held))

    def rollback_call(
        self,
        queue: str,
        worker: str,
        held: Sequence[tuple[str, str, str, str, str, int]],
        *,
        backoff_ms: int = 1_000,
        backoff_max_ms: int = 60_000,
        unknown_max: int = 100,
    ) -> Call[dict[str, str]]:
        """Give back (id, fence, reason, error JSON, lane, delay_ms); the answer is the outcomes by id. A lane that is
        not empty is where the job goes if its task's policy has changed."""
        args = {
            "worker": worker,
            "backoff_ms": backoff_ms,
            "backoff_max_ms": backoff_max_ms,
            "unknown_max": unknown_max,
        }
        return Call("rollback", queue, args, parse_pairs, held, tuple(h[0] for h in held))

    def extend_call(
        self, queue: str, worker: str, held: Sequence[tuple[str, str]]
    ) -> Call[Extended]:
        """Keep the leases of (id, fence) pairs."""
        return Call("extend", queue, {"worker": worker}, parse_extended, held)

    def cancel(
        self, queue: str, ids: Sequence[str], *, by: str | None = None, why: str = ""
    ) -> Plan[dict[str, str]]:
        """Cancel jobs. The outcome by id: cancelled, cancelling (it runs), dead, or gone."""
        return (yield from self._for_ids("cancel", queue, ids, by, why))

    def requeue(
        self, queue: str, ids: Sequence[str], *, by: str | None = None, why: str = ""
    ) -> Plan[dict[str, str]]:
        """Give dead jobs another life. The outcome by id: requeued, gone, or the state that it is in."""
        return (yield from self._for_ids("requeue", queue, ids, by, why))

    def prune(
        self, queue: str, ids: Sequence[str], *, by: str | None = None, why: str = ""
    ) -> Plan[dict[str, str]]:
        """Remove dead jobs. The outcome by id: pruned, gone, or the state that it is in."""
        return (yield from self._for_ids("prune", queue, ids, by, why))

    def _for_ids(
        self, name: str, queue: str, ids: Sequence[str], by: str | None, why: str
    ) -> Plan[dict[str, str]]:
        outcomes: dict[str, str] = {}
        args = {"by": check_name("actor", by or self.name), "why": _check_why(why)}
        # Once each: asked a second time in a call, the script would answer how the job stands by then.
        once = tuple(dict.fromkeys(check_name("job", i) for i in ids))
        for start in range(0, len(once), IDS_CHUNK):
            chunk = once[start : start + IDS_CHUNK]
            outcomes |= yield from self.one(
                Call(name, queue, args, parse_pairs, [(i,) for i in chunk], chunk)
            )
        return outcomes

    def configure(
        self, queue: str, values: Mapping[str, int], *, by: str | None = None, why: str = ""
    ) -> Plan[dict[str, str]]:
        """Change settings of a queue, or a flag (``paused``, ``fair``: 0 or 1). The outcome by field: changed
        or same."""
        for name, value in values.items():
            minimum = SETTINGS[name].minimum if name in SETTINGS else 0
            if name not in SETTINGS and name not in FLAGS:
                known = ", ".join((*SETTINGS, *FLAGS))
                raise errors.InvalidOption(option=name, value=value, must=f"must be one of {known}")
            if name in FLAGS and value not in (0, 1):
                raise errors.InvalidOption(option=name, value=value, must="must be 0 or 1")
            if not _is_whole(value) or not minimum <= value <= VALUE_MAX:
                must = f"must be a whole number from {minimum} to {VALUE_MAX:,}"
                raise errors.InvalidOption(option=name, value=value, must=must)
        args = {"by": check_name("actor", by or self.name), "why": _check_why(why)}
        # A bool is a whole number to Python, and nothing to the connection.
        records = tuple((name, int(value)) for name, value in values.items())
        call = Call("configure", queue, args, parse_pairs, records)
        return (yield from self.one(call))

    def set_caps(
        self,
        queue: str,
        limits: Sequence[tuple[str, str, int]],
        *,
        source: str = "live",
        by: str | None = None,
        why: str = "",
    ) -> Plan[dict[str, CapChange]]:
        """Change limits: (scope, limit, version) each; see scopes.Limit. The outcome by scope.

        ``version`` is the one that the change was made from (0: nothing was stored): if it is another by now, the
        outcome is ``conflict``. -1 asks for no comparison. ``source`` is live, or code for what a task declares:
        that never replaces a live limit, nor brings back a limit that code declared before (``kept``). The limit
        ``code`` gives back to code, or a key to its family. Raises NothingDeclared if there is neither.
        """
        for name, limit, _ in limits:
            if not is_scope(name):
                raise errors.InvalidOption(
                    option="scope",
                    value=name,
                    must="must read queue, task=NAME, a family of keys, or FAMILY=VALUE, percent-encoded",
                )
            try:
                if limit != DECLARED:
                    Limit.parse(limit)
            except ValueError:
                raise errors.InvalidOption(
                    option=name,
                    value=limit,
                    must="must be a number from 0, none, or LIMIT/WINDOWms/BURST",
                ) from None
        args = {
            "by": check_name("actor", by or self.name),
            "why": _check_why(why),
            "source": source,
        }
        return (yield from self.one(Call("cap", queue, args, parse_cap_changes, tuple(limits))))

    def register(
        self, queue: str, policies: Mapping[str, str], *, by: str | None = None
    ) -> Plan[dict[str, str]]:
        """Store tasks' policies (JSON by task name), so that producers by name get the same scopes. The outcome by
        task: changed or same."""
        args = {"by": check_name("actor", by or self.name)}
        records = tuple((check_name("task", name), text) for name, text in policies.items())
        return (yield from self.one(Call("register", queue, args, parse_pairs, records)))


class _Chunk:
    """Jobs of one queue on their way into a call."""

    __slots__ = ("cost", "jobs", "size")

    def __init__(self) -> None:
        self.jobs: list[NewJob] = []
        self.size = 0
        self.cost = 0


def _chunks(jobs: Iterable[NewJob]) -> Iterable[tuple[str, list[NewJob]]]:
    """Jobs by queue, in chunks bounded in number and bytes; order within a queue is kept."""
    waiting: dict[str, _Chunk] = {}
    for job in jobs:
        given: object = job
        if not isinstance(given, NewJob):
            raise errors.InvalidOption(
                option="jobs",
                value=type(given),
                must="must be jobs, each as task.job(…) or app.job(…) makes it",
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
        chunk.cost += LANE_COST if job.lane else 1
        if chunk.cost >= ENQUEUE_CHUNK or chunk.size >= ENQUEUE_CHUNK_BYTES:
            yield queue, waiting.pop(queue).jobs
    for queue, chunk in waiting.items():
        yield queue, chunk.jobs


def _is_whole(value: object) -> bool:
    return isinstance(value, int)


def _check_why(why: str) -> str:
    """Return what somebody says of a change, if the log can keep it. Raises InvalidOption."""
    given: object = why
    if isinstance(given, str) and len(given) <= WHY_MAX and "\0" not in given:
        try:
            given.encode()
        except UnicodeEncodeError:
            pass
        else:
            return why
    raise errors.InvalidOption(
        option="reason",
        value=given[:50] if isinstance(given, str) else given,
        must=f"must be text of at most {WHY_MAX:,} characters, without NUL and lone surrogates",
    )
