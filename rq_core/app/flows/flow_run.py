"""The handle of a flow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypeVar

from rq_core.app.flows.graph import FLOW_TASK
from rq_core.app.flows.node_states import NodeState, graph_in, seen_flow
from rq_core.app.handles.handle import JobHandle
from rq_core.model.keys import check_name
from rq_core.signals import InvalidFlow

if TYPE_CHECKING:
    from rq_core.model.showing.shown import Progress
    from rq_core.protocol.engine.plan import Plan
    from rq_core.protocol.operations import Operations

R_co = TypeVar("R_co", covariant=True)


class FlowRun(JobHandle[R_co]):
    """The handle of a flow's job, after the flow was enqueued.

    ``result`` returns the result of the flow's last node. ``progress`` shows how many of the jobs of all nodes are
    done. ``cancel`` cancels the flow and all of its nodes that are not done. ``FlowRun(app, id="monthly-7",
    queue="reports")`` is the handle of a flow that another program has enqueued.
    """

    __slots__ = ()

    def __init__(self, app: Any, *, id: str, queue: str, **facts: Any) -> None:  # noqa: A002 - as in JobHandle
        """``facts`` are values that only rq-core itself passes; leave them out. Raises InvalidName."""
        super().__init__(app, id=check_name("job", id), queue=check_name("queue", queue), **facts)

    @classmethod
    def of(cls, handle: JobHandle[Any]) -> Self:
        """Return the handle of a flow, from the handle of its job."""
        return cls(
            handle._producer,  # noqa: SLF001 - of its base class
            id=handle.id,
            queue=handle.queue,
            task=FLOW_TASK,
            duplicate=handle.duplicate,
            discarded=handle.discarded,
            replaced=handle.replaced,
            keeps=handle.keeps,
        )

    def progress(self) -> Progress | None:
        """Return how many jobs of the flow's nodes are done, and how many there are.

        Return None if no worker has begun the flow, or the flow has left Redis.
        """
        return super().progress()

    async def progress_async(self) -> Progress | None:
        """Return the progress of the flow without blocking the event loop. See progress."""
        return await super().progress_async()

    def nodes(self) -> dict[str, NodeState]:
        """Return the state of each node, by name, in the order of declaration. The mapping is empty after the flow has
        succeeded or was cancelled, since Redis no longer has the flow's graph.

        Raises InvalidFlow if the job is no flow.
        """
        client = self._producer.client
        return client.run(_nodes(self.queue, self.id, client.calls))

    async def nodes_async(self) -> dict[str, NodeState]:
        """Return the state of each node without blocking the event loop. See nodes."""
        client = self._producer.async_client()
        return await client.run(_nodes(self.queue, self.id, client.calls))

    def retry(self, *, why: str = "") -> str:
        """Requeue a dead flow, with its dead children. Children that failed or were stopped run again, then the nodes
        that had not begun. Children that have succeeded do not run again.

        Return the outcome: ``requeued``; ``held`` if another job holds the flow's unique name; ``gone`` if Redis does
        not have the flow; or the flow's state, if the flow is not dead.
        """
        client = self._producer.client
        return client.run(client.calls.families.requeue(self.queue, [self.id], why=why))[self.id]

    async def retry_async(self, *, why: str = "") -> str:
        """Requeue a dead flow without blocking the event loop. See retry."""
        client = self._producer.async_client()
        plan = client.calls.families.requeue(self.queue, [self.id], why=why)
        return (await client.run(plan))[self.id]


def _nodes(queue: str, job_id: str, calls: Operations) -> Plan[dict[str, NodeState]]:
    job = yield from calls.reads.job(job_id, [queue])
    if job is None:
        return {}
    try:
        graph = graph_in(job.spec)
    except ValueError as error:
        raise InvalidFlow(flow=job_id, why=str(error)) from None
    seen = yield from seen_flow(calls, job, graph)
    return {each.node.name: each.state for each in seen.nodes}
