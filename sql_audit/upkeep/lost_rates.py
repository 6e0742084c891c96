"""Finds in the log how much of each rate was in use, and which scopes were paused, when Redis lost all its data.
``audit restore`` writes these facts into Redis again.

The log is replayed as in ``audit verify``, up to the last epoch if Redis was empty at the beginning of this epoch. The
use and the pause of each scope at that time are written into the key ``rates``. Redis may have another value of the
scope by now. For a rate, the later of the two arrival times and the later of the two ends of a pause are then kept. For
a breaker, the value in Redis is kept, unless only the lost value is a pause. So a restore may be repeated. Afterwards
the use of a rate is too low by at most what jobs have taken since the loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sqlalchemy import Connection, text

from rq_core.connections.client import Client
from rq_core.model.keys import queue_keys
from rq_core.model.limits.breakers import BreakerEntry, read_breaker
from rq_core.model.limits.limit import Limit, Spent, read_spent
from rq_core.model.limits.scopes import unit_of
from rq_core.protocol.reads.steps import time_ms
from sql_audit.proof.replay.holders import Holders
from sql_audit.proof.replay.replay import Replay
from sql_audit.store.connection.database import Database
from sql_audit.store.schema.tables import EVENT_COLUMNS
from sql_audit.store.storable_text import read_json

_BEGINNING: Final = text(
    "SELECT epoch, detail FROM job_event WHERE queue = :queue AND type = 'epoch_started'"
    " ORDER BY epoch DESC LIMIT 1"
)
_HAS_RATES: Final = text(
    "SELECT detail FROM job_event WHERE job_id IS NULL AND queue = :queue AND type = 'cap_changed'"
)
_EVENTS: Final = text(
    f"SELECT {', '.join(EVENT_COLUMNS)} FROM job_event"  # noqa: S608 - joined from constants
    " WHERE queue = :queue AND epoch < :epoch ORDER BY epoch, seq, ordinal"
)
_CHUNK: Final = 200
"""Number of scopes that one call puts back."""


def put_rates_back(client: Client, database: Database, queue: str, *, by: str) -> list[str]:
    """Write into Redis again the use of rates, the failures of breakers, and the pauses, after Redis has lost all its
    data. Return the changed scopes.

    The list is empty if Redis has not lost all its data. Raise the errors of Redis and SQL.
    """
    with database.readers.connect() as connection:
        lost = list(_lost(connection, queue))
    changed: list[str] = []
    for at in range(0, len(lost), _CHUNK):
        changed += _write(client, queue, lost[at : at + _CHUNK], by)
    return changed


def _lost(connection: Connection, queue: str) -> Iterator[tuple[str, Spent | BreakerEntry, Limit]]:
    """Yield (scope, value, limit) for each rate and breaker, as Redis had them when it lost all its data."""
    beginning = connection.execute(_BEGINNING, {"queue": queue}).one_or_none()
    facts = {} if beginning is None else read_json(beginning.detail, dict)
    if beginning is None or facts.get("reason") != "created":
        return
    changes = connection.execute(_HAS_RATES, {"queue": queue}).scalars()
    if not any("@" in str(read_json(detail, dict).get("scope")) for detail in changes):
        return
    replay = Replay(queue)
    rows = connection.execution_options(yield_per=5_000).execute(
        _EVENTS, {"queue": queue, "epoch": beginning.epoch}
    )
    last_ms = 0
    for chunk in rows.partitions():
        replay.feed(tuple(row) for row in chunk)
        last_ms = int(chunk[-1].at_ms)
    yield from _in_force(replay.holders, last_ms)


def _in_force(holders: Holders, at_ms: int) -> Iterator[tuple[str, Spent | BreakerEntry, Limit]]:
    """Yield (scope, value, limit) for each rate that is in use or paused after a replay, and for each breaker that has
    failures or a pause. ``at_ms`` is the time of the last event (Unix ms).
    """
    for scope, spent in holders.spent():
        yield scope, spent._replace(at_ms=at_ms), Limit.parse(spent.limit)
    breakers = holders.breakers
    for scope in {*breakers.until, *breakers.failed}:
        limit = holders.limit_of(scope)
        until_ms, failed = breakers.until.get(scope), tuple(breakers.failed.get(scope, ()))
        if limit is not None and limit.window_ms and (until_ms or failed):
            by = holders.paused_by.get(scope)
            yield scope, BreakerEntry(at_ms, until_ms, None, failed, by), limit


def _write(
    client: Client, queue: str, lost: list[tuple[str, Spent | BreakerEntry, Limit]], by: str
) -> list[str]:
    keys, scopes = queue_keys(queue, client.prefix), [scope for scope, _, _ in lost]
    marks = [f"rate|{scope}" for scope in scopes]
    now, values, times = client.run(
        client.calls.delivery.ask(
            [["TIME"], ["HMGET", keys("rates"), *scopes], ["ZMSCORE", keys("expiring"), *marks]],
            queue,
        )
    )
    now_ms, changed, records = time_ms(now), [], []
    for n, (scope, value, limit) in enumerate(lost):
        present = values[n] or ""
        wanted, forget_ms = _merged(scope, value, present, limit, now_ms)
        if forget_ms <= now_ms or wanted == present:
            continue
        changed.append(scope)
        was = "" if times[n] is None else f"{float(times[n]):.17g}"
        records.append((n, "rates", scope, present, wanted))
        records.append((n, "expiring", marks[n], was, str(forget_ms)))
    if records:
        client.run(client.calls.audit.repair(queue, records, by=by))
    return changed


def _merged(
    scope: str, lost: Spent | BreakerEntry, present: str, limit: Limit, now_ms: int
) -> tuple[str, int]:
    """Return the value that Redis must store for a scope, and the time (Unix ms) from which on Redis may forget it.

    ``lost`` is the scope's value before the loss, and ``present`` its value in Redis; empty: Redis has none.
    """
    if isinstance(lost, BreakerEntry):
        known = read_breaker(present)
        if known is None or (known.until_ms is None and lost.until_ms is not None):
            return str(lost), lost.expires_ms(limit)
        return present, now_ms + 1
    spent = read_spent(present)
    bare = int(present) if present.isascii() and present.isdigit() else 0
    if (
        spent is not None
        and spent.arrival_us >= lost.arrival_us
        and (spent.paused_ms or 0) >= (lost.paused_ms or 0)
    ):
        return present, spent.expires_ms
    arrival_us = max(lost.arrival_us, bare if spent is None else spent.arrival_us)
    paused_ms, paused_by = lost.paused_ms, lost.paused_by
    if spent is not None and (spent.paused_ms or 0) >= (paused_ms or 0):
        paused_ms, paused_by = spent.paused_ms, spent.paused_by
    rest = lost.rest if arrival_us == lost.arrival_us else spent.rest if spent is not None else 0
    # Redis counts what is in use again under another limit, so the limit must be that of the arrival time.
    source = lost if spent is None or arrival_us == lost.arrival_us else spent
    kept = Spent(arrival_us, rest, source.limit, source.at_ms, paused_ms, paused_by)
    if unit_of(scope) is None and paused_ms is None:
        return str(arrival_us), kept.expires_ms
    return str(kept), kept.expires_ms
