"""The vocabulary of plans: what a call to a queue yields, gets, and gives up with. No I/O."""

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
    """Whether Redis refused something since it has reached maxmemory; ``error`` is its answer, or what came of it."""
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
    """One script call: to which queue, with what, and how to read its answer."""

    script: str
    queue: str
    args: dict[str, Any]
    """May be changed while it is on its way: what was carried out is answered as it was, whatever is sent again."""
    parse: Callable[[Sequence[Any]], T_co]
    each: Sequence[tuple[Any, ...]] = ()
    ids: tuple[str, ...] = ()
    """For the error message when its outcome stays unknown."""
    meanwhile: Callable[[], None] | None = None
    """See Send."""
    tail: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """Notes on some records, and texts, by their place from 1."""
    absent: T_co | None = None
    """The answer if there is no such queue, which this call then does not make. None: it makes the queue."""


def pairs_of(value: Any) -> dict[str, Any]:
    """A reply of pairs, as RESP2 (flat list) or RESP3 (map, or list of pairs) gives it."""
    if isinstance(value, dict):
        return value
    if value and isinstance(value[0], list):
        return dict(value)
    return dict(zip(value[::2], value[1::2], strict=True))


def parse_nothing(_reply: Sequence[Any]) -> None:
    """Read an answer that says nothing but that the call was carried out."""


def parse_pairs(reply: Sequence[Any]) -> dict[str, str]:
    """Read an answer of pairs, flat."""
    return dict(zip(reply[::2], reply[1::2], strict=True))
