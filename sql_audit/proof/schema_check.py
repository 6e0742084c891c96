"""Checks that the database's tables, indexes, triggers and views are those that the migration made.

If a view, an index or a policy was changed, readers may see other rows than the proven ones. Without its triggers, a
table's rows are not protected. Objects that an operator added are ignored, unless they act on a table of the log.

SQLite stores the text of each statement. PostgreSQL does not, and its own text depends on its version. So on
PostgreSQL, the query plan of a view is compared with the plan of the original query, made by the same server. A
function is compared by its source. Other objects are compared by the columns of the catalog.
"""

# ruff: noqa: S608 - statements are joined from names of the schema and of the catalog

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    CheckConstraint,
    Connection,
    CursorResult,
    PrimaryKeyConstraint,
    Table,
    create_engine,
    text,
)
from sqlalchemy.dialects import postgresql

from sql_audit.store.connection.database import Database
from sql_audit.store.schema import ddl
from sql_audit.store.schema.tables import APPEND_ONLY, EVERYDAY_INDEXES, job_event, metadata
from sql_audit.store.schema.triggers import DOOR_FUNCTIONS, DOORS, REFUSE_FUNCTION
from sql_audit.store.schema.views import views

_TABLES: Final = text(
    "SELECT oid, relname AS name, relnamespace AS schema, relkind AS kind, relrowsecurity AS secured, reloptions "
    "FROM pg_class WHERE oid IN (SELECT to_regclass(name) FROM unnest(CAST(:names AS TEXT[])) AS name)"
)
_PARTS: Final = text(
    "SELECT c.oid, c.relname AS name, c.relkind AS kind, c.relrowsecurity AS secured, p.relname AS parent FROM "
    "pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_class p ON p.oid = i.inhparent "
    "WHERE i.inhparent = ANY(:oids) ORDER BY c.relname"
)
_COLUMNS: Final = text(
    "SELECT attrelid AS oid, attname AS name, format_type(atttypid, atttypmod) AS type, attnotnull AS set, "
    "attgenerated <> '' AS made FROM pg_attribute WHERE attrelid = ANY(:oids) AND attnum > 0 "
    "AND NOT attisdropped ORDER BY attrelid, attnum"
)
_CONSTRAINTS: Final = text(
    "SELECT conrelid AS oid, conname AS name, contype AS kind, convalidated AS whole, "
    "pg_get_constraintdef(oid) AS says FROM pg_constraint WHERE conrelid = ANY(:oids)"
)
_INDEXES: Final = text(
    "SELECT i.indrelid AS oid, c.relname AS name, i.indisvalid AND i.indisready AND i.indislive AS fit, "
    "t.relname AS of, am.amname AS method, pg_get_expr(i.indpred, i.indrelid) AS only, "
    "ARRAY(SELECT pg_get_indexdef(c.oid, n, true) FROM generate_series(1, i.indnkeyatts) AS n) AS keys "
    "FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid "
    "JOIN pg_am am ON am.oid = c.relam WHERE i.indrelid = ANY(:oids) ORDER BY c.relname"
)
_TRIGGERS: Final = text(
    "SELECT t.tgrelid AS oid, t.tgname AS name, t.tgenabled AS enabled, t.tgtype AS type, t.tgisinternal AS internal, "
    "t.tgqual IS NULL AND t.tgnargs = 0 AND t.tgattr = '' AS plain, p.proname AS calls, p.pronamespace AS schema "
    "FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid WHERE t.tgrelid = ANY(:oids)"
)
_FUNCTIONS: Final = text(
    "SELECT p.proname AS name, p.prosrc AS source, l.lanname AS language, p.proconfig AS settings, "
    "n.nspname AS schema, p.pronargs AS arguments FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang "
    "JOIN pg_namespace n ON n.oid = p.pronamespace WHERE p.proname = ANY(:names) AND p.pronamespace = :schema"
)
_RULES: Final = text(
    "SELECT ev_class AS oid, rulename AS name FROM pg_rewrite WHERE ev_class = ANY(:oids)"
)
_POLICIES: Final = text(
    "SELECT polrelid AS oid, polname AS name FROM pg_policy WHERE polrelid = ANY(:oids)"
)
_WITHOUT_TRIGGERS: Final = text(
    "SELECT 1 FROM pg_db_role_setting WHERE array_to_string(setconfig, ' ') LIKE '%session_replication_role=%' LIMIT 1"
)

