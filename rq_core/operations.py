"""Every call to a queue, as a plan without I/O.

Each method of :class:`Operations` is a generator: it yields :class:`Send` (commands for one round trip; it is sent
their replies, an exception in the place of one that failed) or :class:`Pause`, and returns a typed value.
:class:`rq_core.client.Client` and :class:`rq_core.aio.AsyncClient` are small loops that drive it.

What is decided here, once for both: call slots and their numbers, re-sending with the same number after a lost
reply, loading scripts that the server forgot, the handshake that a new epoch asks for, and what each answer means.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar

from rq_core import errors, library
from rq_core.history import OutboxId
from rq_core.ids import boot_id
from rq_core.job import Claim, NewJob
from rq_core.keys import DEFAULT_PREFIX, KEYS, check_name, queue_keys, queues_key
from rq_core.machine import LAYOUT, PRIORITIES, State
from rq_core.scopes import DECLARED, QUEUE, CapEntry, Limit, is_scope
from rq_core.scripts import Script
from rq_core.settings import FLAGS, SETTINGS, VALUE_MAX

log = logging.getLogger(__name__)

_PASSWORD: Final = re.compile(r"(//[^/@\s:]*:)[^/\s]+@")

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

ENQUEUE_CHUNK: Final = 1_000
"""Most jobs in one enqueue call: about 2 ms of Redis' time."""
LANE_COST: Final = 4
"""A job that goes into a lane counts for so many in a chunk: a lane of its own takes Redis so much longer."""
IDS_CHUNK: Final = 250
"""Most jobs that a person cancels, requeues or prunes in one call."""
WHY_MAX: Final = 4_000
"""Most characters of what a person says of a change."""
ENQUEUE_CHUNK_BYTES: Final = 4 * 1024 * 1024
CLAIM_BYTES: Final = 1024 * 1024
ROUNDS_MAX: Final = 3
"""Times that a call is sent again at once, after a handshake or when its library was loaded; then with pauses."""
SWEEP_MAX: Final = 250
"""Most expired, due or forgotten things that one claim takes care of, of each kind."""


class Send(NamedTuple):
    """Commands for one round trip. The reply to each comes back in order."""

    commands: list[list[Any]]


class Pause(NamedTuple):
    """Wait before going on."""

    seconds: float


Plan = Generator[Send | Pause, Any, T]


class Unsent(Exception):
    """The place of a reply: the command was never sent, since no connection could be made."""


class Lost(Exception):
    """The place of a reply: the command may have been carried out, its reply did not come."""


class ReplyError(Exception):
    """The place of a reply: Redis answered with an error."""


@dataclass(frozen=True)
class Patience:
    """How long calls wait for a server that does not answer, in seconds.

    ``unsent``: for a call that could not be sent at all (then ServerUnavailable is raised).
    ``unknown``: for the answer to one that was sent (then OutcomeUnknown is raised).
    """

    unsent: float = 3.0
    unknown: float = 600.0


@dataclass(slots=True)
class Call(Generic[T_co]):
    """One script call: to which queue, with what, and how to read its answer."""

    script: str
    queue: str
    args: dict[str, Any]
    parse: Callable[[Sequence[Any]], T_co]
    each: Sequence[tuple[Any, ...]] = ()
    ids: tuple[str, ...] = ()
    """For the error message when its outcome stays unknown."""


class Slot:
    """A call slot: its calls are numbered, and one is in flight."""

    __slots__ = ("name", "number")

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = 0


@dataclass(frozen=True, slots=True)
class Handshake:
    """What a queue says of itself."""

    epoch: int
    now_ms: int
    lease_ms: int
    paused: bool
    audit: bool
    audit_id: str | None
    started: str | None
    """Why this handshake started an epoch, if it did."""


