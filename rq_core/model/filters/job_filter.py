"""The class Filter, which selects jobs of one queue, such as the jobs to cancel or requeue.

A filter also has a text form, which :meth:`Filter.parse` reads: ``queue:mail task:send state:dead error:Timeout
since:"2026-11-21 10:00"``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from rq_core.errors import InvalidOption
from rq_core.model.filters.filter_text import terms_of, text_of
from rq_core.model.headers import read_headers
from rq_core.model.job import read_spec
from rq_core.model.keys import check_name
from rq_core.model.lib.checks import check_whole
from rq_core.model.lib.durations import Duration, instant_ms_of, ms_of
from rq_core.model.lib.moments import moment_of, span_ms_of
from rq_core.model.lib.text import number_in
from rq_core.model.limits.scopes import is_scope, scopes_of
from rq_core.model.state_line import JobState
from rq_core.model.table.machine import DEFAULT_PRIORITY, LIMIT_MAX, PRIORITIES, Priority, State

WORDS: Final = (
    "queue", "task", "state", "priority", "lane", "scope", "worker", "older", "due", "failed", "error", "since",
    "until", "header", "arg",
)  # fmt: skip
"""The words of a filter's text, in the order in which the text has them."""
REPEATED: Final = ("header", "arg")
"""Words that a text may have several times."""
TEXT_MAX: Final = 4_000
"""Maximum number of characters of a filter's text."""
VALUE_MAX: Final = 2_048
"""Maximum number of characters of a value."""

Between = tuple[datetime | None, datetime | None]