_ROW: Final = 1 | 2 | 8 | 16
"""The value of ``pg_trigger.tgtype`` for a trigger that is called for each row before DELETE and UPDATE."""
_TRUNCATE: Final = 2 | 32
"""The value of ``pg_trigger.tgtype`` for a trigger that is called before TRUNCATE."""
_LITERALS: Final = re.compile(r"'([^']*)'|\b(\d+)\b")
_INDEX_NAME: Final = re.compile(r"CREATE INDEX (\w+) ON (\w+)")


class Relation(NamedTuple):
    """The key of a table or a partition in PostgreSQL's catalog."""

    name: str
    oid: int


def _on_postgresql(connection: Connection) -> Iterator[str]:
    """Yield a phrase for each difference from the migration's schema on PostgreSQL.

    ``connection`` must read one snapshot of the database.
    """
    made = views("postgresql")
    names = [*metadata.tables, *made]
    found = {row.name: row for row in connection.execute(_TABLES, {"names": names})}
    for name in names:
        kind = "v" if name in made else "p" if name == job_event.name else "r"
        if name not in found:
            yield f"{_noun(name, made)} {name} is missing"
        elif found[name].kind != kind:
            yield f"{name} is another kind of object"
    schema = found["audit_meta"].schema
    yield from (
        f"{row.name} is in another schema" for row in found.values() if row.schema != schema
    )
    tables = [Relation(name, found[name].oid) for name in metadata.tables if name in found]
    parts = connection.execute(_PARTS, {"oids": [table.oid for table in tables]}).all()
    for part in parts:
        if part.parent != job_event.name or part.kind != "r":
            yield f"{part.name} adds rows to table {part.parent}"
    months = [Relation(part.name, part.oid) for part in parts]
    yield from _columns(connection, tables)
    yield from _constraints(connection, tables)
    yield from _indexes(connection, [*tables, *months])
    yield from _triggers(connection, tables, months, schema)
    yield from _functions(connection, schema)
    yield from _hidden(connection, [*tables, *months], [*found.values(), *parts])
    for name in made:
        if name in found and found[name].kind == "v":
            yield from _view(connection, name, made[name], found[name].reloptions)


def _ask(connection: Connection, statement: str) -> CursorResult[Any]:
    # The driver reads a single % as the place of a value.
    return connection.exec_driver_sql(statement.replace("%", "%%"))


def _noun(name: str, made: dict[str, str]) -> str:
    return "view" if name in made else "table"


def _by_oid(connection: Connection, statement: Any, of: Sequence[Relation]) -> dict[int, list[Any]]:
    rows: dict[int, list[Any]] = {table.oid: [] for table in of}
    for row in connection.execute(statement, {"oids": [table.oid for table in of]}):
        rows[row.oid].append(row)
    return rows


def _columns(connection: Connection, tables: Sequence[Relation]) -> Iterator[str]:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    for oid, rows in _by_oid(connection, _COLUMNS, tables).items():
        table = _table(tables, oid)
        found = {row.name: (row.type, row.set, row.made) for row in rows}
        for column in table.columns:
            made = (column.type.compile(dialect).lower(), not column.nullable, False)
            if column.name not in found:
                yield f"column {table.name}.{column.name} is missing"
            elif found[column.name] != made:
                yield f"column {table.name}.{column.name} has another definition"


def _table(tables: Sequence[Relation], oid: int) -> Table:
    return metadata.tables[next(table.name for table in tables if table.oid == oid)]


def _constraints(connection: Connection, tables: Sequence[Relation]) -> Iterator[str]:
    for oid, rows in _by_oid(connection, _CONSTRAINTS, tables).items():
        table = _table(tables, oid)
        found = {row.name: row for row in rows}
        for constraint in table.constraints:
            if isinstance(constraint, CheckConstraint):
                if constraint._ddl_if is not None and constraint._ddl_if.dialect != "postgresql":  # noqa: SLF001 - nothing else says it
                    continue
                kind, says = "c", _literals(str(constraint.sqltext))
            elif isinstance(constraint, PrimaryKeyConstraint) and constraint.name is not None:
                kind, says = "p", frozenset()
            else:
                continue
            row = found.get(str(constraint.name))
            if row is None:
                yield f"constraint {constraint.name} of table {table.name} is missing"
            elif (row.kind, row.whole) != (kind, True) or (
                kind == "c" and _literals(row.says) != says
            ):
                yield f"constraint {constraint.name} of table {table.name} has another definition"