class Accepted(NamedTuple):
    """What became of an enqueue."""

    ids: tuple[str, ...]
    """The jobs that are now in their queues, in the order given."""
    duplicates: tuple[str, ...] = ()
    """Ids that were live already; their jobs were not touched."""
    discarded: tuple[tuple[str, str], ...] = ()
    """(id, scope) of jobs that were dropped because that scope was full and its cap says discard."""
    rejected: tuple[tuple[str, str], ...] = ()
    """(id, scope) of jobs that were not taken: that scope is full and its cap says reject, or, where the scope is a
    lane, as many wait there as its max_waiting allows."""

    @classmethod
    def sum(cls, parts: Iterable[Accepted]) -> Accepted:
        """Several, one after the other, as one."""
        wholes: tuple[list[Any], ...] = ([], [], [], [])
        for part in parts:
            for whole, some in zip(wholes, part, strict=True):
                whole.extend(some)
        return cls(*map(tuple, wholes))

    def others(self) -> dict[str, Accepted]:
        """The outcome of each job that was not accepted, by id."""
        return (
            {i: Accepted((), (i,)) for i in self.duplicates}
            | {i: Accepted((), (), ((i, on),)) for i, on in self.discarded}
            | {i: Accepted((), (), (), ((i, on),)) for i, on in self.rejected}
        )


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a claim brought."""

    jobs: tuple[Claim, ...]
    now_ms: int
    next_due_ms: int | None
    """When the next scheduled job is due, if one is."""
    more: bool
    """Whether claimable jobs are left."""

    @property
    def epoch(self) -> int | None:
        """The history of Redis in which the jobs were claimed, None if there are none."""
        return int(self.jobs[0].fence.partition("-")[0]) if self.jobs else None


class CapChange(NamedTuple):
    """What became of a change of a limit, and what is stored now."""

    outcome: str
    """changed, same, kept or conflict."""
    version: int
    limit: Limit


class Restoration(NamedTuple):
    """What restore.lua is to do about one job: see rq_core.restoration."""

    id: str
    kind: str
    """restore, missing or remove."""
    due_ms: int
    line: str
    """restore, missing: its state line, without place, due time and since when; remove: as it reads now."""
    detail: str
    """The rest of the event's fields, as JSON."""
    spec: str = ""


class Restored(NamedTuple):
    """What became of a restore."""

    last: str
    """The ``after`` of the next one."""
    outcomes: dict[str, str]
    """By id: restored, removed, gone, or the state that it is in and was left in."""


@dataclass(frozen=True, slots=True)
class Extended:
    """What a worker learns when it extends its leases."""

    lost: tuple[str, ...]
    cancelling: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobState:
    """Where a live job stands, read off its state line."""

    id: str
    queue: str
    state: State
    fields: Mapping[str, str]
    """The other fields of the line, as text: task, claim, fence, seq, due, since, by…"""
    spec: str | None = None


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """How many jobs a queue has, by where they stand, and its main facts."""

    queue: str
    ready: dict[str, int]
    """By priority, those without scopes. Includes the entries of cancelled jobs until claim passes over them."""
    scheduled: int
    running: int
    dead: int
    paused: bool
    audit: bool
    backlog: int
    """Events that wait to be mirrored."""
    epoch: int
    waiting: int = 0
    """Ready jobs with scopes, whether their scopes have room or not."""
    open_lanes: int = 0
    """Lanes of such jobs that may be served."""
    cap: int | None = None
    """How many of its jobs may run at once; None: any number."""
    settings: dict[str, int] = field(default_factory=dict)


