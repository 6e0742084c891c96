"""The options of an enqueue, and their checks."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, TypeVar, Unpack, get_args

from rq_core.app.unknown_options import OF_JOBS, unexpected
from rq_core.errors import InvalidOption
from rq_core.model.headers import TRACE_HEADER, headers_json, read_headers
from rq_core.model.job import Profile, profile, ties_of
from rq_core.model.keys import check_name
from rq_core.model.lib.durations import Duration, instant_ms_of, ms_of
from rq_core.model.limits.policy import OPTIONS
from rq_core.model.result_encoding import DIGEST, FULL, AuditResult, check_audit_result
from rq_core.model.table.machine import (
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_MAX_LOSSES,
    DEFAULT_PRIORITY,
    Priority,
)

if TYPE_CHECKING:
    from rq_core.app.arguments import Arguments
    from rq_core.app.unique.naming import Named

F = TypeVar("F", bound=Callable[..., Any])

TraceRelation = Literal["parent", "link"]
PriorityName = Literal["critical", "high", "normal", "low"]

TIMEOUT_S_MIN: float = 0.001
"""Shortest timeout, in seconds."""
EXPIRES_S_MIN: float = 0.001
"""Shortest time until a deadline, in seconds."""
REMEMBER_S_MIN: float = 0.001
"""Shortest time for which an id is remembered, in seconds."""
KEEP_S_MIN: float = 0.001
"""Shortest time for which a result is kept, in seconds."""
KEEP_MS: Final = 3_600_000
"""Milliseconds for which a result is kept with keep_result=True."""


class EditOptions(TypedDict, total=False):
    """The options of an edit. The caller passes at least one option. Everything else about the job does not change.

    - ``priority``: the job moves to the end of its waiting line (lane) of this priority.
    - ``delay`` (seconds from now, or a timedelta), ``at`` (a datetime with a time zone) or ``now=True``: the time at
      which the job becomes ready.
    - ``expires``: the job's deadline, in seconds from now or as a datetime with a time zone. None removes the deadline.

    For ``priority``, ``delay`` and ``at``, None changes nothing.
    """

    priority: Priority | PriorityName | None
    delay: Duration | None
    at: datetime | None
    now: bool
    expires: Duration | datetime | None


class EnqueueOptions(TypedDict, total=False):
    """The options of an enqueue. If an option is left out or None, the option of the task applies.

    - ``delay`` is how long the job waits before it is ready, and ``timeout`` how long one attempt may take. Both are in
      seconds, or timedeltas.
    - ``at``, in place of ``delay``, is the time at which the job becomes ready: a datetime with a time zone.
    - ``expires`` is the job's deadline, in seconds from now or as a datetime with a time zone. No worker begins the job
      at that time or later. At that time, the job expires; if an attempt has failed before, the job dies.
    - ``max_attempts`` and ``max_losses`` are the numbers of failures, and of lost workers, after which the job is dead.
    - ``id`` makes the enqueue idempotent. While a job of this id is live, another enqueue of the id is a duplicate and
      changes nothing.
    - ``remember`` is how long the id is remembered after the first call, in seconds or a timedelta. In this time, an
      enqueue of the id is a duplicate, even if the job has ended.
    - ``idempotency_key`` is a text. The job's id is made from this text and the task's name. The id is remembered for a
      day, or for ``remember``. Each repetition of the call then returns the same job. A repetition with other arguments
      raises IdempotencyMismatch.
    - ``headers`` are short texts that the handler finds in ``current_job().headers``; at most 2 KiB together.
    - ``keep_result`` is how long after the job's end the result is kept for ``handle.result()``, in seconds or a
      timedelta. True is an hour, False keeps no result.
    - ``audit_result`` is the part of a kept result that the audit log keeps: "digest", or "full" (the result itself,
      without redaction).
    - ``trace`` is how the trace spans of the job's runs refer to the span that enqueued the job: "parent" or "link". It
      overrides the option of :func:`rq_core.tracing.instrument` for this job, and is stored as a header of the job.
    """

    delay: Duration | None
    at: datetime | None
    expires: Duration | datetime | None
    priority: Priority | PriorityName | None
    max_attempts: int | None
    max_losses: int | None
    timeout: Duration | None
    id: str | None
    remember: Duration | None
    idempotency_key: str | None
    headers: Mapping[str, str] | None
    keep_result: bool | Duration | None
    audit_result: AuditResult | None
    trace: TraceRelation | None


_TYPES: Final = {
    name: getattr(kind, "__forward_arg__", kind)
    for name, kind in EnqueueOptions.__annotations__.items()
}


def spelling_out_options(function: F) -> F:
    """Decorate a function with ``**options: Unpack[EnqueueOptions]`` so that help() and inspect show each option by its
    name."""
    signature = inspect.signature(function)
    *others, _ = signature.parameters.values()
    options = (
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in _TYPES.items()
    )
    function.__signature__ = signature.replace(parameters=[*others, *options])  # type: ignore[attr-defined]
    if function.__doc__:  # Not with python -OO.
        function.__doc__ = f"{inspect.getdoc(function)}\n\n{inspect.getdoc(EnqueueOptions)}"
    return function


def keep_ms_of(keep_result: bool | Duration) -> int:
    """Return the milliseconds for which a result is kept; 0 if no result is kept. Raises InvalidOption."""
    if isinstance(keep_result, bool):
        return KEEP_MS if keep_result else 0
    return _ms_or("True, False", "keep_result", keep_result, KEEP_S_MIN)


def _ms_or(others: str, option: str, value: Duration, minimum: float) -> int:
    """Convert a duration to milliseconds. Raises InvalidOption. ``others`` names further valid values of the option for
    the error's message."""
    try:
        return ms_of(option, value, minimum=minimum)
    except InvalidOption as error:
        must = f"must be {others}, or {error.must.removeprefix('must be ')}"
        raise InvalidOption.of(option, value, must) from None


