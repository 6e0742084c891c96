"""The part of an app that enqueues jobs: it has the connections to the server, and makes jobs.

Tasks and handles use only this part of an app.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, Self, TypeVar

from rq_core.app.clients import Connections
from rq_core.app.handlers.handler_setup import Surroundings
from rq_core.app.limits.declarations import Declared
from rq_core.app.options import JobOptions
from rq_core.errors import InvalidOption, PayloadTooLarge
from rq_core.model.ids import JobIds
from rq_core.model.job import NewJob, Profile, ties_with_cost
from rq_core.model.keys import DEFAULT_PREFIX, check_name
from rq_core.model.lib.checks import check_url
from rq_core.model.lib.durations import seconds_of
from rq_core.model.lib.url import (
    AUDIT_URL_VARIABLE,
    DEFAULT_URL,
    INBOX_URL_VARIABLE,
    REDIS_URL_VARIABLE,
)
from rq_core.model.settings import AUDIT_PAYLOADS
from rq_core.protocol.engine.plan import Patience

if TYPE_CHECKING:
    from rq_core.app.handlers.outgoing import Hook
    from rq_core.app.handlers.result_types import Returned
    from rq_core.connections.async_client import AsyncClient
    from rq_core.connections.client import Client

OutgoingFunction = TypeVar("OutgoingFunction", bound="Hook")

MAX_PAYLOAD: Final = 1024 * 1024
"""Maximum number of bytes of a job's arguments as JSON, by default."""
AUDIT_EXAMPLE: Final = "sqlite:///audit.db"
INBOX_EXAMPLE: Final = "postgresql://shop@localhost/shop"

AuditPayload = Literal["digest", "full"]
"""The form in which the audit log keeps a job's arguments: only their digest, or the arguments themselves (full)."""


def spec_max(audit_payload: str) -> int:
    """Return the size, in bytes, up to which the audit log keeps a job's JSON with this value of ``audit_payload``.

    Raises InvalidOption for an unknown value.
    """
    if audit_payload not in AUDIT_PAYLOADS:
        raise InvalidOption.of(
            "audit_payload", audit_payload, f"must be one of {', '.join(AUDIT_PAYLOADS)}"
        )
    return AUDIT_PAYLOADS[audit_payload]


def _check_patience(patience: object) -> None:
    """Raise InvalidOption for an invalid ``patience``. Valid values: None, or a Patience with two numbers of
    seconds."""
    if patience is None:
        return
    if not isinstance(patience, Patience):
        must = "must be a Patience, like Patience(unsent=3.0, unknown=600.0)"
        raise InvalidOption.of("patience", patience, must)
    for name in ("unsent", "unknown"):
        seconds_of(name, getattr(patience, name))


def _checked(ids: Callable[[], str]) -> Callable[[], str]:
    """Return a function that calls ``ids`` for a new job id, and checks the id. Raises InvalidOption if ``ids`` is no
    function."""
    given: object = ids
    if not callable(given):
        must = "must be a function that takes nothing and returns a job's id"
        raise InvalidOption.of("ids", ids, must)
    return lambda: check_name("job", ids())