class Operations:
    """The plans of all calls. ``name`` is who makes them; it is unique per boot."""

    def __init__(
        self,
        *,
        prefix: str = DEFAULT_PREFIX,
        url: str = "",
        name: str | None = None,
        patience: Patience | None = None,
        clock: Callable[[], float] = time.monotonic,
        scripts: Callable[[str], Script] = library.function,
    ) -> None:
        self.prefix = check_name("prefix", prefix)
        # For messages only, so without its password.
        self.url = _PASSWORD.sub(r"\1***@", url)
        self.name = check_name("client", name or boot_id("c"))
        self.patience = patience or Patience()
        self._clock = clock
        self._scripts = scripts
        self._functions = True
        self._floors: dict[str, int] = {}
        self._begin_process()

    def _begin_process(self) -> None:
        self._pid = os.getpid()
        self._free: defaultdict[tuple[str, str], list[Slot]] = defaultdict(list)
        self._serial = itertools.count(1)
        self._met: set[str] = set()

    def _script(self, name: str) -> Script:
        made = self._scripts(name)
        return made if self._functions or made.instead is None else made.instead

    # Slots. list.pop, list.append and next are atomic, so threads may share an Operations.

    def _take_slot(self, queue: str, name: str) -> Slot:
        if os.getpid() != self._pid:
            # A forked child must not go on with its parent's slots: both would use the same numbers.
            self.name = boot_id(self.name.partition("-")[0])
            self._begin_process()
        try:
            return self._free[queue, name].pop()
        except IndexError:
            return Slot(f"{self.name}.{name}.{next(self._serial)}")

    # How calls are carried out.

    def carry_out(self, calls: Sequence[Call[Any]]) -> Plan[list[Any]]:
        """Carry out calls in one pipelined round trip, and again what got no answer, until each has one.

        Returns a value or an RqCoreError per call. Raises ServerUnavailable or OutcomeUnknown when patience ends.
        """
        slots: list[Slot | None] = []
        commands = []
        for call in calls:
            made = self._script(call.script)
            args = call.args
            slot = None
            if "slot" in made.args:
                slot = self._take_slot(call.queue, call.script)
                slot.number += 1
                args = {**args, "slot": slot.name, "number": slot.number}
            slots.append(slot)
            commands.append(made.command(queue_keys(call.queue, self.prefix), call.each, **args))
        try:
            return (yield from self._settle(calls, commands))
        finally:
            for call, slot in zip(calls, slots, strict=True):
                if slot is not None:
                    self._free[call.queue, call.script].append(slot)

    def _settle(  # noqa: PLR0912 - one branch per thing that a reply can be
        self, calls: Sequence[Call[Any]], commands: list[list[Any]]
    ) -> Plan[list[Any]]:
        results: list[Any] = [None] * len(calls)
        waiting = list(range(len(calls)))
        first = self._clock()
        lost: set[int] = set()
        """Calls that may have been carried out."""
        attempt, rounds = 0, 0
        while True:
            replies = yield Send([commands[i] for i in waiting])
            again: list[int] = []
            forgotten: set[str] = set()
            refused = False
            strangers: set[str] = set()
            trouble: Exception | None = None
            lost |= {i for i, r in zip(waiting, replies, strict=True) if isinstance(r, Lost)}
            for i, reply in zip(waiting, replies, strict=True):
                if isinstance(reply, Exception):
                    kind = _kind_of(reply, lost=i in lost)
                    if kind == "fatal":
                        results[i] = self._explain(calls[i], reply)
                        continue
                    if kind == "forgotten":
                        forgotten.add(calls[i].script)
                    elif kind == "no functions":
                        refused = True
                    else:
                        trouble = reply
                    again.append(i)
                elif reply[0] == "epoch":
                    strangers.add(calls[i].queue)
                    again.append(i)
                else:
                    results[i] = self._read(calls[i], reply)
            if not again:
                return results
            waiting = again
            rounds += 1
            if refused:
                self._functions = False
            elif forgotten:
                trouble = (yield from self._load(forgotten)) or trouble
            for i in waiting:
                # Whatever was tried, from now on it is sent as this server takes it.
                commands[i][:2] = self._script(calls[i].script).verb
            unusable = yield from self._meet(strangers)
            for i in waiting:
                results[i] = unusable.get(calls[i].queue)
            waiting = [i for i in waiting if results[i] is None]
            if not waiting:
                return results
            trouble = trouble or _too_many(rounds)
            if trouble is not None:
                self._check_patience(first, bool(lost), trouble, [calls[i] for i in waiting])
                yield _pause(attempt)
                attempt += 1

    def _meet(self, queues: Iterable[str]) -> Plan[dict[str, errors.RqCoreError]]:
        """Meet queues whose history is another one. Returns why some cannot be used: the others' calls, done or
        not, must not suffer for it."""
        unusable: dict[str, errors.RqCoreError] = {}
        for queue in sorted(queues):
            try:
                yield from self.handshake(queue)
            except (errors.Refused, errors.QueueDamaged) as error:
                unusable[queue] = error
        return unusable

    def _load(self, names: Iterable[str]) -> Plan[Exception | None]:
        """Load scripts. Returns what went wrong for now; raises ServerUnsuitable if it will stay so."""
        loading = dict.fromkeys(self._script(name).loading for name in sorted(names))
        replies = yield Send([list(command) for command in loading])
        failed = [reply for reply in replies if isinstance(reply, Exception)]
        for reply in failed:
            if _kind_of(reply) in ("fatal", "no functions"):
                if self._functions and any(self._script(name).function for name in names):
                    # A full server takes no new functions, and some services none at all; but they take scripts.
                    self._functions = False
                    return None
                raise errors.ServerUnsuitable(url=self.url, why=f"it loads no scripts: {reply}")
        return failed[0] if failed else None

    def _check_patience(
        self, first: float, sent: bool, trouble: Exception, calls: Sequence[Call[Any]]
    ) -> None:
        waited = self._clock() - first
        if sent and waited > self.patience.unknown:
            error = errors.OutcomeUnknown(seconds=waited)
            error.ids = tuple(job_id for call in calls for job_id in call.ids)
            raise error from trouble
        if not sent and waited > self.patience.unsent:
            raise errors.ServerUnavailable(url=self.url, why=str(trouble)) from trouble

    def _explain(self, call: Call[Any], reply: Exception) -> errors.RqCoreError:
        """What an error reply of Redis means to the caller."""
        text = str(reply)
        if text.startswith("OOM"):
            return errors.QueueFull(queue=call.queue)
        if "WRONGTYPE" in text:
            return _wrong_type(call.queue, text)
        if text.startswith(("NOAUTH", "WRONGPASS", "NOPERM")):
            return errors.ServerUnsuitable(url=self.url, why=text)
        return errors.QueueDamaged(queue=call.queue, why=f"{call.script} stopped: {text}")

    def _read(self, call: Call[Any], reply: Sequence[Any]) -> Any:
        if reply[0] == "ok":
            return call.parse(reply[1:])
        match list(reply[1:]):
            case ["audit_backlog", backlog, bound]:
                return errors.AuditBacklogFull(queue=call.queue, backlog=backlog, bound=bound)
            case ["elsewhere", attached]:
                return errors.AuditElsewhere(queue=call.queue, attached=attached)
            case ["restored", last]:
                return errors.RestoredMeanwhile(queue=call.queue, last=last)
            case ["off"]:
                return errors.AuditOff(queue=call.queue)
            case ["layout", found]:
                return errors.LayoutMismatch(queue=call.queue, found=found, known=LAYOUT)
            case ["undeclared", scope]:
                return errors.NothingDeclared(queue=call.queue, scope=scope)
            case ["stale_call"]:
                return errors.StaleCall()
            case other:
                return errors.BadArguments(what=" ".join(map(str, other)))

    def one(self, call: Call[T]) -> Plan[T]:
        """Carry out one call. Raises what it was refused with."""
        if call.queue not in self._met:
            yield from self.handshake(call.queue)
        (result,) = yield from self.carry_out([call])
        if isinstance(result, errors.RqCoreError):
            raise result
        return result  # type: ignore[no-any-return]

    def ask(self, commands: list[list[Any]], queue: str | None = None) -> Plan[list[Any]]:
        """Plain reads, in one round trip. Raises ServerUnavailable or ServerUnsuitable, or QueueDamaged if a key of
        ``queue`` has the wrong type."""
        first, attempt = self._clock(), 0
        while True:
            replies = yield Send(commands)
            failed = [r for r in replies if isinstance(r, Exception)]
            if not failed:
                return replies  # type: ignore[no-any-return]
            if any(_kind_of(r) == "fatal" for r in failed):
                if queue is not None and "WRONGTYPE" in str(failed[0]):
                    raise _wrong_type(queue, str(failed[0])) from failed[0]
                raise errors.ServerUnsuitable(url=self.url, why=str(failed[0])) from failed[0]
            if self._clock() - first > self.patience.unsent:
                raise errors.ServerUnavailable(url=self.url, why=str(failed[0])) from failed[0]
            yield _pause(attempt)
            attempt += 1

    # Meeting a queue.

    def set_floor(self, queue: str, epoch: int) -> None:
        """New epochs of the queue must be greater than this one (a mirror knows the last that SQL has)."""
        self._floors[queue] = epoch + 1

    def inspect(self) -> Plan[None]:
        """Look at the server, once per client. Raises ServerUnsuitable for a Redis before 7.0; warns of a policy
        that evicts, since then Redis may delete jobs."""
        (info,) = yield from self.ask([["INFO"]])
        facts = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
        version = facts.get("redis_version", "7.0.0")
        if int(version.split(".", maxsplit=1)[0]) < 7:
            raise errors.ServerUnsuitable(
                url=self.url, why=f"it is Redis {version}, rq-core needs Redis 7.0 or Valkey 7.2"
            )
        policy = facts.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            log.warning(
                "maxmemory-policy is %s: Redis may delete jobs when it is full;"
                " set it to noeviction",
                policy,
                extra={"url": self.url, "policy": policy},
            )

    def handshake(self, queue: str) -> Plan[Handshake]:
        """Meet a queue: make it if there is none, start a new epoch if Redis' history has changed."""
        if not self._met:
            yield from self.inspect()
        call = Call(
            "handshake",
            queue,
            {"by": self.name, "floor": self._floors.get(queue, 0)},
            _parse_handshake,
        )
        (result,) = yield from self.carry_out([call])
        if isinstance(result, errors.RqCoreError):
            raise result
        # Outside the queue's Cluster slot, so it cannot be part of the script.
        yield from self._list_queue(queue)
        self._met.add(queue)
        return result  # type: ignore[no-any-return]

    def _list_queue(self, queue: str) -> Plan[None]:
        """Put the queue on the prefix' list. A full server refuses that; workers must still meet old queues."""
        listed = queues_key(self.prefix)
        try:
            yield from self.ask([["SADD", listed, queue]])
        except errors.ServerUnsuitable as error:
            if not str(error.__cause__).startswith("OOM"):
                raise
            (known,) = yield from self.ask([["SISMEMBER", listed, queue]])
            if not known:
                raise errors.QueueFull(queue=queue) from error

    # Producers.

    def enqueue_call(self, queue: str, jobs: Sequence[NewJob]) -> Call[Accepted]:
        """One chunk of jobs of one queue, with one ``spec_max``."""
        return Call(
            "enqueue",
            queue,
            {"by": self.name, "spec_max": jobs[0].spec_max if jobs else 0},
            lambda others: _parse_accepted(jobs, others),
            [job.record() for job in jobs],
            tuple(job.id for job in jobs),
        )

    def enqueue(self, jobs: Iterable[NewJob]) -> Plan[Accepted]:
        """Hand over jobs, of one queue or several, in chunks that are each accepted whole or not at all.

        An error that stops it half-way carries what was accepted before in ``accepted``.
        """
        parts: list[Accepted] = []
        try:
            for queue, chunk in _chunks(jobs):
                parts.append((yield from self.one(self.enqueue_call(queue, chunk))))
        except errors.RqCoreError as error:  # The generator of the jobs may raise, too.
            error.accepted = Accepted.sum(parts)  # type: ignore[attr-defined]
            raise
        return Accepted.sum(parts)

    # Workers.

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
            lambda reply: _parse_claimed(queue, reply),
        )

    def complete_call(
        self, queue: str, worker: str, held: Sequence[tuple[str, str]]
    ) -> Call[dict[str, str]]:
        """Report success of (id, fence) pairs; the answer is why some were refused, by id."""
        return Call("complete", queue, {"worker": worker}, _pairs, held, tuple(h[0] for h in held))

    def fail_call(
        self, queue: str, worker: str, held: Sequence[tuple[str, str, str, int, str, str]]
    ) -> Call[dict[str, str]]:
        """Report failure of (id, fence, retry|final, delay_ms, reason, error JSON); the answer is the outcomes."""
        return Call("fail", queue, {"worker": worker}, _pairs, held, tuple(h[0] for h in held))

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
        return Call("rollback", queue, args, _pairs, held, tuple(h[0] for h in held))

    def extend_call(
        self, queue: str, worker: str, held: Sequence[tuple[str, str]]
    ) -> Call[Extended]:
        """Keep the leases of (id, fence) pairs."""
        return Call("extend", queue, {"worker": worker}, _parse_extended, held)

    # People.

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
                Call(name, queue, args, _pairs, [(i,) for i in chunk], chunk)
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
        call = Call("configure", queue, args, _pairs, records)
        return (yield from self.one(call))

    # Caps.

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
        return (yield from self.one(Call("cap", queue, args, _parse_cap_changes, tuple(limits))))

    def register(
        self, queue: str, policies: Mapping[str, str], *, by: str | None = None
    ) -> Plan[dict[str, str]]:
        """Store tasks' policies (JSON by task name), so that producers by name get the same scopes. The outcome by
        task: changed or same."""
        args = {"by": check_name("actor", by or self.name)}
        records = tuple((check_name("task", name), text) for name, text in policies.items())
        return (yield from self.one(Call("register", queue, args, _pairs, records)))

    def policy(self, queue: str, task: str) -> Plan[str | None]:
        """The policy that workers registered for a task (JSON), if any did."""
        keys = queue_keys(queue, self.prefix)
        (text,) = yield from self.ask([["HGET", keys("tasks"), task]], queue)
        return text  # type: ignore[no-any-return]

    def limits(self, queue: str) -> Plan[dict[str, CapEntry]]:
        """The stored limits of a queue, by scope or family."""
        keys = queue_keys(queue, self.prefix)
        (stored,) = yield from self.ask([["HGETALL", keys("caps")]], queue)
        return {name: CapEntry.parse(text) for name, text in sorted(pairs_of(stored).items())}

    def queues(self) -> Plan[list[str]]:
        """The queues of this prefix, by name."""
        (names,) = yield from self.ask([["SMEMBERS", queues_key(self.prefix)]])
        return sorted(names)

    def counts(self, queue: str) -> Plan[QueueCounts]:
        """How many jobs a queue has."""
        keys = queue_keys(queue, self.prefix)
        ready = [["LLEN", keys(f"ready:{n}")] for n in range(len(PRIORITIES))]
        sets = ("scheduled", "leases", "dead", "waiting", "open")
        rest = [["ZCARD", keys(name)] for name in sets]
        facts_of = [
            ["HLEN", keys("state")],
            ["HGET", keys("caps"), QUEUE],
            ["HGETALL", keys("meta")],
        ]
        *numbers, alive, cap, meta = yield from self.ask([*ready, *rest, *facts_of], queue)
        facts = pairs_of(meta)
        # `scheduled` also has what resumes by itself, so the jobs there are those that are nowhere else.
        tombstones = int(facts.get("tombstones", 0))
        elsewhere = sum(numbers[: len(ready)]) - tombstones + sum(numbers[-4:-1])
        scheduled = max(0, min(numbers[-5], alive - elsewhere))
        return QueueCounts(
            queue=queue,
            ready=dict(zip((str(p) for p in PRIORITIES), numbers, strict=False)),
            scheduled=scheduled,
            running=numbers[-4],
            dead=numbers[-3],
            waiting=numbers[-2],
            open_lanes=numbers[-1],
            cap=CapEntry.parse(cap).limit.most if cap else None,
            paused=facts.get("paused") == "1",
            audit=facts.get("audit") == "on",
            backlog=int(facts.get("backlog_jobs", 0)),
            epoch=int(facts.get("epoch", 0)),
            settings={name: int(facts.get(name, s.default)) for name, s in SETTINGS.items()},
        )

    def job(self, job_id: str, queues: Sequence[str]) -> Plan[JobState | None]:
        """Where a job stands, in the first of ``queues`` that has it; None if none does."""
        check_name("job", job_id)
        commands = []
        for queue in queues:
            keys = queue_keys(queue, self.prefix)
            commands += [["HGET", keys("state"), job_id], ["HGET", keys("jobs"), job_id]]
        replies = (yield from self.ask(commands)) if commands else []
        for at, queue in enumerate(queues):
            if replies[2 * at] is not None:
                return read_state_line(queue, job_id, replies[2 * at], replies[2 * at + 1])
        return None

    def dead(self, queue: str, limit: int) -> Plan[list[JobState]]:
        """The jobs that died last, newest first."""
        keys = queue_keys(queue, self.prefix)
        (ids,) = yield from self.ask([["ZRANGE", keys("dead"), 0, max(limit, 1) - 1, "REV"]], queue)
        if not ids:
            return []
        (lines,) = yield from self.ask([["HMGET", keys("state"), *ids]], queue)
        return [read_state_line(queue, i, line) for i, line in zip(ids, lines, strict=True) if line]

    # The mirror.

    def attach(self, queue: str, audit_id: str, known: int = 0) -> Plan[None]:
        """Switch the audit trail on, for this audit database. Writes a baseline of the jobs that are alive, unless
        the outbox still has the whole history. Raises AuditElsewhere if another database has the queue.

        ``known`` is an epoch that the database has: a queue in an earlier one starts another beyond it, with a
        baseline, and so does every handshake of this client that starts one."""
        self.set_floor(queue, known)
        answer = yield from self._attach(queue, audit_id, "on", known)
        if answer != "baseline":
            return
        keys = queue_keys(queue, self.prefix)
        cursor = "0"
        while True:
            (reply,) = yield from self.ask([["HSCAN", keys("state"), cursor, "COUNT", 1000]], queue)
            cursor, flat = reply
            ids = list(pairs_of(flat))
            chunks = [ids[at : at + ENQUEUE_CHUNK] for at in range(0, len(ids), ENQUEUE_CHUNK)]
            for chunk in chunks:
                yield from self._baseline(queue, chunk, last=0)
            if str(cursor) == "0":
                yield from self._baseline(queue, [], last=1)
                return

    def detach(self, queue: str, audit_id: str) -> Plan[None]:
        """Switch the audit trail off: the outbox becomes a ring of recent events."""
        yield from self._attach(queue, audit_id, "off")

    def _attach(self, queue: str, audit_id: str, mode: str, known: int = 0) -> Plan[str]:
        args = {
            "by": self.name,
            "audit_id": check_name("audit", audit_id),
            "mode": mode,
            "known": known,
        }
        return (yield from self.one(Call("attach", queue, args, lambda reply: str(reply[0]))))

    def _baseline(self, queue: str, ids: Sequence[str], *, last: int) -> Plan[None]:
        args = {"by": self.name, "last": last}
        yield from self.one(Call("baseline", queue, args, _nothing, [(i,) for i in ids]))

    def read_outbox(
        self, queue: str, start: str, count: int
    ) -> Plan[list[tuple[str, dict[str, str]]]]:
        """Entries from ``start`` on (inclusive; "-" for the first), raw."""
        keys = queue_keys(queue, self.prefix)
        (entries,) = yield from self.ask(
            [["XRANGE", keys("outbox"), start, "+", "COUNT", count]], queue
        )
        return [(entry_id, pairs_of(flat)) for entry_id, flat in entries]

    def read_outbox_back(
        self, queue: str, before: str, count: int
    ) -> Plan[list[tuple[str, dict[str, str]]]]:
        """Entries before ``before`` (exclusive), raw, the newest first."""
        keys = queue_keys(queue, self.prefix)
        (entries,) = yield from self.ask(
            [["XREVRANGE", keys("outbox"), f"({before}", "-", "COUNT", count]], queue
        )
        return [(entry_id, pairs_of(flat)) for entry_id, flat in entries]

    def trim(self, queue: str, audit_id: str, upto: str, jobs: int, size: int) -> Plan[None]:
        """Forget the outbox below ``upto``, which is committed in SQL and stays as an anchor. If Redis has forgotten
        ``upto`` itself, nothing is trimmed.

        ``jobs`` and ``size`` are what was mirrored since the last trim: job events (one for an event about the queue),
        and the bytes of their type, jobs or data, and why fields.
        """
        OutboxId.parse(upto)
        args = {"audit_id": audit_id, "upto": upto, "jobs": jobs, "size": size}
        yield from self.one(Call("trim", queue, args, _nothing))

    # After a loss.

    def restore(
        self,
        queue: str,
        records: Sequence[Restoration],
        *,
        after: str,
        by: str | None = None,
        why: str = "",
    ) -> Plan[Restored]:
        """Put lost jobs back and take revived ones out, as SQL knows them: see restore.lua. At most BATCH_MAX records.

        ``after`` is the last restore that was known when SQL was read: ``restored`` of the queue's meta, or of this
        call's last answer. Raises RestoredMeanwhile if there was another, AuditBacklogFull, QueueFull."""
        args = {"by": check_name("actor", by or self.name), "why": why, "after": after}
        ids = tuple(check_name("job", record.id) for record in records)
        return (yield from self.one(Call("restore", queue, args, _parse_restored, records, ids)))

    # The doctor.

    def repair(
        self,
        queue: str,
        records: Sequence[tuple[str, str, int, int, str, str]],
        *,
        by: str,
        sequence_min: int,
        tombstones: int,
    ) -> Plan[int]:
        """Mend (kind, name, relog, relist, was, line) records; see repair.lua. Returns how many."""
        args = {"by": by, "sequence_min": sequence_min, "tombstones_now": tombstones}
        return (yield from self.one(Call("repair", queue, args, lambda r: int(r[0]), records)))

    def snapshot(self, queue: str) -> Plan[dict[str, Any]]:
        """Everything a queue has in Redis, read in one transaction: key name → value in Python's types.

        For the doctor and for tests. It is as large as the queue. Raises QueueDamaged if a key has the wrong type.
        """
        keys = queue_keys(queue, self.prefix)
        read = {
            "hash": lambda key: ["HGETALL", key],
            "list": lambda key: ["LRANGE", key, 0, -1],
            "zset": lambda key: ["ZRANGE", key, 0, -1, "WITHSCORES"],
            "stream": lambda key: ["XRANGE", key, "-", "+"],
        }
        commands = [read[key.type](keys(key.name)) for key in KEYS]
        *_, values = yield from self.ask([["MULTI"], *commands, ["EXEC"]])
        shaped: dict[str, Any] = {}
        for key, value in zip(KEYS, values, strict=True):
            if isinstance(value, Exception):
                raise errors.QueueDamaged(
                    f"queue {queue!r} is damaged: key {keys(key.name)} is no {key.type}. Move it away with RENAME,"
                    f" then run `rq-core doctor {queue} --repair`",
                    queue=queue,
                    why=str(value),
                )
            if key.type == "hash":
                shaped[key.name] = pairs_of(value)
            elif key.type == "zset":
                shaped[key.name] = {m: float(s) for m, s in pairs_of(value).items()}
            elif key.type == "stream":
                shaped[key.name] = [(i, pairs_of(flat)) for i, flat in value]
            else:
                shaped[key.name] = list(value)
        return shaped


