"""Jobs as calls send them: a new job that a producer enqueues, and a job that a worker has claimed. Also reads and
writes a job's immutable JSON.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from rq_core.errors import InvalidOption
from rq_core.model.durable.tries import NO_BASE, Base
from rq_core.model.headers import FORK_HEADER, PARENT_HEADER, headers_in_digest
from rq_core.model.keys import check_name
from rq_core.model.lib.cached_property import cached_property
from rq_core.model.lib.text import shorten
from rq_core.model.result_encoding import DIGEST, FULL
from rq_core.model.table.machine import (
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_MAX_LOSSES,
    DEFAULT_PRIORITY,
    LEFT_OPEN,
    LIMIT_MAX,
    PRIORITIES,
    Priority,
)
from rq_core.model.unique_names import digest_of


@dataclass(frozen=True)
class Profile:
    """The properties that many jobs share: task, priority, limits and timeout. Many jobs have the same Profile object.

    A ``timeout_ms``, ``max_attempts`` or ``max_losses`` of None means that the worker's definition of the task decides.
    """

    task: str
    priority: Priority = DEFAULT_PRIORITY
    max_attempts: int | None = DEFAULT_MAX_ATTEMPTS
    max_losses: int | None = DEFAULT_MAX_LOSSES
    timeout_ms: int | None = None

    def __post_init__(self) -> None:
        check_name("task", self.task)
        try:
            object.__setattr__(self, "priority", Priority(self.priority))
        except ValueError:
            raise InvalidOption.of(
                "priority", self.priority, f"must be one of {', '.join(PRIORITIES)}"
            ) from None
        for option in ("max_attempts", "max_losses"):
            value = getattr(self, option)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LIMIT_MAX:
                raise InvalidOption.of(option, value, "must be a whole number from 1 to 1,000,000")

    @cached_property
    def rank(self) -> int:
        """The number of the priority, from 0 (critical) to 3 (low)."""
        return PRIORITIES.index(self.priority)

    @cached_property
    def head(self) -> str:
        """A part of the job's state line in Redis: its task, priority and limits. Defaults are left out."""
        parts = [f"task={self.task}"]
        if self.priority is not DEFAULT_PRIORITY:
            parts.append(f"priority={self.priority}")
        if self.max_attempts != DEFAULT_MAX_ATTEMPTS:
            parts.append(f"attempts={_in_redis(self.max_attempts)}")
        if self.max_losses != DEFAULT_MAX_LOSSES:
            parts.append(f"losses={_in_redis(self.max_losses)}")
        return " ".join(parts)

    @cached_property
    def detail(self) -> str:
        """A part of the JSON of the event ``enqueued``: from the task to the opening quote of the digest."""
        attempts, losses = _in_redis(self.max_attempts), _in_redis(self.max_losses)
        return f'"{self.task}","{self.priority}",{attempts},{losses},"'

    @cached_property
    def spec_parts(self) -> tuple[str, str]:
        """The parts of the job's immutable JSON before and after the arguments, without the closing brace."""
        tail = "" if self.timeout_ms is None else f',"timeout_ms":{self.timeout_ms}'
        head = "{"
        if self.max_attempts != DEFAULT_MAX_ATTEMPTS:
            head = f"{_ATTEMPTS}{self.max_attempts or 0},"
        if self.max_losses is None:
            head += _OPEN_LOSSES
        return f'{head}"task":"{self.task}","args":', tail


def _in_redis(limit: int | None) -> int:
    return LEFT_OPEN if limit is None else limit


@lru_cache(maxsize=4096)
def profile(
    task: str,
    priority: Priority = DEFAULT_PRIORITY,
    max_attempts: int | None = DEFAULT_MAX_ATTEMPTS,
    max_losses: int | None = DEFAULT_MAX_LOSSES,
    timeout_ms: int | None = None,
) -> Profile:
    """Return the cached profile with these values. Raises InvalidName or InvalidOption."""
    return Profile(task, priority, max_attempts, max_losses, timeout_ms)


