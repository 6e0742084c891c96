"""Caps and rates, as a task declares them.

    @app.task(queue="mail", caps=[Cap(10), Cap(1, per="tenant"), Rate(100, per_seconds=60, per="tenant")])
    def send(tenant: str, to: str) -> None: ...

At most 10 of these jobs run at once, and at most one job of each tenant. At most 100 jobs of a tenant begin per minute.
A group of jobs that is counted together is called a scope, such as ``send.tenant=acme``. See
:mod:`rq_core.model.limits.scopes`. :mod:`rq_core.app.limits.lane_assignment` finds the scopes of a job.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal

from rq_core.errors import InvalidName, InvalidOption
from rq_core.model.keys import check_name
from rq_core.model.lib.durations import ms_of
from rq_core.model.limits.breakers import FAILURES
from rq_core.model.limits.costs import is_unit
from rq_core.model.limits.limit import Limit, check_limit
from rq_core.model.limits.scopes import RESERVED

Per = str | Callable[..., Any]
"""How a cap finds the key of a job: the name of the argument whose value is the key, or a function that takes the
arguments by name and returns the key."""
OnFull = Literal["wait", "discard", "reject"]

_POLICIES: Final = ("wait", "discard", "reject")
WINDOW_MAX: Final = timedelta(days=366)


@dataclass(frozen=True)
class Cap:
    """A limit of ``n`` claimed jobs at once. The cap counts all jobs of the task. With ``per``, it counts the jobs of
    each key separately.

    - ``per``: the name of the argument whose value is the key, or a function that takes the arguments by name and
      returns the key. The cap does not count a job without a key (None).
    - ``name``: lets several tasks of a queue share the cap.
    - ``on_full``: what happens to a job that is enqueued while its scope is full. With ``wait``, the job waits. With
      ``discard``, it is dropped, and the log has an event. With ``reject``, enqueue raises ScopeFull.
    - ``max_waiting``: the maximum number of jobs that wait in one lane, the line of jobs with the same scopes and
      priority. If this number of jobs already waits, enqueue raises ScopeFull.

    Raises InvalidOption or InvalidName.
    """

    n: int
    per: Per | None = None
    _: KW_ONLY
    name: str | None = None
    on_full: OnFull = "wait"
    max_waiting: int | None = None

    def __post_init__(self) -> None:
        check_limit("n", self.n)
        check_scope_key(self.per, self.name)
        if self.on_full not in _POLICIES:
            raise InvalidOption.of(
                "on_full", self.on_full, f"must be one of {', '.join(_POLICIES)}"
            )
        if self.max_waiting is not None:
            check_limit("max_waiting", self.max_waiting, minimum=1)
            if self.on_full != "wait":
                raise InvalidOption.of(
                    "max_waiting",
                    self.max_waiting,
                    f"needs on_full='wait': with {self.on_full!r} no job waits, so leave it out",
                )

    @property
    def limit(self) -> Limit:
        """The limit that applies to each scope (the task, or each key) of the cap."""
        return Limit(self.n)

    def family(self, task: str) -> str:
        """Return the family of the cap for a task, such as ``send.tenant``. The names of all scopes of the cap begin
        with the family: ``send.tenant=acme``.

        Raises InvalidName if the family would be too long.
        """
        return family_name(task, self.per, self.name)


@dataclass(frozen=True)
class Rate:
    """A limit of ``n`` claims per ``per_seconds`` (a number, or a timedelta), by all workers together.

    The claims are spread evenly. ``burst`` is the number of claims that may follow each other without a pause. Any
    window of ``per_seconds`` has at most n + burst - 1 claims. Give a burst to a rate above about 100 per second: the
    clock of a queue has steps of 1 ms, and without a burst a late claim makes later claims late. ``per`` and ``name``
    have the same meaning as for Cap. A claim that is rolled back still counts.

    With ``cost``, the rate counts a unit in place of claims: ``Rate(90_000, per_seconds=60, per="model", cost="tokens",
    burst=90_000)`` admits 90,000 tokens per minute. ``cost`` is the name of an argument, or a function that takes the
    arguments by name. Its value is the job's cost, a whole number of 1 or more, and its name is the unit. A job that
    costs more than ``burst`` begins when the whole burst is free. The next job then waits longer, until the rate has
    made up for the excess.

    Raises InvalidOption or InvalidName.
    """

    n: int
    _: KW_ONLY
    per_seconds: float | timedelta
    per: Per | None = None
    name: str | None = None
    burst: int = 1
    cost: Per | None = None
    window_ms: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.n == 0 and type(self.n) is int:
            raise InvalidOption.of(
                "n",
                0,
                "must be 1 or more; to stop a scope for now, set its limit to 0 with"
                " `rq-core cap QUEUE SCOPE 0`",
            )
        check_limit("n", self.n, minimum=1)
        check_limit("burst", self.burst, minimum=1)
        check_scope_key(self.per, self.name)
        _check_cost(self.cost)
        window_ms = ms_of("per_seconds", self.per_seconds, minimum=0.001)
        if window_ms > WINDOW_MAX / timedelta(milliseconds=1):
            raise InvalidOption.of("per_seconds", self.per_seconds, "must be 366 days or less")
        object.__setattr__(self, "window_ms", window_ms)

    @property
    def limit(self) -> Limit:
        """The limit that applies to each scope (the task, or each key) of the rate."""
        return Limit(self.n, self.window_ms, self.burst)

    def family(self, task: str) -> str:
        """Return the family of the rate for a task. The names of all scopes of the rate begin with the family.

        The family ends with the rate's window, and with its unit if it has one: ``send.tenant@60s`` or
        ``send.tenant@60s:tokens``. Raises InvalidName if the family would be too long.
        """
        unit = "" if self.unit is None else f":{self.unit}"
        return f"{family_name(task, self.per, self.name)}@{window_text(self.window_ms)}s{unit}"

    @property
    def unit(self) -> str | None:
        """The unit that the rate counts, such as ``tokens``: the name of the argument or the function in ``cost``. None
        if the rate counts claims."""
        return None if self.cost is None else key_name(self.cost)


def window_text(window_ms: int) -> str:
    """Return the time window of a rate in seconds, as text: ``60``, ``0.5``. The names of the rate's scopes contain
    this text: ``send.tenant@60s=acme``."""
    return f"{window_ms / 1000:.3f}".rstrip("0").rstrip(".")


def family_name(task: str, per: Per | None, name: str | None) -> str:
    """Return the family of a cap, which is the first part of the names of its scopes: ``send.tenant``. A rate's window
    is not included.

    Raises InvalidName if the family would be too long.
    """
    if name is not None:
        return name
    if per is None:
        return "task"
    return check_name("cap", f"{task}.{key_name(per)}")


def key_name(per: Per) -> str:
    """Return the name of the argument, or of the function, in ``per``."""
    return per if isinstance(per, str) else str(getattr(per, "__name__", ""))


def _check_cost(cost: Per | None) -> None:
    given: object = cost
    if given is None:
        return
    if not isinstance(given, str) and not callable(given):
        must = "must be the name of an argument, or a function of the arguments"
        raise InvalidOption.of("cost", cost, must)
    if inspect.iscoroutinefunction(given):
        raise InvalidOption.of("cost", cost, "must not be async: a job's cost is needed at once")
    if key_name(given) == FAILURES:
        must = f"must not be {FAILURES}, which is the unit of breakers"
        raise InvalidOption.of("cost", cost, must)
    if not is_unit(key_name(given)):
        must = (
            "cannot name the unit: it needs the name of an argument, or of a function that is no lambda,"
            " of at most 32 letters, digits and _"
        )
        raise InvalidOption.of("cost", cost, must)


def check_scope_key(per: Per | None, name: str | None) -> None:
    """Raise InvalidOption or InvalidName if a Cap, Rate or Breaker cannot have this ``per`` or this ``name``."""
    given: object = per
    if given is not None and not isinstance(given, str) and not callable(given):
        raise InvalidOption.of(
            "per", per, "must be the name of an argument, or a function of the arguments"
        )
    if inspect.iscoroutinefunction(per):
        raise InvalidOption.of("per", per, "must not be async: a job's key is needed at once")
    if name is not None:
        check_name("cap", name)
        if name in RESERVED:
            reserved = ", ".join(sorted(RESERVED))
            raise InvalidOption.of("name", name, f"must not be one of {reserved}")
    elif per is not None:
        try:
            check_name("cap", key_name(per))
        except InvalidName:
            raise InvalidOption.of(
                "per",
                per,
                "cannot name the cap: pass name=…, of the characters A-Z a-z 0-9 _ . : -",
            ) from None
