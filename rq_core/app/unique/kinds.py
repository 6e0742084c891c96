"""Unique jobs: of all that have one name, one is alive.

    @app.task(queue="reports", unique=Unique(per=("tenant", "month")))
    def report(tenant: str, month: str, force: bool = False) -> None: ...

A job takes its name when it is enqueued, and keeps it until it succeeds, dies, is cancelled or expires. Retries,
rollbacks and lost workers change nothing. While it has the name, other enqueues of the name get its handle.
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
    """At most one job of each name is alive: per task and, with ``per``, per value of these arguments, or per what a
    function makes of them; without it, per value of all arguments. Arguments that are left out count as their defaults.

    ``on_duplicate`` says what an enqueue does while another job holds the name. ``keep``: that job stays, and the
    enqueue returns its handle, with ``duplicate`` true. ``replace``: the other job leaves, if it waits and was never
    claimed, and this one is in its place; a job that runs, or that waits for a retry, is kept. ``reject``: the enqueue
    raises UniqueHeld.

    A function gets the arguments by name. The values of ``per`` are part of the name, in plain text: in Redis, and in
    the audit log. Without ``per``, only a digest of all arguments is. Raises InvalidOption.
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
        """See Named.ties."""
        return {"unique": self.on_duplicate}


AT_MOST: Final = 10
"""A Debounce without ``at_most`` puts a job off for up to this multiple of its seconds."""


@dataclass(frozen=True)
class Throttle(Named):
    """The first of all calls of one name is accepted, and then no other for ``seconds`` (a number, or a timedelta).

    The window begins when Redis accepts the first call, by Redis' clock. Later calls in it return the handle of that
    call's job, with ``duplicate`` true, also when the job has ended. ``per`` is as Unique's. Raises InvalidOption.
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
        """See Named.ties."""
        return {"unique": "keep", "window_ms": self.window_ms}


@dataclass(frozen=True)
class Debounce(Named):
    """The last of all calls of one name runs, ``seconds`` (a number, or a timedelta) after it; and ``at_most`` seconds
    after the first, if calls go on until then: ten times ``seconds`` unless given.

    Each call enqueues a job in the place of the one that waits, which is gone: ``replaced`` of the new handle is its
    id. A job that a worker has claimed is not replaced: its name is free from its first claim on, and the next call
    is a first one again. ``per`` is as Unique's. Raises InvalidOption.
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
        """See Named.ties."""
        return {"unique": "replace", "after_ms": self.after_ms, "most_ms": self.most_ms}


@dataclass(frozen=True)
class Latest(Named):
    """At most one job of each name runs and one waits, with the arguments of the last call: ``Debounce(0)``, with a
    ``Cap(1)`` for the same ``per``.

    ``per`` is the name of an argument, or a function that gets the arguments by name. The task needs no such cap of its
    own. A job that failed is retried with its own arguments, even after a newer one has run: a handler that must not go
    back reads the present state. Raises InvalidOption.
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
        """See Named.ties."""
        return {"unique": "replace", "after_ms": 0, "most_ms": 0}

    @property
    def caps(self) -> tuple[Cap, ...]:
        """The cap that it brings."""
        return (Cap(1, per=self.per),)
