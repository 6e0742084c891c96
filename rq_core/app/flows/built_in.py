"""The task ``rq_core.flow``, which ``App.enable_flows`` adds to an app. Its jobs are flows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rq_core.app.durable.items import KEEP_MS
from rq_core.app.flows.graph import FLOW_TASK, read_graph
from rq_core.app.flows.running import FlowSteps
from rq_core.app.handlers.context import current_job
from rq_core.app.handlers.retry import RetryPolicy
from rq_core.app.options import JobOptions
from rq_core.app.registration import make_task
from rq_core.errors import NotDurable
from rq_core.signals import GiveUp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rq_core.app.producer import Producer
    from rq_core.app.task import Task

RETRY: Final = RetryPolicy(max_attempts=10)
"""The attempts of a flow's job. They are for faults of servers: a failed node ends the job at once."""


def flow_task(app: Producer, tasks: Mapping[str, Task[..., Any]], queue: str) -> Task[..., Any]:
    """Make the task of an app whose jobs are flows. ``tasks`` are the app's tasks, by name.

    Raises InvalidTask, InvalidName or InvalidOption.
    """

    async def run_flow(graph: dict[str, Any]) -> Any:
        context = current_job()
        if context.home is None:
            raise NotDurable(call="a flow", why=context.why_no_steps)
        try:
            made = read_graph(graph)
        except ValueError as error:
            raise GiveUp(str(error)) from None
        context.steps = steps = FlowSteps(context, context.home(), app, tasks, made)
        return await steps.result()

    options = JobOptions(queue, max_attempts=RETRY.max_attempts, keep_ms=KEEP_MS)
    return make_task(app, tasks, run_flow, FLOW_TASK, options, retry=RETRY)
