"""The functions that declare flows: ``app.flow``, ``chain`` and ``group``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Self, Unpack

from rq_core.app.durable.items import JobCall, least
from rq_core.app.flows.declared_calls import options_of, taken_apart
from rq_core.app.flows.flow_run import FlowRun
from rq_core.app.flows.graph import (
    BYTES_MAX,
    CALLS_MAX,
    DRAIN,
    FLOW_TASK,
    NODES_MAX,
    ON_FAILURE,
    Fill,
    FlowCall,
    Graph,
    GraphNode,
    graph_document,
    is_node_name,
    size_of,
)
from rq_core.app.flows.placeholders import Placeholder
from rq_core.app.handlers.outgoing import outgoing_job
from rq_core.app.handles.handle import handle_of
from rq_core.app.limits.lane_assignment import key_texts
from rq_core.app.options import EnqueueOptions, spelling_out_options
from rq_core.errors import InvalidStep
from rq_core.model.keys import check_name
from rq_core.signals import InvalidFlow

if TYPE_CHECKING:
    from types import TracebackType

    from rq_core.model.job import NewJob

OnFailure = Literal["drain", "cancel"]
_AUTO_MAX: Final = 44
"""Maximum number of characters of the task's name in the default name of a node."""


class FlowNode:
    """A node of a declared flow. The calls of later nodes may have its ``value`` or ``values`` as arguments."""

    __slots__ = ("flow", "is_map", "name", "number")

    def __init__(self, flow: Flow, number: int, name: str, *, is_map: bool) -> None:
        self.flow = flow
        self.number = number
        self.name = name
        self.is_map = is_map

    def __repr__(self) -> str:
        return f"<node {self.name} of flow {self.flow.name}>"

    @property
    def value(self) -> Any:
        """The placeholder for the result of the node's job. Raises InvalidFlow for a map."""
        if self.is_map:
            raise self.flow.invalid(f"node {self.name} is a map: its results are .values, a list")
        return Placeholder(self, f"the result of node {self.name}")

    @property
    def values(self) -> Any:
        """The placeholder for a map's list of results, in the order of its calls. Calls that did not succeed have no
        result in the list. Raises InvalidFlow for a node of one job."""
        if not self.is_map:
            raise self.flow.invalid(f"node {self.name} is one job: its result is .value")
        return Placeholder(self, f"the results of node {self.name}")