@dataclass(frozen=True, kw_only=True)
class Filter:
    """A condition that selects jobs of one queue, such as the jobs to cancel or requeue. A job matches if it meets all
    terms.

    - ``queue``: the queue of the jobs.
    - ``task``: the name of the jobs' task.
    - ``states``: the states, such as ("ready", "scheduled"). If empty, all states in which the change is possible.
    - ``priority``: the name of the jobs' priority.
    - ``lane``: the name of the jobs' lane (their priority's number and their scopes), such as "2+task=send"; "" is for
      jobs without scopes.
    - ``scope``: a scope of the jobs, such as "tenant=acme".
    - ``worker``: the worker that runs the jobs.
    - ``older``: the jobs have been in their state for at least this time, in seconds or a timedelta.
    - ``due``: the jobs are scheduled, and become ready within this time, in seconds or a timedelta.
    - ``failed``: the jobs have failed at least this number of times.
    - ``error``: the type of the error that dead jobs died of, such as "TimeoutError".
    - ``between``: two datetimes with a time zone, (first, last); the jobs came into their state at ``first`` or later,
      and before ``last``. None in place of a datetime sets no bound. In a replay, the times are those at which the
      jobs' attempts ended.
    - ``headers``: headers of the jobs, with their values.
    - ``args``: arguments of the jobs, with their values. A number and a text with the same digits are equal.

    ``str(filter)`` is the filter as text, and Filter.parse reads this text. Both Filter and Filter.parse raise
    InvalidName or InvalidOption for a term that no job could have.
    """

    queue: str
    task: str | None = None
    states: tuple[str, ...] = ()
    priority: str | None = None
    lane: str | None = None
    scope: str | None = None
    worker: str | None = None
    older: Duration | None = None
    due: Duration | None = None
    failed: int | None = None
    error: str | None = None
    between: Between = (None, None)
    headers: Mapping[str, str] = field(default_factory=dict)
    args: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name("queue", self.queue)
        for name, value in (("task", self.task), ("worker", self.worker)):
            if value is not None:
                check_name(name, value)
        self._set("states", _states_of(self.states))
        if self.priority is not None:
            if self.priority not in PRIORITIES:
                must = f"must be one of {', '.join(PRIORITIES)}"
                raise InvalidOption.of("priority", self.priority, must)
            self._set("priority", Priority(self.priority))
        if self.scope is not None and not (_is_text(self.scope) and is_scope(self.scope)):
            raise InvalidOption.of("scope", self.scope, "must be a scope, like tenant=acme")
        for name in ("older", "due"):
            if getattr(self, name) is not None:
                ms = ms_of(name, getattr(self, name))
                self._set(f"_{name}_ms", ms)
                # As the text says it, so that equal filters have the same text.
                self._set(name, ms / 1000)
        if self.failed is not None:
            check_whole("failed", self.failed, 0, LIMIT_MAX)
        for name in ("lane", "error"):
            if getattr(self, name) is not None:
                _check_text(name, getattr(self, name))
        instants = _instants_of(self.between)
        self._set("_between_ms", instants)
        self._set("between", tuple(None if at is None else _datetime(at) for at in instants))
        self._set("headers", MappingProxyType(_checked("headers", self.headers)))
        said = _checked("args", self.args)
        self._set("args", MappingProxyType({name: _said(value) for name, value in said.items()}))
        if self.error is not None and self.states not in ((), (State.DEAD,)):
            must = "must not stand beside states other than dead: only dead jobs have an error"
            raise InvalidOption.of("error", self.error, must)
        if self.due is not None and self.states not in ((), (State.SCHEDULED,)):
            must = "must not stand beside states other than scheduled: only these jobs are due"
            raise InvalidOption.of("due", self.due, must)

    _older_ms: int | None = field(default=None, init=False, repr=False, compare=False)
    _due_ms: int | None = field(default=None, init=False, repr=False, compare=False)
    _between_ms: tuple[int | None, int | None] = field(
        default=(None, None), init=False, repr=False, compare=False
    )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def __hash__(self) -> int:
        return hash(str(self))

    # Matching.

    @property
    def is_for_all(self) -> bool:
        """Return whether the filter has no term except the queue."""
        return len(self.terms) == 1

    @property
    def only_states(self) -> tuple[State, ...]:
        """The states that a matching job can have; empty: any state. Only dead jobs have an error, and only scheduled
        jobs are due."""
        if self.error is not None:
            return (State.DEAD,)
        return (State.SCHEDULED,) if self.due is not None else tuple(map(State, self.states))

    @property
    def needs_error(self) -> bool:
        """Return whether the filter has the term ``error``. The caller must then read the errors of the jobs."""
        return self.error is not None

    @property
    def needs_spec(self) -> bool:
        """Return whether the filter has headers or arguments. The caller must then read the JSON of the jobs."""
        return bool(self.headers or self.args)

    @property
    def instants_ms(self) -> tuple[int | None, int | None]:
        """The first and the last time of ``between``, in Unix ms."""
        return self._between_ms

    def matches_line(self, job: JobState, now_ms: int) -> bool:
        """Return whether a job meets all terms that can be checked with the job's state line. ``older`` and ``due``
        count from ``now_ms`` (Unix ms)."""
        fields = job.fields
        first, last = self._between_ms
        since_ms = job.since_ms or 0
        lane = fields.get("lane", "")
        return (
            (not self.states or job.state in self.states)
            and self.task in (None, fields.get("task"))
            and self.priority in (None, fields.get("priority", DEFAULT_PRIORITY))
            and self.lane in (None, lane)
            and (self.scope is None or self.scope in scopes_of(lane))
            and self.worker in (None, fields.get("by"))
            and (self._older_ms is None or since_ms <= now_ms - self._older_ms)
            and (self._due_ms is None or _is_due(job, now_ms + self._due_ms))
            and (self.failed is None or (number_in(fields.get("failed")) or 0) >= self.failed)
            and (first is None or since_ms >= first)
            and (last is None or since_ms < last)
        )

    def matches_error(self, job: JobState) -> bool:
        """Return whether a job died of an error of the type that the filter names. Without the term ``error``, each job
        matches."""
        return self.error is None or (job.error is not None and job.error.type == self.error)

    def matches_spec(self, spec: str | None) -> bool:
        """Return whether a job's JSON has the filter's headers and arguments. Unreadable JSON has neither."""
        if not self.needs_spec:
            return True
        try:
            read = read_spec(spec or "")
            args = json.loads(read.args_json) if self.args else {}
            headers = read_headers(read.headers_json) if self.headers and read.headers_json else {}
        except (ValueError, RecursionError):
            return False
        return all(headers.get(name) == value for name, value in self.headers.items()) and (
            isinstance(args, dict)
            and all(
                name in args and _said(args[name]) == value for name, value in self.args.items()
            )
        )

    # Text.

    @property
    def terms(self) -> list[tuple[str, str]]:
        """The terms as pairs (word, value), in the order of WORDS."""
        first, last = self._between_ms
        found: list[tuple[str, str | None]] = [
            ("queue", self.queue),
            ("task", self.task),
            ("state", ",".join(self.states) or None),
            ("priority", self.priority and str(self.priority)),
            ("lane", self.lane),
            ("scope", self.scope),
            ("worker", self.worker),
            ("older", _span(self._older_ms)),
            ("due", _span(self._due_ms)),
            ("failed", None if self.failed is None else str(self.failed)),
            ("error", self.error),
            ("since", _instant(first)),
            ("until", _instant(last)),
            *(("header", f"{name}={value}") for name, value in self.headers.items()),
            *(("arg", f"{name}={value}") for name, value in self.args.items()),
        ]
        return [(word, value) for word, value in found if value is not None]

    def __str__(self) -> str:
        return text_of(self.terms)

    @classmethod
    def parse(cls, text: str, *, now: datetime | None = None) -> Filter:
        """Return the filter with this text. Times such as ``10m ago`` count from ``now``, a datetime with a time zone
        (default: the present).

        Raises InvalidName or InvalidOption.
        """
        _check_text("filter", text, TEXT_MAX)
        return cls.of_terms(
            ((term.word or term.text, term.value if term.word else "") for term in terms_of(text)),
            now=now,
        )

    @classmethod
    def of_terms(cls, terms: Iterable[tuple[str, str]], *, now: datetime | None = None) -> Filter:
        """Return the filter with these terms, given as pairs (word of WORDS, value). ``now`` is as in parse. Raises
        InvalidName or InvalidOption."""
        given: dict[str, str] = {}
        pairs: dict[str, dict[str, str]] = {word: {} for word in REPEATED}
        for word, value in terms:
            if word not in WORDS:
                must = f"must have words of these, each as word:value: {', '.join(WORDS)}"
                raise InvalidOption.of("filter", word[:100], must)
            _check_text(word, value)
            if word in REPEATED:
                name, found, said = value.partition("=")
                if not found or not name:
                    raise InvalidOption.of(word, value[:100], "must be NAME=VALUE")
                if pairs[word].setdefault(name, said) != said:
                    must = f"must have {name} once: a job has one value for it"
                    raise InvalidOption.of(word, value[:100], must)
            elif given.setdefault(word, value) != value:
                raise InvalidOption.of(word, value[:100], f"must have {word} once")
        if "queue" not in given:
            must = "must have a queue, as in queue:mail"
            raise InvalidOption.of("filter", text_of(given.items())[:100], must)
        moment = now or datetime.now(UTC)
        return cls(
            queue=given["queue"],
            task=given.get("task"),
            states=_states_of(given["state"].split(",")) if "state" in given else (),
            priority=given.get("priority"),
            lane=given.get("lane"),
            scope=given.get("scope"),
            worker=given.get("worker"),
            older=_seconds("older", given),
            due=_seconds("due", given),
            failed=_number("failed", given),
            error=given.get("error"),
            between=(_moment("since", given, moment), _moment("until", given, moment)),
            headers=pairs["header"],
            args=pairs["arg"],
        )