def _deadline(expires: Duration | datetime) -> dict[str, Any]:
    """Convert a deadline to the fields of JobOptions. Raises InvalidOption."""
    if isinstance(expires, datetime):
        at_ms = instant_ms_of("expires", expires)
        if at_ms <= time.time() * 1000:
            raise InvalidOption.of("expires", expires, "must lie in the future")
        return {"expires_in_ms": 0, "expires_at_ms": at_ms}
    in_ms = _ms_or("a datetime", "expires", expires, EXPIRES_S_MIN)
    return {"expires_in_ms": in_ms, "expires_at_ms": 0}


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The checked options of an enqueue. The constructor raises InvalidName or InvalidOption."""

    queue: str
    priority: str = DEFAULT_PRIORITY
    max_attempts: int | None = DEFAULT_MAX_ATTEMPTS
    max_losses: int | None = DEFAULT_MAX_LOSSES
    timeout_ms: int | None = None
    """Milliseconds that one attempt may take. None: the worker uses the timeout of the job's task. For ``max_attempts``
    and ``max_losses``, None also means the task's value."""
    delay_ms: int = 0
    due_ms: int = 0
    """Unix ms at which the job becomes ready; 0 if the job has a delay or is ready at once."""
    id: str | None = None
    """The job's id. None: the job gets a new id, or an id that is made from ``idempotency_key``."""
    headers_json: str = ""
    expires_in_ms: int = 0
    """The deadline, in ms after Redis accepts the job; 0 if the deadline is a time, or if there is no deadline."""
    expires_at_ms: int = 0
    """The deadline, in Unix ms; 0 if the deadline is a duration, or if there is no deadline."""
    unique: Named | None = None
    idempotency_key: str | None = None
    """A text. The job's id is made from this text and the task's name. None if the id is made in another way."""
    remember_ms: int = 0
    """Milliseconds after the first call for which the id is remembered. With 0, Redis knows the id only while the id's
    job is alive."""
    keep_ms: int = 0
    """Milliseconds for which the result is kept after the job's end; 0 if it is not kept."""
    audit_result: str = DIGEST
    """The part of a kept result that the audit log keeps: "digest", or "full" (also the result itself)."""
    ties: str = field(init=False, default="")
    """The job's deadline, unique name, remembered id and kept result, together called its ties. JSON of
    :func:`rq_core.model.job.ties_of`."""

    def __post_init__(self) -> None:
        check_name("queue", self.queue)
        if self.id is not None:
            check_name("job", self.id)
        if check_audit_result(self.audit_result) == FULL and not self.keep_ms:
            must = "needs keep_result: only of jobs whose results are kept, the log has results and what steps return"
            raise InvalidOption.of("audit_result", FULL, must)
        ties = ties_of(
            expires_in_ms=self.expires_in_ms,
            expires_at_ms=self.expires_at_ms,
            remember_ms=self.remember_ms,
            keep_ms=self.keep_ms,
            audit_result=self.audit_result,
            **getattr(self.unique, "ties", {}),
        )
        object.__setattr__(self, "ties", ties)

    @property
    def keeps_result(self) -> bool:
        """True if the job's result is kept after the job's end."""
        return self.keep_ms > 0

    def changed(self, *, queue: str | None = None, **options: Unpack[EnqueueOptions]) -> JobOptions:
        """Return a copy with the given options. Options that are left out, or None, keep their values.

        Raises InvalidName or InvalidOption. Raises TypeError for an unknown option.
        """
        if not options.keys() <= _TYPES.keys():
            unknown = next(name for name in options if name not in _TYPES)
            raise unexpected("", unknown, _TYPES, OF_JOBS, "a job's")
        given: dict[str, Any] = {k: v for k, v in options.items() if v is not None}
        if queue is not None:
            given["queue"] = queue
        if "delay" in given and "at" in given:
            raise InvalidOption.of("at", given["at"], "does not go with delay")
        if "delay" in given:
            given |= {"delay_ms": ms_of("delay", given.pop("delay")), "due_ms": 0}
        if "at" in given:
            given |= {"delay_ms": 0, "due_ms": instant_ms_of("at", given.pop("at"))}
        if "expires" in given:
            given |= _deadline(given.pop("expires"))
        given |= self._identity(given)
        if "timeout" in given:
            given["timeout_ms"] = ms_of("timeout", given.pop("timeout"), minimum=TIMEOUT_S_MIN)
        if "keep_result" in given:
            given["keep_ms"] = keep_ms_of(given.pop("keep_result"))
            if not given["keep_ms"]:
                # Without a kept result the log has no value either, even if the task asks for it.
                given.setdefault("audit_result", DIGEST)
        if "headers" in given or "trace" in given:
            given["headers_json"] = self._headers(
                given.pop("headers", None), given.pop("trace", None)
            )
        changed = replace(self, **given)
        changed.check_due()
        return changed

    def _headers(self, headers: Mapping[str, str] | None, trace: str | None) -> str:
        """Return the job's headers as JSON. If the option ``trace`` is given, it is one of the headers. Raises
        InvalidOption."""
        before = read_headers(self.headers_json) if self.headers_json else {}
        if headers is None:
            headers = before
        elif trace is None:
            trace = before.get(TRACE_HEADER)
        if trace is None:
            return headers_json(headers)
        if trace not in get_args(TraceRelation):
            raise InvalidOption.of("trace", trace, "must be parent or link")
        text = headers_json(headers)
        return headers_json({**(read_headers(text) if text else {}), TRACE_HEADER: trace})

    def registered(self) -> dict[str, Any]:
        """Return the options that differ from the defaults.

        Workers register these options in the queue, for producers without the task's code.
        """
        usual = JobOptions(self.queue)
        facts = {name: getattr(self, name) for name in OPTIONS}
        return {name: value for name, value in facts.items() if value != getattr(usual, name)}

    def _identity(self, given: dict[str, Any]) -> dict[str, Any]:
        """Convert the options id, idempotency_key and remember to fields of JobOptions. Raises InvalidOption."""
        if not given.keys() & {"id", "idempotency_key", "remember"}:
            return {}
        from rq_core.model.idempotency import WINDOW_MS, check_key

        found: dict[str, Any] = {}
        if "id" in given and "idempotency_key" in given:
            must = "does not go with id: the key makes the id"
            raise InvalidOption.of("idempotency_key", given["idempotency_key"], must)
        if "id" in given:
            found["idempotency_key"] = None
        if "idempotency_key" in given:
            key = check_key(given.pop("idempotency_key"))
            found |= {
                "idempotency_key": key,
                "id": None,
                "remember_ms": self.remember_ms or WINDOW_MS,
            }
        if "remember" in given:
            remember = given.pop("remember")
            found["remember_ms"] = ms_of("remember", remember, minimum=REMEMBER_S_MIN)
            if not (self.id or self.idempotency_key or "id" in given or "idempotency_key" in found):
                must = "needs an id or an idempotency_key: a new id comes only once"
                raise InvalidOption.of("remember", remember, must)
        return found

    def id_for(self, task: str) -> str | None:
        """Return the id of a job of ``task``. Return None if the producer must make a new id."""
        if self.idempotency_key is None:
            return self.id
        from rq_core.model.idempotency import id_of_key

        return id_of_key(task, self.idempotency_key)

    def call_of(self, task: str, arguments: Arguments, values: Mapping[str, Any]) -> str:
        """Return a digest of the task and the arguments, as the text ``=DIGEST``, to recognize repeated calls. Redis
        compares the digests of calls with the same id, and refuses a later call with another digest.

        Raises ArgumentsInvalid for an argument without a JSON form.
        """
        from rq_core.model.idempotency import call_digest

        return f"={call_digest(task, arguments.canonical_json(values))}"

    def check_due(self) -> None:
        """Raise InvalidOption if the job would become ready only at its deadline, or later.

        The method can compare both only if both are durations or both are instants. Redis compares a duration with an
        instant. The method also raises InvalidOption for a delay together with a Debounce or Latest, which set the due
        time themselves.
        """
        name_delay_ms = None if self.unique is None else self.unique.delay_ms
        if name_delay_ms is not None and (self.delay_ms or self.due_ms):
            raise InvalidOption.of(
                "at" if self.due_ms else "delay",
                (self.due_ms or self.delay_ms) / 1000,
                "does not go with Debounce or Latest, which say when the job is ready",
            )
        both_in = 0 < self.expires_in_ms <= (name_delay_ms or self.delay_ms)
        if both_in or 0 < self.expires_at_ms <= self.due_ms:
            said = f"{self.expires_in_ms / 1000:g} s" if both_in else "this instant"
            raise InvalidOption.of(
                "expires",
                said,
                "must be later than the job's delay, or its at: no worker could begin it before",
            )

    def profile(self, task: str) -> Profile:
        """Return a Profile with the task, priority, limits and timeout. All jobs of ``task`` with these options share
        it.

        Raises InvalidName or InvalidOption.
        """
        # Unhashable values must not reach the cache, nor True, which it would take for 1.
        for option in ("max_attempts", "max_losses"):
            value = getattr(self, option)
            if value is not None and type(value) is not int:
                raise InvalidOption.of(option, value, "must be a whole number")
        return profile(
            task, priority_of(self.priority), self.max_attempts, self.max_losses, self.timeout_ms
        )


def priority_of(value: str) -> Priority:
    """Return the priority with this name. Raises InvalidOption."""
    try:
        return Priority(value)
    except ValueError:
        raise InvalidOption.of("priority", value, f"must be one of {', '.join(Priority)}") from None
