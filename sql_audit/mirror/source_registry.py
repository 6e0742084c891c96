"""The sources of a log's queues: all come from one prefix of one Redis.

A second Redis, or a second prefix, with the same audit database looks like a Redis that has lost the first one's queues
and jobs. So each queue has a *source*: its prefix, and a stamp, a random mark in the queue's ``meta`` in Redis. SQL
keeps a copy of it. The stamp lives and is restored with the queue: a promoted replica has it, a snapshot brings it
back, and each shard of a cluster keeps those of its own queues.

:func:`check_source` recognises a Redis by any stamp that it shares with SQL; queues that it lacks are lost. An empty
Redis has no stamp: :func:`check_source` cannot see whether it has lost everything or is another one. A mirror that
starts then takes the stamps out of SQL (:func:`release`) and waits: a mirror of a Redis that still has these queues
puts its stamps back, and the one that starts is refused.

A queue that Redis makes again gets another stamp, so no two servers ever have the same one, unless one was loaded from
the other's snapshot.

Redis also keeps, of each queue, the id of the audit database that mirrors it. A mirror that starts is refused before it
changes anything if another database has any of the queues that it is to take, and so is :func:`adopt`.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from rq_core.errors import OutcomeUnknown, RqCoreError, ServerUnavailable, ServerUnsuitable
from sql_audit.errors import CursorHeld, QueuesElsewhere, SourceDiffers
from sql_audit.mirror.redis_access import OutboxSource
from sql_audit.store.chain import genesis
from sql_audit.store.connection.database import Database
from sql_audit.store.connection.statements import (
    AUDIT_ID,
    BIND_CURSOR,
    CHAIN_ID,
    CREATE_CURSOR,
    LOCKED_CURSOR,
    RELEASE_CURSOR,
)
from sql_audit.store.log_queues import Origin, origins

NAMED_MAX: Final = 5
"""Queues that a refusal names."""


class _Seen(NamedTuple):
    """The queues of a Redis."""

    stamps: dict[str, str]
    """The stamps of its queues, by name; an empty text: the queue has no stamp."""
    holders: dict[str, str]
    """The ids of the audit databases that mirror them, by name; one that none mirrors has no entry."""
    hidden: dict[str, RqCoreError]
    """Queues that cannot be read, and why: a shard that is down, a right that is missing."""


def check_source(
    source: OutboxSource,
    database: Database,
    *,
    only: Collection[str] | None = None,
    made: Collection[str] = (),
    takes: bool = False,
) -> bool:
    """Refuse a Redis that is not where the log's queues come from. ``only`` are the queues that are asked for; ``made``
    are those that the caller has made just now, whose missing stamps tell nothing. ``takes``: the caller is going to
    attach them, so another database may have none of them.

    Returns False if Redis has nothing of what SQL has from this prefix: then it has lost everything, or it is another
    one. Raises SourceDiffers, QueuesElsewhere, and what Redis and SQL raise when they do not answer.
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
    """Return the queues that SQL has from other prefixes, and these."""
    return {
        name: each.prefix
        for name, each in _origins(database).items()
        if each.prefix not in (None, prefix) and not each.is_free
    }


def release(source: OutboxSource, database: Database) -> list[str]:
    """Let the first mirror take the queues of a prefix: the one that calls this, or one that still has them in its
    Redis. Returns these queues."""
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
    """Let the next Redis of its prefix take a queue, if SQL has it with this stamp. ``wait``: see :func:`bind`."""
    which = {"the_queue": queue, "the_prefix": source.prefix, "the_stamp": stamp}
    with database.writing(wait=wait) as connection:
        if connection is None:
            raise CursorHeld(queue=queue)
        connection.execute(RELEASE_CURSOR, which)
        connection.commit()


def adopt(
    source: OutboxSource, database: Database, only: Collection[str] | None = None
) -> list[str]:
    """Make a Redis the source of the queues that SQL has from its prefix, and of those that Redis has: whatever is not
    there is lost. ``only``: of these queues; None: of all. Returns their names. Raises QueuesElsewhere."""
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
    """Return a random stamp for a queue."""
    return secrets.token_hex(8)


def bind(
    source: OutboxSource, database: Database, queue: str, known: int, *, wait: bool = True
) -> str:
    """Attach a queue, and give Redis and SQL the same stamp of it, while its cursor is locked: of two servers that have
    the queue, one is refused before anything of it has changed. ``known``: see OutboxSource.attach.

    With ``wait``, wait while another process writes the SQLite file. A mirror's turn does not wait: the other process
    may be waiting for its Redis.

    Returns the stamp. Raises SourceDiffers, and CursorHeld if another mirror has the cursor or the file.
    """
    with database.writing(wait=wait) as connection:
        if connection is None:
            raise CursorHeld(queue=queue)
        ours: str = connection.execute(AUDIT_ID).scalar_one()
        first = {"queue": queue, "head": genesis(connection.execute(CHAIN_ID).scalar_one(), queue)}
        connection.execute(CREATE_CURSOR[database.dialect], first)
        row = connection.execute(LOCKED_CURSOR, {"queue": queue}).one_or_none()
        if row is None:
            raise CursorHeld(queue=queue)
        stamp = source.stamp(queue) or ""
        # In between: a role that may not write switches no log on, and a database that the queue is refused to keeps no
        # cursor of it.
        _refuse_if_other(source, database, queue, stamp, origins(connection, queue)[queue])
        stamp = stamp or new_stamp()
        source.attach(queue, ours, max(known, row.epoch or 0), stamp)
        values = {"the_queue": queue, "prefix": source.prefix, "stamp": stamp}
        connection.execute(BIND_CURSOR, values)
        connection.commit()
    return stamp


def refusal(source: OutboxSource, database: Database, why: str) -> SourceDiffers:
    """The error that names both ways out."""
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
    """Raise QueuesElsewhere if another database mirrors any queue that is asked for."""
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
    """Raise SourceDiffers if SQL has a queue from elsewhere than the Redis where it has this stamp; None: Redis is
    known to be the right one, and has lost it."""
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