# Values that a caller passes.


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _check_text(option: str, value: object, most: int = VALUE_MAX) -> None:
    if not isinstance(value, str) or len(value) > most:
        shown = value[:50] if isinstance(value, str) else value
        raise InvalidOption.of(option, shown, f"must be text of at most {most:,} characters")


def _states_of(states: object) -> tuple[State, ...]:
    must = f"must be states of these: {', '.join(State)}"
    if isinstance(states, str) or not isinstance(states, Iterable):
        raise InvalidOption.of("states", states, must)
    found = dict.fromkeys(states)
    for each in found:
        if each not in list(State):
            raise InvalidOption.of("states", each, must)
    # In one order, so that filters with the same states have the same text.
    return tuple(state for state in State if state in found)


def _instants_of(between: object) -> tuple[int | None, int | None]:
    if not isinstance(between, tuple) or len(between) != 2:
        must = "must be two datetimes, the first and the last; None sets no bound"
        raise InvalidOption.of("between", between, must)
    first, last = (None if each is None else instant_ms_of("between", each) for each in between)
    if first is not None and last is not None and first >= last:
        raise InvalidOption.of("between", between, "must have the earlier time first")
    return first, last


def _checked(option: str, given: object) -> dict[str, Any]:
    """Return the mapping ``given``, sorted by name. Raises InvalidOption for a name or value that cannot be written as
    the text of a filter."""
    if not isinstance(given, Mapping):
        raise InvalidOption.of(option, given, "must be a mapping of names to values")
    for name, value in given.items():
        if not isinstance(name, str) or not name or "=" in name:
            raise InvalidOption.of(option, name, "must have names without =")
        if option == "headers":
            _check_text("headers", value)
    # In one order, so that equal filters have the same text.
    return dict(sorted(given.items()))


