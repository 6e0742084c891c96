"""The vocabulary of plans: the commands that a plan yields, the replies that it is sent, and its patience. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")


T_co = TypeVar("T_co", covariant=True)


class Send(NamedTuple):
    """Commands for one round trip. The reply to each comes back in order."""

    commands: list[list[Any]]
    meanwhile: Callable[[], None] | None = None
    """A function that may be called while the server works, once or several times; it does not raise."""
    patience: Patience | None = None
    """The caller's remaining patience: how long making a connection, and the replies, may take. None: as long as the
    connections' own bounds allow."""


class Pause(NamedTuple):
    """Wait before going on."""

    seconds: float


Plan = Generator[Send | Pause, Any, T]


class Unsent(Exception):
    """The place of a reply: the command was never sent, since no connection could be made."""


class Lost(Exception):
    """The place of a reply: the command may have been carried out, its reply did not come."""


class ReplyError(Exception):
    """The place of a reply: Redis answered with an error."""


def says_full(error: BaseException | None) -> bool:
    """Whether Redis refused a command since it has reached maxmemory; ``error`` is its answer, or an error with that
    cause."""
    return error is not None and (str(error).startswith("OOM") or says_full(error.__cause__))


@dataclass(frozen=True)
class Patience:
    """How long calls wait for a server that does not answer, in seconds.

    ``unsent``: for a call that could not be sent at all (then ServerUnavailable is raised).
    ``unknown``: for the answer to one that was sent, which is sent again until there is one (then OutcomeUnknown is
    raised).
    """

    unsent: float = 3.0
    unknown: float = 600.0


@dataclass(slots=True)
class Call(Generic[T_co]):
    """One script call: its script, queue and arguments, and how to read its answer."""

    script: str
    queue: str
    args: dict[str, Any]
    """May be changed while the call is on its way: a call that was carried out gets its first answer again, whatever is
    sent."""
    parse: Callable[[Sequence[Any]], T_co]
    each: Sequence[tuple[Any, ...]] = ()
    ids: tuple[str, ...] = ()
    """The ids of the call's jobs, for the error when its outcome stays unknown."""
    meanwhile: Callable[[], None] | None = None
    """See Send."""
    tail: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """Notes on some records, and texts, by the record's place from 1."""
    absent: T_co | None = None
    """The answer for a missing queue, if this call does not make it. None: the call makes the queue."""


def pairs_of(value: Any) -> dict[str, Any]:
    """Return a reply of pairs as a dict; RESP2 gives a flat list, RESP3 a map or a list of pairs."""
    if isinstance(value, dict):
        return value
    if value and isinstance(value[0], list):
        return dict(value)
    return dict(zip(value[::2], value[1::2], strict=True))


def parse_nothing(_reply: Sequence[Any]) -> None:
    """Read an answer without contents: the call was carried out."""


def parse_pairs(reply: Sequence[Any]) -> dict[str, str]:
    """Read an answer of pairs, flat."""
    return dict(zip(reply[::2], reply[1::2], strict=True))
