"""The calls about the boxes of durable jobs. A box has a job's saved steps and its signals. Workers save steps of jobs,
and programs send signals to jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from rq_core.model.durable.boxes import StepEntry, entry_in, new_life
from rq_core.model.result_encoding import unpack_result
from rq_core.model.unique_names import digest_of
from rq_core.protocol.engine.plan import Call

BATCH_MAX: Final = 250
"""Maximum number of records in a call."""


class Saving(NamedTuple):
    """One entry of a durable job's history that a worker saves: the begin of a step, the result of a step, a wait or a
    sleep.
    """

    id: str
    fence: str
    life: str
    what: Literal["begin", "save", "wait", "sleep", "take", "move"]
    """The kind of the entry. ``take`` saves again a wait that has already taken a signal. ``move`` gives the job's box
    the id ``life``: it is needed if Redis had lost the box, and a signal has begun another one."""
    entry: int
    name: str
    packed: str = ""
    """The value that the step returned, encoded by :mod:`rq_core.model.result_encoding`; or ``!`` and the reason why
    the value is not kept."""
    about: str = ""
    """The end of a wait or a sleep: Unix ms, or ``+`` and ms from now; empty: it has no end. For ``take``, the signal's
    number."""


class NotSaved(NamedTuple):
    """The reason why Redis did not carry out one record of a call that saves entries."""

    why: str
    """The reason. ``waits``: the wait or sleep is not over; ``gone`` or ``stale``: the claim is not in force;
    ``behind``: Redis lacks entries before this one; ``full``: the box has no room; ``conflict``: Redis has a different
    entry under this number; ``other``: the job has another box, whose id differs."""
    has: int | None
    """With ``waits``, the end of the wait or sleep (Unix ms; None: it has no end). Otherwise, the number of entries
    that Redis has (None: unknown)."""


SaveAnswer = dict[int, NotSaved | StepEntry]
"""The answer to a call that saves entries, by the position of a record in the call, from 0.

A record that Redis refused has a NotSaved. The record of a wait or sleep that is over has its entry, unless the entry
is large or unreadable, or the call was sent again. All other records are left out: they are saved."""


def refusals(answer: SaveAnswer) -> dict[int, NotSaved]:
    """Return only the refused records of a save's answer, by position."""
    return {at: each for at, each in answer.items() if isinstance(each, NotSaved)}


def save(queue: str, worker: str, records: Sequence[Saving]) -> Call[SaveAnswer]:
    """Build the Redis call that saves steps, waits and sleeps of durable jobs."""
    tail = {
        place: unpack_result(record.packed)
        for place, record in enumerate(records, 1)
        if record.packed
    }
    ids = tuple(record.id for record in records)
    each = [(*record[:6], record.about) for record in records]
    return Call("save", queue, {"worker": worker}, _parse, each, ids, tail=tail)


def _parse(reply: Sequence[str]) -> SaveAnswer:
    found: SaveAnswer = {}
    for place, why, has in zip(reply[::3], reply[1::3], reply[2::3], strict=True):
        if why != "over":
            found[int(place) - 1] = NotSaved(why, None if has == "-" else int(has))
        elif (entry := entry_in(has)) is not None:
            found[int(place) - 1] = entry
    return found


class Sending(NamedTuple):
    """One signal to a durable job."""

    id: str
    name: str
    key: str
    """The text by which Redis recognizes a signal that is sent again; empty: each call sends another signal."""
    value: str
    """The value that the signal brings, as JSON."""
    life: str = ""
    """The id of the job's box, which has its steps and signals. Only the signal about a child's end names a box: if the
    parent's box has another id, the parent gets no signal. Empty: the id does not matter, and the job need not have a
    box yet."""


class Sent(NamedTuple):
    """The outcome of a signal."""

    outcome: str
    """The outcome. ``woken``: the job was parked for the signal and is ready now; ``sent``: the signal is stored in the
    job's box (its steps and signals); ``known``: a signal with the same key was sent before; ``full``: the box has no
    room; ``lost``: Redis has lost the job's box; ``gone``: there is no such job; ``waits``: nothing was sent, and the
    job was not woken (an answer to ``look_again``, and to the signal of a child whose parked parent waits for another
    child)."""
    number: int | None
    """The signal's number among the job's signals; None: the signal was not sent."""


def send_signals(
    queue: str, records: Sequence[Sending], *, by: str, why: str = "", value_max: int = 0
) -> Call[list[Sent]]:
    """Build the Redis call that sends signals to durable jobs. Its answer has the outcome of each signal, in order. The
    audit log stores a signal's value only if the value has at most ``value_max`` bytes.
    """
    each = [
        (r.id, r.name, r.key, r.life or new_life(), digest_of(r.value), r.value) for r in records
    ]
    args = {"by": by, "why": why, "value_max": value_max}
    # Neither a typing mistake nor a child that ends late may create a queue.
    absent = [Sent("gone", None)] * len(records)
    ids = tuple(r.id for r in records)
    return Call("signal", queue, args, _parse_sent, each, ids, absent=absent)


def look_again(queue: str, ids: Sequence[str], *, by: str, why: str = "") -> Call[list[Sent]]:
    """Build the Redis call that checks again whether jobs have received the signals for which they wait. A parked job
    whose awaited signal has arrived becomes ready. The call sends no signal. ``ids`` has at most BATCH_MAX job ids.
    """
    each = [(job_id, "", "", "", "", "") for job_id in ids]
    args = {"by": by, "why": why, "value_max": 0}
    absent = [Sent("gone", None)] * len(ids)
    return Call("signal", queue, args, _parse_sent, each, tuple(ids), absent=absent)


def _parse_sent(reply: Sequence[str]) -> list[Sent]:
    found = zip(reply[1::3], reply[2::3], strict=True)
    return [Sent(outcome, None if number == "-" else int(number)) for outcome, number in found]
