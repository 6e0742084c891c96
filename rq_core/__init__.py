"""rq-core: a Redis-backed distributed job queue whose whole history is in SQL.

    from rq_core import App

    app = App()

    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    add.enqueue(1, b=2)

Importing it is cheap: a public name's module is imported when the name is first asked for; redis-py,
pydantic and asyncio's clients when they are first used.
"""

from typing import TYPE_CHECKING

from rq_core.errors import (
    ArgumentsInvalid,
    AuditBacklogFull,
    AuditElsewhere,
    AuditNotConfigured,
    AuditOff,
    BadArguments,
    CapConflict,
    GiveUp,
    HandlerDied,
    HandlerSignal,
    HandlerTimeout,
    InvalidName,
    InvalidOption,
    InvalidTask,
    JobCancelled,
    KeyFailed,
    KeyNeeded,
    LayoutMismatch,
    LeaseLost,
    NoCurrentJob,
    NothingDeclared,
    OutcomeUnknown,
    PayloadTooLarge,
    QueueDamaged,
    QueueFull,
    Refused,
    RestoredMeanwhile,
    RetryLater,
    RqCoreError,
    ScopeFull,
    ServerError,
    ServerUnavailable,
    ServerUnsuitable,
    StaleCall,
    TargetBroken,
    UnknownQueue,
    UnknownScope,
    UnknownTask,
    UsageError,
    WorkerStopping,
)

if TYPE_CHECKING:
    from rq_core.app.app import App
    from rq_core.app.caps import Cap, Rate
    from rq_core.app.context import JobContext, current_job
    from rq_core.app.dead_hooks import DeadJob
    from rq_core.app.depends import Depends, injected
    from rq_core.app.handle import JobHandle
    from rq_core.app.retry import RetryPolicy
    from rq_core.app.task import AsyncTask, PreparedTask, Task
    from rq_core.model.job import NewJob
    from rq_core.model.limits import Limit
    from rq_core.model.machine import Priority, State
    from rq_core.protocol.inspect import ScopeStatus

__all__ = [
    "App",
    "ArgumentsInvalid",
    "AsyncTask",
    "AuditBacklogFull",
    "AuditElsewhere",
    "AuditNotConfigured",
    "AuditOff",
    "BadArguments",
    "Cap",
    "CapConflict",
    "DeadJob",
    "Depends",
    "GiveUp",
    "HandlerDied",
    "HandlerSignal",
    "HandlerTimeout",
    "InvalidName",
    "InvalidOption",
    "InvalidTask",
    "JobCancelled",
    "JobContext",
    "JobHandle",
    "KeyFailed",
    "KeyNeeded",
    "LayoutMismatch",
    "LeaseLost",
    "Limit",
    "NewJob",
    "NoCurrentJob",
    "NothingDeclared",
    "OutcomeUnknown",
    "PayloadTooLarge",
    "PreparedTask",
    "Priority",
    "QueueDamaged",
    "QueueFull",
    "Rate",
    "Refused",
    "RestoredMeanwhile",
    "RetryLater",
    "RetryPolicy",
    "RqCoreError",
    "ScopeFull",
    "ScopeStatus",
    "ServerError",
    "ServerUnavailable",
    "ServerUnsuitable",
    "StaleCall",
    "State",
    "TargetBroken",
    "Task",
    "UnknownQueue",
    "UnknownScope",
    "UnknownTask",
    "UsageError",
    "WorkerStopping",
    "current_job",
    "injected",
]

_MODULES = {
    "App": "app.app",
    "AsyncTask": "app.task",
    "Cap": "app.caps",
    "DeadJob": "app.dead_hooks",
    "Depends": "app.depends",
    "JobContext": "app.context",
    "JobHandle": "app.handle",
    "Limit": "model.limits",
    "NewJob": "model.job",
    "PreparedTask": "app.task",
    "Priority": "model.machine",
    "Rate": "app.caps",
    "RetryPolicy": "app.retry",
    "ScopeStatus": "protocol.inspect",
    "State": "model.machine",
    "Task": "app.task",
    "current_job": "app.context",
    "injected": "app.depends",
}
"""Where the public names are that are no errors. The command line lives in this package, too, and most
of its commands need none of them."""

if not TYPE_CHECKING:  # A type checker would take it to mean that there is every name.

    def __getattr__(name):
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        found = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
