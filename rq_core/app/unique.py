"""Unique jobs: of all that have one name, one is alive.

    @app.task(queue="reports", unique=Unique(per=("tenant", "month")))
    def report(tenant: str, month: str, force: bool = False) -> None: ...

A job takes its name when it is enqueued, and keeps it until it succeeds, dies, is cancelled or expires. Retries,
rollbacks and lost workers change nothing. While it has the name, other enqueues of the name get its handle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from rq_core.errors import InvalidOption, InvalidTask
from rq_core.model.names import digest_of, unique_name

if TYPE_CHECKING:
    from rq_core.app.arguments import Arguments

OnDuplicate = Literal["keep", "replace", "reject"]

_WAYS: Final = ("keep", "replace", "reject")


@dataclass(frozen=True)
class Unique:
    """At most one job of each name is alive: per task and, with ``per``, per value of these arguments; without it, per
    value of all arguments. Arguments that are left out count as their defaults.

    ``on_duplicate`` says what an enqueue does while another job holds the name. ``keep``: that job stands, and the
    enqueue returns its handle, with ``duplicate`` true. ``replace``: the other job leaves, if it waits and was never
    claimed, and this one is in its place; a job that runs, or that waits for a retry, is kept. ``reject``: the enqueue
    raises UniqueHeld.

    The values of ``per`` stand in the name, in plain text: in Redis, and in the audit log. Of all arguments only a
    digest does. Raises InvalidOption.
    """

    per: str | tuple[str, ...] | None = None
    on_duplicate: OnDuplicate = "keep"

    def __post_init__(self) -> None:
        given: object = self.per
        names = (given,) if isinstance(given, str) else given
        if names is not None and not (
            isinstance(names, tuple) and names and all(isinstance(name, str) for name in names)
        ):
            raise InvalidOption(
                option="per",
                value=given,
                must="must be the name of an argument, or a tuple of names",
            )
        if self.on_duplicate not in _WAYS:
            raise InvalidOption(
                option="on_duplicate",
                value=self.on_duplicate,
                must=f"must be one of {', '.join(_WAYS)}",
            )

    @property
    def arguments(self) -> tuple[str, ...] | None:
        """The arguments that it is per; None: all."""
        return (self.per,) if isinstance(self.per, str) else self.per

    def check(self, task: str, arguments: Arguments, *, rules: bool) -> None:
        """Raise InvalidTask if a task cannot be unique so. ``rules``: enqueue looks at how full its caps are."""
        for name in self.arguments or ():
            if name not in arguments.names:
                has = ", ".join(arguments.names) or "none"
                raise InvalidTask(
                    task=task,
                    why=f"it is unique per={name!r}, and it has no such argument: it has {has}",
                )
        if self.on_duplicate == "replace" and rules:
            raise InvalidTask(
                task=task,
                why="its Unique says replace, and one of its caps discard, reject or max_waiting: the job that is"
                " replaced would be lost if its cap then kept the new one out. Let the caps wait, or say keep",
            )

    def name(self, task: str, arguments: Arguments, values: Mapping[str, Any]) -> str:
        """Return the name of a job with these validated arguments. Raises ArgumentsInvalid for one that has no JSON."""
        said = arguments.canonical(values, self.arguments)
        if self.per is None:
            digest = digest_of(json.dumps(said, sort_keys=True, separators=(",", ":")))
            return unique_name(task, None, digest=digest)
        return unique_name(task, {name: _text(value) for name, value in said.items()})


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
