"""Makes the children of a node from its calls. A call has the name of a task, and arguments into which the results of
other nodes were put."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from rq_core.app.durable.items import JobCall
from rq_core.app.flows.graph import FlowCall
from rq_core.app.limits.lane_assignment import Placing, registered_placing
from rq_core.app.untyped_enqueue import Draft
from rq_core.errors import ArgumentsInvalid, InvalidOption, RqCoreError
from rq_core.model.headers import headers_json
from rq_core.model.job import NewJob

if TYPE_CHECKING:
    from rq_core.app.producer import Producer
    from rq_core.app.task import Task


class _Given(NamedTuple):
    """The options of a call that :func:`rq_core.app.durable.items.child_of` reads."""

    headers_json: str
    keep_ms: int


class NamedTask:
    """A task that is known by its name, with the arguments and options for one child of a flow. The worker that runs
    the flow need not have the task's code."""

    def __init__(
        self,
        app: Producer,
        known: Task[..., Any] | None,
        call: FlowCall,
        args: Mapping[str, Any],
        placing: Placing | None,
    ) -> None:
        """``known`` is the task; None if this worker lacks the task's code. In this case, ``placing`` chooses the
        child's lane, its waiting line in the queue."""
        self.app = app
        self.name = call.task
        self._known = known
        self._call = call
        self._args = args
        self._placing = placing
        headers = headers_json(call.options.get("headers", {}))
        keep_ms = round(call.options.get("keep_result", 0) * 1000)
        self.options = _Given(headers, keep_ms)
        self._own: dict[str, Any] = {}

    def with_options(self, **options: Any) -> NamedTask:
        """Return a copy of this object with these options for the child. An option replaces the call's option of the
        same name."""
        made = NamedTask(self.app, self._known, self._call, self._args, self._placing)
        made._own = options
        return made

    def job(self) -> NewJob:
        """Return the child as a job to enqueue. Raises a UsageError if the child's arguments or options do not fit the
        task."""
        args: Mapping[str, Any] = self._args
        options: Any = {**_options(self._call.options), **self._own}
        try:
            if self._known is not None:
                # From JSON, as the worker of the child reads them: bytes are base64 there, and a list may be a tuple.
                args = self._known.arguments.load(json.dumps(args))
            draft = Draft(self.app, self._known, self._call.queue, self.name, args, options)
        except RqCoreError:
            raise
        except Exception as error:  # noqa: BLE001 - of validators, which are the user's code
            problem = f"a validator raised {type(error).__name__}: {error}"
            fields = {"arguments": problem}
            raise ArgumentsInvalid(task=self.name, problems=problem, fields=fields) from None
        if draft.placing is None:
            draft.placing = self._placing
        job = draft.job(self._call.keys or None)
        if job.name:
            why = "of the worker is unique now, and a node must not give way to another job"
            raise InvalidOption.of("task", self.name, why)
        return job


def _options(said: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the options of a call from the graph's JSON to the options of an enqueue."""
    found = dict(said)
    for name, instant in (("at", "at_ms"), ("expires", "expires_ms")):
        if instant in found:
            found[name] = datetime.fromtimestamp(found.pop(instant) / 1000, UTC)
    return found


def placing_of(app: Producer, queue: str, task: str, policy: str | None) -> Placing:
    """Return the Placing for a task that the app lacks. A Placing chooses the lane (the waiting line) of each job.
    ``policy`` is the JSON with the task's options and caps that workers have registered; None if no worker has
    registered the task."""
    if policy is None:
        return app.declared.unregistered(task, queue)
    return registered_placing(task, queue, policy)


def child_call(
    app: Producer,
    known: Task[..., Any] | None,
    call: FlowCall,
    args: Mapping[str, Any],
    placing: Placing | None,
) -> JobCall[Any]:
    """Return the call of a child of a flow. ``known`` is the child's task; None if this worker lacks the task's code.
    See NamedTask."""
    task: Any = NamedTask(app, known, call, args, placing)
    return JobCall(task, (), {})
