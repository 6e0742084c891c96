"""The synchronous client: drives the plans of :mod:`rq_core.protocol.operations` over a
:class:`rq_core.connections.wire.Wire`.

    client = Client("redis://localhost:6379/0")
    client.enqueue([NewJob(...)])

Most programs use :class:`rq_core.App`, which holds one. Threads may share a client.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from rq_core.connections.wire import Wire, open_wire
from rq_core.model.job import NewJob
from rq_core.model.keys import DEFAULT_PREFIX, queue_keys
from rq_core.model.limits import CapEntry
from rq_core.model.state_line import JobState
from rq_core.model.url import DEFAULT_URL
from rq_core.protocol.answers import (
    Accepted,
    CapChange,
    Handshake,
    QueueCounts,
    Restoration,
    Restored,
)
from rq_core.protocol.operations import Operations
from rq_core.protocol.plan import Call, Patience, Plan, Send

T = TypeVar("T")

POLL_EVERY: Final = 0.1
"""Seconds between two looks at streams for which no server can wait at once."""


class Client:
    """A connection to a server's queues. Every method may raise ServerUnavailable and ServerUnsuitable."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        prefix: str = DEFAULT_PREFIX,
        name: str | None = None,
        patience: Patience | None = None,
        wire: Wire | None = None,
        operations: Operations | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = url
        self.operations = operations or Operations(
            prefix=prefix, url=url, name=name, patience=patience
        )
        self._wire = wire or open_wire(url)
        self._sleep = sleep

    def run(self, plan: Plan[T]) -> T:
        """Drive a plan to its end."""
        reply: Any = None
        while True:
            try:
                step = plan.send(reply)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if isinstance(step, Send):
                reply = self._wire.exchange(*step)
            else:
                self._sleep(step.seconds)
                reply = None

    def place(self, queue: str) -> object:
        """Which of its servers has a queue, as far as is known: equal for queues whose calls should travel together."""
        return self._wire.place(queue_keys(queue, self.operations.prefix)("meta"))

    def close(self) -> None:
        """Close all connections."""
        self._wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def handshake(self, queue: str) -> Handshake:
        """See Operations.handshake."""
        return self.run(self.operations.handshake(queue))

    def enqueue(self, jobs: Iterable[NewJob]) -> Accepted:
        """See Operations.enqueue."""
        return self.run(self.operations.enqueue(jobs))

    def enqueue_one(self, job: NewJob) -> Accepted:
        """See Operations.enqueue_one."""
        return self.run(self.operations.enqueue_one(job))

    def carry_out(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """See Operations.carry_out."""
        return self.run(self.operations.carry_out(calls))

    def one(self, call: Call[T]) -> T:
        """See Operations.one."""
        return self.run(self.operations.one(call))

    def cancel(
        self, queue: str, ids: Sequence[str], *, by: str | None = None, why: str = ""
    ) -> dict[str, str]:
        """See Operations.cancel."""
        return self.run(self.operations.cancel(queue, ids, by=by, why=why))

    def requeue(
        self, queue: str, ids: Sequence[str], *, by: str | None = None, why: str = ""
    ) -> dict[str, str]:
        """See Operations.requeue."""
        return self.run(self.operations.requeue(queue, ids, by=by, why=why))

    def prune(
        self, queue: str, ids: Sequence[str], *, by: str | None = None, why: str = ""
    ) -> dict[str, str]:
        """See Operations.prune."""
        return self.run(self.operations.prune(queue, ids, by=by, why=why))

    def configure(
        self, queue: str, values: Mapping[str, int], *, by: str | None = None, why: str = ""
    ) -> dict[str, str]:
        """See Operations.configure."""
        return self.run(self.operations.configure(queue, values, by=by, why=why))

    def set_caps(
        self,
        queue: str,
        limits: Sequence[tuple[str, str, int]],
        *,
        source: str = "live",
        by: str | None = None,
        why: str = "",
    ) -> dict[str, CapChange]:
        """See Operations.set_caps."""
        plan = self.operations.set_caps(queue, limits, source=source, by=by, why=why)
        return self.run(plan)

    def register(
        self, queue: str, policies: Mapping[str, str], *, by: str | None = None
    ) -> dict[str, str]:
        """See Operations.register."""
        return self.run(self.operations.register(queue, policies, by=by))

    def policy(self, queue: str, task: str) -> str | None:
        """See Operations.policy."""
        return self.run(self.operations.policy(queue, task))

    def limits(self, queue: str) -> dict[str, CapEntry]:
        """See Operations.limits."""
        return self.run(self.operations.limits(queue))

    def queues(self) -> list[str]:
        """See Operations.queues."""
        return self.run(self.operations.queues())

    def counts(self, queue: str) -> QueueCounts:
        """See Operations.counts."""
        return self.run(self.operations.counts(queue))

    def job(self, job_id: str, queues: Sequence[str] | None = None) -> JobState | None:
        """See Operations.job. Without ``queues``, all are searched."""
        return self.run(self.operations.job(job_id, self.queues() if queues is None else queues))

    def dead(self, queue: str, limit: int = 100) -> list[JobState]:
        """See Operations.dead."""
        return self.run(self.operations.dead(queue, limit))

    def attach(self, queue: str, audit_id: str, known: int = 0) -> None:
        """See Operations.attach."""
        self.run(self.operations.attach(queue, audit_id, known))

    def detach(self, queue: str, audit_id: str) -> None:
        """See Operations.detach."""
        self.run(self.operations.detach(queue, audit_id))

    def restore(
        self,
        queue: str,
        records: Sequence[Restoration],
        *,
        after: str,
        by: str | None = None,
        why: str = "",
    ) -> Restored:
        """See Operations.restore."""
        return self.run(self.operations.restore(queue, records, after=after, by=by, why=why))

    def read_outbox(self, queue: str, start: str, count: int) -> list[tuple[str, dict[str, str]]]:
        """See Operations.read_outbox."""
        return self.run(self.operations.read_outbox(queue, start, count))

    def read_outbox_back(
        self, queue: str, before: str, count: int
    ) -> list[tuple[str, dict[str, str]]]:
        """See Operations.read_outbox_back."""
        return self.run(self.operations.read_outbox_back(queue, before, count))

    def trim(self, queue: str, audit_id: str, upto: str, jobs: int, size: int) -> None:
        """See Operations.trim."""
        self.run(self.operations.trim(queue, audit_id, upto, jobs, size))

    def wait_outbox(self, last: Mapping[str, str], seconds: float) -> set[str]:
        """The queues whose outbox has an entry after ``last`` (queue → outbox id), as soon as one has or after
        ``seconds``. Raises Unsent, Lost or ReplyError of rq_core.protocol.operations."""
        prefix = self.operations.prefix
        names = {queue_keys(queue, prefix)("outbox"): queue for queue in last}
        if self._wire.one_slot and len(names) > 1:
            return self._poll_outbox(names, last, seconds)
        command = [
            "XREAD", "COUNT", 1, "BLOCK", max(1, int(seconds * 1000)), "STREAMS", *names, *last.values(),
        ]  # fmt: skip
        found = self._wire.block(command, seconds)
        return {names[name] for name, _ in found or ()}

    def _poll_outbox(
        self, names: Mapping[str, str], last: Mapping[str, str], seconds: float
    ) -> set[str]:
        """The same by looking again and again, for streams of which no server has all. Those that a server does not
        answer for have no news; raises what is wrong if none answers."""
        commands = [["XREAD", "COUNT", 1, "STREAMS", name, last[q]] for name, q in names.items()]
        deadline = time.monotonic() + seconds
        while True:
            replies = self._wire.exchange(commands)
            answers = [reply for reply in replies if not isinstance(reply, Exception)]
            if not answers:
                raise replies[0]
            news = {names[name] for found in answers for name, _ in found or ()}
            left = deadline - time.monotonic()
            if news or left <= 0:
                return news
            self._sleep(min(POLL_EVERY, left))

    def snapshot(self, queue: str) -> dict[str, Any]:
        """See Operations.snapshot."""
        return self.run(self.operations.snapshot(queue))