def _said(value: Any) -> str:
    """Return the value of an argument as text: a str unchanged, any other value as JSON."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    except (TypeError, ValueError):
        raise InvalidOption.of("args", value, "must have values that JSON can have") from None


def _is_due(job: JobState, at_ms: int) -> bool:
    due_ms = number_in(job.fields.get("due"))
    return job.state is State.SCHEDULED and due_ms is not None and due_ms <= at_ms


# Values in a text.

_SPAN_MAX: Final = 999_999
"""The largest number before the unit in the text of a duration."""
_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"))


def _span(ms: int | None) -> str | None:
    """Return a duration as text: a number with a unit, such as ``2h``, or a number of seconds, such as ``1.5``."""
    if not ms:
        return None if ms is None else "0s"
    for unit_ms, unit in _UNITS:
        if ms % unit_ms == 0 and ms // unit_ms <= _SPAN_MAX:
            return f"{ms // unit_ms}{unit}"
    return f"{ms / 1000}"


def _seconds(word: str, given: Mapping[str, str]) -> float | None:
    text = given.get(word)
    if text is None:
        return None
    try:
        return span_ms_of(text) / 1000
    except ValueError:
        try:
            return float(text)
        except ValueError:
            must = "must be a time, like 10m, 2h, 7d, or seconds"
            raise InvalidOption.of(word, text[:100], must) from None


def _number(word: str, given: Mapping[str, str]) -> int | None:
    text = given.get(word)
    if text is None:
        return None
    found = number_in(text)
    if found is None:
        raise InvalidOption.of(word, text[:100], "must be a whole number")
    return found


def _instant(at_ms: int | None) -> str | None:
    if at_ms is None:
        return None
    return _datetime(at_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _datetime(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms // 1000, UTC).replace(microsecond=at_ms % 1000 * 1000)


def _moment(word: str, given: Mapping[str, str], now: datetime) -> datetime | None:
    text = given.get(word)
    if text is None:
        return None
    try:
        return _datetime(moment_of(text, now))
    except (ValueError, OverflowError, OSError):
        must = "must be a time, like 2026-11-21 10:00 (UTC), 10:00, '10m ago' or Unix ms"
        raise InvalidOption.of(word, text[:100], must) from None
