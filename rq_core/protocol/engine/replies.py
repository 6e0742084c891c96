"""Reads replies to calls: a script's answer or refusal, an error of Redis, and the answer to a handshake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rq_core import errors
from rq_core.model.table.machine import LAYOUT
from rq_core.protocol.engine import acl_roles
from rq_core.protocol.engine.plan import Call, Plan, says_full
from rq_core.protocol.engine.queue_check import epoch_of
from rq_core.protocol.engine.retried_commands import Asking, wrong_type


@dataclass(frozen=True, slots=True)
class Handshake:
    """The answer to a handshake with a queue: its epoch, the time, the length of leases, and flags."""

    epoch: int
    now_ms: int
    lease_ms: int
    paused: bool
    audit: bool
    audit_id: str | None
    started: str | None
    """The reason why this handshake started a new epoch (history of the queue in Redis); None: it started none."""


def parse_handshake(queue: str, reply: Sequence[Any]) -> Handshake:
    """Return the parsed answer to a handshake. Raises QueueDamaged if the queue's epoch is not a number."""
    epoch, now_ms, lease_ms, paused, audit, audit_id, started = reply
    return Handshake(
        epoch=epoch_of(queue, epoch),
        now_ms=int(now_ms),
        lease_ms=int(lease_ms),
        paused=int(paused) == 1,
        audit=audit == "on",
        audit_id=None if audit_id == "-" else audit_id,
        started=None if started == "-" else started,
    )


def answer_of(call: Call[Any], reply: Sequence[Any]) -> Any:
    """Return the result of a call, as ``call.parse`` reads it. If Redis refused the call, return the error for the
    caller.
    """
    if reply[0] == "ok":
        return call.parse(reply[1:])
    match list(reply[1:]):
        case ["audit_backlog", backlog, bound]:
            return errors.AuditBacklogFull(queue=call.queue, backlog=int(backlog), bound=int(bound))
        case ["results_full", kept, bound, setting]:
            return errors.ResultsFull(
                queue=call.queue, kept=int(kept), bound=int(bound), setting=setting
            )
        case ["elsewhere", attached]:
            return errors.AuditElsewhere(queue=call.queue, attached=attached)
        case ["stamp", found]:
            return errors.AuditStampDiffers(queue=call.queue, found=found)
        case ["restored", last]:
            return errors.RestoredMeanwhile(queue=call.queue, last=last)
        case ["off"]:
            return errors.AuditOff(queue=call.queue)
        case ["layout", found]:
            return errors.LayoutMismatch(queue=call.queue, found=found, known=LAYOUT)
        case ["undeclared", scope]:
            return errors.NothingDeclared(queue=call.queue, scope=scope)
        case ["stale_call"]:
            return errors.StaleCall(queue=call.queue)
        case other:
            return errors.BadArguments(queue=call.queue, what=" ".join(map(str, other)))


def error_for(asking: Asking, call: Call[Any], reply: Exception) -> Plan[errors.RqCoreError]:
    """Return the error for the caller of a call to which Redis replied with an error."""
    text = str(reply)
    if says_full(reply):
        return errors.QueueFull(queue=call.queue)
    if "WRONGTYPE" in text:
        return wrong_type(call.queue, text)
    if acl_roles.is_denial(text):
        lacks = yield from acl_roles.lacking(asking.prefix, call.script, call.queue)
        return errors.ServerUnsuitable(url=asking.url, why=acl_roles.lacking_words(lacks, text))
    if text.startswith(
        ("NOAUTH", "WRONGPASS", "MOVED", "ERR it is no Redis Cluster", "ERR it speaks ")
    ):
        return asking.unsuitable(reply)
    return errors.QueueDamaged(queue=call.queue, why=f"{call.script} stopped: {text}")
