"""The record of one live job during the replay."""

from __future__ import annotations

from typing import Final, NamedTuple

from rq_core.model.table.fields import TRAITS
from rq_core.model.unique_names import HELD_TO_THE_END
from sql_audit.proof.replay.holders import ClaimScopes
from sql_audit.proof.replay.mail import Signals

_TRAITS: Final = tuple(str(field.line) for field in TRAITS if field.name != "name_stands")


class Saved(NamedTuple):
    """The contents of a saved entry, as an event states them."""

    digest: str | None
    """The value's digest, or why no value is kept."""
    size: int | None
    """The number of bytes of the value; None: no value is kept."""
    message: int | None
    """The number of the signal that the entry has taken; None: none."""


class Entries(dict[int, tuple[str, Saved | None]]):
    """The entries of a durable job's box, by number. Each value is a pair: the entry's name, and what was saved; None:
    the entry is only begun.
    """

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        """The number of each entry, by the entry's name."""


class Record:
    """A live job after the events so far. Until an event states them, ``state`` and the counters have the value None.

    Each trait is an attribute, named as in a state line. None: the job does not have the trait, or the log lacks the
    job's beginning.
    """

    __slots__ = (
        "claims", "due", "entries", "failures", "fence", "held", "lane", "listed", "losses", "mail", "max_attempts",
        "max_losses", "priority", "stands", "state", "task", "taken", "unknown", "worker", *_TRAITS,
    )  # fmt: skip

    expires: int | None
    """The job's deadline (Unix ms)."""
    unique: str | None
    """The name of a unique job, regardless of whether the job holds the name."""
    once: int | None
    """Unix ms up to which the job's id is remembered."""
    life: str | None
    """The box of a durable job; None until the job has saved or begun a step, or received a signal."""
    waits: str | None
    """The numbers of the entries for which the job is parked, separated by commas."""
    base: str | None
    """The failures and losses at the last saved step of a durable job, as FAILURES/LOSSES; None: 0/0."""
    cost: str | None
    """The job's costs as text: how much of each unit a claim takes from the rates that count the unit. None: 1 of
    each."""
    keep: int | None
    """Milliseconds for which the job's result is kept."""

    def __init__(self, task: str | None = None, state: str | None = None) -> None:
        self.task = task
        self.state = state
        self.lane: str | None = None
        self.priority: str | None = None
        """The job's priority. None: the log lacks the job's beginning, so that the lane and the traits are unknown,
        too."""
        self.due: int | None = None
        """Unix ms at which a scheduled job becomes ready. None: the job is not scheduled, or the time is unknown."""
        for trait in _TRAITS:
            setattr(self, trait, None)
        self.stands = HELD_TO_THE_END
        self.claims: int | None = None
        self.failures: int | None = None
        self.losses: int | None = None
        self.unknown: int | None = None
        """Number of times that a worker gave the job back because the worker did not know the job's task or
        arguments."""
        self.max_attempts: int | None = None
        self.max_losses: int | None = None
        self.fence: str | None = None
        self.worker: str | None = None
        """The id of the worker that holds the claim in force; None if no claim is in force, or if the worker is not
        known."""
        self.entries: Entries | None = None
        """The entries of the job's box; None if they are not known."""
        self.mail: Signals | None = None
        """The signals and the waits of the job; None if they are not known."""
        self.held: tuple[str, ...] | None = None
        """The scopes that the claim in force holds; None if no claim is in force."""
        self.listed: ClaimScopes | None = None
        """The scopes of the last claim with their limits; None if the log does not have the claim."""
        self.taken = False
        """True if the worker of the last claim has reported the job's real costs."""