def read_state_line(queue: str, job_id: str, line: str, spec: str | None = None) -> JobState:
    """Read a state line as state.lua writes it. Raises QueueDamaged if it is not one."""
    word, _, rest = line.partition(" ")
    try:
        state = State(word)
    except ValueError:
        raise errors.QueueDamaged(
            queue=queue, why=f"the state of job {job_id} reads {line!r}"
        ) from None
    fields = dict(part.split("=", 1) for part in rest.split(" ") if "=" in part)
    return JobState(job_id, queue, state, fields, spec)


def _chunks(jobs: Iterable[NewJob]) -> Iterable[tuple[str, list[NewJob]]]:
    """Jobs by queue, in chunks bounded in number and bytes; order within a queue is kept."""
    waiting: dict[str, list[NewJob]] = {}
    sizes: dict[str, int] = {}
    costs: dict[str, int] = {}
    for job in jobs:
        queue = job.queue
        if queue in waiting and waiting[queue][0].spec_max != job.spec_max:
            yield queue, waiting.pop(queue)
            sizes[queue] = costs[queue] = 0
        waiting.setdefault(queue, []).append(job)
        sizes[queue] = sizes.get(queue, 0) + len(job.args_json)
        costs[queue] = costs.get(queue, 0) + (LANE_COST if job.lane else 1)
        if costs[queue] >= ENQUEUE_CHUNK or sizes[queue] >= ENQUEUE_CHUNK_BYTES:
            yield queue, waiting.pop(queue)
            sizes[queue] = costs[queue] = 0
    yield from waiting.items()


