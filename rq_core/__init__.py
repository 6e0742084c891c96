"""rq-core: a Redis-backed distributed job queue whose whole history is in SQL.

    from rq_core import App

    app = App()

    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    add.enqueue(1, b=2)

Importing the package is cheap: the module of a public name is imported when the name is first used, and so are
redis-py, pydantic and asyncio's clients.
"""

from typing import TYPE_CHECKING

from rq_core.errors import *  # noqa: F403 - each error is public; errors.py and signals.py are the lists
from rq_core.signals import *  # noqa: F403

if TYPE_CHECKING:
    from rq_core.app.app import App as App
    from rq_core.app.batches.batch import Batch as Batch
    from rq_core.app.batches.jobs import BatchContext as BatchContext
    from rq_core.app.batches.jobs import Job as Job
    from rq_core.app.durable.handles import Durable as Durable
    from rq_core.app.durable.handles import DurableSync as DurableSync
    from rq_core.app.durable.handles import durable as durable
    from rq_core.app.durable.handles import durable_sync as durable_sync
    from rq_core.app.durable.items import Item as Item
    from rq_core.app.durable.items import Items as Items
    from rq_core.app.durable.items import JobCall as JobCall
    from rq_core.app.durable.step_values import NOT_DONE as NOT_DONE
    from rq_core.app.flows.declaring import Flow as Flow
    from rq_core.app.flows.declaring import FlowNode as FlowNode
    from rq_core.app.flows.declaring import Group as Group
    from rq_core.app.flows.declaring import chain as chain
    from rq_core.app.flows.declaring import group as group
    from rq_core.app.flows.flow_run import FlowRun as FlowRun
    from rq_core.app.flows.node_states import NodeState as NodeState
    from rq_core.app.flows.placeholders import RESULT as RESULT
    from rq_core.app.handlers.context import JobContext as JobContext
    from rq_core.app.handlers.context import current_job as current_job
    from rq_core.app.handlers.dead_hooks import DeadJob as DeadJob
    from rq_core.app.handlers.depends import Depends as Depends
    from rq_core.app.handlers.depends import injected as injected
    from rq_core.app.handlers.log_context import JobLogFilter as JobLogFilter
    from rq_core.app.handlers.outgoing import Outgoing as Outgoing
    from rq_core.app.handlers.pausing import PauseScope as PauseScope
    from rq_core.app.handlers.retry import RetryPolicy as RetryPolicy
    from rq_core.app.handles.handle import JobHandle as JobHandle
    from rq_core.app.limits.breaker import Breaker as Breaker
    from rq_core.app.limits.caps import Cap as Cap
    from rq_core.app.limits.caps import Rate as Rate
    from rq_core.app.many.copies import Replayed as Replayed
    from rq_core.app.task import AsyncTask as AsyncTask
    from rq_core.app.task import PreparedTask as PreparedTask
    from rq_core.app.task import Task as Task
    from rq_core.app.unique.kinds import Debounce as Debounce
    from rq_core.app.unique.kinds import Latest as Latest
    from rq_core.app.unique.kinds import Throttle as Throttle
    from rq_core.app.unique.kinds import Unique as Unique
    from rq_core.model.filters.job_filter import Filter as Filter
    from rq_core.model.job import NewJob as NewJob
    from rq_core.model.limits.limit import Limit as Limit
    from rq_core.model.outcome import Cancelled as Cancelled
    from rq_core.model.outcome import Expired as Expired
    from rq_core.model.outcome import Failed as Failed
    from rq_core.model.outcome import Gone as Gone
    from rq_core.model.outcome import Outcome as Outcome
    from rq_core.model.outcome import Replaced as Replaced
    from rq_core.model.outcome import Succeeded as Succeeded
    from rq_core.model.showing.shown import Chunk as Chunk
    from rq_core.model.showing.shown import Progress as Progress
    from rq_core.model.table.machine import Priority as Priority
    from rq_core.model.table.machine import State as State
    from rq_core.protocol.calls.bulk import JobsChanged as JobsChanged
    from rq_core.protocol.engine.plan import Patience as Patience
    from rq_core.protocol.reads.scope_reads import ScopeStatus as ScopeStatus
else:
    _MODULES = {
        "app.app": "App",
        "app.batches.batch": "Batch",
        "app.batches.jobs": "BatchContext Job",
        "app.many.copies": "Replayed",
        "app.durable.handles": "Durable DurableSync durable durable_sync",
        "app.durable.items": "Item Items JobCall",
        "app.durable.step_values": "NOT_DONE",
        "app.flows.declaring": "Flow FlowNode Group chain group",
        "app.flows.flow_run": "FlowRun",
        "app.flows.node_states": "NodeState",
        "app.flows.placeholders": "RESULT",
        "app.limits.breaker": "Breaker",
        "app.limits.caps": "Cap Rate",
        "app.handlers.context": "JobContext current_job",
        "app.handlers.dead_hooks": "DeadJob",
        "app.handlers.depends": "Depends injected",
        "app.handles.handle": "JobHandle",
        "app.handlers.log_context": "JobLogFilter",
        "app.handlers.pausing": "PauseScope",
        "app.handlers.outgoing": "Outgoing",
        "app.handlers.retry": "RetryPolicy",
        "app.task": "AsyncTask PreparedTask Task",
        "app.unique.kinds": "Debounce Latest Throttle Unique",
        "model.filters.job_filter": "Filter",
        "model.job": "NewJob",
        "model.limits.limit": "Limit",
        "model.showing.shown": "Chunk Progress",
        "model.table.machine": "Priority State",
        "model.outcome": "Cancelled Expired Failed Gone Outcome Replaced Succeeded",
        "protocol.calls.bulk": "JobsChanged",
        "protocol.engine.plan": "Patience",
        "protocol.reads.scope_reads": "ScopeStatus",
    }
    """The public names except those of errors, by module. Type checkers see the same names in the imports above. At run
    time, each module is imported only when one of its names is used. The command line is in this package, too: so each
    command imports only the modules that it needs."""

    _MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}

    _ERRORS = [
        name
        for name, each in globals().items()
        if isinstance(each, type) and issubclass(each, RqCoreError)  # noqa: F405 - of errors.py
    ]
    __all__ = [*_MODULE_OF, *_ERRORS]  # noqa: PLE0604 - both hold text

    def __getattr__(name):
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        found = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        globals()[name] = found
        return found

    def __dir__():
        return sorted({*globals(), *__all__})
