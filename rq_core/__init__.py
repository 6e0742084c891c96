"""rq-core: a Redis-backed distributed job queue whose whole history is in SQL.

    from rq_core import App

    app = App()

    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    add.enqueue(1, b=2)

Importing it is cheap: redis-py, pydantic and asyncio's clients are imported when they are first
used.
"""

from rq_core.app import App
from rq_core.caps import Cap, Rate
from rq_core.context import JobContext, current_job
from rq_core.deaths import DeadJob
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
from rq_core.handle import JobHandle
from rq_core.job import NewJob
from rq_core.machine import Priority, State
from rq_core.retry import RetryPolicy
from rq_core.scopes import Limit, ScopeStatus
from rq_core.task import AsyncTask, PreparedTask, Task

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
]