_OUTAGE: Final = (
    "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "MISCONF",
    "NOREPLICAS", "UNBLOCKED",
)  # fmt: skip
"""Error replies that say: not now. Nothing was carried out."""


def _pause(attempt: int) -> Pause:
    """0.05 s, doubling up to a second."""
    return Pause(min(0.05 * 2 ** min(attempt, 5), 1.0))


def _too_many(rounds: int) -> Exception | None:
    if rounds <= ROUNDS_MAX:
        return None
    return ReplyError("its history, or what scripts it knows, keeps changing")


def _kind_of(reply: Exception, *, lost: bool = False) -> str:
    """What an error in the place of a reply means. ``lost``: an earlier reply to the same call was lost."""
    if isinstance(reply, Unsent):
        return "unsent"
    if isinstance(reply, Lost):
        return "lost"
    text = str(reply)
    if text.startswith("NOSCRIPT") or "Function not found" in text:
        return "forgotten"
    if "fcall" in text.lower() and ("unknown command" in text or text.startswith("NOPERM")):
        return "no functions"
    if lost and text.startswith("OOM"):
        # A full server refuses a call before looking at its slot: that says nothing of the first time.
        return "unsent"
    return "unsent" if text.startswith(_OUTAGE) else "fatal"


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


def _wrong_type(queue: str, text: str) -> errors.QueueDamaged:
    return errors.QueueDamaged(queue=queue, why=f"a key has the wrong type ({text})")