class Flow:
    """A declared flow: a graph of calls. ``App.flow``, ``chain`` and ``group`` make it; ``enqueue`` enqueues it."""

    def __init__(self, app: Any, name: str, on_failure: str = DRAIN) -> None:
        self._app = app
        self.name = check_name("flow", name)
        if on_failure not in ON_FAILURE:
            raise self.invalid(f"on_failure is {on_failure!r}, and must be drain or cancel")
        self._on_failure = on_failure
        self._nodes: list[GraphNode] = []
        self._names: dict[str, int] = {}
        """The last number that was appended to a node's name to make a default name, such as 3 for ``render-3``, by the
        node's name. 1 if no number was appended."""
        self._calls = 0
        self._size = 0
        self._why_closed = ""
        """The reason why no node can be added any more; empty while nodes can be added."""
        self._part: FlowNode | None = None
        """The node that ``add_part`` added last. In the next part, the placeholder RESULT means the result of this
        node, or the list of its results."""

    def __repr__(self) -> str:
        return f"<flow {self.name}, {len(self._nodes)} nodes>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the declaration. Raises InvalidFlow if the flow has no node, or its graph is too large."""
        if error is None:
            self._why_closed = "its `with` block has ended"
            self._document()

    def invalid(self, why: str) -> InvalidFlow:
        """Return an InvalidFlow error for this flow. ``why`` is the reason."""
        return InvalidFlow(flow=self.name, why=why)

    # The declaration.

    def add(
        self,
        call: JobCall[Any],
        /,
        *,
        after: FlowNode | Iterable[FlowNode] = (),
        name: str | None = None,
        keys: Mapping[str, str] | None = None,
    ) -> FlowNode:
        """Add a node that runs one job: ``flow.add(render.call(7))``.

        - ``after``: nodes that must succeed before this node begins. A node whose placeholder is an argument of the
          call need not be listed.
        - ``name``: the node's name. The default is the name of the task; if another node has this name, a number is
          appended.
        - ``keys``: the job's keys, as for App.job. They are used if the worker that runs the flow lacks the task.

        Raises InvalidFlow or ArgumentsInvalid.
        """
        return self._add([call], after, name, keys, None)

    def add_part(self, part: JobCall[Any] | Group) -> None:
        """Add a part of a chain. In this part, the placeholder RESULT means the result of the part before. See ``add``
        for the errors."""
        after = () if self._part is None else self._part
        if isinstance(part, Group):
            self._part = self.map(part.calls, after=after, min_success=part.min_success)
        else:
            self._part = self.add(part, after=after)

    def map(
        self,
        calls: Iterable[JobCall[Any]],
        /,
        *,
        after: FlowNode | Iterable[FlowNode] = (),
        min_success: float = 1.0,
        name: str | None = None,
        keys: Mapping[str, str] | None = None,
    ) -> FlowNode:
        """Add a node that runs one job for each of these calls.

        ``min_success`` is how many of the jobs must succeed: a share (a float from 0.0 to 1.0), or a number (an int).
        See ``add`` for the other arguments. Raises InvalidFlow or ArgumentsInvalid.
        """
        return self._add(calls, after, name, keys, min_success)

    def _add(
        self,
        calls: Iterable[JobCall[Any]],
        after: FlowNode | Iterable[FlowNode],
        name: str | None,
        keys: Mapping[str, str] | None,
        min_success: Any,
    ) -> FlowNode:
        if self._why_closed:
            raise self.invalid(f"{self._why_closed}, so nothing can be added to it")
        if len(self._nodes) >= NODES_MAX:
            raise self.invalid(
                f"it would have more than {NODES_MAX:,} nodes. A node may be a map of many jobs; for more, write a"
                " durable task"
            )
        nodes = [after] if isinstance(after, FlowNode) else list(after)
        before = {self._number_of(node) for node in nodes}
        made: list[FlowCall] = []
        size = 0
        first = ""
        for each in calls:
            found = self._made(each, keys)
            first = first or found.task
            made.append(found)
            before |= {fill.node for fill in found.fills}
            size += len(json.dumps(found.args, ensure_ascii=False).encode())
            if self._calls + len(made) > CALLS_MAX:
                raise self.invalid(f"it would have more than {CALLS_MAX:,} calls")
            if self._size + size > BYTES_MAX:
                raise self._too_large()
        chosen = self._named(name, first)
        needed = 1
        if min_success is not None:
            try:
                needed = least(chosen, min_success, len(made))
            except InvalidStep as error:
                raise self.invalid(f"of node {chosen}, {error.why}") from None
        is_map = min_success is not None
        self._nodes.append(GraphNode(chosen, tuple(sorted(before)), tuple(made), is_map, needed))
        self._calls += len(made)
        self._size += size
        return FlowNode(self, len(self._nodes) - 1, chosen, is_map=is_map)

    def _named(self, name: str | None, task: str) -> str:
        """Return the name of a new node, and reserve the name."""
        if name is not None:
            if not is_node_name(name):
                raise self.invalid(
                    f"a node cannot be named {name!r}: a name is 1 to 50 of the characters A-Z a-z 0-9 _ . : -,"
                    " and does not begin with rq_core., undo: or map:"
                )
            if name in self._names:
                raise self.invalid(f"it has a node {name!r} already: give the other one a name=")
            self._names[name] = 1
            return name
        base = task[:_AUTO_MAX] or "map"
        base = base if is_node_name(base) else "node"
        found = base
        while found in self._names:
            self._names[base] += 1
            found = f"{base}-{self._names[base]}"
        self._names[found] = 1
        return found

    def _number_of(self, node: object) -> int:
        """Return the number of a node of this flow. Raises InvalidFlow for anything else."""
        if not isinstance(node, FlowNode):
            raise self.invalid(f"after={node!r} is no node: pass what add(…) or map(…) returned")
        if node.flow is not self:
            raise self.invalid(f"node {node.name} belongs to flow {node.flow.name}, another one")
        return node.number

    def _made(self, call: object, keys: Mapping[str, str] | None) -> FlowCall:
        if not isinstance(call, JobCall):
            raise self.invalid(f"{call!r} is no call of a task, as `task.call(…)` makes it")
        task = call.task
        if task.app is not self._app:
            raise self.invalid(f"task {task.name!r} belongs to another app")
        if task.options.unique is not None:
            raise self.invalid(
                f"task {task.name!r} is unique, and a node must not give way to another job"
            )
        task.returned.check()
        args, holes = taken_apart(call)
        fills = tuple(Fill(path, self._filled_by(hole)) for path, hole in holes)
        options = options_of(task.options)
        return FlowCall(
            task.name, task.options.queue, args, fills, options, dict(key_texts(keys or {}))
        )

    def _filled_by(self, hole: Placeholder) -> int:
        node = self._part if hole.node is None else hole.node
        if node is not None:
            return self._number_of(node)
        raise self.invalid(
            "RESULT is for the later parts of chain(…) and then(…): pass the .value or .values of a node"
        )

    def _document(self) -> dict[str, Any]:
        """Return the arguments of the flow's job: the flow's graph as JSON. Raises InvalidFlow."""
        if not self._nodes:
            raise self.invalid("it has no node")
        graph = Graph(self.name, self._on_failure, tuple(self._nodes))
        document = {"graph": graph_document(graph)}
        if size_of(document) > BYTES_MAX:
            raise self._too_large()
        return document

    def _too_large(self) -> InvalidFlow:
        return self.invalid(
            f"its graph is larger than {BYTES_MAX:,} bytes of JSON: store large arguments elsewhere, and pass"
            " references"
        )

    # The job.

    @spelling_out_options
    def job(self, *, queue: str | None = None, **options: Unpack[EnqueueOptions]) -> NewJob:
        """Return the job of this flow, for App.enqueue_many. Afterwards, no node can be added to the flow.

        ``queue`` is the queue of the job: a worker of this queue runs the flow. The default is the queue that
        App.enable_flows has set.

        Raises InvalidFlow, InvalidName, InvalidOption or PayloadTooLarge.
        """
        document = self._document()
        task = self._app.tasks.get(FLOW_TASK)
        if task is None:
            raise self.invalid(
                "its app has no flows: call `app.enable_flows()` in the module of the tasks, so that workers run them"
            )
        job: NewJob = task.with_options(queue=queue, **options).job(**document)
        # A node that is added later would not be in the job.
        self._why_closed = self._why_closed or "it was enqueued"
        return job

    @spelling_out_options
    def enqueue(
        self, *, queue: str | None = None, **options: Unpack[EnqueueOptions]
    ) -> FlowRun[Any]:
        """Enqueue this flow, and return its handle. See ``job`` for the arguments, and Task.enqueue for the errors.

        If the caller passes the ``id`` of a job that is alive, no flow is enqueued. The returned handle is the handle
        of the earlier job, which runs the nodes of its own graph.
        """
        job = self.job(queue=queue, **options)
        if self._app.outgoing_functions:
            job = outgoing_job(self._app.outgoing_functions, job, "enqueue")
        return FlowRun.of(handle_of(self._app, job, self._app.client.enqueue_one(job)))

    @spelling_out_options
    async def enqueue_async(
        self, *, queue: str | None = None, **options: Unpack[EnqueueOptions]
    ) -> FlowRun[Any]:
        """Enqueue this flow without blocking the event loop, and return its handle. See enqueue."""
        job = self.job(queue=queue, **options)
        if self._app.outgoing_functions:
            job = outgoing_job(self._app.outgoing_functions, job, "enqueue")
        accepted = await self._app.async_client().enqueue_one(job)
        return FlowRun.of(handle_of(self._app, job, accepted))


