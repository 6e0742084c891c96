"""A job that is alive, as far as its events have told."""

from __future__ import annotations

from rq_core.model.names import HELD_TO_THE_END


class Record:
    """A live job. ``state`` None: not told yet. None in a counter: not told yet."""

    __slots__ = (
        "claims", "due", "expires", "failures", "fence", "held", "keep", "lane", "losses", "max_attempts", "max_losses",
        "name", "once", "priority", "stands", "state", "task", "worker",
    )  # fmt: skip

    def __init__(self, task: str | None = None, state: str | None = None) -> None:
        self.task = task
        self.state = state
        self.lane: str | None = None
        self.priority: str | None = None
        """None: its beginning was not told, and so neither its lane nor its deadline."""
        self.due: int | None = None
        """When it becomes ready (Unix ms), if it is scheduled."""
        self.name: str | None = None
        """The name of a unique job, whether it holds it or not."""
        self.stands = HELD_TO_THE_END
        self.once: int | None = None
        """Up to when its id is remembered (Unix ms); None: only while it is alive, or that was not told yet."""
        self.keep: int | None = None
        """How long its result is kept (ms); None: it is not, or that was not told yet."""
        self.claims: int | None = None
        self.expires: int | None = None
        """Its deadline (Unix ms); None: it has none, or that was not told yet."""
        self.failures: int | None = None
        self.losses: int | None = None
        self.max_attempts: int | None = None
        self.max_losses: int | None = None
        self.fence: str | None = None
        self.worker: str | None = None
        """Who holds its claim in force."""
        self.held: tuple[str, ...] | None = None
        """What its claim in force holds; None: it has none."""
