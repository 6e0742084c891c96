"""Run an app's tasks in a test, in one process and without a server.

    from rq_core import testing

    def test_welcome_is_sent():
        with testing.fake(app) as fake:
            sign_up("ada@example.org")           # enqueues
            (job,) = fake.enqueued("mail")       # what waits, and what it will be called with
            assert (job.task, job.arguments) == ("send", {"to": "ada@example.org"})
            (ran,) = fake.drain()                # runs what was enqueued, here and now
            assert ran.outcome == "succeeded"

The scripts run on fakeredis (install fakeredis[lua]), in place of the app's server. That is for the
logic of programs that use rq-core; how the scripts behave is proved on real servers only.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import redis

from rq_core.app.app import App
from rq_core.app.clients import Connections, in_event_loop
from rq_core.app.handlers.context import JobContext, running
from rq_core.connections.async_client import AsyncClient
from rq_core.connections.client import Client
from rq_core.connections.connection import Connection
from rq_core.connections.pool import Pool
from rq_core.connections.redis_errors import own_words
from rq_core.connections.transport import SOCKET_TIMEOUT_S, Hear, PoolTransport
from rq_core.connections.wait_thread import Waiter
from rq_core.errors import RqCoreError, UsageError
from rq_core.model.headers import NO_HEADERS, read_headers
from rq_core.model.job import Claim, Spec, read_spec, spec_of
from rq_core.model.keys import queue_keys
from rq_core.model.lib.text import counted
from rq_core.model.state_line import JobState, lines_of_jobs, read_state_line
from rq_core.model.table.machine import Priority, State
from rq_core.model.table.reasons import Reason
from rq_core.protocol.calls import claims
from rq_core.protocol.engine.delivery import Delivery
from rq_core.protocol.engine.plan import Patience, Plan, ReplyError, pairs_of
from rq_core.protocol.operations import Operations
from rq_core.protocol.reads.wait_schedule import JobWait, Nothing
from rq_core.scripts.header import Variant
from rq_core.scripts.script import Script, build_script
from rq_core.worker.dead_hooks import DeathWatch, has_hooks
from rq_core.worker.execution.executor import Executor
from rq_core.worker.execution.running import Running
from rq_core.worker.settlement import Settlement, calls_of

DRAIN_MAX: Final = 10_000
"""Most runs in one drain: a task that always enqueues another would never end."""

_REPLID: Final = """--[[ replid: the one history of a fake server, which has no INFO in scripts. ]]

local function server_replid()
  return string.rep('0', 40)
end
"""

_CLOCK: Final = """--[[ clock: the server's time, and what the test has added to it.

Keys: meta
]]
local function clock_ms()
  local time = redis.call('TIME')
  local added = redis.call('HGET', meta, 'test_clock_ms') or 0
  local now = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(added)
  return now, string.format('%.0f', now)
end
"""


@functools.cache
def fake_variant() -> Variant:
    """Return how the scripts must be changed for fakeredis."""
    return Variant(includes={"replid": _REPLID, "clock": _CLOCK}, shebang=False)


@functools.cache
def fake_script(name: str) -> Script:
    """Return the script as fakeredis can run it."""
    return build_script(name, fake_variant())


@dataclass(frozen=True)
class Ran:
    """One run of a job in a drain."""

    id: str
    queue: str
    task: str
    claim: int
    """1 for the job's first run."""
    outcome: str
    """succeeded, scheduled or ready (to be retried), dead, or cancelled."""
    error: str | None
    """What the handler raised, as ``ValueError: no such user``."""


