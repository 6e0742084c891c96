r"""The rights that roles of PostgreSQL need on the tables of an inbox. (On SQLite, only the file's mode counts.)

    print("\n".join(grants_of("relay", user="relay", database="shop", schema="public")))

The tables belong to the role that ran ``rq-core inbox migrate``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from sql_audit.inbox.schema import INBOX, PARKED, PLACE, RELAY
from sql_audit.inbox.session import Transaction
from sql_audit.store.grants import qualified, quoted

_READS: Final = ("SELECT",)
_ADDS: Final = ("SELECT", "INSERT")
_CHANGES: Final = ("SELECT", "UPDATE")
_ALL: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")


class InboxRole(NamedTuple):
    """A kind of user of an inbox: the work of the role, and its rights on each table."""

    does: str
    rights: Mapping[str, tuple[str, ...]]
    """The rights by table."""


# A statement that locks a row, as FOR UPDATE does, needs UPDATE.
ROLES: Final[Mapping[str, InboxRole]] = {
    "producer": InboxRole(
        "enqueues and cancels in transactions, and finds its rows: the application",
        {INBOX: _ALL, PARKED: _READS, RELAY: _READS},
    ),
    "relay": InboxRole(
        "hands rows over: `inbox run`, `worker --inbox`",
        {
            INBOX: ("SELECT", "UPDATE", "DELETE"),
            PARKED: _ADDS,
            RELAY: (*_ADDS, "UPDATE"),
            PLACE: _CHANGES,
        },
    ),
    "operator": InboxRole(
        "looks, mends, retries and drops parked rows, and settles a copy",
        {INBOX: _ALL, PARKED: _ALL, RELAY: (*_ADDS, "UPDATE"), PLACE: _CHANGES},
    ),
    "viewer": InboxRole(
        "reads: `inbox status`, `parked`, `verify`, metrics, `top`",
        dict.fromkeys((INBOX, PARKED, RELAY, PLACE), _READS),
    ),
}


def grants_of(role: str, *, user: str, database: str, schema: str) -> Iterator[str]:
    """Yield the SQL statements that give ``user`` the rights of a role in ROLES.

    The owner of the tables, or a superuser, must execute the statements. The statements set the user's ``search_path``,
    except for the role ``producer``.
    """
    who, where, tables = quoted(user), quoted(database), quoted(schema)
    if role != "producer":
        yield f"ALTER ROLE {who} IN DATABASE {where} SET search_path = {tables};"
    yield f"GRANT CONNECT ON DATABASE {where} TO {who};"
    yield f"GRANT USAGE ON SCHEMA {tables} TO {who};"
    for table, rights in ROLES[role].rights.items():
        yield f"GRANT {', '.join(rights)} ON {qualified(schema, (table,))} TO {who};"


def lacking_rights(transaction: Transaction, role: str) -> list[str]:
    """Return the rights that a role needs and the transaction's user lacks, each as ``UPDATE ON rqc_inbox``."""
    has = "SELECT has_table_privilege(CAST(to_regclass(%s) AS oid), %s)"
    return [
        f"{right} ON {table}"
        for table, rights in ROLES[role].rights.items()
        for right in rights
        # None: there is no such table.
        if transaction.run(has, table, right).scalar_one() is False
    ]
