"""Derives the states of a flow's nodes from the ends of their children. No I/O.

No counter of nodes is stored. Each run of the flow's job reads the saved steps of the job and the ends of its children,
and derives the states of all nodes. A producer that asks for the states of the nodes does the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from rq_core.app.durable.items import unpack_end
from rq_core.app.flows.graph import CANCEL, Graph, GraphNode
from rq_core.model.durable.boxes import OWN_PREFIX, StepEntry
from rq_core.model.durable.children import item_name, join_name, launch_name
from rq_core.model.outcome import Cancelled, Outcome, Succeeded

STOP: Final = f"{OWN_PREFIX}flow.stop"
"""Prefix of the names of the entries (saved records) for stops. A *stop* is the cancellation of nodes by their flow,
because another node failed. The entry lists the cancelled nodes."""
AGAIN: Final = f"{OWN_PREFIX}flow.again"
"""Prefix of the names of the entries (saved records) for retries of a flow that has cancelled nodes. The entry lists
the calls that the retry enqueues again."""

Word = Literal["waits", "ready", "runs", "stopped", "done", "failed", "skipped"]
Known = Callable[[str], StepEntry | None]
"""A function that takes a name and returns the entry of this name, a saved record of the flow's job. Returns None if
there is no such entry."""


class Spot(NamedTuple):
    """Identifies one child of a flow: its node, its call, and its launch. A *launch* enqueues children of one node. If
    the flow cancels some of these children, a retry enqueues their calls again in another launch."""

    node: int
    position: int
    """The position of the child's call among the calls of the node."""
    launch: str
    """The name of the launch, the group of children with which the child is enqueued."""
    at: int
    """The child's position among the children that are enqueued together with it (the launch)."""


class Children(NamedTuple):
    """The children of a node that were enqueued."""

    alive: tuple[Spot, ...] = ()
    """The children that have not ended."""
    failed: Mapping[int, Outcome[Any]] = {}
    """The outcomes of the children that did not succeed, by position. Children that the flow has cancelled are left
    out."""
    stopped: tuple[int, ...] = ()
    """Positions of the children that the flow has cancelled because another node failed."""


class Stops(NamedTuple):
    """The children that a flow has cancelled because a node failed, and the calls that retries of the flow enqueue
    again."""

    open: frozenset[int]
    """The numbers of the nodes that the flow has cancelled since the last retry."""
    stops: int
    """Number of times that the flow has cancelled nodes because another node failed."""
    again: tuple[Mapping[int, Sequence[int]], ...]
    """One mapping for each retry after a cancellation: from a node's number to the positions of the calls that the
    retry enqueues again."""


def stops_of(known: Known) -> Stops:
    """Return which children a flow has cancelled, and which calls its retries enqueue again. ``known`` looks up the
    saved entries of the flow's job."""
    stops, again = _values(STOP, known), _values(AGAIN, known)
    # Each retry says after how many stops it came, so it ends all of them.
    ends = max((each["stops"] for each in again), default=0)
    return Stops(
        frozenset(node for stop in stops[ends:] for node in stop),
        len(stops),
        tuple({int(node): at for node, at in each["nodes"].items()} for each in again),
    )


def _values(name: str, known: Known) -> list[Any]:
    """Return the values of the flow's saved entries ``NAME-1``, ``NAME-2`` and so on."""
    found: list[Any] = []
    while (entry := known(f"{name}-{len(found) + 1}")) is not None and entry.is_saved:
        found.append(json.loads(entry.value or "null"))
    return found


def launches_of(number: int, node: GraphNode, stops: Stops) -> list[tuple[str, Sequence[int]]]:
    """Return the launches of a node: for each launch, its name, and the positions of the calls whose children it
    enqueues.

    The first launch has all calls. Each later launch belongs to a retry, and has the calls whose jobs the flow had
    cancelled. A later launch has another name, so that its jobs have other ids than the cancelled jobs.
    """
    found: list[tuple[str, Sequence[int]]] = [(node.name, range(len(node.calls)))]
    for each in stops.again:
        if number in each:
            found.append((f"{node.name}%{len(found) + 1}", each[number]))
    return found


def is_launched(launch: str, known: Known) -> bool:
    """Return whether all children of a launch were enqueued. A launch is a group of children of one node; when all are
    enqueued, the flow saves an entry for the launch."""
    entry = known(launch_name(launch))
    return entry is not None and entry.is_saved


def spots_of(number: int, node: GraphNode, stops: Stops) -> list[Spot]:
    """Return one child for each call of a node. If retries have enqueued a call again, its child is the child of the
    last retry. The children may not be enqueued yet."""
    found: dict[int, Spot] = {}
    for launch, positions in launches_of(number, node, stops):
        for index, position in enumerate(positions):
            found[position] = Spot(number, position, launch, index)
    return [found[position] for position in range(len(node.calls))]


def unsaved_of(spots: Iterable[Spot], known: Known) -> list[Spot]:
    """Return the children in ``spots`` whose outcomes are not saved in the flow's job."""
    return [
        spot
        for spot in spots
        if known(item_name(spot.launch, spot.at)) is None and not _is_joined(spot.launch, known)
    ]


