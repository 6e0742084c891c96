"""The graph of a flow, and its form as the arguments of the flow's job. No I/O.

A node has one call, or the calls of a map. A call has a list of *fills*. Each fill is a place in the call's arguments,
with the node whose result belongs there. Since a fill is no part of the arguments, no argument can be mistaken for a
fill.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from rq_core.model.durable.boxes import reserved_prefix
from rq_core.model.durable.children import CHILDREN_MAX
from rq_core.model.keys import is_name
from rq_core.model.lib.cached_property import cached_property

FLOW_TASK: Final = "rq_core.flow"
"""The name of the task whose jobs are flows."""
NODES_MAX: Final = 1_000
"""Maximum number of nodes of a flow."""
CALLS_MAX: Final = CHILDREN_MAX
"""Maximum number of calls of a flow, including the calls of its maps. Each call takes one of the limited number of
records that Redis saves for the flow's job."""
BYTES_MAX: Final = 1024 * 1024
"""Maximum number of bytes of a graph as JSON. Also the maximum for the arguments of a call after the results of other
nodes were put into them."""
DRAIN: Final = "drain"
CANCEL: Final = "cancel"
ON_FAILURE: Final = (DRAIN, CANCEL)

_NODE: Final = re.compile(r"[A-Za-z0-9_.:-]{1,50}")
_NUMBER: Final = (int, float)
_BELOW: Final = 10**14
"""Upper limit of numbers in a call's options (seconds, or Unix ms). Python cannot make a datetime from much larger
numbers."""
_OPTIONS: Final[Mapping[str, tuple[type, ...]]] = {
    "priority": (str,), "max_attempts": (int,), "max_losses": (int,), "timeout": _NUMBER, "delay": _NUMBER,
    "at_ms": (int,), "expires": _NUMBER, "expires_ms": (int,), "headers": (dict,), "keep_result": _NUMBER,
    "audit_result": (str,),
}  # fmt: skip
"""The options that a call may have, each with the types that its value may have."""


class Fill(NamedTuple):
    """A place in the arguments of a call, and the node whose result belongs there."""

    path: tuple[str | int, ...]
    """The path to the place: an argument's name, then keys of dicts and positions in lists."""
    node: int
    """Number of the node, from 0."""