@dataclass(frozen=True)
class Enqueued:
    """A job that waits."""

    id: str
    queue: str
    task: str
    arguments: dict[str, Any]
    """As they travel: what was given, in the types of JSON, so a datetime is a string here."""
    priority: str
    """critical, high, normal or low."""
    delay: float | None
    """Seconds from when it was enqueued, or failed, until it is due; None: it is ready."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """As ``with_options(headers=…)`` gave them."""


class FakeConnections(Connections):
    """Clients of a fakeredis server of their own. Raises ImportError without fakeredis[lua]."""

    def __init__(self, *, prefix: str) -> None:
        super().__init__("fake://", prefix=prefix)
        # A dictionary answers at once.
        self.warns = False
        try:
            import fakeredis

            # Without Lua, fakeredis would say no more than that it lacks EVALSHA.
            import lupa  # noqa: F401
        except ImportError as error:
            raise ImportError(
                "rq_core.testing runs on fakeredis with Lua: pip install 'fakeredis[lua]'"
            ) from error

        self._server = fakeredis.FakeServer()

    def make_client(self) -> Client:
        """Make a client of the fake server."""
        return Client(self.url, transport=FakeTransport(self._server), calls=self._calls())

    def make_async_client(self) -> AsyncClient:
        """Make a client of the fake server for the running event loop."""
        transport = FakeAsyncTransport(self._server)
        return AsyncClient(self.url, transport=transport, calls=self._calls())

    def make_waiter(self) -> Waiter:
        """Make what looks once for those who wait: jobs run when the test drains."""
        return _FakeWaiter(self.make_client())

    def _calls(self) -> Operations:
        # There is no waiting for a server that is a dictionary.
        patience = Patience(unsent=0, unknown=0)
        return Operations(
            Delivery(prefix=self.prefix, url=self.url, patience=patience, scripts=fake_script)
        )


class _FakeWaiter(Waiter):
    """Looks at once, in the thread that waits."""

    def begin(self, *waits: JobWait) -> None:
        """End each wait with what its job's state is now."""
        for wait in waits:
            found = self._client.run(self._client.calls.endings.look(wait.queue, [wait.id]))
            wait.end(found.get(wait.id, Nothing.ALIVE))


class _FakeConnection(Connection):
    """A connection to a fakeredis server, which has no socket: redis-py's own methods lead to it."""

    def is_ready(self) -> bool:
        """Whether it is connected."""
        return self.is_connected

    def connect(self, within: float | None = None) -> None:  # noqa: ARG002 - it is there at once
        """See Connection.connect."""
        self._made.connect()
        self._socket = self._made

    def send(self, data: bytes) -> None:
        """See Connection.send."""
        self._made.send_packed_command([data])

    def receive(self, count: int, replies: list[Any]) -> None:
        """See Connection.receive."""
        for _ in range(count):
            try:
                replies.append(self._made.read_response())
            except redis.ResponseError as error:
                replies.append(ReplyError(own_words(error)))

    def wait_for(self, seconds: float | None) -> None:
        """Do nothing: a fake server answers at once."""


class FakeTransport(PoolTransport):
    """A Transport to a fakeredis server; what it sends and reads is what redis-py would."""

    def __init__(self, server: Any) -> None:
        import fakeredis

        fake = fakeredis.FakeRedis(server=server, decode_responses=True, protocol=2)
        self._answer_within = SOCKET_TIMEOUT_S
        self._pool = Pool(
            fake.connection_pool, wait=SOCKET_TIMEOUT_S, make_connection=_FakeConnection
        )

    def exchange(self, commands: Sequence[Sequence[Any]], *how: Any) -> list[Any]:
        """See Transport.exchange."""
        known = [_known(command) for command in commands]
        return _with_info(known, super().exchange(known, *how))


class FakeAsyncTransport:
    """The same for asyncio: there is no waiting for a server that is a dictionary."""

    one_slot = False

    def __init__(self, server: Any) -> None:
        self._transport = FakeTransport(server)

    async def exchange(self, commands: Sequence[Sequence[Any]], *how: Any) -> list[Any]:
        """See Transport.exchange."""
        return self._transport.exchange(commands, *how)

    async def block(self, command: Sequence[Any], seconds: float, hear: Hear = None) -> Any:
        """See AsyncTransport.block."""
        reply = self._transport.block(command, seconds)
        if hear is not None:
            hear(reply)
        return reply

    def place(self, key: str) -> object:
        """See Transport.place."""
        return self._transport.place(key)

    async def close(self) -> None:
        """Close all connections."""
        self._transport.close()


def _known(command: Sequence[Any]) -> Sequence[Any]:
    """A command as fakeredis knows it: no EVAL_RO, and no flags of a script."""
    if command[0] not in ("EVAL", "EVAL_RO"):
        return command
    script = command[1]
    return ["EVAL", script.partition("\n")[2] if script.startswith("#!") else script, *command[2:]]


def _with_info(commands: Sequence[Sequence[Any]], replies: list[Any]) -> list[Any]:
    """Answer INFO, which fakeredis lacks."""
    return [
        "redis_version:7.0.0" if command[0] == "INFO" else reply
        for command, reply in zip(commands, replies, strict=True)
    ]


