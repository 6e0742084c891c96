"""Makes jobs from the name of a task. The task's code may be missing in this process, and present only in the
workers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rq_core.app.arguments import dump_untyped
from rq_core.app.limits.lane_assignment import Placing, registered_placing
from rq_core.app.options import EnqueueOptions, JobOptions
from rq_core.app.unique.naming import Registered
from rq_core.errors import KeyNeeded
from rq_core.model.limits.policy import NAME_KEY

if TYPE_CHECKING:
    from rq_core.app.producer import Producer
    from rq_core.app.task import Task
    from rq_core.model.job import NewJob
    from rq_core.model.limits.policy import Naming


class Draft:
    """A job that is being made from the name of its task.

    If the app lacks the task, the caller may first have to read the task's policy from the queue: the options and caps
    that workers have registered. See ``read``.
    """

    __slots__ = (
        "_args_json",
        "_call",
        "_given",
        "_name",
        "_options",
        "_producer",
        "_profile",
        "_task",
        "_values",
        "placing",
    )

    def __init__(
        self,
        producer: Producer,
        known: Task[..., Any] | None,
        queue: str,
        task: str,
        args: Mapping[str, Any] | None,
        options: EnqueueOptions,
    ) -> None:
        """``known`` is the task; None if the app does not have the task.

        Raises InvalidName, InvalidOption, InvalidTask or ArgumentsInvalid. Raises TypeError for an unknown option.
        """
        defaults = known.options if known else JobOptions(queue)
        self._producer = producer
        self._task = task
        self._given = options
        self._options = defaults.changed(queue=queue, **options)
        self._profile = self._options.profile(task)
        self._name = ""
        # Without the task's code, its defaults and types are unknown: such calls are not compared.
        self._call = "=" if self._options.remember_ms else ""
        self._values: Mapping[str, Any] | None = None
        """The validated arguments; None if this process lacks the task's code."""
        self.placing: Placing | None
        """The Placing of the job's task, which chooses the job's lane (its waiting line). None if the caller must first
        read the task's policy from the queue (see read)."""
        given = {} if args is None else args
        if known is None:
            self._args_json = dump_untyped(task, given)
            self.placing = producer.connections.policies.get(queue, task)
        else:
            producer.declared.check_queue(task, queue)
            self._values = known.arguments.validate_named(given)
            self.placing = producer.declared.placing(task, queue)
            self._args_json = known.arguments.dump_valid(self._values)
            if self._call:
                self._call = self._options.call_of(known.name, known.arguments, self._values)
            if self._options.unique is not None:
                self._name = self._options.unique.name(known.name, known.arguments, self._values)

    def read(self, policy: str | None) -> None:
        """Set ``placing``, which chooses the job's lane (its waiting line), from ``policy``: the JSON of the options
        and caps that workers have registered for the task.

        With None, no worker has registered the task.
        """
        queue = self._options.queue
        self.placing = self._producer.connections.policies.put(
            self._producer.declared.unregistered(self._task, queue)
            if policy is None
            else registered_placing(self._task, queue, policy)
        )

    def job(self, keys: Mapping[str, str] | None) -> NewJob:
        """Return the finished job, with the lane (the waiting line) for it. Raises InvalidOption, KeyNeeded or
        PayloadTooLarge."""
        placing = self.placing
        assert placing is not None, "the queue's policy was not read"
        if self._values is None and placing.options:
            registered = JobOptions(self._options.queue, **placing.options)
            self._options = registered.changed(**self._given)
            self._profile = self._options.profile(self._task)
        options = self._options
        placing.check_delay(options.delay_ms, options.due_ms)
        if self._values is None and placing.naming is not None:
            keys = dict(keys or {})
            options = self._named(placing.naming, keys.pop(NAME_KEY, None))
        lane, cost = ("", ""), ""
        if placing.sources or keys:
            values = self._values
            if values is None:
                values = json.loads(self._args_json) if placing.sources else {}
            lane = placing.lane(self._profile.rank, values, keys)
            cost = placing.costs(lane[0], values, keys)
        return self._producer.new_job(
            self._profile, options, self._args_json, *lane, self._name, self._call, cost
        )

    def _named(self, naming: Naming, key: str | None) -> JobOptions:
        """Set the job's unique name by the rule ``naming``, which workers registered. Return the options together with
        this rule.

        Raises InvalidOption. Raises KeyNeeded if a function computes the name's value, and the caller passed no
        ``key``.
        """
        given = self._options
        if naming.function and key is None:
            raise KeyNeeded(task=self._task, queue=given.queue, family=NAME_KEY)
        self._name = naming.name(self._task, json.loads(self._args_json), key)
        named = replace(given, unique=Registered(naming.ties))
        named.check_due()
        return named
