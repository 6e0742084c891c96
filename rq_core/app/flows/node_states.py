"""Reads from Redis the states of a flow's nodes, and the nodes' children. The handle of a flow and the web page use
this module."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rq_core.app.durable.items import child_outcome
from rq_core.app.flows.graph import DRAIN, Graph, GraphNode, read_graph
from rq_core.app.flows.sweep import (
    Children,
    Spot,
    Word,
    children_of,
    counted_jobs,
    is_launched,
    node_words,
    spots_of,
    stops_of,
    unsaved_of,
)
from rq_core.model.durable.children import (
    child_id,
    launch_name,
    life_of_children,
    read_queues,
)
from rq_core.model.job import read_spec
from rq_core.model.outcome import Outcome
from rq_core.model.table.machine import State
from rq_core.protocol.reads.result_reads import PAGE

if TYPE_CHECKING:
    from rq_core.model.durable.boxes import StepEntry
    from rq_core.model.state_line import JobState
    from rq_core.protocol.engine.plan import Plan
    from rq_core.protocol.operations import Operations


class NodeState(NamedTuple):
    """The state of one node of a flow."""

    state: Word
    """``waits``: the node waits for other nodes. ``ready``: the flow is about to enqueue the node's children. ``runs``:
    some children are alive. ``done``: enough children have succeeded. ``failed``: too many children have ended without
    success, or the node's calls cannot be made. ``skipped``: an earlier node, for which this node waits, has failed or
    was skipped. ``stopped``: the flow has cancelled the node, because another node failed."""
    done: int
    """Number of the node's children that have succeeded."""
    failed: int
    """Number of the node's children that have ended without success."""
    of: int
    """Number of all children of the node."""


class FlowChild(NamedTuple):
    """A job of a node."""

    queue: str
    id: str


class SeenNode(NamedTuple):
    """A node of a flow, with the state and the children that were read from Redis."""

    node: GraphNode
    state: NodeState
    first: FlowChild | None = None
    """The node's first child; None: the node has no children yet."""
    alive: tuple[FlowChild, ...] = ()
    """The children that have not ended."""
    failed: tuple[FlowChild, ...] = ()
    """The children that have ended without success."""


class SeenFlow(NamedTuple):
    """The nodes of a flow, with the states that were read from Redis."""

    nodes: tuple[SeenNode, ...]
    """The nodes, in the order of declaration."""
    unread: int = 0
    """Number of children whose ends were not read, because seen_flow had reached its limit ``polls_max``. These
    children count as alive."""
    is_lost: bool = False
    """True if Redis has lost the records that name the children that the flow has enqueued."""

    @property
    def done(self) -> int:
        """Number of children that count as done in the progress of the flow."""
        return sum(counted_jobs(node, state.done, state.failed) for node, state, *_ in self.nodes)

    @property
    def of(self) -> int:
        """Number of children of all nodes, including children that are not enqueued yet."""
        return sum(state.of for _, state, *_ in self.nodes)


def graph_in(spec: str | None) -> Graph:
    """Return the graph of a flow, from the JSON of the flow's job. Raises ValueError if the JSON has no graph."""
    try:
        return read_graph(json.loads(read_spec(spec or "").args_json).get("graph"))
    except (AttributeError, RecursionError) as error:
        raise ValueError(f"it is no graph of a flow: {error}") from None


def seen_flow(
    calls: Operations, job: JobState, graph: Graph, polls_max: int | None = None
) -> Plan[SeenFlow]:
    """Read the states of a flow's nodes and of the nodes' children from Redis. ``job`` is the flow's job. ``polls_max``
    is the maximum number of reads of children's ends; with None, there is no maximum. One read covers up to PAGE
    children of one queue.

    Raises ValueError, TypeError or LookupError if a record of the flow's job in Redis is invalid.
    """
    life = job.fields.get("life")
    entries = {} if life is None else (yield from calls.reads.heads(job.queue, life))
    is_lost = entries is None
    entries = entries or {}
    stops = stops_of(entries.get)
    spots = {
        number: spots_of(number, node, stops)
        for number, node in enumerate(graph.nodes)
        if is_launched(node.name, entries.get)
    }
    places = _places([spot for each in spots.values() for spot in each], life or "", entries)
    asked = [spot for each in spots.values() for spot in unsaved_of(each, entries.get)]
    ends, unread = yield from _ends(calls, asked, places, polls_max)
    children = {
        number: children_of(each, entries.get, ends, is_stopped=number in stops.open)
        for number, each in spots.items()
    }
    words = node_words(graph, children)
    if job.state == State.DEAD and (graph.on_failure == DRAIN or "failed" not in words):
        # A flow that has enqueued all it could: the calls of these nodes cannot be made.
        words = node_words(graph, children, [n for n, word in enumerate(words) if word == "ready"])
    nodes = tuple(
        _seen(node, word, children.get(number), spots.get(number, ()), places)
        for number, (node, word) in enumerate(zip(graph.nodes, words, strict=True))
    )
    return SeenFlow(nodes, unread, is_lost)


def _seen(
    node: GraphNode,
    word: Word,
    of: Children | None,
    spots: Sequence[Spot],
    places: Mapping[Spot, FlowChild],
) -> SeenNode:
    count = len(node.calls)
    if of is None:
        return SeenNode(node, NodeState(word, 0, 0, count))
    done = count - len(of.alive) - len(of.stopped) - len(of.failed)
    return SeenNode(
        node,
        NodeState(word, done, len(of.failed), count),
        places.get(spots[0]) if spots else None,
        tuple(places[spot] for spot in of.alive if spot in places),
        tuple(places[spots[at]] for at in sorted(of.failed) if spots[at] in places),
    )


def _places(
    spots: Sequence[Spot], life: str, entries: Mapping[str, StepEntry]
) -> dict[Spot, FlowChild]:
    """Return the queue and the id of each child. Children that are not enqueued yet are left out."""
    queues: dict[str, list[str]] = {}
    found: dict[Spot, FlowChild] = {}
    for spot in spots:
        launch = entries.get(launch_name(spot.launch))
        if launch is not None and launch.is_saved:
            if spot.launch not in queues:
                queues[spot.launch] = read_queues(launch.value)
            queue = queues[spot.launch][spot.at]
            made_of = life_of_children(launch.value, life)
            found[spot] = FlowChild(queue, child_id(made_of, spot.launch, spot.at))
    return found


def _ends(
    calls: Operations,
    spots: Sequence[Spot],
    places: Mapping[Spot, FlowChild],
    polls_max: int | None,
) -> Plan[tuple[dict[Spot, Outcome[Any]], int]]:
    """Read from Redis how children have ended. Return their outcomes without results, and the number of children that
    were not read because of ``polls_max``. Children that are alive or not enqueued yet have no outcome."""
    by_queue: dict[str, dict[str, Spot]] = {}
    for spot in spots:
        if spot in places:
            queue, job_id = places[spot]
            by_queue.setdefault(queue, {})[job_id] = spot
    polls = [
        (queue, [*of][at : at + PAGE])
        for queue, of in by_queue.items()
        for at in range(0, len(of), PAGE)
    ]
    found: dict[Spot, Outcome[Any]] = {}
    for queue, ids in polls[:polls_max]:
        ends = yield from calls.endings.outcomes(queue, ids)
        for job_id, end in ends.items():
            found[by_queue[queue][job_id]] = child_outcome(job_id, end)
    unread = 0 if polls_max is None else sum(len(ids) for _, ids in polls[polls_max:])
    return found, unread