class Fake:
    """An app on a fake server: what ``fake`` gives to its block."""

    def __init__(self, app: App, connections: FakeConnections) -> None:
        self.app = app
        self.connections = connections

    def drain(self, *queues: str, runs_max: int = DRAIN_MAX) -> list[Ran]:
        """Run jobs, one after another, until none is left, in these queues or all.

        Delays and retries are not waited for: the fake server's clock is put forward to the next.
        What a handler raises does not escape; it stands in the list. on_dead hooks are called as a worker calls
        them: each by a job of its own, which is in the list, too. In an event loop use
        drain_async: this raises UsageError there. Raises RqCoreError after ``runs_max`` runs.
        """
        if in_event_loop():
            raise UsageError("drain cannot run jobs in an event loop: await drain_async(…) there")
        return asyncio.run(self._drain_and_close(queues, runs_max))

    async def _drain_and_close(self, queues: Sequence[str], runs_max: int) -> list[Ran]:
        try:
            return await self.drain_async(*queues, runs_max=runs_max)
        finally:
            await self.app.aclose()

    async def drain_async(self, *queues: str, runs_max: int = DRAIN_MAX) -> list[Ran]:
        """See drain."""
        inline = _Inline(self.app)
        client = self.app.client
        deaths: dict[str, _DeathWatch] = {}
        ran: list[Ran] = []
        try:
            while True:
                found = queues or tuple(client.run(client.calls.reads.queues()))
                self._note_beginning(deaths, found)
                claims, due = self._claim(found)
                for claim in claims:
                    done = await inline.run(claim)
                    if done is not None:
                        ran.append(done)
                    if len(ran) >= runs_max:
                        raise RqCoreError(
                            f"{counted(runs_max, 'run')}, and there are still jobs left"
                        )
                if claims or self._tell_of(deaths):
                    continue
                if not due:
                    return ran
                self._put_forward(min(due.values()))
        finally:
            await inline.close()

    def _note_beginning(self, deaths: dict[str, _DeathWatch], queues: Sequence[str]) -> None:
        """Have hooks told of deaths in these queues from now on, if there are hooks."""
        for queue in queues if has_hooks(self.app.tasks) else ():
            if queue not in deaths:
                client = self.app.client
                deaths[queue] = _DeathWatch(client.calls, queue, self.app.tasks)
                client.run(deaths[queue].begin())

    def _tell_of(self, deaths: Mapping[str, _DeathWatch]) -> bool:
        """Enqueue the jobs of hooks for what died. Returns whether there are any."""
        before = sum(watch.told for watch in deaths.values())
        if deaths:
            # A look leaves out the millisecond that is not over yet.
            self._put_forward(1)
        for watch in deaths.values():
            while self.app.client.run(watch.look()):
                pass
        return sum(watch.told for watch in deaths.values()) > before

    def enqueued(self, *queues: str) -> list[Enqueued]:
        """The jobs that wait, in these queues or all: queue by queue, as they were enqueued. Nothing is run."""
        client, found = self.app.client, []
        for queue in queues or tuple(client.run(client.calls.reads.queues())):
            keys = queue_keys(queue, self.app.prefix)
            read = client.calls.delivery.ask(
                [["HGETALL", keys("jobs")], ["HGETALL", keys("state")]]
            )
            values, lines = map(pairs_of, client.run(read))
            standing = lines_of_jobs(lines, values)
            # The fake server keeps what it was given in that order.
            for job_id, value in values.items():
                job = read_state_line(queue, job_id, standing[job_id])
                if job.state in (State.READY, State.SCHEDULED):
                    found.append(_enqueued(job, read_spec(spec_of(value))))
        return found

    def advance(self, seconds: float) -> None:
        """Put the fake server's clock forward, for all queues that exist."""
        self._put_forward(round(seconds * 1000))

    def _claim(self, queues: Sequence[str]) -> tuple[list[Claim], dict[str, int]]:
        """Claim one job of the first queue that has one; else say in how many ms one is due."""
        client = self.app.client
        due: dict[str, int] = {}
        for queue in queues:
            claimed = client.run(claims.claim(queue, _WORKER, 1))
            if claimed.jobs:
                return list(claimed.jobs), due
            if claimed.next_due_ms is not None:
                due[queue] = max(claimed.next_due_ms - claimed.now_ms, 1)
        return [], due

    def _put_forward(self, ms: int) -> None:
        client = self.app.client
        metas = [
            queue_keys(queue, self.app.prefix)("meta")
            for queue in client.run(client.calls.reads.queues())
        ]
        commands: list[list[Any]] = [["HINCRBY", meta, "test_clock_ms", ms] for meta in metas]
        client.run(client.calls.delivery.ask(commands))


