"""The types of ``app.task(…)`` for type checkers: its options, and the decorators that it returns."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    overload,
)

if TYPE_CHECKING:
    from rq_core.app.batches.jobs import Job
    from rq_core.app.handlers.dead_hooks import Hook
    from rq_core.app.handlers.retry import RetryPolicy
    from rq_core.app.limits.breaker import Breaker
    from rq_core.app.limits.caps import Cap, Rate
    from rq_core.app.options import PriorityName
    from rq_core.app.task import AsyncTask, Isolation, Task
    from rq_core.app.unique.naming import Named
    from rq_core.model.lib.durations import Duration
    from rq_core.model.result_encoding import AuditResult
    from rq_core.model.table.machine import Priority

A = TypeVar("A")
P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")


class BatchTaskOptions(TypedDict, total=False):
    """The options of ``app.task`` that a batch task may have in addition to ``batch``. ``isolation`` and ``max_memory``
    are not allowed. See App.task."""

    queue: str
    name: str | None
    retry: RetryPolicy | None
    timeout: Duration | None
    priority: Priority | PriorityName
    max_losses: int
    caps: Sequence[Cap | Rate]
    breaker: Breaker | Sequence[Breaker] | None
    unique: Named | None
    keep_result: bool | Duration
    audit_result: AuditResult
    aliases: Sequence[str]
    on_dead: Hook | None


class TaskOptions(BatchTaskOptions, total=False):
    """The options of ``app.task``. See App.task."""

    isolation: Isolation | None
    max_memory: int | None


class TaskDecorator(Protocol):
    """The decorator that ``app.task(...)`` returns. It turns a function into a task."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class BatchDecorator(Protocol):
    """The decorator that ``app.task(batch=…)`` returns. It turns a batch handler into a task.

    The parameter of the task is the arguments object of one job.
    """

    @overload
    def __call__(
        self, function: Callable[Concatenate[list[Job[A]], Q], Coroutine[Any, Any, None]], /
    ) -> AsyncTask[[A], None]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[list[Job[A]], Q], Coroutine[Any, Any, list[R]]], /
    ) -> AsyncTask[[A], R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[list[Job[A]], Q], None], /
    ) -> Task[[A], None]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[list[Job[A]], Q], list[R]], /
    ) -> Task[[A], R]: ...
