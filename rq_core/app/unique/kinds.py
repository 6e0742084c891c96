"""Unique, Throttle, Debounce and Latest: rules for several calls with the same unique name.

    @app.task(queue="reports", unique=Unique(per=("tenant", "month")))
    def report(tenant: str, month: str, force: bool = False) -> None: ...

A job with Unique takes its name when it is enqueued. It holds the name until it succeeds, dies, is cancelled, expires
or is replaced. Retries, rollbacks and lost workers do not free the name. While the job holds the name, other enqueues
with the same name return the handle of that job, unless ``on_duplicate`` is "replace" or "reject".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal

from rq_core.app.limits.caps import Cap
from rq_core.app.unique.naming import Named, Per, check_per, window_ms
from rq_core.errors import InvalidOption

OnDuplicate = Literal["keep", "replace", "reject"]

_WAYS: Final = ("keep", "replace", "reject")


@dataclass(frozen=True)
class Unique(Named):
    """The rule that at most one job of each unique name is alive. The name consists of the task and the values of
    ``per``.

    ``per`` names arguments, or is a function that takes the arguments by name and returns a value. Without ``per``, the
    name has a digest of all arguments. If a call leaves an argument out, its default counts. Redis and the audit log
    store the name, with the values of ``per`` as plain text.

    ``on_duplicate`` says what an enqueue does while another job holds the name:

    - ``keep``: the enqueue adds no job, and returns the handle of the other job, with ``duplicate`` true.
    - ``replace``: if the other job waits and was never claimed, the new job replaces it. Otherwise, the other job is
      kept, as with ``keep``.
    - ``reject``: the enqueue raises UniqueHeld.

    Raises InvalidOption.
    """

    per: Per = None
    on_duplicate: OnDuplicate = "keep"

    def __post_init__(self) -> None:
        check_per(self.per)
        if self.on_duplicate not in _WAYS:
            raise InvalidOption.of(
                "on_duplicate", self.on_duplicate, f"must be one of {', '.join(_WAYS)}"
            )

    @property
    def ties(self) -> dict[str, Any]:
        """The rule as it is stored with a job: keyword arguments for :func:`rq_core.model.job.ties_of`."""
        return {"unique": self.on_duplicate}


AT_MOST: Final = 10
"""The default of ``at_most``, the longest delay of a Debounce, as a multiple of its ``seconds``."""


@dataclass(frozen=True)
class Throttle(Named):
    """The rule that after a call, further calls with the same unique name enqueue no job for ``seconds`` (a number, or
    a timedelta).

    The time begins when Redis accepts the first call, by Redis' clock. Later calls in this time return the handle of
    the first call's job, with ``duplicate`` true, even if that job has ended. ``per`` has the same meaning as for
    Unique. Raises InvalidOption.
    """

    seconds: float | timedelta
    _: KW_ONLY
    per: Per = None
    window_ms: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_per(self.per)
        object.__setattr__(self, "window_ms", window_ms("seconds", self.seconds))

    @property
    def ties(self) -> dict[str, Any]:
        """The rule as it is stored with a job: keyword arguments for :func:`rq_core.model.job.ties_of`."""
        return {"unique": "keep", "window_ms": self.window_ms}


@dataclass(frozen=True)
class Debounce(Named):
    """The rule that, of a series of calls with the same unique name, only the last call runs. Its job becomes ready
    ``seconds`` (a number, or a timedelta) after this call.

    If calls keep coming, a call runs at the latest ``at_most`` seconds after the first call of the series. The default
    of ``at_most`` is ten times ``seconds``. Each call enqueues a job that replaces the waiting job of the name;
    ``replaced`` of the new handle is the id of the replaced job. The first claim of a job frees the name: the job is
    then no longer replaced, and the next call begins a new series. ``per`` has the same meaning as for Unique. Raises
    InvalidOption.
    """

    seconds: float | timedelta
    _: KW_ONLY
    per: Per = None
    at_most: float | timedelta | None = None
    after_ms: int = field(init=False, repr=False, compare=False)
    most_ms: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_per(self.per)
        after_ms = window_ms("seconds", self.seconds, minimum=0)
        most_ms = AT_MOST * after_ms
        if self.at_most is not None:
            most_ms = window_ms("at_most", self.at_most, minimum=0)
        if most_ms < after_ms:
            must = "must be as long as its seconds, or longer"
            raise InvalidOption.of("at_most", self.at_most, must)
        object.__setattr__(self, "after_ms", after_ms)
        object.__setattr__(self, "most_ms", most_ms)

    @property
    def ties(self) -> dict[str, Any]:
        """The rule as it is stored with a job: keyword arguments for :func:`rq_core.model.job.ties_of`."""
        return {"unique": "replace", "after_ms": self.after_ms, "most_ms": self.most_ms}


@dataclass(frozen=True)
class Latest(Named):
    """The rule that for each unique name at most one job runs and at most one job waits.

    The waiting job has the arguments of the last call. Latest equals a ``Debounce(0)`` together with a ``Cap(1)`` for
    the same ``per``; the task need not declare this cap. ``per`` is the name of an argument, or a function that takes
    the arguments by name.

    A job that failed is retried with its own, older arguments, even after a newer job has run. To keep the newer job's
    work, the handler should read the present state first. Raises InvalidOption.
    """

    _: KW_ONLY
    per: str | Callable[..., Any]

    def __post_init__(self) -> None:
        given: object = self.per
        if not isinstance(given, str) and not callable(given):
            must = "must be the name of an argument, or a function of the arguments"
            raise InvalidOption.of("per", self.per, must)
        check_per(self.per)
        if self.function is not None and not self.has_named_function:
            must = "must be a function with a name: write it with def"
            raise InvalidOption.of("per", self.per, must)

    @property
    def ties(self) -> dict[str, Any]:
        """The rule as it is stored with a job: keyword arguments for :func:`rq_core.model.job.ties_of`."""
        return {"unique": "replace", "after_ms": 0, "most_ms": 0}

    @property
    def caps(self) -> tuple[Cap, ...]:
        """The cap that Latest adds to its task: at most one claimed job for each value of ``per``."""
        return (Cap(1, per=self.per),)
