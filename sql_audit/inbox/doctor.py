"""Finds what is wrong with an inbox: in its tables, in a relay's rights, and in the relays' call slots in Redis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rq_core.connections.client import Client
from rq_core.errors import InvalidName
from rq_core.model.keys import queue_keys
from rq_core.model.lib.text import number_in
from rq_core.model.plugins import InboxFinding
from sql_audit.errors import InboxCopied, InboxDamaged, InboxRefused
from sql_audit.inbox.place import compare_place
from sql_audit.inbox.relay import ADOPT_MS, PARK_MS
from sql_audit.inbox.rights import lacking_rights
from sql_audit.inbox.schema import differences
from sql_audit.inbox.session import RelayRow, Session, require_tables
from sql_audit.store.connection import driver_errors

LOOKS: Final = 3
"""Maximum number of times that a queue is read. It is read again if its relay was at work meanwhile: SQL and Redis are
not read at the same moment, so one difference may only mean that the relay worked in between."""
SET_BACK: Final = (
    "Redis has batch {has} of the relay's last slot, and the database only batch {number}: the database was set back to"
    " an older state, and rows that had been handed over may run again; `rq-core inbox verify` says how many"
)
FORGOTTEN: Final = (
    "Redis has {has} of the relay's last slot, and the database batch {number}: this Redis is not the relay's, or it"
    " was emptied or set back, or the queue was deleted, or the rows of the batch were deleted by hand; `rq-core audit"
    " restore` lists jobs that Redis lost"
)


def examine_inbox(session: Session, client: Client) -> list[InboxFinding]:
    """Return a list of everything that is wrong with an inbox. Nothing is written.

    Raise InboxMissing, InboxError, or the errors of the client.
    """
    found = [InboxFinding(None, says) for says in _rights(session)]
    try:
        require_tables(session)
    except InboxRefused:
        # The user may not read the tables, which is said already.
        if found:
            return found
        raise
    found += [InboxFinding(None, says) for says in _tables(session)]
    try:
        compare_place(session)
    except InboxCopied as error:
        found.append(InboxFinding(None, str(error)))
    with session.transaction() as transaction:
        queues = [queue for (queue,) in transaction.run("SELECT queue FROM rqc_relay ORDER BY 1")]
    for queue in queues:
        found += [InboxFinding(queue, says) for says in _slot(session, client, queue)]
    return found


def _tables(session: Session) -> Iterator[str]:
    with session.transaction() as transaction:
        for says in differences(transaction.connection):
            yield f"{says}: see `rq-core inbox ddl {session.url}`"


def _rights(session: Session) -> Iterator[str]:
    if session.engine.dialect.name == "sqlite":
        why = driver_errors.missing(Path(session.address.database or ""))
        if why is not None:
            yield f"a relay cannot work: {why}"
        return
    with session.transaction() as transaction:
        lacks = lacking_rights(transaction, "relay")
        (user,) = transaction.run("SELECT current_user").one()
    if lacks:
        yield (
            f"role {user} lacks {', '.join(lacks)}, which a relay needs: `rq-core inbox grants relay` prints its"
            " rights. If this role is no relay's, give --inbox the relay's URL"
        )


def _slot(session: Session, client: Client, queue: str) -> Iterator[str]:
    """Check that Redis still has the call number that the relay used last for a queue. Yield a sentence if SQL or Redis
    must have lost data.

    The relay numbers its calls within a call slot, and Redis stores the last number of each slot.
    """
    try:
        key = queue_keys(queue, client.prefix)("slots")
    except InvalidName:
        return  # Its rows are parked, and none is ever sent.
    for _ in range(LOOKS):
        row = _row(session, queue)
        if row is None or row.slot is None:
            return
        (text,) = client.run(client.calls.delivery.ask([["HGET", key, row.slot]], queue))
        again = _row(session, queue)
        if again is not None and again._replace(age_ms=row.age_ms) == row:
            says = _compared(row, text)
            if says is not None:
                yield says
            return


def _row(session: Session, queue: str) -> RelayRow | None:
    """Return a queue's row of ``rqc_relay``, or None if the row is missing or damaged."""
    with session.transaction() as transaction:
        try:
            return transaction.look(queue)
        except InboxDamaged:
            return None


def _compared(row: RelayRow, text: str | None) -> str | None:
    has = None if text is None else number_in(text.partition(" ")[0])
    number = row.number if isinstance(row.number, int) else 0
    if has is not None and has > number:
        return SET_BACK.format(has=has, number=number)
    if row.age_ms >= PARK_MS:
        return None  # Redis may have forgotten the slot by now.
    if row.ids is None and has == number:
        return None
    if row.ids is not None and (has is not None or number == 1 or row.age_ms < ADOPT_MS):
        return None  # The batch need not have arrived. The first one of a slot has number 1.
    return FORGOTTEN.format(has="nothing" if has is None else f"only batch {has}", number=number)
