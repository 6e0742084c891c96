"""Reads the nodes of a flow (a graph of calls), and makes their part of the document of a job's page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

from rq_core.app.flows.graph import FLOW_TASK
from rq_core.app.flows.node_states import FlowChild, SeenFlow, SeenNode, graph_in, seen_flow
from rq_core.app.flows.sweep import Word
from rq_core.errors import QueueDamaged, ServerUnsuitable
from rq_core.model.state_line import JobState
from rq_core.model.table.machine import State
from rq_core.protocol.reads.result_reads import PAGE
from rq_core.web.graph.layout import NODES_MAX, Drawing, Point, drawing_of, drawn_lines
from rq_core.web.words import job_path, word

if TYPE_CHECKING:
    from rq_core.protocol.engine.plan import Plan
    from rq_core.protocol.operations import Operations

POLLS_MAX: Final = 4
"""Maximum number of polls for the ends of a flow's children. A poll reads the ends of 250 children of one queue."""
ROWS_MAX: Final = 100
"""Maximum number of rows in the table of nodes, for a flow that is too large to be drawn."""
LINKS_MAX: Final = 3
"""Maximum number of links in a row to failed children, and of links to children that are alive."""
NAMED_MAX: Final = 10
"""Maximum number of nodes that one list in a row names."""
NAME_MAX: Final = 25
"""Maximum number of characters of a node's name in the drawing."""
STATES: Final[tuple[Word, ...]] = get_args(Word)
MARKS: Final[Mapping[Word, str]] = {
    "waits": "·", "ready": "○", "runs": "●", "stopped": "⊘", "done": "✓", "failed": "✕", "skipped": "⊘",
}  # fmt: skip
"""The sign for each state of a node, in the drawing and in tables."""
_HOLD_UP: Final = frozenset(
    {
        "RqCoreNoWorker", "RqCoreQueuePaused", "RqCoreTaskUnknown", "RqCoreNoClaims", "RqCoreJobsWait",
        "RqCoreScopeFull", "RqCoreScopePaused",
    }
)  # fmt: skip
"""The alerts about causes that keep the jobs of a queue from running."""
_FIRST: Final[tuple[Word, ...]] = ("failed", "stopped", "runs", "ready")
"""The states of the nodes that a page shows if it cannot show all nodes, in the order of the rows."""

Document = dict[str, Any]


class FlowFound(NamedTuple):
    """A flow that was read from Redis."""

    seen: SeenFlow | None
    """The nodes; None if they cannot be read."""
    states: Mapping[FlowChild, str] = {}
    """Child (queue and job id) → state, for children that are alive. Some may be missing."""
    why: str = ""
    """Why the nodes cannot be read; empty if they were read."""


# What the page reads.


def flow_of(calls: Operations, job: JobState) -> Plan[FlowFound | None]:
    """Read the nodes of a flow. The plan returns None for a job that is not a flow. It sends at most about 25 commands.

    ``job``: the job that runs the flow.
    """
    if job.fields.get("task") != FLOW_TASK:
        return None
    try:
        graph = graph_in(job.spec)
    except ValueError:
        return FlowFound(None, why="its arguments are no graph of a flow")
    try:
        seen = yield from seen_flow(calls, job, graph, POLLS_MAX)
        states = yield from _states(calls, seen)
    except (QueueDamaged, ServerUnsuitable) as error:
        return FlowFound(None, why=str(error))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        # Its entries are not those that rq-core writes.
        return FlowFound(None, why=f"its steps are unreadable ({type(error).__name__})")
    if seen.is_lost:
        return FlowFound(None, why="Redis has lost what the flow had saved")
    return FlowFound(seen, states)