class NewJob(NamedTuple):
    """A job that a producer enqueues. ``args_json`` is the JSON object of the arguments by name."""

    id: str
    queue: str
    profile: Profile
    args_json: str
    delay_ms: int = 0
    lane: str = ""
    """The lane (the waiting line of jobs with the same priority and scopes) in which the job waits until its caps and
    rates admit it (scopes.lane_name); empty: the job has no scopes."""
    full: str = ""
    """The rules for the case that a cap of the job is full (lane_assignment.full_rules); empty: the job waits."""
    spec_max: int = 0
    """Maximum number of bytes of the job's JSON, arguments included, in the event ``enqueued``. The event omits a
    longer JSON."""
    headers_json: str = ""
    """JSON object of the job's headers (:mod:`rq_core.model.headers`); empty: the job has no headers."""
    due_ms: int = 0
    """Unix ms at which a job without ``delay_ms`` becomes ready; 0: at once."""
    ties: str = ""
    """JSON object of the job's deadline, unique name, remembered id, kept result and costs (:func:`ties_of`); empty:
    the job has none of these."""
    name: str = ""
    """The name of a unique job; empty: the job is not unique. ``ties`` says what happens if another job holds the
    name."""
    call: str = ""
    """How later calls with this id are compared. ``=`` and a digest: a later call must have the same digest. ``=``
    alone: calls are not compared. Empty: the id is not remembered."""


def ties_of(
    *,
    expires_in_ms: int = 0,
    expires_at_ms: int = 0,
    unique: str = "",
    window_ms: int = 0,
    after_ms: int | None = None,
    most_ms: int | None = None,
    remember_ms: int = 0,
    keep_ms: int = 0,
    audit_result: str = DIGEST,
    cost: str = "",
) -> str:
    """Return a job's ties as a JSON object; an empty text without ties. ``lua/enqueue/kinds.lua`` reads the object.

    Ties are a job's deadline, unique name, remembered id, kept result and costs.

    >>> ties_of(expires_in_ms=30_000)
    '{"expires_in":30000}'
    """
    given = {
        "expires_in": expires_in_ms,
        "expires_at": expires_at_ms,
        "unique": unique,
        "window": window_ms,
        "remember": remember_ms,
        "keep": keep_ms,
        "audit": audit_result if keep_ms and audit_result != DIGEST else "",
        "cost": cost,
    }
    said: dict[str, Any] = {name: value for name, value in given.items() if value}
    if after_ms is not None:
        said |= {"after": after_ms, "most": most_ms}
    return json.dumps(said, separators=(",", ":")) if said else ""


def ties_with_cost(ties: str, costs: str) -> str:
    """Return a job's ties (the JSON that :func:`ties_of` returns) with the job's costs added. ``costs`` is the text
    that ``rq_core.model.limits.costs.costs_text`` writes; with an empty text, the ties stay unchanged.

    >>> ties_with_cost('{"expires_in":30000}', "tokens:1500")
    '{"expires_in":30000,"cost":"tokens:1500"}'
    """
    if not costs:
        return ties
    return f'{ties[:-1]},"cost":"{costs}"}}' if ties else f'{{"cost":"{costs}"}}'


def ties_with_unclaimed(ties: str) -> str:
    """Return ``ties`` (the JSON that :func:`ties_of` returns) with the option ``unclaimed`` added. With this option,
    the job is a duplicate even of an earlier job of its id that left Redis before its first claim. This holds while
    Redis keeps the outcome of the earlier job. ``ties`` must have a remembered id and a kept result.

    >>> ties_with_unclaimed('{"remember":60000,"keep":60000}')
    '{"remember":60000,"keep":60000,"unclaimed":1}'
    """
    return f'{ties[:-1]},"unclaimed":1}}'


class JobError(NamedTuple):
    """The error that a job died of: type, message and traceback."""

    type: str
    """The name of the exception's class."""
    message: str
    traceback: str | None = None
    """The traceback. None if it is too long for Redis. The error in an outcome has no traceback."""

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


