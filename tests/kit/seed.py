"""Brings a queue into a state by real calls, on a clock that a test advances."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from types import TracebackType
from typing import Any, Literal, Self

import redis

from rq_core.connections.client import Client
from rq_core.connections.transport import Transport
from rq_core.model.events import Entry, JobRecord, decode
from rq_core.model.job import Claim, NewJob, profile, ties_of
from rq_core.model.keys import queue_keys
from rq_core.model.limits.scopes import lane_name
from rq_core.model.result_encoding import pack_result
from rq_core.model.table.machine import Priority, State
from rq_core.model.unique_names import digest_of
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.admin import Change
from rq_core.protocol.calls.audit import Restoration, put_back, take_out
from rq_core.protocol.calls.boxes import (
    NotSaved,
    Saving,
    Sending,
    Sent,
    refusals,
    save,
    send_signals,
)
from rq_core.protocol.calls.caps import CapChange
from rq_core.protocol.calls.claims import Claimed, Extended
from rq_core.protocol.calls.enqueue import Accepted
from rq_core.protocol.calls.shows import Show, show_jobs
from rq_core.protocol.engine.delivery import Delivery
from rq_core.protocol.engine.plan import Call, Patience, Plan
from rq_core.protocol.operations import Operations
from rq_core.scripts.script import Script
from tests.kit.clock import Clock, timed
from tests.kit.consistency import assert_consistent
from tests.kit.snapshots import Snapshot, diff, without_slot

START_MS = 1_800_000_000_000
LEASE_MS = 30_000
QUEUE = "q"
WORKER = "w-1"
NO_FENCE = "1-1"
LIFE = "9f3a0b1c22aa0001"
ERROR = '{"type":"ValueError","message":"no"}'


class Seed:
    """One queue, a client on the test's clock, and a short method for each call to the queue."""

    def __init__(
        self,
        url: str,
        queue: str = QUEUE,
        *,
        scripts: Callable[[str], Script] = timed,
        name: str = "c-1",
        patience: Patience | None = None,
        real_clock: bool = False,
        transport: Transport | None = None,
    ) -> None:
        self._meet(queue)
        # Some tests send thousands of commands: to take a connection from a pool for each would cost as much again.
        self.control = redis.Redis.from_url(
            url, decode_responses=True, single_connection_client=True
        )
        self._real_clock = real_clock
        self.clock = Clock(self.control, START_MS, running=not real_clock)
        self.calls = Operations(Delivery(url=url, name=name, scripts=scripts, patience=patience))
        if not real_clock:
            self.calls.reads.now_ms = self._now_ms  # type: ignore[method-assign]
        self.client = Client(url, calls=self.calls, transport=transport, sleep=lambda _: None)

    def _meet(self, queue: str) -> None:
        self.queue = queue
        self.keys = queue_keys(queue)

    def of(self, queue: str) -> "Seed":
        """Return a seed for another queue, with the same client and clock. A test closes only the first seed."""
        other = copy(self)
        other._meet(queue)
        return other

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.client.close()
        self.control.close()

    # Time.

    @property
    def now(self) -> int:
        """Return the time that scripts read (Unix ms)."""
        if not self._real_clock:
            return self.clock.now_ms
        server: Any = self.control
        seconds, micros = server.time()
        return int(seconds * 1_000 + micros // 1_000)

    def _now_ms(self, queue: str) -> Plan[int]:  # noqa: ARG002 - as Reads has it
        """Return the time of the test's clock. It replaces Reads.now_ms, which asks the server."""
        yield from ()
        return self.clock.now_ms

    def advance(self, ms: int) -> None:
        """Advance the clock by ``ms`` without a call. A gap of over two thirds of a lease counts as an outage."""
        self.clock.advance(ms)

    def live(self, ms: int) -> None:
        """Advance the clock by ``ms``, in steps with calls in between. So leases expire on time."""
        while ms > 0:
            step = min(ms, LEASE_MS // 3)
            self.clock.advance(step)
            self.extend([], worker="w-idle")
            ms -= step

    # Calls.

    def job(
        self,
        job_id: str,
        *,
        task: str = "t",
        priority: str = "normal",
        delay_ms: int = 0,
        attempts: int = 3,
        losses: int = 3,
        args_json: str = "{}",
        lane: str = "",
        scopes: Sequence[str] = (),
        full: str = "",
        spec_max: int = 0,
        unique: str = "",
        name: str = "",
        call: str = "=",
        **ties: Any,
    ) -> NewJob:
        """Return a new job. ``ties`` and ``unique`` are arguments of ``ties_of``.

        With a ``name``, the default of ``unique`` is ``keep``. ``call`` is used only with a remembered id: ``=`` and
        the digest of the call. Without a digest, calls are not compared.
        """
        how = unique or ("keep" if name else "")
        made = profile(task, Priority(priority), attempts, losses)
        lane = lane or lane_name(made.rank, scopes)
        return NewJob(
            job_id, self.queue, made, args_json, delay_ms, lane, full, spec_max,
            ties=ties_of(**ties, unique=how), name=name, call=call if "remember_ms" in ties else "",
        )  # fmt: skip

    def enqueue(self, *jobs: str | NewJob, **options: Any) -> Accepted:
        """Enqueue jobs. A text is the id of a job, which is made with the options."""
        return self.client.run(
            self.client.calls.enqueue.many(
                [self.job(j, **options) if isinstance(j, str) else j for j in jobs]
            )
        )

    def claim(self, limit: int = 100, *, worker: str = WORKER, **bounds: int) -> Claimed:
        return self.client.run(self.claim_call(limit, worker=worker, **bounds))

    def claim_call(self, limit: int = 100, *, worker: str = WORKER, **bounds: int) -> Call[Claimed]:
        return claims.claim(self.queue, worker, limit, **bounds)

    def claim_one(self, job_id: str, *, worker: str = WORKER) -> Claim:
        """Claim one job, and assert that it has this id. Return the claim."""
        (claim,) = self.claim(1, worker=worker).jobs
        assert claim.id == job_id
        return claim

    def complete(
        self,
        *held: Claim | tuple[str, str],
        worker: str = WORKER,
        values: Mapping[int, str] = claims.NO_VALUES,
    ) -> dict[str, str]:
        pairs = [(h.id, h.fence) if isinstance(h, Claim) else h for h in held]
        return self.client.run(claims.complete(self.queue, worker, pairs, values))

    def turn(
        self,
        *held: Claim | tuple[str, str],
        limit: int = 100,
        worker: str = WORKER,
        values: Mapping[int, str] = claims.NO_VALUES,
        **bounds: int,
    ) -> Claimed:
        """Report successes and claim jobs in one call, which is a turn."""
        pairs = [(h.id, h.fence) if isinstance(h, Claim) else h for h in held]
        return self.client.run(claims.turn(self.queue, worker, limit, pairs, values, **bounds))

    def fail(
        self,
        *held: Claim | tuple[str, str],
        verdict: str = "retry",
        delay_ms: int = 0,
        reason: str = "final",
        error: str = ERROR,
        worker: str = WORKER,
    ) -> dict[str, str]:
        records = [(h[1], h[2]) if isinstance(h, Claim) else h for h in held]
        return self.client.run(
            claims.fail(
                self.queue,
                worker,
                [(i, fence, verdict, delay_ms, reason, error) for i, fence in records],
            )
        )

    def rollback(
        self,
        *held: Claim | tuple[str, str],
        reason: str = "shutdown",
        worker: str = WORKER,
        lane: str = "",
        delay_ms: int = 0,
        **limits: Any,
    ) -> dict[str, str]:
        records = [(h[1], h[2]) if isinstance(h, Claim) else h for h in held]
        return self.client.run(
            claims.rollback(
                self.queue,
                worker,
                [(i, fence, reason, "null", lane, delay_ms) for i, fence in records],
                **limits,
            )
        )

    def spend(
        self,
        *held: Claim | tuple[str, str],
        told: str = "tokens:1",
        pauses: str = "",
        worker: str = WORKER,
    ) -> dict[str, str]:
        """Report how much of each unit the claimed jobs have really taken, and pause their scopes."""
        pairs = [(h.id, h.fence) if isinstance(h, Claim) else h for h in held]
        records = [(job_id, fence, told, pauses) for job_id, fence in pairs]
        return self.client.run(claims.spend(self.queue, worker, records))

    def save(
        self,
        *steps: Claim | tuple[str, str],
        life: str = LIFE,
        entry: int = 1,
        name: str = "charge",
        what: Literal["begin", "save", "move"] = "save",
        value: str = '{"id":1}',
        kept: str = "digest",
        worker: str = WORKER,
    ) -> dict[int, NotSaved]:
        """Save one entry in the box of each claimed job. With ``what="begin"``, only begin the entry. With
        ``what="move"``, only give the job's box the id ``life``."""
        packed = "" if what != "save" else value if value[:1] == "!" else pack_result(value, kept)
        pairs = [(h.id, h.fence) if isinstance(h, Claim) else h for h in steps]
        records = [Saving(i, fence, life, what, entry, name, packed) for i, fence in pairs]
        return refusals(self.client.run(save(self.queue, worker, records)))

    def show(
        self,
        *held: Claim | tuple[str, str],
        says: str = "",
        chunks: Iterable[tuple[int, str]] = (),
        number: int = 1,
        start: int = 0,
        claim: int = 1,
        worker: str = WORKER,
    ) -> Mapping[str, str]:
        """Report the progress ``says`` and chunks of each claimed job. The progress is report ``number`` of the claim.

        Return, by job id, the number before the claim's first chunk, or why the job's reports are refused.
        """
        records = []
        for job_id, fence in [(h.id, h.fence) if isinstance(h, Claim) else h for h in held]:
            said = [Show(job_id, fence, claim, start, "says", number, says)] if says else []
            emitted = [Show(job_id, fence, claim, start, "chunk", n, text) for n, text in chunks]
            records += [*said, *emitted]
        return self.client.run(show_jobs(self.queue, worker, records))

    def wait(
        self,
        claim: Claim,
        about: str = "",
        *,
        name: str = "approval",
        entry: int = 1,
        what: Literal["wait", "sleep", "take"] = "wait",
        life: str = LIFE,
        value: str = "",
    ) -> dict[int, NotSaved]:
        """Save a wait or a sleep in the box of a claimed job. ``about`` says when it ends or, with ``take``, has the
        number of the signal that it took."""
        record = Saving(claim.id, claim.fence, life, what, entry, name, value, about)
        return refusals(self.client.run(save(self.queue, WORKER, [record])))

    def park(
        self, *held: Claim | tuple[str, str], waits: str = "1", life: str = "", knows: str = ""
    ) -> dict[str, str]:
        """Park claimed jobs. The worker knows each job's box by the id that Redis has, or by ``life``."""
        pairs = [(h[1], h[2]) if isinstance(h, Claim) else h for h in held]
        records = [(*pair, waits, life or self.life_of(pair[0]), knows) for pair in pairs]
        return self.client.run(claims.park(self.queue, WORKER, records))

    def life_of(self, job_id: str) -> str:
        """Return the id of the box that a job's line names; LIFE if it names none."""
        line = self.state(job_id) or ""
        return line.partition(" life=")[2].partition(" ")[0] or LIFE

    def parked(
        self, job_id: str = "a", about: str = "", *, what: Any = "wait", **options: Any
    ) -> str:
        """Park a new job, which waits for the signal ``approval`` or sleeps. Return the fence of its last claim."""
        claim = self.running(job_id, **options)
        life = f"{int.from_bytes(job_id.encode()[-6:]):016x}"
        self.wait(claim, about, what=what, life=life)
        self.park(claim)
        return claim.fence

    def signal(
        self, *ids: str, name: str = "approval", key: str = "", value: str = "{}", **options: Any
    ) -> list[Sent]:
        records = [Sending(i, name, key, value) for i in ids]
        return self.client.run(send_signals(self.queue, records, by="ann", why="asked", **options))

    def extend(self, held: Iterable[Claim | tuple[str, str]], *, worker: str = WORKER) -> Extended:
        records = [(h[1], h[2]) if isinstance(h, Claim) else h for h in held]
        return self.client.run(claims.extend(self.queue, worker, records))

    def cancel(self, *ids: str) -> dict[str, str]:
        return self.client.run(self.client.calls.admin.cancel(self.queue, ids))

    def edit(self, *ids: str, line: str = "", **change: str) -> dict[str, str]:
        made = Change(**change)
        return self.client.run(self.client.calls.admin.edit(self.queue, ids, made, line=line))

    def requeue(self, *ids: str) -> dict[str, str]:
        return self.client.run(self.client.calls.admin.requeue(self.queue, ids))

    def prune(self, *ids: str) -> dict[str, str]:
        return self.client.run(self.client.calls.admin.prune(self.queue, ids))

    def free(self, *names: str) -> dict[str, str | None]:
        return self.client.run(self.client.calls.names.free(self.queue, names))

    def lost(self, job_id: str, state: State = State.READY, **facts: Any) -> Restoration:
        """Return a record for the call restore. It puts back a job that Redis lost."""
        record = JobRecord(job_id, state, facts.pop("task", "t"))
        missing = facts.pop("missing", False)
        for name, value in facts.items():
            setattr(record, name, value)
        return put_back(record, spec(record.task or "t"), digest_of("{}"), missing=missing)

    def revived(self, job_id: str, ended: str = "succeeded") -> Restoration:
        """Return a record for the call restore. It removes a job that had ended, and that a loss of Redis brought
        back."""
        return take_out(job_id, self.state(job_id) or f"ready task=t seq=1 since={self.now}", ended)

    def restore(self, *records: Restoration) -> dict[str, str]:
        """Put back lost jobs and remove revived jobs. Return the outcome of each job."""
        after = self.meta("restored") or "-"
        return self.client.run(
            self.client.calls.audit.restore(self.queue, records, after=after)
        ).outcomes

    def cap(self, scope: str, limit: int | str, version: int = -1, **how: str) -> CapChange:
        """Change a limit, and return the outcome."""
        return self.client.run(
            self.client.calls.caps.set(self.queue, [(scope, str(limit), version)], **how)
        )[scope]

    def configure(self, **values: int) -> dict[str, str]:
        return self.client.run(self.client.calls.admin.configure(self.queue, values))

    def attach(self, audit_id: str = "db-1") -> None:
        self.client.run(self.client.calls.audit.attach(self.queue, audit_id))

    # What there is.

    def snapshot(self) -> Snapshot:
        """Return all keys of the queue, without the version of the facts, which contains the server's time."""
        found: Snapshot = self.client.run(self.client.calls.reads.snapshot(self.queue))
        found["meta"].pop("v", None)
        return found

    def assert_consistent(self) -> None:
        assert_consistent(self.snapshot())

    def state(self, job_id: str) -> str | None:
        """Return the state line of a job, or None if Redis does not have the job."""
        line: Any = self.control.hget(self.keys("state"), job_id)
        value: Any = self.control.hget(self.keys("jobs"), job_id)
        if line is not None or "\n" not in (value or ""):
            return None if line is None else str(line)
        return "ready " + str(value).partition("\n")[0]

    def meta(self, field: str) -> str | None:
        value: Any = self.control.hget(self.keys("meta"), field)
        return None if value is None else str(value)

    def tokens(self) -> int:
        count: int = self.control.llen(self.keys("wake"))
        return count

    def take_token(self) -> None:
        self.control.delete(self.keys("wake"))

    def entries(self) -> list[Entry]:
        """Return the entries of the outbox, decoded."""
        return [decode(entry_id, raw) for entry_id, raw in self.snapshot()["outbox"]]

    def changes(self, call: Callable[[], Any]) -> dict[str, Any]:
        """Make a call, and return its changes to the queue, except those of the call's slot. Assert that all indexes
        agree."""
        before = self.snapshot()
        call()
        after = self.snapshot()
        assert_consistent(after)
        rest, _ = without_slot(diff(before, after), self.now)
        return rest

    # The states of one job.

    def ready(self, job_id: str, **options: Any) -> None:
        self.enqueue(job_id, **options)

    def running(self, job_id: str, **options: Any) -> Claim:
        """Enqueue a job and claim it."""
        self.enqueue(job_id, **{"priority": "critical", **options})
        return self.claim_one(job_id)

    def cancelling(self, job_id: str, **options: Any) -> Claim:
        claim = self.running(job_id, **options)
        self.cancel(job_id)
        return claim

    def dead(self, job_id: str, **options: Any) -> Claim:
        claim = self.running(job_id, **options)
        self.fail(claim, verdict="final")
        return claim


def events_of(entries: Sequence[Entry], job_id: str) -> list[str]:
    """Return the events of one job, in order."""
    return [str(e.event) for e in entries for j in e.jobs if j.job_id == job_id]


def spec(task: str = "t", args_json: str = "{}") -> str:
    """Return the immutable JSON of a job in the form in which Redis stores it."""
    return json.dumps({"task": task, "args": json.loads(args_json)}, separators=(",", ":"))
