"""The triggers that make tables append-only, and the one door that a prune opens in them.

triggers("sqlite", "job_event")     # the statements that create them
"""

# ruff: noqa: S608 - the conditions are joined from names of this module

from __future__ import annotations

from typing import Final

DOORS: Final = {
    "job_event": ("epoch", "seq"),
    "mirror_batch": ("last_epoch", "last_seq"),
    "quarantine": ("epoch", "seq"),
}
"""Tables from which a prune may delete, and the columns that must not be beyond its cut."""


def triggers(dialect: str, table: str) -> tuple[str, ...]:
    """The statements that make ``table`` append-only in a dialect (sqlite or postgresql)."""
    door = DOORS.get(table)
    if dialect == "sqlite":
        shut = "" if door is None else f"WHEN NOT {_open_door(*(f'OLD.{name}' for name in door))} "
        refuse = f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
        return (
            f"CREATE TRIGGER {table}_no_update BEFORE UPDATE ON {table} {refuse}",
            f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} {shut}{refuse}",
        )
    function = "audit_refuse()" if door is None else f"audit_refuse_unless_pruned('{door[0]}')"
    return (
        (
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table} "
            f"FOR EACH ROW EXECUTE FUNCTION {function}"
        ),
        refuse_truncate(table),
    )


def refuse_truncate(table: str) -> str:
    """PostgreSQL's trigger against TRUNCATE. Unlike those for rows it is not inherited by partitions."""
    return (
        f"CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table} "
        "FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse()"
    )


def _open_door(epoch: str, seq: str) -> str:
    return (
        "EXISTS (SELECT 1 FROM mirror_prune p WHERE p.kind = 'begun' AND p.id = "
        "(SELECT MAX(id) FROM mirror_prune WHERE queue = OLD.queue) "
        f"AND ({epoch}, {seq}) <= (p.epoch, p.seq))"
    )


REFUSE_FUNCTION: Final = (
    "CREATE OR REPLACE FUNCTION audit_refuse() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME "
    "USING ERRCODE = 'restrict_violation'; END $$"
)


DOOR_FUNCTION: Final = (
    "CREATE OR REPLACE FUNCTION audit_refuse_unless_pruned() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ DECLARE e bigint; s bigint; BEGIN IF TG_OP = 'DELETE' THEN "
    "IF TG_ARGV[0] = 'last_epoch' THEN e := OLD.last_epoch; s := OLD.last_seq; "
    "ELSE e := OLD.epoch; s := OLD.seq; END IF; "
    f"IF {_open_door('e', 's')} THEN RETURN OLD; END IF; END IF; "
    "RAISE EXCEPTION '% is append-only', TG_TABLE_NAME "
    "USING ERRCODE = 'restrict_violation'; END $$"
)
