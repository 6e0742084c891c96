"""The record of one live job during the replay."""

from __future__ import annotations

from typing import Final, NamedTuple

from rq_core.model.table.fields import TRAITS
from rq_core.model.unique_names import HELD_TO_THE_END
from sql_audit.proof.replay.holders import ClaimScopes
from sql_audit.proof.replay.mail import Signals

_TRAITS: Final = tuple(str(field.line) for field in TRAITS if field.name != "name_stands")


class Saved(NamedTuple):
    """A saved step or a taken signal in a durable job's box, as an event describes it."""

    digest: str | None
    """The digest of the saved value, or the reason why no value is kept."""
    size: int | None
    """The number of bytes of the value; None: no value is kept."""
    message: int | None
    """The number of the signal that a wait has taken; None: the entry is not a wait that took a signal."""


class Entries(dict[int, tuple[str, Saved | None]]):
    """The steps, waits and sleeps of a durable job (the entries of its box), by number. Each value is a pair: the
    entry's name and the saved contents, or the name and None if the entry is only begun.
    """

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        """The number of each entry, by the entry's name."""


class Record:
    """The facts that the events so far show about a live job. Until an event shows them, ``state`` and the counters
    have the value None.

    The traits of the job (deadline, unique name, …) are attributes, named as in the job's state line in Redis. None:
    the job does not have the trait, or the log lacks the job's beginning.
    """

    __slots__ = (
        "__dict__", "_entries", "_has_empty_box", "_mail", "claims", "due", "failures", "fence", "held", "lane",
        "listed", "losses", "max_attempts", "max_losses", "priority", "stands", "state", "taken", "task", "unknown",
        "worker",
    )  # fmt: skip

    expires: int | None
    """The job's deadline (Unix ms)."""
    unique: str | None
    """The unique name of the job, whether or not the job holds it now; None: the job has no such name."""
    once: int | None
    """Unix ms up to which no other job may have the id, even after this job has ended. None: only while the job is
    live."""
    life: str | None
    """The id of a durable job's box, which has its steps and signals. None until the job has saved or begun a step, or
    received a signal."""
    waits: str | None
    """The numbers of the waits and sleeps for which the job is parked, separated by commas."""
    base: str | None
    """The job's failures and losses before its last saved step, as FAILURES/LOSSES: they no longer count. None: 0/0."""
    cost: str | None
    """How much the job takes from rates that count a unit (such as tokens), as text. None: 1 from each."""
    keep: int | None
    """Milliseconds for which Redis keeps the job's result after success; None: not at all."""

    def __init__(self, task: str | None = None, state: str | None = None) -> None:
        self.task = task
        self.state = state
        self.lane: str | None = None
        self.priority: str | None = None
        """The job's priority. None: the log lacks the job's beginning, so the lane and the traits are unknown, too."""
        self.due: int | None = None
        """Unix ms at which a scheduled job becomes ready. None: the job is not scheduled, or the time is unknown."""
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
        self._entries: Entries | None = None
        self._mail: Signals | None = None
        self._has_empty_box = False
        self.held: tuple[str, ...] | None = None
        """The scopes (what caps count, such as ``tenant=acme``) that the claim in force holds; None if no claim is in
        force."""
        self.listed: ClaimScopes | None = None
        """The scopes of the job's last claim with their limits; None if the log does not have the claim."""
        self.taken = False
        """True if the worker of the last claim has reported the job's real costs."""

    def begin_box(self) -> None:
        """Note that the log has all entries and signals of the job, and that it has had no entry and no signal so far.

        Few jobs are durable. So the objects for the entries and signals are made when they are first asked for.
        """
        self._has_empty_box = True

    def _open_box(self) -> None:
        self._has_empty_box = False
        self._entries, self._mail = Entries(), Signals()

    @property
    def entries(self) -> Entries | None:
        """The steps, waits and sleeps of a durable job; None if they are not known."""
        if self._has_empty_box:
            self._open_box()
        return self._entries

    @entries.setter
    def entries(self, entries: Entries | None) -> None:
        if self._has_empty_box:
            self._open_box()
        self._entries = entries

    @property
    def mail(self) -> Signals | None:
        """The signals and the open waits of a durable job; None if they are not known."""
        if self._has_empty_box:
            self._open_box()
        return self._mail

    @mail.setter
    def mail(self, mail: Signals | None) -> None:
        if self._has_empty_box:
            self._open_box()
        self._mail = mail


for _trait in _TRAITS:
    # Most jobs have no trait: a record stores only those that its job has.
    setattr(Record, _trait, None)