def _literals(says: str) -> frozenset[str]:
    return frozenset(word or number for word, number in _LITERALS.findall(says))


def _indexes(connection: Connection, tables: Sequence[Relation]) -> Iterator[str]:
    rows = [row for group in _by_oid(connection, _INDEXES, tables).values() for row in group]
    found = {row.name: row for row in rows}
    made = {
        str(index.name): table.name for table in metadata.tables.values() for index in table.indexes
    }
    made |= {m[1]: m[2] for says in EVERYDAY_INDEXES if (m := _INDEX_NAME.match(says))}
    for name, of in made.items():
        if name not in found or found[name].of != of:
            yield f"index {name} of table {of} is missing"
    for row in rows:
        if not row.fit:
            yield f"index {row.name} of table {row.of} is not valid"
    fit = [row for row in rows if row.fit and row.of in metadata.tables and row.method == "btree"]
    yield from _entries(connection, fit)


_BY_INDEX: Final = ("enable_seqscan", "enable_bitmapscan", "enable_sort")
"""The planner settings that are switched off so that PostgreSQL counts the rows of an index."""
_BY_TABLE: Final = ("enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan")
"""The planner settings that are switched off so that PostgreSQL counts the rows of the table and not of an index."""


def _entries(connection: Connection, indexes: Sequence[Any]) -> Iterator[str]:
    """Yield a phrase for each index whose number of rows differs from that of its table.

    The rows are counted once by the index and once by the table. The indexes of all partitions are counted together,
    because a reader has no right to a single partition.
    """
    sources = [f"FROM {i.of} WHERE {i.only or 'true'}" for i in indexes]
    listed = [
        f"SELECT COUNT(*) FROM (SELECT 1 {source} ORDER BY {', '.join(index.keys)}) AS listed"
        for index, source in zip(indexes, sources, strict=True)
    ]
    of_tables = list(dict.fromkeys(sources))
    by_table = _counts(connection, _BY_TABLE, [f"SELECT COUNT(*) {each}" for each in of_tables])
    there = dict(zip(of_tables, by_table, strict=True))
    by_index = _counts(connection, _BY_INDEX, listed)
    for index, source, count in zip(indexes, sources, by_index, strict=True):
        if count != there[source]:
            yield f"index {index.name} of table {index.of} has {count} rows, there are {there[source]}"


def _counts(connection: Connection, off: Sequence[str], statements: Sequence[str]) -> list[int]:
    """Execute statements that count rows, and return the counts. Meanwhile the planner settings in ``off`` are switched
    off.
    """
    _switch(connection, off, "off")
    asked = ", ".join(f"({statement})" for statement in statements)
    row = _ask(connection, f"SELECT {asked}").one()
    _switch(connection, off, "on")
    return list(row)


def _switch(connection: Connection, settings: Sequence[str], to: str) -> None:
    asked = ", ".join(f"set_config('{name}', '{to}', true)" for name in settings)
    _ask(connection, f"SELECT {asked}")


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _triggers(
    connection: Connection, tables: Sequence[Relation], months: Sequence[Relation], schema: int
) -> Iterator[str]:
    guarded = {table.name: table.name for table in APPEND_ONLY} | {
        month.name: job_event.name for month in months
    }
    rows = _by_oid(connection, _TRIGGERS, [*tables, *months])
    for relation in (*tables, *months):
        made: dict[str, tuple[int, str]] = {}
        of = guarded.get(relation.name)
        if of is not None:
            calls = f"{of}_refuse_unless_pruned" if of in DOORS else "audit_refuse"
            made[f"{of}_append_only"] = (_ROW, calls)
            made[f"{relation.name}_no_truncate"] = (_TRUNCATE, "audit_refuse")
        found = {row.name: row for row in rows[relation.oid]}
        for name, (kind, calls) in made.items():
            row = found.pop(name, None)
            if row is None:
                yield f"trigger {name} on {relation.name} is missing"
            elif row.enabled not in ("O", "A"):
                yield f"trigger {name} on {relation.name} is disabled"
            elif (row.type, row.plain, row.calls, row.schema) != (kind, True, calls, schema):
                yield f"trigger {name} on {relation.name} has another definition"
        for name, row in found.items():
            if not row.internal:
                yield f"trigger {name} on {relation.name} was added"
    if connection.execute(_WITHOUT_TRIGGERS).first() is not None:
        yield "session_replication_role is set for a role or a database: triggers do not act there"


