"""Adds spans to an app: one for each call that enqueues jobs, and one for each claim of a job."""

from __future__ import annotations

import atexit
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, get_args
from weakref import WeakKeyDictionary

from opentelemetry import context as otel_context
from opentelemetry import propagate, trace
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, TracerProvider

from rq_core.app.batches.jobs import BatchContext
from rq_core.app.handlers.context import JobContext
from rq_core.errors import InvalidOption, UsageError
from rq_core.model.headers import TRACE_HEADER
from rq_core.signals import JobCancelled, Parking, Snooze, WorkerStopping
from rq_core.tracing import conventions as names
from rq_core.tracing.last_spans import LastSpans
from rq_core.tracing.providers import when_provided

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from rq_core.app.app import App
    from rq_core.app.handlers.outgoing import Outgoing

log = logging.getLogger(__name__)
Relation = Literal["auto", "parent", "link"]

LINKS_MAX: Final = 128
"""Maximum number of links of a span: the limit that the SDK has by default."""
FIRST: Final = "first"
"""The value of TRACE_HEADER for a job that was enqueued alone and without a delay."""
_NO_FAILURES: Final = (Snooze, Parking, WorkerStopping, JobCancelled)

_instrumented: Final[WeakKeyDictionary[App, object]] = WeakKeyDictionary()
_last_spans: Final = LastSpans()


def instrument(
    app: App,
    relation: Relation = "auto",
    *,
    tasks: Mapping[str, Relation] = MappingProxyType({}),
    tracer_provider: TracerProvider | None = None,
) -> None:
    """Make spans for the calls that enqueue an app's jobs, and for the claims of these jobs.

    Call it once, directly after the App is made and in the same module. Producers, workers and the processes of
    isolated handlers then all make spans. A call that enqueues jobs makes one span, and puts the span's context into
    the headers of the jobs. A claim makes a span around the handler.

    - ``relation`` is how the span of a claim belongs to the span of the enqueue. "parent": the claim's span is a
      child of the enqueue's span. "link": the claim's span begins a new trace, with a link to the enqueue's span.
      "auto": "parent" for the first claim of a job that was enqueued alone, without a delay, and not through an inbox;
      "link" for all other claims.
    - ``tasks`` maps names of tasks to relations, which hold in place of ``relation``. A caller may choose for one call:
      ``with_options(trace="link")``.
    - ``tracer_provider`` is by default the process' global provider. Until the program sets one, enqueues and claims
      make no additional Python call, and jobs carry no trace.

    When a process ends, rq-core exports its last spans, and waits at most 2 s for the exporter. The provider of
    OpenTelemetry's SDK may then wait longer. A second call with the same arguments changes nothing. Raises
    InvalidOption for an unknown relation, and UsageError for a second call with other arguments.
    """
    for option, each in (("relation", relation), *(("tasks", value) for value in tasks.values())):
        if each not in get_args(Relation):
            raise InvalidOption.of(option, each, "must be auto, parent or link")
    how = (relation, dict(tasks), tracer_provider)
    if app in _instrumented:
        if _instrumented[app] == how:
            return
        raise UsageError("the app is instrumented already, in another way")
    _instrumented[app] = how
    begin = partial(
        _begin,
        how=how,
        arounds=len(app.surroundings.arounds),
        functions=len(app.outgoing_functions),
    )
    if tracer_provider is None:
        when_provided(app, begin)
    else:
        begin(app)


def _begin(
    app: App,
    *,
    how: tuple[Relation, Mapping[str, Relation], TracerProvider | None],
    arounds: int,
    functions: int,
) -> None:
    """Let an app make spans. ``arounds`` and ``functions`` are the positions in the app's two lists of hooks at which
    the new functions are inserted. The program may have added functions to the lists after it called ``instrument``.
    """
    spans = _Spans(*how)
    app.around(spans.around_handler)
    app.surroundings.arounds.insert(arounds, app.surroundings.arounds.pop())
    app.outgoing(spans.before_sending)
    app.outgoing_functions.insert(functions, app.outgoing_functions.pop())
    if not _last_spans.started:
        _last_spans.start()
        atexit.register(_last_spans.export)
    _last_spans.add(how[2])