class Producer:
    """The part of an app that enqueues jobs. Threads may share it. See :class:`rq_core.App` for the arguments."""

    def __init__(
        self,
        redis: str | None = None,
        audit: str | None = None,
        *,
        inbox: str | None = None,
        prefix: str = DEFAULT_PREFIX,
        max_payload: int = MAX_PAYLOAD,
        patience: Patience | None = None,
        ids: Callable[[], str] | None = None,
        connections: Connections | None = None,
        audit_payload: AuditPayload = "digest",
    ) -> None:
        check_url("redis", redis, DEFAULT_URL)
        check_url("audit", audit, AUDIT_EXAMPLE)
        check_url("inbox", inbox, INBOX_EXAMPLE)
        self.redis_url = redis or os.environ.get(REDIS_URL_VARIABLE) or DEFAULT_URL
        self.audit_url = audit or os.environ.get(AUDIT_URL_VARIABLE) or None
        self.inbox_url = inbox or os.environ.get(INBOX_URL_VARIABLE) or None
        self.prefix = check_name("prefix", prefix)
        if type(max_payload) is not int or max_payload < 2:
            raise InvalidOption.of(
                "max_payload", max_payload, "must be a number of bytes, 2 or more"
            )
        self.max_payload = max_payload
        _check_patience(patience)
        self.connections = connections or Connections(
            self.redis_url, prefix=prefix, patience=patience
        )
        self._make_id = JobIds() if ids is None else _checked(ids)
        self._spec_max = spec_max(audit_payload)
        self._spec_max_of: dict[str, int] = {}
        """The maximum number of bytes of a job's JSON in the job's ``enqueued`` event, for each queue with an
        ``audit_payload`` of its own."""
        self.declared = Declared()
        """The caps, rates, fairness and settings that the code declares."""
        self.surroundings = Surroundings()
        """The ``around`` functions and the overridden dependencies of the app's handlers."""
        self.outgoing_functions: list[Hook] = []
        """The functions that add headers to jobs before the jobs leave this program; usually none."""

    def outgoing(self, function: OutgoingFunction, /) -> OutgoingFunction:
        """Let a function add headers to the jobs of this app before they are sent: ``@app.outgoing``.

        ``function`` is called with an Outgoing, once for each call that sends jobs: an enqueue, an enqueue_many, an
        insert into an inbox, a page of copies, or the children of a map. ``function`` returns a mapping of headers, or
        None. Headers that the caller has given do not change. If all headers together are too long, the longest added
        headers are left out. If ``function`` raises an exception, nothing is sent, and the caller gets the exception.

        ``function`` is not called for the jobs of schedules: workers declare a schedule repeatedly, and its job must
        stay the same. Raises InvalidOption if ``function`` cannot be called.
        """
        given: object = function
        if not callable(given) or inspect.iscoroutinefunction(given):
            must = "must be a function without async that takes an Outgoing, and returns headers"
            raise InvalidOption.of("outgoing", function, must)
        self.outgoing_functions.append(function)
        return function

    def new_job(
        self,
        profile: Profile,
        options: JobOptions,
        args_json: str,
        lane: str = "",
        full: str = "",
        name: str = "",
        call: str = "",
        cost: str = "",
    ) -> NewJob:
        """Make a job from its options and arguments. Raises PayloadTooLarge.

        ``lane``, ``full``, ``name`` and ``call`` are fields of NewJob. ``cost`` is the text with the job's costs, by
        unit; empty for a job without costs.
        """
        # Most texts are far below the limit, so their bytes need not be counted: a character takes at most four.
        if len(args_json) * 4 > self.max_payload:
            size = len(args_json.encode())
            if size > self.max_payload:
                raise PayloadTooLarge(task=profile.task, size=size, limit=self.max_payload)
        job_id = options.id_for(profile.task)
        if job_id is None:
            job_id = self._make_id()
        queue = options.queue
        spec_max = self._spec_max
        if self._spec_max_of:
            spec_max = self._spec_max_of.get(queue, spec_max)
        ties = ties_with_cost(options.ties, cost) if cost else options.ties
        return NewJob(
            job_id, queue, profile, args_json, options.delay_ms, lane, full, spec_max,
            options.headers_json, options.due_ms, ties, name, call,
        )  # fmt: skip

    def returned_of(self, task: str | None) -> Returned | None:  # noqa: ARG002 - an app has tasks
        """Return the result type of the task with this name. Return None if this object does not have the task."""
        return None

    def connect_to(self, redis: str | None = None, *, prefix: str | None = None) -> None:
        """Use another server or another prefix of keys from now on. A worker process calls this method for its options
        ``--redis`` and ``--prefix``.

        Call it before the first call to the server.
        """
        check_url("redis", redis, DEFAULT_URL)
        self.connections.close()
        self.redis_url = redis or self.redis_url
        self.prefix = check_name("prefix", prefix or self.prefix)
        self.connections = Connections(
            self.redis_url, prefix=self.prefix, patience=self.connections.patience
        )

    @property
    def client(self) -> Client:
        """The synchronous client, made at its first use."""
        return self.connections.client

    def async_client(self) -> AsyncClient:
        """Return the running event loop's client. It is made at its first use."""
        return self.connections.async_client()

    def wake_relay(self, *queues: str) -> None:
        """Ask a relay, the process that enqueues the jobs in an inbox table, to read the inbox soon. The relay first
        reads the rows of these queues. Does not block, and does not raise."""
        self.connections.waker.wake(*queues)

    def close(self) -> None:
        """Close the synchronous client's connections. The app can be used again."""
        self.connections.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop's client, and those of the synchronous client."""
        await self.connections.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
