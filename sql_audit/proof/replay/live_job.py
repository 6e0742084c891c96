"""A job that is alive, as its events leave it."""

from __future__ import annotations

from typing import Final

from rq_core.model.table.fields import TRAITS
from rq_core.model.unique_names import HELD_TO_THE_END

_TRAITS: Final = tuple(str(field.line) for field in TRAITS if field.name != "name_stands")


class Record:
    """A live job. ``state`` and a counter have the value None until an event has said them.

    It has each trait under its name in a state line; None: the job does not have it, or its beginning was not seen.
    """

    __slots__ = (
        "claims", "due", "failures", "fence", "held", "lane", "losses", "max_attempts", "max_losses", "priority",
        "stands", "state", "task", "unknown", "worker", *_TRAITS,
    )  # fmt: skip

    expires: int | None
    """Its deadline (Unix ms)."""
    unique: str | None
    """The name of a unique job, whether it holds it or not."""
    once: int | None
    """The time up to which its id is remembered (Unix ms)."""
    keep: int | None
    """The time for which its result is kept (ms)."""

    def __init__(self, task: str | None = None, state: str | None = None) -> None:
        self.task = task
        self.state = state
        self.lane: str | None = None
        self.priority: str | None = None
        """None: its beginning was not seen, and so neither its lane nor its traits."""
        self.due: int | None = None
        """The time at which it becomes ready (Unix ms), if it is scheduled."""
        for trait in _TRAITS:
            setattr(self, trait, None)
        self.stands = HELD_TO_THE_END
        self.claims: int | None = None
        self.failures: int | None = None
        self.losses: int | None = None
        self.unknown: int | None = None
        """The number of times that it was given back since a worker did not know its task."""
        self.max_attempts: int | None = None
        self.max_losses: int | None = None
        self.fence: str | None = None
        self.worker: str | None = None
        """The worker that has its claim in force."""
        self.held: tuple[str, ...] | None = None
        """The scopes that its claim in force holds; None: no claim is in force."""
