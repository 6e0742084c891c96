"""Reads Redis, the audit log and an inbox for the web pages, and sends operators' changes to Redis.

Each read ends within WITHIN_S seconds, even if a server does not answer. :class:`Sources` only reads;
:class:`ActingSources` also makes changes.

All pages share three readings, which are made at most once a second: of all queues, of the log, and of the inbox
(:mod:`rq_core.metrics.shared`). Further reads run in a few threads: some for Redis, others for the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import time
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from rq_core.app.app import App
from rq_core.app.clients import Connections
from rq_core.app.many.copying import log_of
from rq_core.connections.client import Client
from rq_core.errors import RqCoreError
from rq_core.metrics.causes import Unread
from rq_core.metrics.shared import (
    SHARED_S,
    Shared,
    SharedOverview,
    shared_inbox,
    shared_log,
    viewer,
)
from rq_core.model import plugins
from rq_core.model.filters.copy_reader import CopyReader
from rq_core.model.ids import boot_id
from rq_core.model.keys import DEFAULT_PREFIX
from rq_core.model.plugins import AuditQuestions, InboxOverview, LogOverview
from rq_core.protocol.engine.plan import Patience, Plan
from rq_core.protocol.operations import Operations
from rq_core.protocol.reads.queue_load import Overview

WITHIN_S: Final = 1.4
"""Maximum seconds for which a page waits for Redis, the audit log and the inbox. After that, the page shows what has
been read."""
UNSENT_S: Final = 0.5
"""Seconds for which a change waits for a Redis server that cannot be reached."""
UNKNOWN_S: Final = 10.0
"""Seconds for which a change that was sent to Redis waits for its answer."""
CHANGES: Final = 4
"""Maximum number of changes that run at the same time."""
THREADS: Final = 8
"""Maximum number of reads of Redis at the same time, and also of reads of the log."""
NO_LOG: Final = Unread(
    "the past is in the audit log, and this page was given none: start it with --audit URL"
    " (and `rq-core audit run --audit URL`, which fills it)"
)

log = logging.getLogger(__name__)

T = TypeVar("T")
Asked = Callable[[App, CopyReader | None], T]
"""A function that finds the jobs that can be copied, or copies them. Its arguments are an app and the audit log's
reader."""


def strange(error: Exception, what: str) -> Unread:
    """Log an unexpected error, and return an Unread with a general sentence for the page. ``what``: the beginning of
    that sentence.

    The page does not show the error's own text, because this may have contents of a job.
    """
    log.error("%s", what, exc_info=error)
    return Unread(
        f"{what} ({type(error).__name__}): there is data that rq-core does not write, or a bug; rq-core audit verify"
        " --audit URL checks the log, rq-core doctor checks Redis, and the log of this page's server says more"
    )


def _copier_of(app: App, redis_url: str, prefix: str) -> App:
    """Return a copy of ``app`` with its own connections."""
    made = copy.copy(app)
    patience = Patience(unsent=UNSENT_S, unknown=UNKNOWN_S)
    made.connections = Connections(redis_url, prefix=prefix, patience=patience)
    return made


class RecentAnswers:
    """Keeps the data of each address for SHARED_S seconds, so that fifty viewers cause no more reads than one."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked: dict[Hashable, tuple[float, asyncio.Task[Any]]] = {}

    async def get(self, address: Hashable, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of ``ask``. For SHARED_S seconds, further calls with the same address get the same
        result."""
        now = self._clock()
        # A task belongs to its loop.
        key = asyncio.get_running_loop(), address
        until, task = self._asked.get(key, (0.0, None))
        if task is None or until <= now:
            self._asked = {each: found for each, found in self._asked.items() if found[0] > now}
            task = asyncio.create_task(ask())
            self._asked[key] = now + SHARED_S, task
        # One viewer who goes away takes no answer from the others.
        found: T = await asyncio.shield(task)
        return found

    def forget(self) -> None:
        """Drop all results, because a change was made."""
        self._asked = {}


class Sources:
    """The sources of the web pages: one Redis server, and its audit log and inbox if there are any. They are only
    read."""

    def __init__(
        self,
        redis_url: str,
        *,
        prefix: str = DEFAULT_PREFIX,
        audit_url: str | None = None,
        inbox_url: str | None = None,
    ) -> None:
        """Open the sources. ``prefix``: the prefix of the Redis keys.

        Raises AuditNotConfigured if no installed package reads audit logs or inboxes. Raises RqCoreError for an invalid
        URL.
        """
        with contextlib.ExitStack() as own:
            self._client: Client = own.enter_context(viewer(redis_url, prefix))
            self._overview = own.enter_context(contextlib.closing(SharedOverview(self._client)))
            self._log: Shared[LogOverview] | None = None
            self._questions: AuditQuestions | None = None
            if audit_url is not None:
                self._log = own.enter_context(shared_log(audit_url))
                self._questions = own.enter_context(
                    contextlib.closing(plugins.questions_opener()(audit_url))
                )
            self._inbox: Shared[InboxOverview] | None = None
            if inbox_url is not None:
                self._inbox = own.enter_context(shared_inbox(inbox_url))
            self._of_redis = own.enter_context(ThreadPoolExecutor(THREADS, "rq-core-web-redis"))
            self._of_log = own.enter_context(ThreadPoolExecutor(THREADS, "rq-core-web-log"))
            self._looks = own.enter_context(ThreadPoolExecutor(2 * THREADS, "rq-core-web-look"))
            self._own = own.pop_all()
        self.has_log = audit_url is not None

    def close(self) -> None:
        """Wait for the reads that are under way, then close all connections."""
        self._own.close()

    async def state(self) -> Overview | Unread:
        """Return the state of all queues, which all pages share; Unread if it cannot be read. It is at most a second
        old."""
        return await self._within(self._looks, self._overview.get, "Redis")

    async def log(self) -> LogOverview | Unread | None:
        """Return the overview of the audit log, which all pages share; Unread if it cannot be read, None if there is no
        log."""
        if self._log is None:
            return None
        return await self._within(self._looks, self._log.get, "the audit log")

    async def inbox(self) -> InboxOverview | Unread | None:
        """Return the overview of the inbox, which all pages share; Unread if it cannot be read, None if there is no
        inbox."""
        if self._inbox is None:
            return None
        return await self._within(self._looks, self._inbox.get, "the inbox' database")

    async def ask_redis(
        self, plan: Callable[[Operations], Plan[T]], *, left_s: float = WITHIN_S
    ) -> T | Unread:
        """Carry out a plan that reads from Redis. Return an Unread if the plan fails, or Redis does not answer in time.

        ``left_s``: the seconds that the page can still wait.
        """
        return await self._within(
            self._of_redis, lambda: self._client.run(plan(self._client.calls)), "Redis", left_s
        )

    async def ask_log(
        self, question: Callable[[AuditQuestions], T], *, left_s: float = WITHIN_S
    ) -> T | Unread:
        """Read from the audit log with the function ``question``. Return an Unread if there is no log, if it cannot be
        read, or if it does not answer in time.

        ``left_s``: the seconds that the page can still wait.
        """
        questions = self._questions
        if questions is None:
            return NO_LOG
        return await self._within(
            self._of_log, lambda: question(questions), "the audit log", left_s
        )

    async def _within(
        self,
        threads: ThreadPoolExecutor,
        ask: Callable[[], T],
        whom: str,
        left_s: float = WITHIN_S,
    ) -> T | Unread:
        asked = asyncio.get_running_loop().run_in_executor(threads, ask)
        try:
            return await asyncio.wait_for(asked, left_s)
        except TimeoutError:
            return Unread(f"no answer from {whom} within {WITHIN_S:g} s")
        except RqCoreError as error:
            return Unread.of(error)
        except Exception as error:  # noqa: BLE001 - rows and keys may be forged
            return strange(error, f"the answer of {whom} cannot be read")


class ActingSources(Sources):
    """The sources of the web pages, with further connections for operators' changes and for copies of jobs."""

    def __init__(
        self,
        redis_url: str,
        *,
        prefix: str = DEFAULT_PREFIX,
        audit_url: str | None = None,
        inbox_url: str | None = None,
        app: App | None = None,
    ) -> None:
        """Open the sources. ``app`` has the tasks and options for copies of jobs; None if this process has no code of
        tasks.

        Raises the errors of Sources.
        """
        super().__init__(redis_url, prefix=prefix, audit_url=audit_url, inbox_url=inbox_url)
        with contextlib.ExitStack() as own:
            # If this constructor raises an error, the sources are closed, too.
            own.callback(super().close)
            # A client of its own: a change that was sent is sent again until there is an answer; a question is not.
            self._changes = own.enter_context(
                Client(
                    redis_url,
                    prefix=prefix,
                    name=boot_id("web"),
                    patience=Patience(unsent=UNSENT_S, unknown=UNKNOWN_S),
                )
            )
            self._copier = own.enter_context(
                _copier_of(app or App(redis_url, audit_url, prefix=prefix), redis_url, prefix)
            )
            self._deaths = own.enter_context(log_of(audit_url))
            self._of_changes = own.enter_context(ThreadPoolExecutor(CHANGES, "rq-core-web-change"))
            self._acting = own.pop_all()

    def close(self) -> None:
        """Wait for the changes and reads that are under way, then close all connections."""
        self._acting.close()

    async def change(self, plan: Callable[[Operations], Plan[T]]) -> T:
        """Carry out a plan that changes something in Redis. Raises the plan's error.

        Afterwards, the shared state of all queues is read again. The caller must also drop its RecentAnswers.
        """
        calls = self._changes.calls
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._of_changes, lambda: self._changes.run(plan(calls))
            )
        finally:
            self._overview.forget()

    async def ask_copies(self, question: Asked[T], *, left_s: float = WITHIN_S) -> T | Unread:
        """Find the jobs that can be copied, with the function ``question``. Return an Unread if this fails or takes too
        long.

        ``left_s``: the seconds that the page can still wait.
        """
        return await self._within(
            self._of_log,
            lambda: question(self._copier, self._deaths),
            "Redis and the audit log",
            left_s,
        )

    async def copy(self, make: Asked[T]) -> T:
        """Copy jobs with the function ``make``. Raises its error.

        Afterwards, the shared state of all queues is read again. The caller must also drop its RecentAnswers.
        """
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._of_changes, lambda: make(self._copier, self._deaths)
            )
        finally:
            self._overview.forget()