def pairs_of(value: Any) -> dict[str, Any]:
    """A reply of pairs, as RESP2 (flat list) or RESP3 (map, or list of pairs) gives it."""
    if isinstance(value, dict):
        return value
    if value and isinstance(value[0], list):
        return dict(value)
    return dict(zip(value[::2], value[1::2], strict=True))


def _parse_cap_changes(reply: Sequence[Any]) -> dict[str, CapChange]:
    return {
        reply[at]: CapChange(reply[at + 1], int(reply[at + 2]), Limit.parse(reply[at + 3]))
        for at in range(0, len(reply), 4)
    }


def _nothing(_reply: Sequence[Any]) -> None:
    return None


def _pairs(reply: Sequence[Any]) -> dict[str, str]:
    return dict(zip(reply[::2], reply[1::2], strict=True))


def _parse_handshake(reply: Sequence[Any]) -> Handshake:
    epoch, now_ms, lease_ms, paused, audit, audit_id, started = reply
    return Handshake(
        epoch=int(epoch),
        now_ms=int(now_ms),
        lease_ms=int(lease_ms),
        paused=int(paused) == 1,
        audit=audit == "on",
        audit_id=None if audit_id == "-" else audit_id,
        started=None if started == "-" else started,
    )


def _parse_restored(reply: Sequence[Any]) -> Restored:
    return Restored(reply[0], _pairs(reply[1:]))