class Group:
    """Calls that run at the same time. The function ``group`` makes a Group. A Group may be a part of a ``chain``."""

    def __init__(self, calls: Sequence[JobCall[Any]], min_success: float) -> None:
        self.calls = calls
        self.min_success = min_success

    def then(self, *parts: JobCall[Any] | Group) -> Flow:
        """Return a flow that runs this group, and then these parts one after another. In the next part, the placeholder
        RESULT means the list of the group's results. Raises InvalidFlow or ArgumentsInvalid."""
        return _in_order("group", (self, *parts))

    @spelling_out_options
    def enqueue(
        self, *, queue: str | None = None, **options: Unpack[EnqueueOptions]
    ) -> FlowRun[Any]:
        """Enqueue this group as a flow. See Flow.enqueue."""
        return self.then().enqueue(queue=queue, **options)

    @spelling_out_options
    async def enqueue_async(
        self, *, queue: str | None = None, **options: Unpack[EnqueueOptions]
    ) -> FlowRun[Any]:
        """Enqueue this group as a flow, without blocking the event loop. See enqueue."""
        return await self.then().enqueue_async(queue=queue, **options)


def group(calls: Iterable[JobCall[Any]], /, *, min_success: float = 1.0) -> Group:
    """Return a group of calls that run at the same time: ``group(render.call(n) for n in range(50))``. ``min_success``
    is how many of the calls must succeed: a share (a float from 0.0 to 1.0), or a number (an int). Raises
    InvalidFlow."""
    found: list[JobCall[Any]] = []
    for call in calls:
        given: object = call
        if not isinstance(given, JobCall):
            why = f"{given!r} is no call of a task, as `task.call(…)` makes it: for chains side by side use app.flow"
            raise InvalidFlow(flow="group", why=why)
        found.append(call)
        if len(found) > CALLS_MAX:
            raise InvalidFlow(flow="group", why=f"it would have more than {CALLS_MAX:,} calls")
    return Group(found, min_success)


def chain(*parts: JobCall[Any] | Group) -> Flow:
    """Return a flow that runs calls one after another: ``chain(fetch.call(7), render.call(RESULT))``. In each call
    except the first, RESULT is the result of the part before. After a group, RESULT is the list of the group's results.
    Raises InvalidFlow or ArgumentsInvalid."""
    return _in_order("chain", parts)


def _in_order(name: str, parts: Sequence[JobCall[Any] | Group]) -> Flow:
    """Return a flow of parts that run one after another."""
    calls = [call for part in parts for call in (part.calls if isinstance(part, Group) else [part])]
    for call in calls:
        given: object = call
        if not isinstance(given, JobCall):
            why = f"{given!r} is no call of a task, as `task.call(…)` makes it. For other graphs use app.flow"
            raise InvalidFlow(flow=name, why=why)
    if not calls:
        what = "it" if not parts else "the group" if name == "group" else "its group"
        why = f"{what} has no call: give it one, or enqueue nothing if there is nothing to run"
        raise InvalidFlow(flow=name, why=why)
    with Flow(calls[0].task.app, name) as flow:
        for part in parts:
            flow.add_part(part)
    return flow
