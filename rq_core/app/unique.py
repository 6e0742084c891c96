"""Unique jobs: of all that have one name, one is alive.

    @app.task(queue="reports", unique=Unique(per=("tenant", "month")))
    def report(tenant: str, month: str, force: bool = False) -> None: ...

A job takes its name when it is enqueued, and keeps it until it succeeds, dies, is cancelled or expires. Retries,
rollbacks and lost workers change nothing. While it has the name, other enqueues of the name get its handle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from rq_core.app.naming import Named, Per, check_per
from rq_core.errors import InvalidOption

OnDuplicate = Literal["keep", "replace", "reject"]

_WAYS: Final = ("keep", "replace", "reject")


@dataclass(frozen=True)
class Unique(Named):
    """At most one job of each name is alive: per task and, with ``per``, per value of these arguments, or per what a
    function makes of them; without it, per value of all arguments. Arguments that are left out count as their defaults.

    ``on_duplicate`` says what an enqueue does while another job holds the name. ``keep``: that job stands, and the
    enqueue returns its handle, with ``duplicate`` true. ``replace``: the other job leaves, if it waits and was never
    claimed, and this one is in its place; a job that runs, or that waits for a retry, is kept. ``reject``: the enqueue
    raises UniqueHeld.

    A function gets the arguments by name. The values of ``per`` stand in the name, in plain text: in Redis, and in the
    audit log. Of all arguments only a digest does. Raises InvalidOption.
    """

    per: Per = None
    on_duplicate: OnDuplicate = "keep"

    def __post_init__(self) -> None:
        check_per(self.per)
        if self.on_duplicate not in _WAYS:
            raise InvalidOption(
                option="on_duplicate",
                value=self.on_duplicate,
                must=f"must be one of {', '.join(_WAYS)}",
            )

    @property
    def ties(self) -> dict[str, Any]:
        """See Named.ties."""
        return {"unique": self.on_duplicate}
