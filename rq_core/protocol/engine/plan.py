"""The vocabulary of plans: commands that a plan yields, errors in the place of replies, calls, and patience. This
module does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")


T_co = TypeVar("T_co", covariant=True)


class Send(NamedTuple):
    """Commands for one round trip. Their replies come back in the same order."""

    commands: list[list[Any]]
    meanwhile: Callable[[], None] | None = None
    """A function that may be called while the server works, once or several times; it does not raise."""
    patience: Patience | None = None
    """Longest time for the connection and for the replies; None: only the connections' own timeouts apply."""


class Pause(NamedTuple):
    """A request to wait before the plan continues."""

    seconds: float


Plan = Generator[Send | Pause, Any, T]


class Unsent(Exception):
    """Takes the place of a reply: the command was not sent, since no connection could be made."""


class Lost(Exception):
    """Takes the place of a reply: the command may have been carried out, but its reply did not come."""


class ReplyError(Exception):
    """Takes the place of a reply: Redis answered with an error."""


def says_full(error: BaseException | None) -> bool:
    """Return whether Redis refused a command because it has reached maxmemory.

    ``error`` is the reply, or an error with the reply as its cause.
    """
    return error is not None and (str(error).startswith("OOM") or says_full(error.__cause__))


@dataclass(frozen=True)
class Patience:
    """How long calls wait for a server that does not answer, in seconds.

    ``unsent`` is for a call that could not be sent at all; after this time, ServerUnavailable is raised. ``unknown`` is
    for a call that was sent, and that is sent again until there is an answer; after this time, OutcomeUnknown is
    raised.
    """

    unsent: float = 3.0
    unknown: float = 600.0


class Slot:
    """A call slot. Its calls are numbered, and at most one of them is on its way."""

    __slots__ = ("is_callers", "name", "number")

    def __init__(self, name: str, number: int = 0, *, is_callers: bool = False) -> None:
        self.name = name
        self.number = number
        self.is_callers = is_callers
        """True if the caller named the slot, so that the client uses it for no other call."""


def named_slot(name: str, number: int) -> Slot:
    """Return a slot that the caller of a call names, with the call's number.

    The caller must never give a number to another call, nor a lower number after a higher one.
    """
    return Slot(name, number, is_callers=True)


@dataclass(slots=True)
class Call(Generic[T_co]):
    """One script call: its script, queue and arguments, and how to read its answer."""

    script: str
    queue: str
    args: dict[str, Any]
    """The arguments by name. They may change before the call is sent again: a call that was carried out gets its first
    answer again, regardless of its arguments."""
    parse: Callable[[Sequence[Any]], T_co]
    each: Sequence[tuple[Any, ...]] = ()
    ids: tuple[str, ...] = ()
    """The ids of the call's jobs, for the error that is raised if the call's outcome stays unknown."""
    meanwhile: Callable[[], None] | None = None
    """A function that may be called while the server works: see :class:`Send`."""
    tail: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """A note and a text for some of the records, by the record's number from 1."""
    absent: T_co | None = None
    """The result if the queue does not exist; None: the call creates the queue."""
    slot: Slot | None = None
    """The slot and number that the caller names (see ``named_slot``); None: the client chooses them."""


def pairs_of(value: Any) -> dict[str, Any]:
    """Return a reply of pairs as a dict; RESP2 gives a flat list, RESP3 a map or a list of pairs."""
    if isinstance(value, dict):
        return value
    if value and isinstance(value[0], list):
        return dict(value)
    return dict(zip(value[::2], value[1::2], strict=True))


def parse_nothing(_reply: Sequence[Any]) -> None:
    """Accept an answer without contents, which means that the call was carried out."""


def parse_pairs(reply: Sequence[Any]) -> dict[str, str]:
    """Return an answer that is a flat list of pairs as a dict."""
    return dict(zip(reply[::2], reply[1::2], strict=True))