def _parse_accepted(jobs: Sequence[NewJob], others: Sequence[Any]) -> Accepted:
    """``others`` are (position from 1, outcome, scope) of the jobs that were not accepted, flat."""
    if not others:
        return Accepted(tuple(job.id for job in jobs))
    outcomes: dict[str, list[Any]] = {"duplicate": [], "discarded": [], "rejected": []}
    left: dict[int, bool] = {}
    for at in range(0, len(others), 3):
        place, outcome, scope = int(others[at]) - 1, others[at + 1], others[at + 2]
        left[place] = True
        job_id = jobs[place].id
        outcomes[outcome].append(job_id if outcome == "duplicate" else (job_id, scope))
    ids = tuple(job.id for place, job in enumerate(jobs) if place not in left)
    return Accepted(ids, *map(tuple, outcomes.values()))


def _parse_claimed(queue: str, reply: Sequence[Any]) -> Claimed:
    now_ms, next_due, more, fence = reply[:4]
    flat = reply[4:]
    jobs = tuple(
        Claim(
            queue, flat[at], fence, int(flat[at + 1]), int(flat[at + 2]), int(flat[at + 3]), flat[at + 4], flat[at + 5]
        )
        for at in range(0, len(flat), 6)
    )  # fmt: skip
    due = None if next_due == "-" else int(float(next_due))
    return Claimed(jobs, int(now_ms), due, int(more) == 1)


def _parse_extended(reply: Sequence[Any]) -> Extended:
    outcomes = _pairs(reply[1:])
    return Extended(
        lost=tuple(i for i, o in outcomes.items() if o == "lost"),
        cancelling=tuple(i for i, o in outcomes.items() if o == "cancelling"),
    )
