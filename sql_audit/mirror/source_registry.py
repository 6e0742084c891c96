"""Checks that all queues of a log come from one key prefix of one Redis.

In the same database, a second Redis (or a second prefix) would look like the first Redis after a loss of all queues. So
each queue has a *source*: its prefix and its stamp. The stamp is a random mark in the queue's ``meta`` in Redis, and
SQL has a copy. When the queue's data moves to a promoted replica, or comes back from a snapshot, the stamp comes along.
Each shard of a cluster has the stamps of its own queues.

:func:`check_source` recognises the log's Redis by any stamp that Redis and SQL share. Queues that this Redis lacks are
lost. An empty Redis may have lost everything, or may be another Redis. So a mirror that starts on an empty Redis
removes the stamps from SQL (:func:`release`), and waits. If another mirror has a Redis that still has these queues,
that mirror writes their stamps to SQL again, and the starting mirror is refused.

A queue that Redis creates again gets another stamp. So two servers share a stamp only if one was loaded from the
other's snapshot.

Redis also has, for each queue, the id of the audit database that mirrors the queue. If another database mirrors one of
the queues, a starting mirror is refused before it changes anything. :func:`adopt` is refused for the same reason.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from rq_core.errors import OutcomeUnknown, RqCoreError, ServerUnavailable, ServerUnsuitable
from sql_audit.errors import CursorHeld, QueuesElsewhere, SourceDiffers
from sql_audit.mirror.cursor import lock_cursor
from sql_audit.mirror.redis_access import OutboxSource
from sql_audit.store.chain import genesis
from sql_audit.store.connection.database import Database
from sql_audit.store.connection.statements import (
    AUDIT_ID,
    BIND_CURSOR,
    CHAIN_ID,
    CREATE_CURSOR,
    RELEASE_CURSOR,
)
from sql_audit.store.log_queues import Origin, origins

NAMED_MAX: Final = 5
"""Maximum number of queues that an error message names."""


class _Seen(NamedTuple):
    """The records in Redis about the mirroring of its queues: their stamps (random marks), and the ids of audit
    databases.
    """

    stamps: dict[str, str]
    """By queue: its stamp, the random mark by which SQL recognises the queue; an empty text if it has none."""
    holders: dict[str, str]
    """By queue: the id of the audit database that mirrors it. Queues that no database mirrors are left out."""
    hidden: dict[str, RqCoreError]
    """By queue: the error, if the queue cannot be read (a shard is down, a right is missing)."""


def check_source(
    source: OutboxSource,
    database: Database,
    *,
    only: Collection[str] | None = None,
    made: Collection[str] = (),
    takes: bool = False,
) -> bool:
    """Check that the log's queues come from this Redis. Return True if they do.

    Return False if Redis has none of the queues that SQL has from this key prefix: this Redis has lost all of them, or
    it is another Redis than the log's.

    ``only`` are the queues to check; None means all. ``made`` are queues that the caller has just created. They have no
    stamp in Redis yet, which proves nothing. With ``takes``, also check that no other database mirrors one of the
    queues.

    Raise SourceDiffers if this is another Redis, and QueuesElsewhere if another database mirrors a queue. Raise the
    errors of Redis and SQL if they do not answer.
    """
    log = _origins(database)
    ours = {name: each for name, each in log.items() if each.prefix == source.prefix}
    seen = _look(source, {*source.queues(), *(name for name in ours if ours[name].goes_on)})
    if takes:
        _refuse_if_held(source, database, seen, only)
    known = any(
        stamp and name in ours and ours[name].stamp == stamp for name, stamp in seen.stamps.items()
    )
    for name, stamp in seen.stamps.items():
        if only is None or name in only:
            lost = not stamp and (known or name in made)
            _refuse_if_other(source, database, name, None if lost else stamp, log.get(name))
    awaited = [
        n for n, each in ours.items() if each.goes_on and each.stamp and n not in seen.hidden
    ]
    if known or not awaited:
        return True
    for error in seen.hidden.values():
        if not isinstance(error, ServerUnsuitable):
            raise error
    there = [name for name, stamp in seen.stamps.items() if stamp or name not in made]
    if there:
        why = f"it has {_named(there)}, and none of the log's queues ({_named(awaited)})"
        raise refusal(source, database, why)
    return False


def elsewhere(database: Database, prefix: str) -> dict[str, str]:
    """Return, by queue, the key prefix of each queue that SQL has from another prefix than ``prefix``."""
    return {
        name: each.prefix
        for name, each in _origins(database).items()
        if each.prefix not in (None, prefix) and not each.is_free
    }


def release(source: OutboxSource, database: Database) -> list[str]:
    """Remove the stamps (random marks) of this key prefix's queues from SQL, and return the names of the queues.

    Each of these queues may then be mirrored from another Redis with the same prefix: the first one in which a mirror
    attaches the queue.
    """
    released = [
        (name, each.stamp)
        for name, each in _origins(database).items()
        if each.goes_on and each.prefix == source.prefix and each.stamp
    ]
    for name, stamp in released:
        free(source, database, name, str(stamp))
    return [name for name, _ in released]


def free(
    source: OutboxSource, database: Database, queue: str, stamp: str, *, wait: bool = True
) -> None:
    """Remove a queue's stamp from SQL if it is still ``stamp``. The queue may then be mirrored from another Redis with
    the same key prefix: the first one in which a mirror attaches the queue.

    Raise CursorHeld if the SQLite file is locked and ``wait`` is False.
    """
    which = {"the_queue": queue, "the_prefix": source.prefix, "the_stamp": stamp}
    with database.writing(wait=wait) as connection:
        if connection is None:
            raise CursorHeld(queue=queue)
        connection.execute(RELEASE_CURSOR, which)
        connection.commit()


def adopt(
    source: OutboxSource, database: Database, only: Collection[str] | None = None
) -> list[str]:
    """Record that the log's queues come from this Redis from now on, and return the names of these queues. Queues that
    this Redis lacks then count as lost.

    These are the queues in SQL that come from this Redis' key prefix, or that this Redis has. With ``only``, other
    queues are left out. Raise QueuesElsewhere if another database mirrors one of the queues.
    """
    log = _origins(database)
    seen = _look(source, set(source.queues()))
    for error in seen.hidden.values():
        raise error
    _refuse_if_held(source, database, seen, only)
    taken = [
        name
        for name in log
        if (name in seen.stamps or log[name].prefix == source.prefix)
        and (only is None or name in only)
    ]
    with database.writing(wait=True) as connection:
        assert connection is not None
        for name in taken:
            stamp = seen.stamps.get(name) or None
            values = {"the_queue": name, "prefix": source.prefix, "stamp": stamp}
            connection.execute(BIND_CURSOR, values)
        connection.commit()
    return taken


def new_stamp() -> str:
    """Return a random mark by which SQL will recognise a queue of Redis."""
    return secrets.token_hex(8)


def bind(
    source: OutboxSource, database: Database, queue: str, known: int, *, wait: bool = True
) -> str:
    """Attach a queue, so that this database mirrors it. Write the same stamp (a random mark) to Redis and SQL, and
    return it.

    ``known`` is an epoch that SQL has; see OutboxSource.attach. The queue's cursor is locked meanwhile. So if two Redis
    servers have the queue, one of them is refused before anything in it changes. With ``wait``, wait while another
    process writes the SQLite file. A mirror's turn does not wait, because that process may itself be waiting for Redis.

    Raise SourceDiffers if the log's queue comes from another Redis. Raise CursorHeld if another mirror has locked the
    cursor or the file.
    """
    with database.writing(wait=wait) as connection:
        if connection is None:
            raise CursorHeld(queue=queue)
        ours: str = connection.execute(AUDIT_ID).scalar_one()
        first = {"queue": queue, "head": genesis(connection.execute(CHAIN_ID).scalar_one(), queue)}
        connection.execute(CREATE_CURSOR[database.dialect], first)
        cursor = lock_cursor(connection, database, queue)
        if cursor is None:
            raise CursorHeld(queue=queue)
        stamp = source.stamp(queue) or ""
        # This check comes after the insert, so that a role without write rights switches no log on, and before the
        # commit, so that a database to which the queue is refused keeps no cursor of it.
        _refuse_if_other(source, database, queue, stamp, origins(connection, queue)[queue])
        stamp = stamp or new_stamp()
        source.attach(queue, ours, max(known, cursor.epoch or 0), stamp)
        values = {"the_queue": queue, "prefix": source.prefix, "stamp": stamp}
        connection.execute(BIND_CURSOR, values)
        connection.commit()
    return stamp


def refusal(source: OutboxSource, database: Database, why: str) -> SourceDiffers:
    """Return the error SourceDiffers, which says that the log's queues do not come from this Redis. ``why`` is the
    reason.
    """
    return SourceDiffers(url=database.url, redis=source.url, prefix=source.prefix, why=why)


def _origins(database: Database) -> Mapping[str, Origin]:
    with database.readers.connect() as connection:
        return origins(connection)


def _look(source: OutboxSource, names: Collection[str]) -> _Seen:
    seen = _Seen({}, {}, {})
    down: dict[object, RqCoreError] = {}
    for name in sorted(names):
        place = source.place(name)
        try:
            if place in down:
                raise down[place]
            stamp, holder = source.stamp(name), source.holder(name)
        except (ServerUnavailable, OutcomeUnknown, ServerUnsuitable) as error:
            if not isinstance(error, ServerUnsuitable):
                if place is None:
                    raise
                down[place] = error
            seen.hidden[name] = error
        else:
            if stamp is not None:
                seen.stamps[name] = stamp
            if holder is not None:
                seen.holders[name] = holder
    return seen


def _refuse_if_held(
    source: OutboxSource, database: Database, seen: _Seen, only: Collection[str] | None
) -> None:
    """Raise QueuesElsewhere if another database mirrors one of the queues in ``only`` (None: all queues of this
    Redis).
    """
    with database.readers.connect() as connection:
        ours: str = connection.execute(AUDIT_ID).scalar_one()
    held = {
        name: f"{name} (its id is {holder})"
        for name, holder in seen.holders.items()
        if holder != ours and (only is None or name in only)
    }
    if held:
        word = "queue" if len(held) == 1 else "queues"
        raise QueuesElsewhere(
            url=database.url,
            redis=source.url,
            prefix=source.prefix,
            queues=f"{word} {_named(held.values())}",
        )


def _refuse_if_other(
    source: OutboxSource, database: Database, queue: str, stamp: str | None, origin: Origin | None
) -> None:
    """Raise SourceDiffers if SQL has the queue from another key prefix, or with another stamp (random mark).

    ``stamp`` is the queue's stamp in Redis, and ``origin`` is what SQL has. A stamp of None is not compared: the log's
    Redis has lost the queue or its stamp.
    """
    if origin is None or origin.is_free:
        return
    if origin.prefix != source.prefix:
        why = f"queue {queue} is mirrored from prefix {origin.prefix}"
    elif stamp is None or origin.stamp is None or origin.stamp == stamp:
        return
    else:
        found = f"stamp {stamp}" if stamp else "no stamp"
        why = f"queue {queue} has {found} there, and stamp {origin.stamp} by the log"
    raise refusal(source, database, why)


def _named(queues: Collection[str]) -> str:
    shown = sorted(queues)[:NAMED_MAX]
    return ", ".join([*shown, "…"] if len(queues) > NAMED_MAX else shown)