@dataclass(frozen=True)
class FlowCall:
    """One call of a node. It becomes a child of the flow's job."""

    task: str
    queue: str
    args: dict[str, Any]
    """The arguments in JSON's types, with None in the place of each fill."""
    fills: tuple[Fill, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of the child, as ``options_of`` makes them."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """The job's keys, by the name of the cap. The flow's worker needs them if it lacks the function that computes a
    key."""


@dataclass(frozen=True)
class GraphNode:
    """A node: one call, or the calls of a map."""

    name: str
    after: tuple[int, ...]
    """Numbers of the nodes that must succeed before this one begins. All are lower than this node's number."""
    calls: tuple[FlowCall, ...]
    is_map: bool = False
    needed: int = 1
    """Number of calls that must succeed."""


@dataclass(frozen=True)
class Graph:
    """The graph of a flow. The result of the last node is the result of the flow."""

    name: str
    on_failure: str
    nodes: tuple[GraphNode, ...]

    @cached_property
    def jobs(self) -> int:
        """Number of calls of all nodes."""
        return sum(len(node.calls) for node in self.nodes)

    @cached_property
    def followers(self) -> Sequence[Sequence[int]]:
        """The numbers of the nodes that wait directly for a node, by the position of this node in ``nodes``."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for number, node in enumerate(self.nodes):
            for before in set(node.after):
                found[before].append(number)
        return found


def is_node_name(name: object) -> bool:
    """Return whether a node may have this name."""
    return (
        isinstance(name, str)
        and _NODE.fullmatch(name) is not None
        and reserved_prefix(name) is None
    )


def graph_document(graph: Graph) -> dict[str, Any]:
    """Return the graph as JSON. Calls with the same task, queue, options and keys share one object under ``kinds``."""
    shared: dict[str, int] = {}
    kinds: list[Any] = []
    nodes = []
    for node in graph.nodes:
        calls = []
        for call in node.calls:
            kind: dict[str, Any] = {"task": call.task, "queue": call.queue}
            kind |= {"options": dict(call.options)} if call.options else {}
            kind |= {"keys": dict(call.keys)} if call.keys else {}
            text = json.dumps(kind, sort_keys=True)
            if text not in shared:
                shared[text] = len(kinds)
                kinds.append(kind)
            made: dict[str, Any] = {"kind": shared[text], "args": call.args}
            if call.fills:
                made["fills"] = [[list(fill.path), fill.node] for fill in call.fills]
            calls.append(made)
        said: dict[str, Any] = {"name": node.name, "calls": calls}
        if node.after:
            said["after"] = list(node.after)
        if node.is_map:
            said["needed"] = node.needed
        nodes.append(said)
    return {"name": graph.name, "on_failure": graph.on_failure, "kinds": kinds, "nodes": nodes}


def size_of(document: Mapping[str, Any]) -> int:
    """Return the number of bytes of a document as JSON."""
    return len(json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode())


def read_graph(document: object) -> Graph:
    """Return the graph of a document. Raises ValueError if the document is not a valid graph."""
    try:
        return _read(document)
    except (KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is no graph of a flow: {type(error).__name__}: {error}") from None


def _read(document: Any) -> Graph:
    _must(document["on_failure"] in ON_FAILURE, "its on_failure is unknown")
    _must(isinstance(document["name"], str), "it has no name")
    _must(isinstance(document["nodes"], list), "it has no list of nodes")
    _must(0 < len(document["nodes"]) <= NODES_MAX, f"it has not 1 to {NODES_MAX:,} nodes")
    nodes: list[GraphNode] = []
    names: set[str] = set()
    kinds = [_read_kind(each) for each in document["kinds"]]
    for number, said in enumerate(document["nodes"]):
        name = said["name"]
        _must(is_node_name(name) and name not in names, f"node {number} has no name of its own")
        names.add(name)
        after = tuple(said.get("after", ()))
        _must(all(_is_below(each, number) for each in after), f"node {name} is after a later node")
        calls = tuple(_read_call(each, kinds, after) for each in said["calls"])
        needed = said.get("needed", 1)
        _must(type(needed) is int and 0 <= needed <= len(calls), f"node {name} needs {needed!r}")
        is_map = "needed" in said
        _must(is_map or len(calls) == 1, f"node {name} is no map, and has {len(calls)} calls")
        nodes.append(GraphNode(name, after, calls, is_map, needed))
    count = sum(len(node.calls) for node in nodes)
    _must(count <= CALLS_MAX, f"it has more than {CALLS_MAX:,} calls")
    return Graph(document["name"], document["on_failure"], tuple(nodes))


def _read_kind(kind: Any) -> FlowCall:
    """Read an object of ``kinds``: the task, queue, options and keys that several calls share. Return a call with them,
    and without arguments."""
    _must(is_name(kind["task"]) and is_name(kind["queue"]), "a call has no task or no queue")
    options = kind.get("options", {})
    for name, value in options.items():
        fits = name in _OPTIONS and isinstance(value, _OPTIONS[name]) and type(value) is not bool
        fits = fits and (not isinstance(value, _NUMBER) or abs(value) < _BELOW)
        _must(fits, f"a call has the option {name}={value!r}")
    headers, keys = options.get("headers", {}), kind.get("keys", {})
    texts = [*headers.items(), *keys.items()]
    _must(all(isinstance(each, str) for pair in texts for each in pair), "a key is no text")
    return FlowCall(kind["task"], kind["queue"], {}, (), options, keys)


def _read_call(said: Any, kinds: Sequence[FlowCall], after: tuple[int, ...]) -> FlowCall:
    _must(_is_below(said["kind"], len(kinds)), "a call has no kind")
    kind = kinds[said["kind"]]
    _must(isinstance(said["args"], dict), "a call has no arguments")
    fills = tuple(Fill(tuple(path), node) for path, node in said.get("fills", ()))
    for fill in fills:
        _must(fill.node in after and type(fill.node) is int, "a call takes what is not before it")
        place: Any = said["args"]
        for step in fill.path:
            _must(type(step) in (str, int), "a place in the arguments is unknown")
            _must(isinstance(place, dict if isinstance(step, str) else list), "a place is unknown")
            place = place[step]
        _must(bool(fill.path) and place is None, "a place in the arguments is taken")
    return FlowCall(kind.task, kind.queue, said["args"], fills, kind.options, kind.keys)


def _is_below(number: object, bound: int) -> bool:
    return type(number) is int and 0 <= number < bound


def _must(holds: bool, why: str) -> None:
    if not holds:
        raise ValueError(f"it is no graph of a flow: {why}")


def filled(call: FlowCall, results: Mapping[int, Any]) -> dict[str, Any]:
    """Return the arguments of a call, with the results of other nodes filled in. ``results`` maps a node's number to
    the node's result."""
    args: dict[str, Any] = dict(call.args)
    for fill in call.fills:
        args = _put(args, fill.path, results[fill.node])
    return args


def _put(whole: Any, path: Sequence[str | int], value: Any) -> Any:
    """Return a copy of ``whole`` with ``value`` at the place ``path``."""
    if not path:
        return value
    copy: Any = list(whole) if isinstance(whole, list) else dict(whole)
    copy[path[0]] = _put(copy[path[0]], path[1:], value)
    return copy