_FRAME: Final = re.compile(r'File "([^"\n]+)", line (\d+)')
_OTHERS: Final = re.compile(r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python\d")


def place_in(traceback: str | None) -> str:
    r"""Return the file and line of a traceback's last frame outside libraries. If all frames are in libraries, the last
    frame is used. Returns an empty text if the traceback names no file.

    >>> place_in('File "/srv/shop/tasks.py", line 7, in pay\n  File "/usr/lib/python3.12/json/decoder.py", line 355')
    'shop/tasks.py:7'
    """
    frames = _FRAME.findall(traceback or "")
    own = [frame for frame in frames if not _OTHERS.search(frame[0])] or frames
    if not own:
        return ""
    file, line = own[-1]
    return "/".join(re.split(r"[/\\]", file)[-2:]) + f":{line}"


class Claim(NamedTuple):
    """A job that a worker has claimed. The worker must present ``fence`` to settle the claim (success, failure or
    rollback)."""

    queue: str
    id: str
    fence: str
    number: int
    """Number of the claim: 1 for the job's first claim, 2 for its second…"""
    failures: int
    losses: int
    spec: str
    """The job's immutable JSON."""
    lane: str = ""
    """The lane (the waiting line of jobs with the same priority and scopes) in which the job waited; empty if the job
    has no scopes."""
    waited_s: float | None = None
    """Seconds for which the job had been ready; None: unknown. The time is known only for the first claim of a job
    without scopes and delay: other claims' answers do not contain the time."""
    base: Base = NO_BASE
    """The failures and losses at the last saved step of a durable job."""
    life: str | None = None
    """The id of the box with the saved steps of a durable job. None: the job was never claimed before, or has no
    box."""


class Spec(NamedTuple):
    """A job's parsed immutable JSON."""

    task: str
    args_json: str
    timeout_ms: int | None
    headers_json: str = ""
    """JSON object of the job's headers; empty: the job has no headers."""
    keeps: str = ""
    """The part of the job's result that the audit log keeps: ``digest`` or ``full``. Empty: the result is not kept at
    all."""
    max_attempts: int | None = DEFAULT_MAX_ATTEMPTS
    """Maximum number of attempts; None: the worker's definition of the task decides."""
    open_losses: bool = False
    """True if the worker's definition of the task decides ``max_losses``."""


_SHOWN_MAX: Final = 100
"""Maximum number of characters of a task's name in a message about a job's JSON."""
ERROR_HEAD: Final = "error="
"""The beginning of the first line of a job's value in ``jobs`` if the job died of an error. A JSON object follows
it."""
_HEADERS: Final = '{"headers":'
_ATTEMPTS: Final = '{"attempts":'
"""The beginning of a job's JSON if ``max_attempts`` is not the default. The number of attempts comes next; 0 means that
the worker's definition of the task decides."""
_OPEN_LOSSES: Final = '"losses":0,'
_BEHIND_HEADERS: Final = (',"task":', f",{_ATTEMPTS[1:]}", f",{_OPEN_LOSSES}")
_KEEPS: Final = {'{"keep":1,': DIGEST, '{"keep":2,': FULL}
"""The possible beginnings of a job's JSON if the job's result is kept. Each beginning is mapped to the part of the
result that the log keeps."""
_KEEP, _KEEP_FULL = _KEEPS
KEEP_TIE: Final = '"keep":'
"""A text that the ties of a job (the JSON that :func:`ties_of` returns) contain if the job's result is kept."""
_FULL_TIE: Final = '"audit":"full"'
"""A text that the ties of a job (the JSON that :func:`ties_of` returns) contain if the audit log keeps the whole
result, not only the result's digest."""


def spec_with_headers(spec: str, headers_json: str) -> str:
    """Return a job's JSON with the headers added as its first field."""
    return f"{_HEADERS}{headers_json},{spec[1:]}"


def spec_with_keep(spec: str, ties: str) -> str:
    """Return a job's JSON with a new first field, which says that the result is kept.

    The field also says how much of the result the log keeps: its digest, or the whole result. The job's ``ties`` decide
    this.
    """
    return (_KEEP_FULL if _FULL_TIE in ties else _KEEP) + spec[1:]


def spec_of(value: str) -> str:
    r"""Return a job's immutable JSON from the job's value in the key ``jobs``. The JSON follows the first line break,
    or is the whole value (see :mod:`rq_core.model.state_line`).

    >>> spec_of('task=send seq=7 since=5\n{"task":"send"}')
    '{"task":"send"}'
    """
    # JSON has no line breaks.
    return value[value.find("\n") + 1 :]


def error_of(value: str) -> JobError | None:
    r"""Return the error that a job died of, from the job's value in the key ``jobs``; None without a readable error.

    A requeued job keeps the error until it dies again.

    >>> str(error_of('error={"type":"KeyError","message":"x"}\n{"task":"send"}'))
    'KeyError: x'
    """
    if not value.startswith(ERROR_HEAD):
        return None
    try:
        said: Any = json.loads(value[len(ERROR_HEAD) : value.find("\n")])
        lines = said.get("traceback")
        return JobError(str(said["type"]), str(said["message"]), lines and str(lines))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def spec_and_wait(value: str, now_ms: int) -> tuple[str, float | None]:
    r"""Return a job's immutable JSON, and the seconds for which the job has waited until ``now_ms`` (Unix ms). The wait
    began at the time ``since`` in the line before the JSON. Without such a line, the seconds are unknown (None).

    >>> spec_and_wait('task=send seq=7 since=1795225746504\n{"task":"send"}', 1795225749004)
    ('{"task":"send"}', 2.5)
    """
    end = value.find("\n")
    # This is done for every job that a worker runs. Until the year 2286 a time in ms has 13 digits.
    if end < 0 or value[end - 20 : end - 13] != " since=":
        return value[end + 1 :], None
    try:
        waited_ms = now_ms - int(value[end - 13 : end])
    except ValueError:
        return value[end + 1 :], None
    return value[end + 1 :], waited_ms / 1000 if waited_ms > 0 else 0.0


def spec_fault(spec: str, task: str | None, digest: str | None) -> str | None:
    """Return a message if something is wrong with a job's JSON; otherwise None.

    The JSON must be readable and name the task ``task``. The digest of the job's arguments, its timeout and the
    header of a fork or a child must be ``digest``; None: digests are not compared.
    """
    try:
        read = read_spec(spec)
    except (ValueError, RecursionError):
        return "its JSON cannot be read"
    if read.task != task:
        return f"its JSON is of task {shorten(read.task, _SHOWN_MAX)!r}"
    timed = "" if read.timeout_ms is None else f',"timeout_ms":{read.timeout_ms}'
    timed += headers_in_digest(read.headers_json)
    if digest is None or digest_of(read.args_json + timed) == digest:
        return None
    return (
        "the digest of its arguments and its timeout (of a fork, also of its header"
        f" {FORK_HEADER}, and of a child, of its header {PARENT_HEADER}) is not the one in the log"
    )


def limits_fault(spec: str, max_attempts: int | None, max_losses: int | None) -> str | None:
    """Return a message if a job's JSON, which must be readable, has other limits than the job; otherwise None.

    A limit is LEFT_OPEN if the worker's definition of the task decides it. None: the limit of the job is unknown, and
    is not compared. The JSON does not contain ``max_losses``, but only whether the task's definition decides it.
    """
    read = read_spec(spec)
    if (attempts := _in_redis(read.max_attempts)) != (max_attempts or attempts):
        return f"its JSON allows {_said(attempts)} attempts, and the job has {_said(max_attempts)}"
    if max_losses and read.open_losses is not (max_losses == LEFT_OPEN):
        return (
            f"its JSON and its max_losses, {_said(max_losses)}, differ in whether the task decides"
        )
    return None


def _said(limit: int | None) -> str:
    return "the task's" if limit == LEFT_OPEN else str(limit)


def read_spec(text: str) -> Spec:
    """Parse a job's JSON. Raises ValueError if it is not the JSON of a job."""
    # The fast way: our own producers write exactly this shape, and the arguments end in a brace.
    head, found, rest = text.partition('","args":')
    if found and head.startswith('{"task":"'):
        if rest.endswith("}}"):
            return Spec(head[9:], rest[:-1], None)
        args_json, found, timeout_ms = rest.removesuffix("}").rpartition(',"timeout_ms":')
        if found and timeout_ms.isascii() and timeout_ms.isdigit():
            return Spec(head[9:], args_json, int(timeout_ms))
    if (kept := _KEEPS.get(text[: len(_KEEP)])) is not None:
        return read_spec("{" + text[len(_KEEP) :])._replace(keeps=kept)
    if text.startswith(_HEADERS):
        return _read_with_headers(text)
    if text.startswith(_ATTEMPTS):
        attempts, _, rest = text[len(_ATTEMPTS) :].partition(",")
        return read_spec("{" + rest)._replace(max_attempts=int(attempts) or None)
    if text.startswith(_OPEN_LOSSES, 1):
        return read_spec("{" + text[1 + len(_OPEN_LOSSES) :])._replace(open_losses=True)
    value: Any = json.loads(text)
    if not isinstance(value, dict) or not isinstance(value.get("task"), str):
        raise ValueError("the job's JSON has no task")  # noqa: TRY004 - its value is wrong, as text
    if type(value.get("timeout_ms", 0)) is not int:
        raise ValueError("the job's timeout_ms is not a whole number")
    return Spec(value["task"], json.dumps(value.get("args", {})), value.get("timeout_ms"))


def _read_with_headers(text: str) -> Spec:
    headers, end = json.JSONDecoder().raw_decode(text, len(_HEADERS))
    if not isinstance(headers, dict) or not text.startswith(_BEHIND_HEADERS, end):
        raise ValueError("the job's JSON has invalid headers")
    rest = read_spec("{" + text[end + 1 :])
    return rest._replace(headers_json=text[len(_HEADERS) : end])
