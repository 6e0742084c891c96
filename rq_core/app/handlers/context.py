"""The context of a running job, for its handler: the job's id, task, attempt and headers, and the request to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, ContextVar
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

from rq_core.errors import InvalidOption, NoCurrentJob, UsageError
from rq_core.model.headers import NO_HEADERS
from rq_core.model.job import Claim
from rq_core.signals import HandlerSignal, HandlerTimeout, LeaseLost, Parking

_current: Final[ContextVar[JobContext | None]] = ContextVar("rq_core_current_job", default=None)


_making: Final = threading.Lock()


class JobContext:
    """The context of a running job. The handler gets it from ``current_job()``.

    A claim is a worker's right to run the job once. ``claim`` is its number: 1 for the job's first claim. ``failures``
    and ``losses`` are the numbers of failed attempts and of lost workers before this claim. ``headers`` are the texts
    that the producer sent with the arguments. ``schedule`` and ``tick`` are the name and the instant of the schedule
    that enqueued the job.
    """

    __slots__ = (
        "_over", "_showing", "_signal", "_stop", "_timeout", "base", "claim", "failures", "fence", "headers", "home",
        "id", "lane", "life", "losses", "pauses", "queue", "shows", "steps", "taken", "task", "why_no_costs", "worker",
    )  # fmt: skip

    why_no_steps: ClassVar[str] = (
        "no worker saves the steps of this handler: jobs of job_running() have none"
    )
    """The reason in the NotDurable that ``durable()`` raises if the handler's context has no ``home``."""
    why_ended: ClassVar[str] = "the handler has ended"
    """The reason in the NotDurable that ``durable()`` raises if ``home`` returns None."""

    def __init__(
        self,
        *,
        id: str,  # noqa: A002 - the name that it has everywhere else
        queue: str,
        task: str,
        claim: int,
        failures: int,
        losses: int,
        fence: str,
        worker: str,
        headers: Mapping[str, str] = NO_HEADERS,
        base: int = 0,
        lane: str | None = None,
        life: str | None = None,
    ) -> None:
        self.id = id
        self.queue = queue
        self.task = task
        self.claim = claim
        self.failures = failures
        self.losses = losses
        self.fence = fence
        self.worker = worker
        self.headers = headers
        self.base = base
        """Number of failures that the job had when its last step was saved. Only later failures count against the
        number of attempts. Each step that this run saves sets this number to ``failures``."""
        self.lane = lane
        """The name of the lane in which the job waited: the line of the jobs with the same priority and scopes. A scope
        is a group of jobs that a cap or a rate counts. Empty if the job has no scopes; None if the lane is unknown."""
        self.life = life
        """The id of the saved steps of a durable job, as Redis gave it with the claim. None if the job has saved
        nothing, or this is its first claim."""
        self.taken: dict[str, int] | None = None
        """Costs that the handler has reported, such as 900 tokens, by unit; None before the first report."""
        self.pauses = ""
        """The rates and breakers to pause, each as ``SCOPE|MS`` (MS is the pause in milliseconds), separated by spaces.
        Empty unless the handler has ended with PauseScope."""
        self.why_no_costs = ""
        """The reason why the handler cannot report costs; empty if it can."""
        self._stop: threading.Event | None = None
        """The event on which wait_cancelled waits. The first call of wait_cancelled makes the event: most handlers
        never call wait_cancelled, and making an Event takes longer than making the rest of the context."""
        self._signal: HandlerSignal | Parking | None = None
        self._timeout = 0.0
        self._over: float | None = None
        self.home: Any = None
        """A function that takes this context, and returns a Home: the part of the worker that saves the steps of a
        durable job. It returns None if the handler has ended. The worker sets this attribute. None if no worker saves
        steps for this handler."""
        self.steps: Any = None
        """The steps of a durable job; None until they are first used."""
        self.shows: Any = None
        """The part of the worker that sends the handler's progress and chunks to Redis. The worker sets this attribute.
        None if nothing sends them."""
        self._showing: Any = None

    @classmethod
    def of_claim(
        cls, claim: Claim, task: str, worker: str, headers: Mapping[str, str] = NO_HEADERS
    ) -> JobContext:
        """Return the context for the handler of a claim."""
        return cls(
            id=claim.id,
            queue=claim.queue,
            task=task,
            claim=claim.number,
            failures=claim.failures,
            losses=claim.losses,
            fence=claim.fence,
            worker=worker,
            headers=headers,
            base=claim.base.failures,
            lane=claim.lane,
            life=claim.life,
        )

    @property
    def attempt(self) -> int:
        """The number of this attempt: 1 plus the job's failures. If a durable job has saved a step, only later failures
        count."""
        return self.failures - self.base + 1

    def __repr__(self) -> str:
        return f"<job {self.id} of {self.task} in {self.queue}, claim {self.claim}>"

    @property
    def schedule(self) -> str | None:
        """The name of the schedule that enqueued the job; None if no schedule enqueued the job."""
        from rq_core.model.schedule import tick_of

        tick = tick_of(self.id)
        return None if tick is None else tick.name

    @property
    def tick(self) -> datetime | None:
        """The instant of the schedule, in UTC, for which the job was enqueued. None if no schedule enqueued the job."""
        from rq_core.model.schedule import tick_of

        tick = tick_of(self.id)
        return None if tick is None else datetime.fromtimestamp(tick.instant_ms / 1000, UTC)

    def progress(self, done: float, total: float | None = None, text: str = "") -> None:
        """Show how far the job has come: ``done`` of ``total``, and a few words. Leave out ``total`` if it is unknown.

        The call stores the numbers and returns at once, so a loop may call it in every round. The worker sends the last
        numbers every half second, and before it reports the handler's end. A text of more than 200 characters is cut.
        ``JobHandle.progress``, `rq-core job`, `rq-core watch` and the job's page show the progress. Raises
        InvalidOption.
        """
        (self._showing or self.showing()).progress(done, total, text)

    def emit(self, chunk: str) -> None:
        """Append a text to the job's stream, which ``JobHandle.stream`` and `rq-core watch` read.

        The call returns at once. The worker sends chunks ten times a second. Redis keeps the last 1,000 chunks of a
        job, and at most 1 MiB of them. It removes them an hour after the job has ended. A reader that is too slow
        learns how many chunks it has missed. Raises InvalidOption for a chunk of more than 16 KiB.
        """
        (self._showing or self.showing()).emit(chunk)

    def showing(self) -> Any:
        """Return the Showing, the object that stores this claim's progress and chunks. The handler and the worker use
        it."""
        if self._showing is None:
            with _making:
                if self._showing is None:
                    from rq_core.app.handlers.showing import Showing

                    shows = self.shows
                    self._showing = Showing(None) if shows is None else shows.begin(self)
        return self._showing

    def cost(self, unit: str, value: int) -> None:
        """Report how much of a unit, such as tokens, the job has really taken: a whole number, 0 or more.

        The last report of an attempt counts. When a worker claims the job, the rates that count the unit are charged
        the job's expected cost. When the handler has ended, also with a failure, the rates are corrected by the
        difference between the reported and the expected cost. The rates are not corrected if the worker dies or loses
        the claim.

        Raises InvalidOption for an invalid value, and for a unit that no rate of the job counts. Raises UsageError if
        this handler cannot report costs.
        """
        from rq_core.model.limits.breakers import FAILURES
        from rq_core.model.limits.costs import COST_MAX
        from rq_core.model.limits.scopes import scopes_of, unit_of

        if self.why_no_costs:
            raise UsageError(self.why_no_costs)
        if self.lane is not None:
            units = set(map(unit_of, scopes_of(self.lane))) - {None, FAILURES}
            if unit not in units:
                known = ", ".join(sorted(map(str, units))) or "none"
                must = f"must be a unit that a rate of the job counts: {known}"
                raise InvalidOption.of("unit", unit, must)
        if type(value) is not int or not 0 <= value <= COST_MAX:
            raise InvalidOption.of("value", value, f"must be a whole number from 0 to {COST_MAX:,}")
        # A new object: the worker may read it in another thread.
        self.taken = {**(self.taken or {}), unit: value}

    @property
    def cancelled(self) -> bool:
        """True if the handler should stop: its job was cancelled, its timeout is over, its lease is lost, or the worker
        stops."""
        return self._why() is not None

    def raise_if_cancelled(self) -> None:
        """Raise JobCancelled, HandlerTimeout, LeaseLost or WorkerStopping if the handler should stop.

        A ``def`` handler calls this method, since no worker can interrupt it. An ``async def`` handler is cancelled at
        an ``await``.
        """
        if (why := self._why()) is not None:
            raise why

    def raise_if_too_late(self) -> None:
        """Raise HandlerTimeout or LeaseLost if the handler ended after its timeout, or after its lease was lost.

        In both cases, the job may run again. So the handler's dependencies receive this exception, as after a failure.
        """
        why = self._why()
        if isinstance(why, HandlerTimeout | LeaseLost):
            raise why

    def raise_if_timed_out(self) -> None:
        """Raise HandlerTimeout if the handler ended after its timeout. The worker calls this method."""
        if isinstance(why := self._why(), HandlerTimeout):
            raise why

    def wait_cancelled(self, seconds: float) -> bool:
        """Sleep for ``seconds``, or until the handler should stop. Return whether the handler should stop."""
        if self._stop is None:
            with _making:
                if self._stop is None:
                    self._stop = threading.Event()
        if self._over is not None:
            seconds = min(seconds, max(0.0, self._over - time.monotonic()) + 0.001)
        # Read the signal after the event exists: ``tell`` sets the signal first, and then sets an event that exists.
        return self._signal is not None or self._stop.wait(seconds) or self.cancelled

    def limit(self, timeout: float, over: float) -> None:
        """Set the handler's ``timeout``, in seconds. ``over`` is the value of ``time.monotonic()`` at which the timeout
        is over.

        The worker calls this method before the handler begins.
        """
        self._timeout, self._over = timeout, over

    def _why(self) -> HandlerSignal | Parking | None:
        """Return the reason why the handler should stop, or None.

        The method itself checks whether the timeout is over, since a blocked event loop cannot signal a timeout.
        """
        if self._signal is None and self._over is not None and time.monotonic() >= self._over:
            self.tell(HandlerTimeout(seconds=self._timeout))
        return self._signal

    def tell(self, signal: HandlerSignal | Parking) -> None:
        """Ask the handler to stop. ``signal`` is the reason; only the first reason counts.

        The worker calls this method, from any thread.
        """
        if self._signal is None:
            self._signal = signal
            if self._stop is not None:
                self._stop.set()


def current_job() -> JobContext:
    """Return the job whose handler runs in this thread or asyncio task.

    Raises NoCurrentJob outside a handler.
    """
    context = _current.get()
    if context is None:
        raise NoCurrentJob
    return context


def job_here(variables: Context | None = None) -> JobContext | None:
    """Return the job whose handler runs with these context variables. The default is the context of the caller. Return
    None outside a handler."""
    return _current.get() if variables is None else variables.get(_current)


def enter(context: JobContext | None) -> None:
    """Make ``context`` the current job, and never reset it.

    Call this only in a thread or an asyncio task that runs nothing else.
    """
    _current.set(context)


@contextmanager
def running(context: JobContext) -> Iterator[JobContext]:
    """Make ``context`` the current job within a block, and within asyncio tasks that are started in the block."""
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)