def _states(calls: Operations, seen: SeenFlow) -> Plan[dict[FlowChild, str]]:
    """Return child → state, for the nodes' children that are alive. At most POLLS_MAX pages of children are read."""
    by_queue: dict[str, list[str]] = {}
    for each in seen.nodes:
        for queue, job_id in each.alive:
            by_queue.setdefault(queue, []).append(job_id)
    pages = (
        (queue, ids[at : at + PAGE])
        for queue, ids in by_queue.items()
        for at in range(0, len(ids), PAGE)
    )
    found: dict[FlowChild, str] = {}
    for queue, ids in islice(pages, POLLS_MAX):
        lines = yield from calls.reads.lines(queue, ids)
        for job_id, line in lines.items():
            # A job that was never claimed and has no lane has no line.
            found[FlowChild(queue, job_id)] = line.partition(" ")[0] or State.READY
    return found


# What the document has.


def flow_document(found: FlowFound | None, job: JobState, causes: Iterable[Any]) -> Document | None:
    """Return the part of the page's document about a flow; None for a job that is not a flow.

    ``causes``: the current problems of all queues.
    """
    if found is None:
        return None
    document: Document = {
        "why": word(found.why, 500), "nodes": 0, "counts": {}, "rows": [], "left_out": 0, "is_drawn": False,
        "unread": 0, "named": [], "named_state": "", "named_left_out": 0, "causes": [],
    }  # fmt: skip
    if found.seen is None:
        return document
    nodes = found.seen.nodes
    states = Counter(each.state.state for each in nodes)
    names = [each.node.name for each in nodes]
    document["nodes"] = len(nodes)
    document["unread"] = found.seen.unread
    document["counts"] = {state: states[state] for state in STATES if states[state]}
    shown = list(nodes)
    if len(nodes) > NODES_MAX:
        chosen = [each for state in _FIRST for each in nodes if each.state.state == state]
        shown = chosen[:ROWS_MAX]
    lines = drawn_lines(tuple(each.node.after for each in nodes))
    document["is_drawn"] = lines is not None
    document["rows"] = [
        _row(each, names, found.states, None if lines is None else lines[number])
        for number, each in enumerate(shown)
    ]
    document["left_out"] = len(nodes) - len(shown)
    told: Word = "failed" if job.state == State.DEAD else "runs"
    named = [each for each in nodes if each.state.state == told]
    document["named_state"] = told
    document["named"] = [
        {"name": each.node.name, "says": _jobs_say(each, found.states)}
        for each in named[:NAMED_MAX]
    ]
    document["named_left_out"] = len(named) - len(document["named"])
    waits_in = {child.queue for each in nodes for child in each.alive}
    document["causes"] = [
        f"queue {each.queue}: {word(each.says, 500)}"
        for each in causes
        if each.alert in _HOLD_UP and each.queue in waits_in
    ][:NAMED_MAX]
    return document


def flow_progress(
    progress: Document | None, found: FlowFound | None, now_ms: float
) -> Document | None:
    """Return the progress to show for a job. For a flow, the numbers are those of its children at ``now_ms`` (Unix ms),
    when they were read, because a parked flow does not report its progress."""
    if progress is None or found is None or found.seen is None:
        return progress
    done, of = found.seen.done, found.seen.of
    if found.seen.unread:
        done = max(done, min(progress["done"], of))
    share = done / of if of else None
    return progress | {"done": done, "total": of, "share": share, "at_ms": round(now_ms)}


def _row(
    each: SeenNode,
    names: Sequence[str],
    states: Mapping[FlowChild, str],
    lines: Sequence[int] | None,
) -> Document:
    """Return the table row of a node.

    ``names``: the names of all nodes. ``states``: child → state. ``lines``: the nodes from which the drawing has a line
    to this node; None if the graph is not drawn. If the node waits for many nodes, the field ``after`` lists only some
    of them.
    """
    name, children = each.node.name, [*each.failed[:1], *each.alive[:1]]
    after = tuple(dict.fromkeys(each.node.after))
    told = after
    if len(after) > NAMED_MAX:
        told = after[:NAMED_MAX] if lines is None else tuple(lines)
    child = next(iter(children), each.first)
    return {
        "name": name,
        **each.state._asdict(),
        "is_map": each.node.is_map,
        "after": [names[number] for number in told],
        "after_left_out": len(after) - len(told),
        "says": _jobs_say(each, states),
        "living": _living(each, states),
        "path": "" if child is None else job_path(*child),
        "failed_children": [_link(child, "failed") for child in each.failed[:LINKS_MAX]],
        "living_children": [
            _link(child, states.get(child, "alive")) for child in each.alive[:LINKS_MAX]
        ],
    }


