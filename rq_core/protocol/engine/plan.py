"""The types from which plans are made: commands, pauses, calls, time limits, and errors in the place of replies. A plan
is a generator that yields commands and does no I/O itself.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")


T_co = TypeVar("T_co", covariant=True)


class Send(NamedTuple):
    """Commands that a plan wants to send in one round trip. The plan gets their replies in the same order."""

    commands: list[list[Any]]
    meanwhile: Callable[[], None] | None = None
    """A function that prepares other work. It may be called while the server works, once or several times, and never
    raises."""
    patience: Patience | None = None
    """Maximum seconds for the connection and for the replies; None: only the connections' own timeouts apply."""


class Pause(NamedTuple):
    """A request of a plan to wait before it continues."""

    seconds: float


Plan = Generator[Send | Pause, Any, T]


class Unsent(Exception):
    """A value in the place of a reply: no connection could be made, so the command was not sent."""


class Lost(Exception):
    """A value in the place of a reply: no reply came, so the command may have been carried out or not."""


class ReplyError(Exception):
    """A value in the place of a reply: Redis answered with an error."""


def says_full(error: BaseException | None) -> bool:
    """Return whether an error means that Redis has reached maxmemory and refused a command.

    ``error`` is the error reply itself, or an error that the reply has caused.
    """
    return error is not None and (str(error).startswith("OOM") or says_full(error.__cause__))


@dataclass(frozen=True)
class Patience:
    """How long calls wait for a server that does not answer, in seconds.

    ``unsent`` is for a call that could not be sent; after this time, ServerUnavailable is raised. ``unknown`` is for a
    call that was sent at least once without an answer. Such a call is sent again until this time is over; then
    OutcomeUnknown is raised.
    """

    unsent: float = 3.0
    unknown: float = 600.0


class Slot:
    """A call slot: a name under which a client numbers its calls. Redis keeps the slot's last number and answer, so a
    call that is sent twice is carried out once. Only one call of a slot is under way at a time.
    """

    __slots__ = ("is_callers", "name", "number")

    def __init__(self, name: str, number: int = 0, *, is_callers: bool = False) -> None:
        self.name = name
        self.number = number
        self.is_callers = is_callers
        """True if the caller has chosen the slot's name. The client then uses the slot for no other call."""


def named_slot(name: str, number: int) -> Slot:
    """Return a call slot with a name and a call number that the caller has chosen. Redis carries out each number only
    once.

    The caller must give each call of the slot a higher number than the call before.
    """
    return Slot(name, number, is_callers=True)


@dataclass(slots=True)
class Call(Generic[T_co]):
    """One call of a script: the script, the queue, the arguments, and the function that reads the answer."""

    script: str
    queue: str
    args: dict[str, Any]
    """The arguments by name. They may change before the call is sent again: if Redis has carried out the call already,
    Redis returns its first answer again and ignores the new arguments."""
    parse: Callable[[Sequence[Any]], T_co]
    each: Sequence[tuple[Any, ...]] = ()
    ids: tuple[str, ...] = ()
    """The ids of the call's jobs, for the error that is raised if the call's outcome stays unknown."""
    meanwhile: Callable[[], None] | None = None
    """A function that may be called while the server works: see :class:`Send`."""
    tail: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """Texts that are sent after the records, such as results of jobs: record number from 1 → (note on the text,
    text)."""
    absent: T_co | None = None
    """The result of the call if the queue does not exist. None: the call creates the queue."""
    slot: Slot | None = None
    """The slot and number by which Redis recognizes a repeated call, if the caller names them (see ``named_slot``);
    None: the client chooses them."""


def pairs_of(value: Any) -> dict[str, Any]:
    """Return a reply of Redis that consists of pairs as a dict. The reply is a flat list (RESP2), or a map or a list of
    pairs (RESP3).
    """
    if isinstance(value, dict):
        return value
    if value and isinstance(value[0], list):
        return dict(value)
    return dict(zip(value[::2], value[1::2], strict=True))


def parse_nothing(_reply: Sequence[Any]) -> None:
    """Ignore a script's answer that has no contents: the call was carried out."""


def parse_pairs(reply: Sequence[Any]) -> dict[str, str]:
    """Return a script's answer, a flat list of pairs, as a dict."""
    return dict(zip(reply[::2], reply[1::2], strict=True))
