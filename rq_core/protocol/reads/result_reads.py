"""Polls the jobs for which clients wait: whether each job has ended, and how.

A poll calls one read-only script, so all its answers are of one moment. One poll returns a bounded number of bytes of
results; another poll returns the results that are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from rq_core.model.idempotency import result_words
from rq_core.model.job import error_of
from rq_core.model.keys import QueueKeys, queue_keys
from rq_core.model.outcome import (
    LOST,
    NOT_KEPT,
    Cancelled,
    Expired,
    Failed,
    Kept,
    Outcome,
    Replaced,
    Succeeded,
)
from rq_core.model.state_line import read_state_line
from rq_core.protocol.engine.delivery import Delivery
from rq_core.protocol.engine.plan import Call, Plan, parse_nothing
from rq_core.scripts.plain import by_digest, plain_text

PAGE: Final = 250
"""Maximum number of jobs in one poll, so that no poll blocks Redis for long."""

ALIVE: Final = ""
"""The script's answer for a job that has not ended."""
LATER: Final = "?"
"""The script's answer for a job that has ended, but whose result does not fit into this poll. A later poll returns
it."""
BYTES_MAX: Final = 1024 * 1024
"""Number of bytes of results after which one poll returns no further result. The last result may exceed this number."""
UNREAD: Final = "unread"
"""The reason for a missing result if the caller did not ask for results."""
_IN_LOG: Final = " audit=full"
"""A text in a line of the key ``results``. It means that the audit log has the result, too."""
_KEYS: Final = ("meta", "state", "jobs", "outbox", "results", "returned")


def look_program(bytes_max: int = BYTES_MAX) -> str:
    """Return the text of the script that polls jobs. After ``bytes_max`` bytes, the script returns no further
    result."""
    return plain_text(
        "endings", ALIVE=ALIVE, LATER=LATER, BYTES_MAX=bytes_max, IN_LOG=_IN_LOG, LOST=LOST
    )


class Absent(NamedTuple):
    """The result of a poll of a job that has left Redis, and whose outcome or result Redis lacks. The audit log may
    have both.
    """

    logged: tuple[int, int] | None
    """Epoch and number of the last entry of the outbox (the stream of events) at the time of the poll. The event of the
    job's end is this entry or an earlier one. None: no mirror reads the outbox, or the outbox is empty."""
    known: Outcome[Any] | None = None
    """The job's outcome without the result, if Redis has the outcome but only the log has the result."""


Found = Outcome[Any] | Absent
"""The result of a poll of a job that has ended or that Redis does not have."""


class Endings:
    """The calls of a client that waits for jobs."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def look(self, queue: str, ids: Sequence[str]) -> Plan[dict[str, Found]]:
        """Return, by id, how these jobs have ended, or that Redis does not have them. Jobs that have not ended are left
        out. A dead job counts as ended.

        Raises ServerUnavailable, ServerUnsuitable or QueueDamaged.
        """
        keys = queue_keys(queue, self._delivery.prefix)
        found: dict[str, Found] = {}
        left = list(ids)
        while left:
            page, left = left[:PAGE], left[PAGE:]
            (reply,) = yield from self._delivery.ask([by_digest(command(keys, page))], queue)
            look = read_ends(queue, page, reply)
            found |= look.found
            left += look.later
        return found

    def outcomes(self, queue: str, ids: Sequence[str]) -> Plan[dict[str, Found]]:
        """Return what ``look`` returns, but without results, so that one poll is enough. Only the first PAGE of ``ids``
        are polled. The reason for a missing result is UNREAD.
        """
        asked = ids[:PAGE]
        command_ = command(queue_keys(queue, self._delivery.prefix), asked, bytes_max=-1)
        (reply,) = yield from self._delivery.ask([by_digest(command_)], queue)
        look = read_ends(queue, asked, reply)
        # Only an end with a result waits for a later poll.
        return look.found | {job_id: Succeeded(job_id, missing=UNREAD) for job_id in look.later}

    def listen(self, queue: str) -> Plan[None]:
        """Ask Redis to publish the ends of the queue's jobs on its channel, for LISTEN_MS milliseconds. The scripts
        that end jobs publish them. The call changes nothing if they will be published for at least half of LISTEN_MS
        anyway.
        """
        yield from self._delivery.call(Call("listen", queue, {}, parse_nothing))

    def listen_command(self, queue: str) -> list[Any]:
        """Return the command of ``listen``. It may be sent several times. Its answer begins with ``ok`` if the call was
        carried out."""
        return list(self._delivery.begin(Call("listen", queue, {}, parse_nothing)).command)


def command(keys: QueueKeys, ids: Sequence[str], bytes_max: int = BYTES_MAX) -> list[Any]:
    """Return the command that polls these jobs, at most PAGE of them."""
    return ["EVAL_RO", look_program(bytes_max), len(_KEYS), *map(keys, _KEYS), *ids]


class FoundEnds(NamedTuple):
    """The parsed answer to one poll."""

    found: dict[str, Found]
    later: list[str]
    """Ids of the jobs that need another poll."""
    told_ms: int
    """Milliseconds, from the poll on, for which Redis still publishes the ends of the queue's jobs."""


def read_ends(queue: str, ids: Sequence[str], reply: Sequence[Any]) -> FoundEnds:
    """Return the parsed answer to a poll of the jobs ``ids``. Raises QueueDamaged if a line cannot be read."""
    told, last, told_ms = reply
    found: dict[str, Found] = {}
    later = []
    for job_id, said in zip(ids, told, strict=True):
        if said is None:
            found[job_id] = Absent(_entry(last))
        elif said == LATER:
            later.append(job_id)
        elif said.startswith("dead task="):
            found[job_id] = _dead(queue, job_id, said)
        elif said != ALIVE:
            outcome = _kept(job_id, said)
            if outcome is None or (_IN_LOG in said and getattr(outcome, "missing", None)):
                found[job_id] = Absent(_entry(last), outcome)
            else:
                found[job_id] = outcome
    return FoundEnds(found, later, told_ms)


def _kept(job_id: str, said: str) -> Outcome[Any] | None:
    """Return a job's outcome, with the result, from its line in the key ``results``; None for an outcome that this
    version of rq-core does not know.
    """
    line, _, value = said.partition("\n")
    fields = result_words(line)
    match line.partition(" ")[0]:
        case "succeeded" if "bytes" in fields:
            return Succeeded(job_id, kept=Kept(value, fields.get("task")), missing=None)
        case "succeeded":
            return Succeeded(job_id, missing=fields.get("value", NOT_KEPT))
        case "cancelled":
            return Cancelled(job_id)
        case "expired":
            return Expired(job_id)
        case "dead":
            return Failed(job_id, reason=fields.get("reason", ""))
        case "replaced" | "same":
            return Replaced(job_id, by=fields.get("job", ""))
        case _:
            return None


def _dead(queue: str, job_id: str, said: str) -> Failed[Any]:
    line, _, error = said.partition("\n")
    job = read_state_line(queue, job_id, line)
    cause = error_of(error)
    # As SQL has it: a program's result must not depend on whether Redis or SQL was read.
    cause = cause and cause._replace(traceback=None)
    return Failed(job_id, reason=job.fields.get("reason", ""), error=cause)


def _entry(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    epoch, number = text.split("-")
    return int(epoch), int(number)