class _Spans:
    def __init__(
        self, relation: str, tasks: Mapping[str, str], provider: TracerProvider | None
    ) -> None:
        self._relation = relation
        self._tasks = tasks
        self._tracer = trace.get_tracer(
            "rq_core", tracer_provider=provider, schema_url=names.SCHEMA_URL
        )

    def before_sending(self, call: Outgoing) -> Mapping[str, str]:
        """Make the span of a call that enqueues jobs. Return the headers for these jobs that contain the span's
        context.
        """
        attributes = {
            names.SYSTEM: "rq_core",
            names.OPERATION_NAME: "enqueue",
            names.OPERATION_TYPE: "create",
            names.DESTINATION: call.queue,
            names.TASK: call.task,
            names.WAY: call.way,
        }
        if call.way in ("enqueue", "inbox"):
            attributes[names.MESSAGE_ID] = call.job_id
        span = self._tracer.start_span(
            f"enqueue {call.task}", kind=SpanKind.PRODUCER, attributes=attributes
        )
        added: dict[str, str] = {}
        propagate.inject(added, trace.set_span_in_context(span))
        span.end()
        if call.way == "enqueue" and not call.is_delayed:
            added[TRACE_HEADER] = FIRST
        return added

    @contextmanager
    def around_handler(self, job: JobContext) -> Iterator[None]:
        """Make the span of a claim, or of a batch, while the block runs the handler."""
        context, links = self._belonging(job)
        span = self._tracer.start_span(
            f"process {job.task}",
            context=context,
            kind=SpanKind.CONSUMER,
            attributes=_facts(job),
            links=links,
        )
        token = otel_context.attach(trace.set_span_in_context(span, context))
        try:
            yield
        except BaseException as error:
            self._note(span, job, error)
            raise
        finally:
            otel_context.detach(token)
            span.end()

    def _belonging(self, job: JobContext) -> tuple[Context, Sequence[Link]]:
        """Return the context in which the span of a claim begins, and the span's links."""
        if isinstance(job, BatchContext):
            found = [_extracted(each.headers) for each in job.jobs[:LINKS_MAX]]
            return otel_context.Context(), [
                link for context in found for link in _links_to(context)
            ]
        context = _extracted(job.headers)
        links = _links_to(context)
        mark = job.headers.get(TRACE_HEADER)
        chosen = mark if mark in ("parent", "link") else self._tasks.get(job.task, self._relation)
        if chosen == "parent" or (chosen == "auto" and mark == FIRST and job.claim == 1):
            return context, ()
        # What else was sent with the job, such as baggage, goes with a new trace, too.
        return trace.set_span_in_context(trace.INVALID_SPAN, context), links

    @staticmethod
    def _note(span: trace.Span, job: JobContext, error: BaseException) -> None:
        """Set the span's attributes for a claim that ended with ``error``. The error's text is left out: it may have
        secrets."""
        try:
            job.raise_if_cancelled()
        except BaseException as why:  # noqa: BLE001 - the reason for which the handler should stop
            error = why
        if isinstance(error, _NO_FAILURES):
            span.set_attribute(names.ENDED_BY, type(error).__name__)
        else:
            span.set_attribute(names.ERROR_TYPE, type(error).__name__)
            span.set_status(Status(StatusCode.ERROR))


def _extracted(headers: Mapping[str, str]) -> Context:
    """Return the trace context that a job's headers contain. Return an empty context if the propagator raises an
    exception.

    Any producer may have written the headers, so they must not make the job fail.
    """
    nothing = otel_context.Context()
    try:
        return propagate.extract(headers, nothing)
    except Exception:
        log.debug("the propagator refuses the headers of a job", exc_info=True)
        return nothing


def _links_to(context: Context) -> Sequence[Link]:
    found = trace.get_current_span(context).get_span_context()
    return [Link(found)] if found.is_valid else []


def _facts(job: JobContext) -> dict[str, Any]:
    facts: dict[str, Any] = {
        names.SYSTEM: "rq_core",
        names.OPERATION_NAME: "process",
        names.OPERATION_TYPE: "process",
        names.DESTINATION: job.queue,
        names.TASK: job.task,
        names.CLIENT_ID: job.worker,
    }
    if isinstance(job, BatchContext):
        return facts | {names.BATCH_COUNT: len(job.jobs)}
    facts |= {
        names.MESSAGE_ID: job.id,
        names.CLAIM: job.claim,
        names.ATTEMPT: job.attempt,
        names.FENCE: job.fence,
    }
    if job.schedule is not None:
        facts[names.SCHEDULE] = job.schedule
    return facts
