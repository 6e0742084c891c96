"""The options of a worker, as its caller passes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from rq_core.errors import InvalidOption
from rq_core.model.keys import check_name
from rq_core.model.lib.checks import check_whole
from rq_core.model.lib.durations import seconds_of

WEIGHT_MAX: Final = 1_000


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """The options of a worker. Times are in seconds."""

    queues: tuple[str, ...] = ()
    """The queues to serve; empty: the queues that the app declares."""
    concurrency: int = 10
    """Maximum number of handlers that run at once."""
    weights: Mapping[str, int] = field(default_factory=dict)
    """Queue → weight, which divides the worker's free places between queues that have jobs. A place lets one handler
    run. A queue with weight 3 receives three places for each place of a queue with weight 1. A queue that is not named
    has weight 1."""
    burst: bool = False
    """If true, the worker stops when no job is running or due on any of the queues, and no ready job may run now. Jobs
    that wait for a rate, or for a cap of 0, stay in their queues."""
    grace: float = 30.0
    """Seconds for which running jobs may continue after the worker was asked to stop."""
    timeout: float | None = None
    """The timeout of tasks without their own timeout; None: no timeout."""
    max_jobs: int | None = None
    """Number of claims after which the worker retires: it claims no more, lets running jobs finish, and ends. None: no
    limit."""
    max_memory: int | None = None
    """Bytes of resident memory above which the worker retires. None: no limit."""

    def __post_init__(self) -> None:
        self._check_types()
        for queue in self.queues:
            check_name("queue", queue)
        check_whole("concurrency", self.concurrency, 1, 5_000)
        for queue, weight in self.weights.items():
            if queue not in self.queues or not 1 <= weight <= WEIGHT_MAX:
                must = f"must be from 1 to {WEIGHT_MAX}, of a queue that the worker works for"
                raise InvalidOption.of(f"weight of {queue}", weight, must)
        for option in ("max_jobs", "max_memory"):
            value = getattr(self, option)
            if value is not None and value < 1:
                raise InvalidOption.of(option, value, "must be positive")
        seconds_of("grace", self.grace)
        if self.timeout is not None:
            seconds_of("timeout", self.timeout, minimum=0.001)

    def serving(self, declared: Sequence[str]) -> WorkerOptions:
        """Return these options. If they name no queues, return a copy with the queues ``declared`` by the app.

        Raises InvalidOption if neither the options nor the app name a queue.
        """
        if self.queues:
            return self
        if not declared:
            must = "must name a queue: the app declares none, with a task or with app.queue(NAME), where it is imported"
            raise InvalidOption.of("queues", "", must)
        return replace(self, queues=tuple(declared))

    def _check_types(self) -> None:
        wanted: tuple[tuple[str, type | tuple[type, ...], str], ...] = (
            ("queues", (tuple, list), "must be a list of names, like ('mail',)"),
            ("weights", Mapping, "must be a mapping of queues to weights, like {'mail': 3}"),
            ("burst", bool, "must be True or False"),
        )
        for option, kinds, must in wanted:
            value: object = getattr(self, option)
            if not isinstance(value, kinds):
                raise InvalidOption.of(option, value, must)
