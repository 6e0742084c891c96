"""What each node of a flow does, from how its children have ended. No I/O.

Nothing counts the nodes that are done: each run of the flow's job, and each reader of its state, looks at the entries
of the job and at the ends of its children, and derives the states of all nodes from them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

from rq_core.app.flows.graph import CANCEL, Graph, Node
from rq_core.model.durable.boxes import OWN_PREFIX, StepEntry
from rq_core.model.durable.children import item_name, join_name, launch_name
from rq_core.model.outcome import Cancelled, Outcome, Succeeded

STOP: Final = f"{OWN_PREFIX}flow.stop"
"""The beginning of the names of the entries that say which nodes a flow has cancelled because another node failed."""
AGAIN: Final = f"{OWN_PREFIX}flow.again"
"""The beginning of the names of the entries that say that what such a stop had cancelled was enqueued again."""

Word = Literal["waits", "ready", "runs", "stopped", "done", "failed", "skipped"]
Known = Callable[[str], StepEntry | None]
"""A function that returns the entry of a name; None if the job has none."""


class Children(NamedTuple):
    """The children of a node that were enqueued."""

    alive: tuple[int, ...] = ()
    """Positions of those that have not ended."""
    failed: Mapping[int, Outcome[Any]] = {}
    """How those have ended that did not succeed, and that the flow itself has not cancelled, by position."""
    stopped: tuple[int, ...] = ()
    """Positions of those that the flow has cancelled, because another node failed."""


def left_of(node: Node, known: Known) -> list[int] | None:
    """Return the positions of the children whose ends are not saved; None if they are not all enqueued yet."""
    launch = known(launch_name(node.name))
    if launch is None or not launch.is_saved:
        return None
    if is_joined(node, known):
        return []
    return [n for n in range(len(node.calls)) if known(item_name(node.name, n)) is None]


def is_joined(node: Node, known: Known) -> bool:
    """Return whether the job has saved how those children have ended that did not succeed."""
    join = known(join_name(node.name))
    return join is not None and join.is_saved


def joined_failures(node: Node, known: Known) -> int:
    """Return how many children of a node have failed whose ends are saved."""
    join = known(join_name(node.name))
    return len(json.loads(join.value or "{}")) if join is not None and join.is_saved else 0


def ended(
    left: Iterable[int], outcomes: Mapping[int, Outcome[Any]], *, is_stopped: bool
) -> Children:
    """Return the children of a node, of which those in ``left`` have no saved end. ``outcomes`` are the ends that a
    look has found; ``is_stopped``: the flow has cancelled those that were alive."""
    alive, failed, stopped = [], {}, []
    for index in left:
        outcome = outcomes.get(index)
        if outcome is None:
            alive.append(index)
        elif is_stopped and isinstance(outcome, Cancelled):
            stopped.append(index)
        elif not isinstance(outcome, Succeeded):
            failed[index] = outcome
    return Children(tuple(alive), failed, tuple(stopped))


def sweep(
    graph: Graph, children: Mapping[int, Children], broken: Collection[int] = ()
) -> list[Word]:
    """Return what each node does. ``children`` has the nodes whose children are enqueued; ``broken`` has the nodes
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


def _of(node: Node, of: Children, *, is_hasty: bool) -> Word:
    """Return what a node does whose children are enqueued. ``is_hasty``: it has failed as soon as too few can succeed,
    even if others are alive."""
    is_lost = len(of.failed) > len(node.calls) - node.needed
    if is_lost and (is_hasty or not of.alive):
        return "failed"
    if of.alive:
        return "runs"
    return "stopped" if of.stopped else "done"


def stopped_nodes(known: Known) -> tuple[set[int], int, int]:
    """Return the numbers of the nodes that a stop has cancelled and that were not enqueued again, the number of stops,
    and the number of times that nodes were enqueued again after them."""
    stops = _values(STOP, known)
    again = len(_values(AGAIN, known))
    # Each entry of AGAIN says after how many stops it came, so it ends all of them.
    ends = max((int(value) for value in _values(AGAIN, known)), default=0)
    return {node for stop in stops[ends:] for node in stop}, len(stops), again


def _values(name: str, known: Known) -> list[Any]:
    """Return the values of the entries ``name-1``, ``name-2``…"""
    found: list[Any] = []
    while (entry := known(f"{name}-{len(found) + 1}")) is not None and entry.is_saved:
        found.append(json.loads(entry.value or "null"))
    return found