def _enqueued(job: JobState, spec: Spec) -> Enqueued:
    due = job.fields.get("due")
    return Enqueued(
        id=job.id,
        queue=job.queue,
        task=spec.task,
        arguments=json.loads(spec.args_json),
        priority=job.fields.get("priority", str(Priority.NORMAL)),
        delay=(int(due) - int(job.fields["since"])) / 1000 if due else None,
        headers=read_headers(spec.headers_json) if spec.headers_json else NO_HEADERS,
    )


class _DeathWatch(DeathWatch):
    """Looks by the fake server's clock."""

    def _now(self) -> Plan[tuple[int, str | None]]:
        now, seen = yield from super()._now()
        (added,) = yield from self._calls.delivery.ask(
            [["HGET", self._keys("meta"), "test_clock_ms"]]
        )
        return now + int(added or 0), seen


_WORKER: Final = "w-test"


class _Inline:
    """Runs claims one at a time with the worker's own executor, and settles each at once."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._settlements: asyncio.Queue[Settlement] = asyncio.Queue()
        self._free = asyncio.Event()
        self._executor = Executor(
            app.tasks,
            worker=_WORKER,
            threads=1,
            timeout=None,
            on_settlement=self._settlements.put_nowait,
            on_free=self._freed,
            surroundings=app.surroundings,
            redact=app.redactor,
            isolate=False,
        )

    def _freed(self, _running: Running) -> None:
        self._free.set()

    async def run(self, claim: Claim) -> Ran | None:
        """Run a claim. None: it did not run, since it belongs into another lane, and will be claimed again."""
        self._free.clear()
        started = self._executor.start(claim)
        settlement = await self._settlements.get()
        if started is not None:
            await self._free.wait()
        client = self._app.client
        outcome = "succeeded"
        for call, _ in calls_of(_WORKER, [settlement]):
            outcome = client.run(call).get(claim.id, outcome)
        if settlement.reason == Reason.LANE_CHANGED:
            return None
        return Ran(
            id=claim.id,
            queue=claim.queue,
            task=read_spec(claim.spec).task,
            claim=claim.number,
            outcome=outcome,
            error=_words(settlement.error),
        )

    async def close(self) -> None:
        await self._executor.leave()
        self._executor.close()


def _words(error_json: str) -> str | None:
    error = json.loads(error_json)
    return f"{error['type']}: {error['message']}" if error else None


@contextmanager
def fake(app: App) -> Iterator[Fake]:
    """Put the app on a fake server of its own. Raises ImportError without fakeredis[lua].

    The caps that the app declares by then hold there, too, so that what is rejected or discarded at a full one is.
    In the block the app has no audit database: no mirror writes down what its jobs do.
    """
    before, audit_url = app.connections, app.audit_url
    connections = FakeConnections(prefix=app.prefix)
    app.connections, app.audit_url = connections, None
    try:
        client = app.client
        for queue in app.declared.queues:
            client.run(client.calls.caps.declare(queue, app.declared.limits(queue), {}))
        yield Fake(app, connections)
    finally:
        connections.close()
        app.connections, app.audit_url = before, audit_url


@contextmanager
def job_running(
    *,
    id: str = "test",  # noqa: A002 - the name that it has everywhere else
    queue: str = "default",
    task: str = "test",
    claim: int = 1,
    failures: int = 0,
    losses: int = 0,
    headers: Mapping[str, str] = NO_HEADERS,
) -> Iterator[JobContext]:
    """Let ``current_job()`` work in the block, for functions that are called without a worker."""
    context = JobContext(
        id=id,
        queue=queue,
        task=task,
        claim=claim,
        failures=failures,
        losses=losses,
        fence="0-0",
        worker=_WORKER,
        headers=headers,
    )
    with running(context):
        yield context