def _link(child: FlowChild, state: str) -> Document:
    return {
        "queue": child.queue,
        "id": child.id,
        "state": word(state, 40),
        "path": job_path(*child),
    }


def _living(each: SeenNode, states: Mapping[FlowChild, str]) -> str:
    """Return the states of a node's live jobs, as text."""
    alive = Counter(states[child] for child in each.alive if child in states)
    if not each.node.is_map:
        return "".join(f"job {word(state, 40)}" for state in alive)
    return ", ".join(f"{count:,} {word(state, 40)}" for state, count in alive.items())


def _jobs_say(each: SeenNode, states: Mapping[FlowChild, str]) -> str:
    """Return a text about the jobs of a node: how many jobs of a map have succeeded and failed, and the states of the
    live jobs."""
    living = _living(each, states)
    if not each.node.is_map:
        return living
    _, done, failed, of = each.state
    says = [f"{done:,} of {of:,} done", f"{failed:,} failed" if failed else "", living]
    return ", ".join(filter(None, says))


# What the page draws.


class DrawnNode(NamedTuple):
    """A node with everything that the drawing shows of it."""

    at: Point
    row: Document
    mark: str
    name: str
    """The node's name, with the middle of a long name left out."""
    brief: str
    """A short text below the name: how many jobs of a map have succeeded and failed, or the state of a single job that
    is alive."""
    label: str
    """A sentence about the node, for people who cannot see the drawing."""
    done: int
    """The percentage of the node's jobs that have succeeded."""
    failed: int


class Drawn(NamedTuple):
    """The graph of a flow, ready to be drawn as SVG."""

    size: Drawing
    nodes: list[DrawnNode]
    lines: list[str]
    """The SVG path of each line."""


def drawn(flow: Mapping[str, Any]) -> Drawn | None:
    """Return the drawing of a flow, from its part of the page's document; None if it has too many nodes or lines."""
    rows: Sequence[Document] = flow["rows"]
    numbers = {row["name"]: number for number, row in enumerate(rows)}
    if not flow["is_drawn"]:
        return None
    drawing = drawing_of(tuple(tuple(numbers[each] for each in row["after"]) for row in rows))
    if drawing is None:
        return None
    nodes = [_drawn(at, row) for at, row in zip(drawing.nodes, rows, strict=True)]
    return Drawn(drawing, nodes, list(map(_path, drawing.lines)))


def _drawn(at: Point, row: Document) -> DrawnNode:
    name, of = row["name"], row["of"] or 1
    brief, more = row["says"], ""
    if row["is_map"]:
        lost = f", {row['failed']} failed" if row["failed"] else ""
        brief, more = f"{row['done']}/{row['of']}{lost}", row["living"]
    # What is drawn comes first: programs that read pages aloud, and those who speak to them, have the same words.
    label = f"{name}: " + ", ".join(filter(None, (row["state"], brief, more)))
    if row["after"]:
        some = ", ".join(row["after"][:NAMED_MAX])
        left_out = len(row["after"][NAMED_MAX:]) + row["after_left_out"]
        label += f"; after {some}" + (f" and {left_out:,} more" if left_out > 0 else "")
    if len(name) > NAME_MAX:
        half = NAME_MAX // 2
        name = f"{name[:half]}…{name[-half:]}"
    done, failed = 100 * row["done"] // of, -(-100 * row["failed"] // of)
    return DrawnNode(at, row, MARKS[row["state"]], name, brief, label, done, failed)


def _path(points: Sequence[Point]) -> str:
    """Return a line as the data of an SVG path that ends in an arrow."""
    (x, y), *others = points
    found = f"M{x} {y}"
    for number, point in enumerate(others):
        if number % 2:
            found += f"H{point.x}"
        else:
            middle = (x + point.x) // 2
            found += f"C{middle} {y} {middle} {point.y} {point.x} {point.y}"
        x, y = point
    return f"{found}m-6-4 6 4-6 4"