def _functions(connection: Connection, schema: int) -> Iterator[str]:
    made = {
        says.partition("FUNCTION ")[2].partition("(")[0]: says.split("$$")[1]
        for says in (REFUSE_FUNCTION, *DOOR_FUNCTIONS)
    }
    asked = {"names": [*made], "schema": schema}
    rows: Iterable[Any] = connection.execute(_FUNCTIONS, asked)
    found = {row.name: row for row in rows if not row.arguments}
    for name, source in made.items():
        row = found.get(name)
        if row is None:
            yield f"function {name} is missing"
        elif (row.language, row.source) != ("plpgsql", source) or not _finds_in(row):
            yield f"function {name} has another definition"


def _finds_in(function: Any) -> bool:
    """Return whether a function's only setting is ``search_path``, with the function's own schema and ``pg_temp``."""
    settings: Sequence[str] = function.settings or []
    allowed = {
        f"search_path={name}, pg_temp" for name in (function.schema, _quoted(function.schema))
    }
    return len(settings) == 1 and settings[0] in allowed


def _hidden(
    connection: Connection, tables: Sequence[Relation], relations: Sequence[Any]
) -> Iterator[str]:
    """Yield a phrase for each object that could hide or add rows of a table on PostgreSQL: a rule, a policy, or
    row-level security.
    """
    for row in relations:
        if row.secured:
            yield f"{row.name} has row-level security"
    for noun, statement in (("rule", _RULES), ("policy", _POLICIES)):
        for oid, rows in _by_oid(connection, statement, tables).items():
            name = next(table.name for table in tables if table.oid == oid)
            yield from (f"{noun} {row.name} on {name} was added" for row in rows)


def _view(connection: Connection, name: str, statement: str, options: Any) -> Iterator[str]:
    query = statement.partition(" AS ")[2]
    pair = [f"SELECT it.* FROM {source} AS it" for source in (name, f"({query})")]
    # New statistics between the two statements may change a plan.
    for _ in range(3):
        plans = [
            _ask(connection, f"EXPLAIN (VERBOSE, COSTS OFF) {each}").scalars().all()
            for each in pair
        ]
        if plans[0] == plans[1]:
            break
    shown = list(_ask(connection, f"{pair[0]} LIMIT 0").keys())
    if plans[0] != plans[1] or shown != _columns_of(connection, pair[1]) or options:
        yield f"view {name} has another definition"


_known_columns: Final[dict[str, list[str]]] = {}


def _columns_of(connection: Connection, query: str) -> list[str]:
    found = _known_columns.get(query)
    if found is None:
        found = _known_columns[query] = list(_ask(connection, f"{query} LIMIT 0").keys())
    return found


_OBJECTS: Final = text(
    "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite|_%' ESCAPE '|' ORDER BY name"
)

Object = tuple[str, str]
"""The key of an object in SQLite's schema: its type and its name."""


def schema_differences(database: Database) -> Iterator[str]:
    """Yield a phrase for each difference from the migration's schema.

    Raise sqlalchemy.exc.DBAPIError if the database does not answer.
    """
    if database.dialect == "sqlite":
        yield from _on_sqlite(database)
    else:
        with database.snapshot() as connection:
            yield from _on_postgresql(connection)


@cache
def _made_on_sqlite() -> dict[Object, str]:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        ddl.create_schema(connection)
        made = {(row.type, row.name): row.sql for row in connection.execute(_OBJECTS)}
    engine.dispose()
    return made


def _on_sqlite(database: Database) -> Iterator[str]:
    made = _made_on_sqlite()
    with database.snapshot() as connection:
        rows = connection.execute(_OBJECTS).all()
        found = {(row.type, row.name): row.sql for row in rows}
        for (kind, name), sql in made.items():
            if (kind, name) not in found:
                yield f"{kind} {name} is missing"
            elif found[kind, name] != sql:
                yield f"{kind} {name} has another definition"
        for row in rows:
            if (
                row.type == "trigger"
                and row.tbl_name in metadata.tables
                and ("trigger", row.name) not in made
            ):
                yield f"trigger {row.name} on {row.tbl_name} was added"
        for table in metadata.tables:
            if ("table", table) in found:
                # This also checks the rows against the CHECKs, which a connection to SQLite may ignore.
                wrong = connection.exec_driver_sql(f"PRAGMA integrity_check('{table}')").scalars()
                yield from (f"table {table}: {says}" for says in wrong if says != "ok")
