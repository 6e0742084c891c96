"""The triggers that make tables append-only. During a prune, they let the prune delete rows.

triggers("sqlite", "job_event")     # the statements that create the triggers
"""

# ruff: noqa: S608 - the conditions are joined from names of this module

from __future__ import annotations

from typing import Final

DOORS: Final = {
    "job_event": "(OLD.epoch, OLD.seq) <= (p.epoch, p.seq)",
    "mirror_batch": "OLD.batch <= p.cut_batch",
    "quarantine": "OLD.batch <= p.cut_batch",
}
"""The tables from which a prune may delete rows. For each table, an SQL condition says which rows: OLD is the row, and
p is the prune's row of ``mirror_prune`` with the entry up to which jobs are removed."""


def triggers(dialect: str, table: str) -> tuple[str, ...]:
    """Return the statements that make ``table`` append-only in a dialect (sqlite or postgresql)."""
    door = DOORS.get(table)
    if dialect == "sqlite":
        shut = "" if door is None else f"WHEN NOT {_is_open(door)} "
        refuse = f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
        return (
            f"CREATE TRIGGER {table}_no_update BEFORE UPDATE ON {table} {refuse}",
            f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} {shut}{refuse}",
        )
    function = "audit_refuse()" if door is None else f"{table}_refuse_unless_pruned()"
    return (
        (
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table} "
            f"FOR EACH ROW EXECUTE FUNCTION {function}"
        ),
        refuse_truncate(table),
    )


def refuse_truncate(table: str) -> str:
    """Return the statement that creates a PostgreSQL trigger against TRUNCATE of ``table``.

    Each partition needs its own trigger: partitions inherit only triggers for rows.
    """
    return (
        f"CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table} "
        "FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse()"
    )


def _is_open(door: str) -> str:
    return (
        "EXISTS (SELECT 1 FROM mirror_prune p WHERE p.kind = 'begun' AND p.id = "
        f"(SELECT MAX(id) FROM mirror_prune WHERE queue = OLD.queue) AND {door})"
    )


# search_path is set, since the role that fires the trigger may have another one.
REFUSE_FUNCTION: Final = (
    "CREATE OR REPLACE FUNCTION audit_refuse() RETURNS trigger LANGUAGE plpgsql "
    "SET search_path = {schema}, pg_temp AS "
    "$$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME "
    "USING ERRCODE = 'restrict_violation'; END $$"
)


DOOR_FUNCTIONS: Final = tuple(
    f"CREATE OR REPLACE FUNCTION {table}_refuse_unless_pruned() RETURNS trigger LANGUAGE plpgsql "
    "SET search_path = {schema}, pg_temp AS "
    f"$$ BEGIN IF TG_OP = 'DELETE' AND {_is_open(door)} THEN RETURN OLD; END IF; "
    "RAISE EXCEPTION '% is append-only', TG_TABLE_NAME "
    "USING ERRCODE = 'restrict_violation'; END $$"
    for table, door in DOORS.items()
)
