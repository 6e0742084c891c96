"""The task ``rq_core.flow``, which ``App.enable_flows`` adds to an app. Its jobs are flows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rq_core.app.arguments import Arguments
from rq_core.app.flows.between_runs import KeptRun
from rq_core.app.flows.graph import FLOW_TASK, Graph, read_graph
from rq_core.app.flows.running import FlowSteps
from rq_core.app.handlers.context import current_job
from rq_core.app.handlers.retry import RetryPolicy
from rq_core.app.options import JobOptions
from rq_core.app.registration import make_task
from rq_core.errors import NotDurable
from rq_core.model.durable.children import KEEP_MS
from rq_core.model.lib.cached_property import cached_property
from rq_core.model.lib.newest_values import NewestValues
from rq_core.signals import GiveUp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rq_core.app.producer import Producer
    from rq_core.app.task import Task

RETRY: Final = RetryPolicy(max_attempts=10)
"""The retry policy of a flow's job. The job is retried after a fault of a server. A failed node ends the job at once,
without a retry."""


KEPT_MAX: Final = 64
"""Maximum number of flows whose state a process keeps between their runs."""
KEPT_CHARACTERS: Final = 32 * 1024 * 1024
"""Maximum number of characters of the results in all states of flows that a process keeps."""
READ_MAX: Final = 64
"""Maximum number of flows whose parsed arguments a process caches."""
READ_CHARACTERS: Final = 16 * 1024 * 1024
"""Maximum number of characters of the parsed arguments of flows that a process caches."""


class FlowDocument(dict[str, Any]):
    """The graph of a flow as JSON. ``graph`` reads and checks the JSON only at its first use, so no code may change the
    JSON."""

    @cached_property
    def graph(self) -> Graph:
        """The graph of the flow. Raises ValueError if the document is not a valid graph."""
        return read_graph(self)


class FlowArguments(Arguments):
    """The arguments of flows. A flow's job runs again with the same arguments whenever a child ends. So a process keeps
    the arguments that it has read last."""

    def __init__(self, task: str, function: Callable[..., Any]) -> None:
        super().__init__(task, function)
        self._read: NewestValues[str, FlowDocument] = NewestValues(READ_MAX, READ_CHARACTERS)

    def load(self, args_json: str) -> dict[str, Any]:
        """Read arguments from a JSON object. Return them by name, with the graph as a FlowDocument."""
        found = self._read.take(args_json)
        if found is None:
            found = FlowDocument(super().load(args_json)["graph"])
        self._read.put(args_json, found, len(args_json))
        return {"graph": found}


def graph_of(document: dict[str, Any]) -> Graph:
    """Return the graph of a document. Raises ValueError if the document is not a valid graph."""
    return document.graph if isinstance(document, FlowDocument) else read_graph(document)


def flow_task(app: Producer, tasks: Mapping[str, Task[..., Any]], queue: str) -> Task[..., Any]:
    """Make the task ``rq_core.flow`` of an app. The task's jobs are flows. ``tasks`` are the app's tasks, by name.

    Raises InvalidTask, InvalidName or InvalidOption.
    """
    kept: NewestValues[tuple[str, str], KeptRun] = NewestValues(KEPT_MAX, KEPT_CHARACTERS)

    async def run_flow(graph: dict[str, Any]) -> Any:
        context = current_job()
        if context.home is None:
            raise NotDurable(call="a flow", why=context.why_no_steps)
        try:
            made = graph_of(graph)
        except ValueError as error:
            raise GiveUp(str(error)) from None
        context.steps = steps = FlowSteps(context, context.home(context), app, tasks, made, kept)
        return await steps.result()

    options = JobOptions(queue, max_attempts=RETRY.max_attempts, keep_ms=KEEP_MS)
    made = make_task(app, tasks, run_flow, FLOW_TASK, options, retry=RETRY)
    made.arguments = FlowArguments(FLOW_TASK, run_flow)
    return made
