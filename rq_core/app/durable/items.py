"""The calls of a ``map``, and the items that it returns."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, overload

from rq_core.errors import InvalidStep, NoResult
from rq_core.model.durable.children import CHILDREN_MAX, KEEP_MS
from rq_core.model.headers import PARENT_HEADER
from rq_core.model.job import JobError, NewJob, ties_with_unclaimed
from rq_core.model.keys import DEFAULT_PREFIX
from rq_core.model.outcome import (
    LOST,
    Cancelled,
    Expired,
    Failed,
    Gone,
    Outcome,
    Replaced,
    Succeeded,
)
from rq_core.protocol.reads.result_reads import Absent, Found
from rq_core.signals import ChildrenFailed

R_co = TypeVar("R_co", covariant=True)

_SHOWN_MAX: Final = 10
"""Maximum number of failed items that a message names."""
MESSAGE_MAX: Final = 300
"""Maximum number of characters of a failed child's error message that a parent job saves."""
MESSAGES_MAX: Final = 64_000
"""Maximum number of characters of all error messages that a parent job saves for one ``map``."""
_ENDS: Final[Mapping[str, type[Outcome[Any]]]] = {
    "dead": Failed, "cancelled": Cancelled, "expired": Expired, "replaced": Replaced, "gone": Gone,
}  # fmt: skip
_WORDS: Final = {kind: word for word, kind in _ENDS.items()}


@dataclass(frozen=True)
class JobCall(Generic[R_co]):
    """A call of a task, made by ``task.call(…)``, which a durable job runs as a child. ``R_co`` is the type of the
    result."""

    task: Any
    """The task, with its options: a PreparedTask."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def task_name_of(call: Any) -> str:
    """Return the name of the call's task. Return ``run`` for an object that is no JobCall: ``map`` refuses this object
    later."""
    return call.task.name if isinstance(call, JobCall) else "run"


def check_calls(name: str, calls: Iterable[JobCall[R_co]]) -> list[JobCall[R_co]]:
    """Return the calls of a ``map`` as a list. Raises InvalidStep for an invalid call, and for too many calls."""
    found: list[JobCall[R_co]] = []
    for call in calls:
        given: object = call
        if not isinstance(given, JobCall):
            why = f"{given!r} is not a call of a task, as `task.call(…)` makes it"
            raise InvalidStep(step=name, why=why)
        if not found or found[-1].task is not call.task:
            _check_call(name, call)
        found.append(call)
        if len(found) > CHILDREN_MAX:
            why = f"a map has at most {CHILDREN_MAX:,} calls: let each child do several parts"
            raise InvalidStep(step=name, why=why)
    return found


def _check_call(name: str, call: JobCall[Any]) -> None:
    """Raise InvalidStep if the call's task is unique. Raise InvalidTask if JSON cannot express the task's results."""
    if call.task.options.unique is not None:
        why = f"task {call.task.name!r} is unique, and a child must not give way to another job"
        raise InvalidStep(step=name, why=why)
    call.task.returned.check()


def child_of(call: JobCall[Any], job_id: str, parent: str) -> NewJob:
    """Return the child job for a call. ``parent`` is the value of the child's header PARENT_HEADER, which names the
    parent job."""
    options = call.task.options
    headers = json.loads(options.headers_json or "{}") | {PARENT_HEADER: parent}
    seconds = max(options.keep_ms, KEEP_MS) / 1000
    task = call.task.with_options(id=job_id, headers=headers, keep_result=seconds, remember=seconds)
    job: NewJob = task.job(*call.args, **call.kwargs)
    # A child that a full scope discards or rejects would have no end: it waits. A worker that has lost its claim of the
    # parent may send the child late: a child that was cancelled or has expired before its first claim must not run.
    return job._replace(full="", ties=ties_with_unclaimed(job.ties))


@dataclass(frozen=True)
class Item(Generic[R_co]):
    """One child of a ``map``, after the child's end."""

    index: int
    """The child's position among the calls, from 0."""
    id: str
    """Id of the child."""
    queue: str
    """Queue of the child."""
    outcome: Outcome[R_co]
    """The outcome of the child: Succeeded, Failed, Cancelled, Expired, Replaced or Gone."""

    @property
    def ok(self) -> bool:
        """True if the child succeeded."""
        return isinstance(self.outcome, Succeeded)

    @property
    def value(self) -> R_co:
        """The child's result. Raises JobFailed, JobWasCancelled, JobExpired, JobReplaced or JobGone if the child did
        not succeed, and ResultUnavailable if its result is not kept."""
        return self.outcome.value

    @property
    def error(self) -> NoResult | None:
        """The error that ``value`` raises. None if ``value`` raises no error."""
        try:
            self.outcome.value  # noqa: B018 - it raises
        except NoResult as error:
            return error
        return None


