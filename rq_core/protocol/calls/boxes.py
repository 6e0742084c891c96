"""The call of workers that saves what durable jobs have done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from rq_core.model.result_encoding import unpack_result
from rq_core.protocol.engine.plan import Call

BATCH_MAX: Final = 250
"""Maximum number of records in a call."""


class Saving(NamedTuple):
    """One entry that a worker reports: a step that it begins, or a step that it has carried out."""

    id: str
    fence: str
    life: str
    what: Literal["begin", "save"]
    entry: int
    name: str
    packed: str = ""
    """The value that the step returned, packed (:mod:`rq_core.model.result_encoding`), or ``!`` and the reason why the
    value is not kept."""


class NotSaved(NamedTuple):
    """The reason why a record was not carried out."""

    why: str
    """``gone`` or ``stale``: the claim is not in force; ``behind``: Redis lacks entries before this one; ``full``: the
    box has no room; ``conflict``: Redis has a different entry under this number, or the job has another box."""
    has: int | None
    """Number of entries that Redis has; None: the call did not ask for it."""


def save(queue: str, worker: str, records: Sequence[Saving]) -> Call[dict[int, NotSaved]]:
    """Return the call that saves steps, or records that steps begin. Its answer has the records that were not carried
    out, by their places from 0."""
    tail = {
        place: unpack_result(record.packed)
        for place, record in enumerate(records, 1)
        if record.packed
    }
    ids = tuple(record.id for record in records)
    each = [record[:6] for record in records]
    return Call("save", queue, {"worker": worker}, _parse, each, ids, tail=tail)


def _parse(reply: Sequence[str]) -> dict[int, NotSaved]:
    found = zip(reply[::3], reply[1::3], reply[2::3], strict=True)
    return {
        int(place) - 1: NotSaved(why, None if has == "-" else int(has)) for place, why, has in found
    }
