"""Sends batches of inbox rows to Redis, and reads the answers.

A batch is sent in calls. Each call has a slot and a number, and Redis carries out each number of a slot once. All calls
of the batch have the same number, and each has its own slot. A row's position in the batch determines the row's call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rq_core.connections.client import Client
from rq_core.errors import BadArguments, StaleCall
from rq_core.model.job import NewJob
from rq_core.model.keys import queue_keys
from rq_core.protocol.calls.enqueue import ENQUEUE_CHUNK
from rq_core.protocol.engine.plan import Call, named_slot
from rq_core.protocol.engine.prepared_items import PreparedItems

CALL_ROWS: Final = ENQUEUE_CHUNK
"""Maximum number of rows in a call; only the last call of a batch has fewer. All relays must use the same number:
otherwise two relays would divide a batch into different calls, and hand rows over twice."""


class Number(NamedTuple):
    """Identifies a call to Redis: the call's slot, and its number within the slot. Redis carries out each number of a
    slot once.
    """

    slot: str
    number: int


@dataclass(frozen=True, slots=True)
class RowBatch:
    """The rows that a relay sends to Redis together, as committed to the database."""

    of: Number
    jobs: Sequence[NewJob | None]
    """The jobs made from the rows, in the order of the batch. None in place of a row that was deleted or parked
    meanwhile."""


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """The answer of Redis to one call of a batch."""

    others: Sequence[tuple[int, str]] = ()
    """A pair for each row that became no new job: the row's position in the call (from 0), and the outcome, such as
    ``duplicate``."""
    error: StaleCall | BadArguments | None = None
    is_whole: bool = True
    """True if the call had a job for each of its rows. False if rows were missing: Redis may then have answered as it
    answered an earlier call with all rows, so the positions in ``others`` may count the missing rows."""


class BatchAnswer(NamedTuple):
    """The answers of Redis to all calls of a batch."""

    of: Number
    calls: Sequence[CallAnswer]


class Sender:
    """Sends batches to Redis, call by call."""

    def __init__(self, client: Client, on_step: Callable[[str], None]) -> None:
        self._client = client
        self._on_step = on_step

    def send(self, queue: str, batch: RowBatch, inbox_id: str) -> BatchAnswer | None:
        """Send the calls of a batch, one after the other, and return the answers.

        Return None if Redis lost data between the calls (the queue's epoch changed), so that it may have forgotten the
        first calls. Raise RqCoreError if a call has no answer. In both cases the batch must be sent again.
        """
        places = range(0, len(batch.jobs), CALL_ROWS)
        calls = PreparedItems(_call(self._client, queue, batch, at, inbox_id) for at in places)
        sent = [at for at in places if any(job is not None for job in _rows(batch, at))]
        answers = []
        epochs = set()
        for at, call in zip(places, calls, strict=False):
            if call is None:
                answers.append(CallAnswer(is_whole=False))
                continue
            call.meanwhile = calls.prepare
            others: Any = ()
            refusal = None
            self._on_step("send")
            try:
                others = self._client.run(call)
            except (StaleCall, BadArguments) as error:
                refusal = error
            is_whole = None not in _rows(batch, at)
            answers.append(CallAnswer(others, refusal, is_whole))
            if len(sent) > 1 and at in (sent[0], sent[-1]):
                epochs.add(self._epoch(queue))
        return BatchAnswer(batch.of, answers) if len(epochs) < 2 else None

    def _epoch(self, queue: str) -> Any:
        key = queue_keys(queue, self._client.prefix)("meta")
        ask = self._client.calls.delivery.ask([["HGET", key, "epoch"]], queue)
        (found,) = self._client.run(ask)
        return found


def _rows(batch: RowBatch, at: int) -> Sequence[NewJob | None]:
    """Return the part of a batch that one call sends. ``at`` is the position (from 0) of the call's first row in the
    batch.
    """
    return batch.jobs[at : at + CALL_ROWS]


def _call(client: Client, queue: str, batch: RowBatch, at: int, inbox_id: str) -> Call[Any] | None:
    """Return the call for the part of a batch that begins at position ``at`` (from 0). Return None if all rows of this
    part are gone.
    """
    jobs = [job for job in _rows(batch, at) if job is not None]
    if not jobs:
        return None
    call: Call[Any] = client.calls.enqueue.chunk(queue, jobs)
    call.args["by"] = f"inbox:{inbox_id}"
    slot = f"{batch.of.slot}.{at // CALL_ROWS}" if at else batch.of.slot
    call.slot = named_slot(slot, batch.of.number)
    # The places count, not the ids: a repetition is answered as the first call was.
    call.parse = _others
    return call


def _others(reply: Sequence[Any]) -> list[tuple[int, str]]:
    """Read Redis' answer: return the position (from 0) and the outcome of each row that became no new job."""
    return [
        (int(reply[at]) - 1, str(reply[at + 1]))
        for at in range(0, len(reply), 3)
        if reply[at + 1] != "replaced"
    ]