def _is_joined(launch: str, known: Known) -> bool:
    join = known(join_name(launch))
    return join is not None and join.is_saved


def children_of(
    spots: Iterable[Spot],
    known: Known,
    looked: Mapping[Spot, Outcome[Any]],
    *,
    is_stopped: bool,
) -> Children:
    """Return which children of a node are alive, have failed, or were cancelled by the flow. ``looked`` has the
    outcomes that the caller has just read from Redis. ``is_stopped`` is true if the flow has cancelled the node's
    living children because another node failed."""
    alive: list[Spot] = []
    failed: dict[int, Outcome[Any]] = {}
    stopped: list[int] = []
    for spot in spots:
        if known(item_name(spot.launch, spot.at)) is not None:
            continue
        join = known(join_name(spot.launch))
        outcome = looked.get(spot)
        if join is not None and join.is_saved:
            said: Any = json.loads(join.value or "{}")
            failed[spot.position] = unpack_end("", said[str(spot.at)])
        elif outcome is None:
            alive.append(spot)
        elif is_stopped and isinstance(outcome, Cancelled):
            stopped.append(spot.position)
        elif not isinstance(outcome, Succeeded):
            failed[spot.position] = outcome
    return Children(tuple(alive), failed, tuple(stopped))


def node_words(
    graph: Graph, children: Mapping[int, Children], broken: Collection[int] = ()
) -> list[Word]:
    """Return the state of each node. ``children`` has the nodes whose children are enqueued; ``broken`` has the nodes
    whose calls cannot be made."""
    found: list[Word] = []
    for number, node in enumerate(graph.nodes):
        before = {found[each] for each in node.after}
        if number in broken:
            found.append("failed")
        elif number in children:
            found.append(_of(node, children[number], is_hasty=graph.on_failure == CANCEL))
        elif before <= {"done"}:
            found.append("ready" if node.calls else "done")
        else:
            found.append("skipped" if before & {"failed", "skipped"} else "waits")
    return found


def is_over(number: int, node: GraphNode, stops: Stops, known: Known) -> bool:
    """Return whether a node is done, according to what the flow's job has saved in Redis. A node that is done stays
    done, since saved results do not change."""
    if not node.calls:
        return True
    launches = launches_of(number, node, stops)
    # The newest entry first: most nodes that are not done have not begun.
    if not all(is_launched(launch, known) for launch, _ in reversed(launches)):
        return False
    children = children_of(spots_of(number, node, stops), known, {}, is_stopped=False)
    return not children.alive and len(children.failed) <= len(node.calls) - node.needed


class Frontier:
    """The nodes of a flow that are not done, but whose earlier nodes are all done. Only these nodes can run."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._missing = [len(set(node.after)) for node in graph.nodes]
        """The number of nodes for which a node still waits, by the number of the waiting node."""
        self._open = {number for number, count in enumerate(self._missing) if not count}
        self.done = 0
        """Number of nodes that are done."""
        self.jobs = 0
        """Number of children of the nodes that are done."""

    @property
    def open(self) -> list[int]:
        """The numbers of the nodes that can run, the lowest first."""
        return sorted(self._open)

    def advance(self, stops: Stops, known: Known) -> None:
        """Remove the nodes that are done by now. Add each later node whose earlier nodes are now all done."""
        asked = self.open
        while asked:
            number = asked.pop()
            if not is_over(number, self._graph.nodes[number], stops, known):
                continue
            self._open.discard(number)
            self.done += 1
            self.jobs += len(self._graph.nodes[number].calls)
            for follower in self._graph.followers[number]:
                self._missing[follower] -= 1
                if not self._missing[follower]:
                    self._open.add(follower)
                    asked.append(follower)


def counted_jobs(node: GraphNode, done: int, failed: int) -> int:
    """Return how many children of a node count as done in the flow's progress. Children that have succeeded count.
    Children without success count, too, up to the number that the node may lose. ``done`` is the number of children
    that have succeeded, ``failed`` the number of children that have ended without success."""
    return done + min(failed, len(node.calls) - node.needed)


def open_words(
    graph: Graph, numbers: Iterable[int], children: Mapping[int, Children], broken: Collection[int]
) -> dict[int, Word]:
    """Return the states of the nodes ``numbers``. The caller passes only nodes whose earlier nodes are all done. See
    node_words for the other arguments."""
    is_hasty = graph.on_failure == CANCEL
    found: dict[int, Word] = {}
    for number in numbers:
        if number in broken:
            found[number] = "failed"
        elif number in children:
            found[number] = _of(graph.nodes[number], children[number], is_hasty=is_hasty)
        else:
            found[number] = "ready"
    return found


def _of(node: GraphNode, of: Children, *, is_hasty: bool) -> Word:
    """Return the state of a node whose children are enqueued. A node fails if too few of its children can still
    succeed. If ``is_hasty`` is true, the node fails at once; otherwise, it fails when no child is alive any more."""
    is_lost = len(of.failed) > len(node.calls) - node.needed
    if is_lost and (is_hasty or not of.alive):
        return "failed"
    if of.alive:
        return "runs"
    return "stopped" if of.stopped else "done"
