"""The handle of a flow."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from rq_core.app.durable.items import child_outcome
from rq_core.app.flows.graph import DRAIN, FLOW_TASK, read_graph
from rq_core.app.flows.sweep import (
    Spot,
    Word,
    children_of,
    is_launched,
    node_words,
    spots_of,
    stops_of,
    unsaved_of,
)
from rq_core.app.handles.handle import JobHandle
from rq_core.model.durable.children import child_id, launch_name, read_queues
from rq_core.model.job import read_spec, spec_of
from rq_core.model.keys import check_name, queue_keys
from rq_core.model.outcome import Outcome
from rq_core.signals import InvalidFlow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rq_core.model.durable.boxes import StepEntry
    from rq_core.protocol.engine.plan import Plan
    from rq_core.protocol.operations import Operations

R_co = TypeVar("R_co", covariant=True)


class NodeState(NamedTuple):
    """The state of one node of a flow."""

    state: Word
    """``waits``: the node waits for other nodes. ``ready``: the flow is about to enqueue the node's children. ``runs``,
    ``done``, ``failed``. ``skipped``: an earlier node, for which this node waits, has failed. ``stopped``: the flow has
    cancelled the node, because another node failed."""
    done: int
    """Number of the node's children that have succeeded."""
    failed: int
    """Number of the node's children that have ended without success."""
    of: int
    """Number of all children of the node."""


class FlowRun(JobHandle[R_co]):
    """A flow that was enqueued: the handle of its job.

    ``result`` returns the result of the flow's last node. ``progress`` counts the nodes that are done. ``cancel``
    cancels the flow and all of its nodes that are not done. ``FlowRun(app, id="monthly-7", queue="reports")`` is the
    handle of a flow that another program has enqueued.
    """

    __slots__ = ()

    def __init__(self, app: Any, *, id: str, queue: str, **facts: Any) -> None:  # noqa: A002 - as in JobHandle
        """``facts`` are for rq-core itself; leave them out. Raises InvalidName."""
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

    def nodes(self) -> dict[str, NodeState]:
        """Return the state of each node, by name, in the order of declaration. The mapping is empty after the flow has
        succeeded or was cancelled, since Redis no longer has the flow's graph.

        Raises InvalidFlow if the job is no flow.
        """
        client = self._producer.client
        return client.run(_nodes(self.queue, self.id, client.calls))

    async def nodes_async(self) -> dict[str, NodeState]:
        """See nodes."""
        client = self._producer.async_client()
        return await client.run(_nodes(self.queue, self.id, client.calls))

    def retry(self, *, why: str = "") -> str:
        """Requeue a dead flow, with its dead children. Children that failed or were stopped run again, then the nodes
        that had not begun. Children that have succeeded do not run again.

        Return the outcome: ``requeued``; ``held`` if another job holds the flow's unique name; ``gone``; or the state
        of a flow that is not dead.
        """
        client = self._producer.client
        return client.run(client.calls.families.requeue(self.queue, [self.id], why=why))[self.id]

    async def retry_async(self, *, why: str = "") -> str:
        """See retry."""
        client = self._producer.async_client()
        plan = client.calls.families.requeue(self.queue, [self.id], why=why)
        return (await client.run(plan))[self.id]


def _nodes(queue: str, job_id: str, calls: Operations) -> Plan[dict[str, NodeState]]:
    keys = queue_keys(queue, calls.delivery.prefix)
    asked_keys = [["HGET", keys(key), job_id] for key in ("jobs", "state")]
    value, line = yield from calls.delivery.ask(asked_keys, queue)
    if value is None:
        return {}
    try:
        spec = read_spec(spec_of(value))
        graph = read_graph(json.loads(spec.args_json).get("graph"))
    except (ValueError, AttributeError) as error:
        raise InvalidFlow(flow=job_id, why=str(error)) from None
    steps = yield from calls.reads.steps(job_id, [queue])
    entries = {} if steps is None else {each.name: each for each in steps.entries.values()}
    life = (steps.life if steps is not None else None) or ""
    stops = stops_of(entries.get)
    spots = {
        number: spots_of(number, node, stops)
        for number, node in enumerate(graph.nodes)
        if is_launched(node.name, entries.get)
    }
    asked = [spot for each in spots.values() for spot in unsaved_of(each, entries.get)]
    looked = yield from _ends(asked, life, entries, calls)
    children = {
        number: children_of(each, entries.get, looked, is_stopped=number in stops.open)
        for number, each in spots.items()
    }
    said: dict[str, NodeState] = {}
    words = node_words(graph, children)
    is_dead = (line or "").startswith("dead ")
    if is_dead and (graph.on_failure == DRAIN or "failed" not in words):
        # A flow that has enqueued all it could: the calls of these nodes cannot be made.
        words = node_words(graph, children, [n for n, word in enumerate(words) if word == "ready"])
    for number, (node, word) in enumerate(zip(graph.nodes, words, strict=True)):
        done = failed = 0
        if number in children:
            of = children[number]
            failed = len(of.failed)
            done = len(node.calls) - len(of.alive) - len(of.stopped) - failed
        said[node.name] = NodeState(word, done, failed, len(node.calls))
    return said


def _ends(
    spots: Iterable[Spot], life: str, entries: Mapping[str, StepEntry], calls: Operations
) -> Plan[dict[Spot, Outcome[Any]]]:
    """Return the outcomes of the children that have ended. Children that are alive or not enqueued yet are left out."""
    by_queue: dict[str, dict[str, Spot]] = {}
    queues: dict[str, list[str]] = {}
    for spot in spots:
        launch = entries.get(launch_name(spot.launch))
        if launch is not None and launch.is_saved:
            if spot.launch not in queues:
                queues[spot.launch] = read_queues(launch.value)
            queue = queues[spot.launch][spot.at]
            by_queue.setdefault(queue, {})[child_id(life, spot.launch, spot.at)] = spot
    found: dict[Spot, Outcome[Any]] = {}
    for queue, of in by_queue.items():
        ends = yield from calls.endings.look(queue, [*of])
        for job_id, end in ends.items():
            found[of[job_id]] = child_outcome(job_id, end)
    return found
