"""Notices a copied or moved inbox: a relay must not hand over the rows of a copy, since the original hands them over.

A copy (pg_dump for staging, cp) has all rows of the original. So the first relay stores in the inbox where the database
is: its place. :mod:`sql_audit.store.connection.database_identity` computes the place, from PostgreSQL's system
identifier and the database's oid, or from the SQLite file's inode.

If the database is later in another place, every relay refuses the inbox. An operator must then say whether the database
was copied or moved.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

from sql_audit.errors import InboxCopied, InboxDamaged, InboxInPlace
from sql_audit.inbox.database import explaining
from sql_audit.inbox.schema import PLACE
from sql_audit.inbox.session import NOTHING, Session, Transaction
from sql_audit.store.connection.database_identity import is_less_known, place_of

COPIED = "its database is a copy: the original hands this job over"
NO_PLACE = (
    "rqc_inbox_place has no row, so the inbox has no id: `INSERT INTO rqc_inbox_place (one) VALUES (1)` gives it a new"
    " one"
)


class Settled(NamedTuple):
    """The inbox after an operator has said that its database was moved (:func:`move_inbox`) or copied
    (:func:`fork_inbox`).
    """

    inbox_id: str
    place: str
    parked: int
    """Number of rows that were set aside (parked), because the original inbox has them, too, and hands them over."""


def check_place(session: Session) -> str:
    """Check that the inbox's database is not a copy in another place, and return the inbox's id.

    The database's place (PostgreSQL's system identifier, or the SQLite file's inode) must be the stored one. If no
    place is stored yet, store the current one. Raise InboxCopied if the database is in another place.
    """
    with explaining(session.address):
        here = place_of(session.engine)
    with session.transaction() as transaction:
        inbox_id, bound = _stored(session, transaction)
        if bound is None or is_less_known(bound, here):
            transaction.run(session.text(f"UPDATE {PLACE} SET place = ?"), here)  # noqa: S608
        elif not _is_same(bound, here):
            raise InboxCopied(url=session.url, bound=bound, here=here)
    return inbox_id


def compare_place(session: Session) -> str:
    """Check that the inbox's database is not a copy in another place, and return the inbox's id. Nothing is written.

    The database's place (PostgreSQL's system identifier, or the SQLite file's inode) must be the stored one, if one is
    stored. Raise InboxCopied if the database is in another place.
    """
    with explaining(session.address):
        here = place_of(session.engine)
    with session.transaction() as transaction:
        inbox_id, bound = _stored(session, transaction)
    if bound is not None and not _is_same(bound, here):
        raise InboxCopied(url=session.url, bound=bound, here=here)
    return inbox_id


def _stored(session: Session, transaction: Transaction) -> tuple[str, str | None]:
    """Return the inbox's id, and the stored place of its database (None: no relay has used it yet). Raise InboxDamaged
    if the inbox has no id.
    """
    rows = transaction.run(f"SELECT inbox_id, place FROM {PLACE}").all()  # noqa: S608
    if len(rows) != 1:
        raise InboxDamaged(url=session.url, what=NO_PLACE)
    inbox_id, bound = rows[0]
    return str(inbox_id), None if bound is None else str(bound)


def _is_same(bound: str, here: str) -> bool:
    return bound == here or is_less_known(bound, here) or is_less_known(here, bound)


def move_inbox(session: Session) -> Settled:
    """Store the database's current place in its inbox, because the database was moved or restored. Relays then accept
    it again.
    """
    return _settle(session, is_copy=False)


def fork_inbox(session: Session, *, same_place: bool = False) -> Settled:
    """Make a copied inbox independent: give it a new id, and park its rows, which the original hands over.

    Raise InboxInPlace if the database does not look like a copy: it is in its stored place, or no place is stored.
    ``same_place`` skips this check, for a copy of a whole server or disk.
    """
    return _settle(session, is_copy=True, same_place=same_place)


def _settle(session: Session, *, is_copy: bool, same_place: bool = False) -> Settled:
    with explaining(session.address):
        here = place_of(session.engine)
    parked = 0
    with session.transaction() as transaction:
        inbox_id, bound = _stored(session, transaction)
        if is_copy and not same_place and (bound is None or _is_same(bound, here)):
            why = f"it is at {here}, as before" if bound else "no relay has used it yet"
            raise InboxInPlace(url=session.url, why=why)
        if is_copy:
            inbox_id = secrets.token_hex(16)
            for queue in transaction.queues():
                row = transaction.lock(queue)
                if row is not None and row.ids is not None:
                    transaction.end(queue, NOTHING)
                while rows := transaction.choose(queue, 1_000):
                    transaction.park(queue, [row.id for row in rows], COPIED)
                    parked += len(rows)
            transaction.run("UPDATE rqc_relay SET relayed = 0, held = 0, duplicate = 0")
        transaction.run(
            session.text(f"UPDATE {PLACE} SET inbox_id = ?, place = ?"),  # noqa: S608
            *(inbox_id, here),
        )
    return Settled(inbox_id, here, parked)