class Items(Sequence[Item[R_co]]):
    """The items of a ``map``, in the order of its calls."""

    def __init__(self, items: Sequence[Item[R_co]]) -> None:
        self._items = tuple(items)

    @overload
    def __getitem__(self, at: int, /) -> Item[R_co]: ...
    @overload
    def __getitem__(self, at: slice, /) -> Sequence[Item[R_co]]: ...
    def __getitem__(self, at: int | slice, /) -> Item[R_co] | Sequence[Item[R_co]]:
        return self._items[at]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item[R_co]]:
        return iter(self._items)

    def __repr__(self) -> str:
        return f"<{len(self)} items, {len(self.failed)} failed>"

    @property
    def failed(self) -> list[Item[R_co]]:
        """The items whose children did not succeed."""
        return [item for item in self._items if not item.ok]

    def values(self) -> list[R_co]:
        """Return the results of the children that succeeded, in the order of the calls.

        Raises ResultUnavailable if a result is not kept.
        """
        return [item.value for item in self._items if item.ok]


def least(name: str, min_success: Any, count: int) -> int:
    """Return how many of ``count`` children must succeed.

    ``min_success`` is a share (a float from 0.0 to 1.0) or a number (an int). Raises InvalidStep for any other value,
    and for a number above ``count``.
    """
    is_share = isinstance(min_success, float) and 0 <= min_success <= 1
    is_number = type(min_success) is int and min_success >= 0
    if not is_share and not is_number:
        why = f"min_success is {min_success!r}, and must be a share from 0.0 to 1.0 or a number of jobs"
        raise InvalidStep(step=name, why=why)
    if is_number and min_success > count:
        why = f"min_success is {min_success}, and there are {count} calls"
        raise InvalidStep(step=name, why=why)
    if is_number:
        return int(min_success)
    # 0.95 of 100 is a little more than 95 in binary floating-point numbers.
    share: float = min_success
    return math.ceil(round(share * count, 6))


def children_failed(
    message: str, job_id: str, prefix: str, items: Sequence[Item[Any]] = ()
) -> ChildrenFailed:
    """Return the error of a parent job whose children failed. Its text is ``message`` and the commands with which an
    operator can list the failed children and run the parent again. ``job_id`` is the parent's id, and ``prefix`` is the
    prefix of the keys in Redis."""
    error = ChildrenFailed(
        f"{message}. `rq-core children {job_id} --failed` lists what failed, `rq-core requeue {job_id}` runs it again",
        items,
    )
    if prefix != DEFAULT_PREFIX:
        error.name_prefix(prefix)
    return error


def told(name: str, failed: Sequence[Item[Any]], count: int, needed: int) -> str:
    """Return the message of a ChildrenFailed error: how many children succeeded, and the errors of the first failed
    ones."""
    said = "; ".join(
        f"{item.index}: {str(item.error).removesuffix('.')}" for item in failed[:_SHOWN_MAX]
    )
    more = f"; and {len(failed) - _SHOWN_MAX} more" if len(failed) > _SHOWN_MAX else ""
    counts = f"{count - len(failed)} of {count} children succeeded, {needed} must"
    return f"{name}: {counts}. {said}{more}"


def child_outcome(job_id: str, found: Found) -> Outcome[Any]:
    """Return the outcome of a child that has ended. ``found`` is Redis' answer about the child."""
    if not isinstance(found, Absent):
        return found
    if isinstance(found.known, Succeeded):
        return Succeeded(job_id, missing=LOST)
    return found.known or Gone(job_id)


def pack_ends(ends: Mapping[int, Outcome[Any]]) -> str:
    """Convert the outcomes of children that did not succeed to JSON. ``ends`` has the outcomes by the child's index.

    Messages of errors are shortened: all of them together have at most MESSAGES_MAX characters.
    """
    most = min(MESSAGE_MAX, MESSAGES_MAX // max(len(ends), 1))
    return json.dumps({index: _pack_end(outcome, most) for index, outcome in ends.items()})


def _pack_end(outcome: Outcome[Any], most: int) -> list[str]:
    """Convert an outcome to a list of texts. The first is the kind of the outcome, such as ``dead``. For a dead child,
    the reason follows, and the type and the first ``most`` characters of the message of its error."""
    found = [_WORDS[type(outcome)]]
    if isinstance(outcome, Failed):
        error = outcome.error
        found += [outcome.reason, error.type, error.message[:most]] if error else [outcome.reason]
    return found


def unpack_ends(packed: str, ids: Sequence[str]) -> dict[int, Outcome[Any]]:
    """Return the outcomes that ``pack_ends`` has packed, by the child's index. ``ids`` has the ids of all children."""
    said: dict[str, list[str]] = json.loads(packed)
    return {int(at): unpack_end(ids[int(at)], each) for at, each in said.items()}


def unpack_end(job_id: str, said: Sequence[str]) -> Outcome[Any]:
    """Convert a list of texts back to an outcome. ``pack_ends`` has made the list."""
    kind = _ENDS.get(said[0], Gone)
    if kind is Failed and len(said) > 1:
        return Failed(job_id, said[1], JobError(said[2], said[3]) if len(said) == 4 else None)
    return kind(job_id)
