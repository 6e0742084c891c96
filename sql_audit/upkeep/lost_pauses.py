"""Finds in the log the operators' pauses and resumes of scopes that Redis lost, and makes them again, for ``audit
restore``.

A scope is what a rate or a breaker limits, such as the jobs of one tenant. After a failover to a replica that lacked
the last events, a scope may be paused although an operator had resumed it, or open although an operator had paused it.
In the log, only the last change of a scope counts. This change is lost if Redis forgot it, and the scope has another
state in Redis. Pauses by failures and handlers end by themselves, and are not made again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sqlalchemy import text

from rq_core.connections.client import Client
from rq_core.errors import InvalidOption
from rq_core.model.keys import queue_keys
from rq_core.model.limits.breakers import read_breaker
from rq_core.model.limits.limit import read_spent
from rq_core.protocol.reads.steps import time_ms
from sql_audit.store.connection.database import Database
from sql_audit.store.storable_text import read_json

_CHANGES: Final = text(
    "SELECT epoch, seq, worker, detail FROM job_event"
    " WHERE job_id IS NULL AND queue = :queue AND type = 'pause_changed' ORDER BY epoch, seq"
)
_ORPHANED: Final = text(
    "SELECT epoch, seq FROM job_event_orphaned WHERE queue = :queue AND type = 'pause_changed'"
)


@dataclass(frozen=True, slots=True)
class LostPause:
    """An operator's pause or resume of a scope (such as the jobs of one tenant) that Redis lost."""

    scope: str
    until_ms: int | None
    """Unix ms at which the pause ends; None: the scope was resumed."""
    by: str
    """The operator who made the change."""


def lost_pauses(client: Client, database: Database, queue: str) -> list[LostPause]:
    """Return the operators' pauses and resumes that Redis forgot and that are not in force. The mirror must have caught
    up.

    Raise the errors of Redis and SQL.
    """
    forgotten = list(_forgotten(database, queue))
    if not forgotten:
        return []
    key = queue_keys(queue, client.prefix)("rates")
    scopes = [each.scope for each in forgotten]
    now, entries = client.run(client.calls.delivery.ask([["TIME"], ["HMGET", key, *scopes]], queue))
    now_ms = time_ms(now)
    found = []
    for each, entry in zip(forgotten, entries, strict=True):
        until_ms, by = _pause_in(entry or "")
        if each.until_ms is None:
            # A pause without an operator's name ends by itself.
            is_lost = by is not None and (until_ms or 0) > now_ms
        else:
            is_lost = each.until_ms > max(now_ms, until_ms or 0)
        if is_lost:
            found.append(each)
    return found


def put_pauses_back(client: Client, database: Database, queue: str, *, by: str) -> list[LostPause]:
    """Pause and resume scopes again, as operators did before the loss. Return the changes that are in force again.

    A scope that now has neither a rate nor a breaker is left unchanged. Raise the errors of Redis and SQL.
    """
    now_ms = time_ms(client.run(client.calls.delivery.ask([["TIME"]], queue))[0])
    calls, made = client.calls.pauses, []
    for each in lost_pauses(client, database, queue):
        try:
            if each.until_ms is None:
                client.run(calls.resume(queue, each.scope, by=by, why=f"restored: {each.by}"))
            else:
                for_ms = max(1, each.until_ms - now_ms)
                why = f"restored: {each.by}"
                client.run(calls.pause(queue, each.scope, for_ms=for_ms, by=by, why=why))
        except InvalidOption:
            continue
        made.append(each)
    return made


def _forgotten(database: Database, queue: str) -> Iterator[LostPause]:
    """Yield each scope's last change by an operator, if Redis forgot this change."""
    last = {}
    with database.readers.connect() as connection:
        orphaned = {tuple(row) for row in connection.execute(_ORPHANED, {"queue": queue})}
        if not orphaned:
            return
        for row in connection.execute(_CHANGES, {"queue": queue}):
            facts = read_json(row.detail, dict)
            last[facts["scope"]] = row, facts
    for scope, (row, facts) in last.items():
        if (row.epoch, row.seq) in orphaned:
            yield LostPause(scope, facts.get("until_ms"), row.worker)


def _pause_in(entry: str) -> tuple[int | None, str | None]:
    """Parse an entry of Redis' key ``rates``: return the end of the scope's pause (Unix ms) and the operator who paused
    it. None takes the place of what the entry does not have.
    """
    breaker = read_breaker(entry)
    if breaker is not None:
        return breaker.until_ms, breaker.by
    spent = read_spent(entry)
    return (None, None) if spent is None else (spent.paused_ms, spent.paused_by)
