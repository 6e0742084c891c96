"""What Redis forgot: a table of losses, views of what is orphaned, jobs and claims that are lost.

Revision ID: 0004
Revises: 0003
Create Date: 2026-11-21

SQLite cannot change a CHECK, so there the tables are made anew and their rows copied.
"""

# ruff: noqa: S608 - statements are joined from names of this module

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

OLD_STATES = (
    "scheduled", "ready", "running", "cancelling", "dead", "discarded", "cancelled", "pruned",
    "succeeded", "gone",
)  # fmt: skip
NEW_STATES = (*OLD_STATES, "lost")
OLD_OUTCOMES = ("lease_expired", "cancelled", "succeeded", "retried", "died", "rolled_back")
NEW_OUTCOMES = (*OLD_OUTCOMES, "lost")
LOSS_KINDS = ("orphaned", "forgotten", "restated")
LOSS_VIEWS = ("job_event_orphaned", "orphaned_range")


def upgrade() -> None:
    dialect = op.get_bind().dialect.name
    _change(dialect, NEW_STATES, NEW_OUTCOMES, {})
    _create_losses(dialect)


def downgrade() -> None:
    """Lost jobs become ``gone``. Their lost claims look as if they were in force, as before."""
    for view in LOSS_VIEWS:
        _ddl(f"DROP VIEW {view}")
    op.drop_table("mirror_loss")
    dialect = op.get_bind().dialect.name
    if dialect == "postgresql":
        op.execute("UPDATE job SET state = 'gone' WHERE state = 'lost'")
        op.execute("UPDATE job_attempt SET outcome = NULL WHERE outcome = 'lost'")
    changed = {
        "state": "CASE state WHEN 'lost' THEN 'gone' ELSE state END",
        "outcome": "NULLIF(outcome, 'lost')",
    }
    _change(dialect, OLD_STATES, OLD_OUTCOMES, changed)


def _change(
    dialect: str, states: tuple[str, ...], outcomes: tuple[str, ...], changed: dict[str, str]
) -> None:
    if dialect == "postgresql":
        _set_check("job", "job_state", "state", states)
        _set_check("job_attempt", "job_attempt_outcome", "outcome", outcomes)
        return
    views = _take_views_down()
    _rebuild("job", _job_table(states), changed)
    _rebuild("job_attempt", _attempt_table(outcomes), changed)
    for statement in views:
        _ddl(statement)


def _ddl(statement: str) -> None:
    # DDL() fills % itself, so every one is doubled; text() would take colons for parameters.
    op.execute(sa.DDL(statement.replace("%", "%%")))  # type: ignore[no-untyped-call]


def _words(words: tuple[str, ...]) -> str:
    return f"({', '.join(repr(word) for word in words)})"


def _set_check(table: str, name: str, column: str, words: tuple[str, ...]) -> None:
    op.drop_constraint(name, table, type_="check")
    op.create_check_constraint(name, table, f"{column} IN {_words(words)}")


def _take_views_down() -> list[str]:
    """Drop SQLite's views, which must not stand while their tables are made anew. Returns how to make
    them again."""
    found = op.get_bind().exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE type = 'view'")
    views = [(str(name), str(statement)) for name, statement in found]
    for name, _ in views:
        _ddl(f"DROP VIEW {name}")
    return [statement for _, statement in views]


def _rebuild(table: str, parts: list[Any], changed: dict[str, str]) -> None:
    """Make a table anew and copy its rows; ``changed``: what a column becomes."""
    op.rename_table(table, f"{table}_before")
    op.create_table(table, *parts, sqlite_with_rowid=False)
    names = [part.name for part in parts if isinstance(part, sa.Column)]
    values = [changed.get(name, name) for name in names]
    op.execute(
        f"INSERT INTO {table} ({', '.join(names)}) SELECT {', '.join(values)} FROM {table}_before"
    )
    op.drop_table(f"{table}_before")


def _number(name: str, *, null: bool = False) -> Any:
    return sa.Column(name, sa.BigInteger(), autoincrement=False, nullable=null)


def _text(name: str, *, null: bool = True) -> Any:
    return sa.Column(name, sa.Text(), nullable=null)


def _job_table(states: tuple[str, ...]) -> list[Any]:
    priorities = _words(("critical", "high", "normal", "low"))
    return [
        _text("job_id", null=False),
        _text("queue", null=False),
        _text("task"),
        _text("priority"),
        _text("state", null=False),
        *(_number(name) for name in ("claims", "failures", "losses", "unknown")),
        *(
            _number(name, null=True)
            for name in (
                "max_attempts", "max_losses", "seq", "enqueued_at_ms", "due_ms", "ready_at_ms",
                "claimed_at_ms", "finished_at_ms", "since_ms",
            )
        ),
        *(
            _text(name)
            for name in ("worker", "fence", "reason", "error_type", "error_message", "digest")
        ),
        sa.Column("complete", sa.SmallInteger(), nullable=False),
        _number("last_epoch"),
        _number("last_seq"),
        _text("lane"),
        sa.CheckConstraint(f"priority IN {priorities}", name="job_priority"),
        sa.CheckConstraint(f"state IN {_words(states)}", name="job_state"),
        sa.CheckConstraint("complete IN (0, 1)", name="job_complete"),
        sa.PrimaryKeyConstraint("job_id", "queue", name="job_pkey"),
    ]  # fmt: skip


def _attempt_table(outcomes: tuple[str, ...]) -> list[Any]:
    return [
        _text("job_id", null=False),
        _text("queue", null=False),
        _text("fence", null=False),
        _number("claim", null=True),
        _text("task"),
        _text("worker"),
        *(
            _number(name, null=True)
            for name in ("ready_at_ms", "claimed_at_ms", "ended_at_ms", "waited_ms", "ran_ms")
        ),
        *(_text(name) for name in ("outcome", "error_type", "error_message", "scopes")),
        sa.CheckConstraint(f"outcome IN {_words(outcomes)}", name="job_attempt_outcome"),
        sa.PrimaryKeyConstraint("job_id", "queue", "fence", name="job_attempt_pkey"),
    ]


def _create_losses(dialect: str) -> None:
    op.create_table(
        "mirror_loss",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        _text("queue", null=False),
        _text("kind", null=False),
        _number("epoch"),
        _number("at_ms"),
        _number("after_epoch", null=True),
        _number("after_seq", null=True),
        *(_number(name) for name in ("upto_epoch", "upto_seq", "events", "jobs", "passed")),
        sa.CheckConstraint(f"kind IN {_words(LOSS_KINDS)}", name="mirror_loss_kind"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("mirror_loss_epoch", "mirror_loss", ["queue", "epoch"], unique=False)
    for statement in _triggers(dialect):
        _ddl(statement)
    columns = "queue, kind, epoch, after_epoch, after_seq, events"
    of_f = ", ".join(f"f.{name}" for name in columns.split(", "))
    _ddl(
        f"CREATE VIEW orphaned_range AS WITH RECURSIVE past ({columns}) AS ("
        f"SELECT {of_f} FROM mirror_loss f WHERE f.kind <> 'restated' AND f.epoch = ("
        "SELECT MAX(g.epoch) FROM mirror_loss g WHERE g.queue = f.queue AND "
        "g.kind <> 'restated') UNION ALL "
        f"SELECT {of_f} FROM past p JOIN mirror_loss f ON f.queue = p.queue AND "
        "f.kind <> 'restated' AND f.epoch = (SELECT MAX(g.epoch) FROM mirror_loss g WHERE "
        "g.queue = p.queue AND g.kind <> 'restated' AND "
        "g.epoch <= COALESCE(p.after_epoch, p.epoch - 1))) "
        "SELECT queue, after_epoch, after_seq, epoch AS before_epoch, events FROM past "
        "WHERE kind = 'orphaned'"
    )
    _ddl(
        "CREATE VIEW job_event_orphaned AS SELECT e.* FROM orphaned_range r JOIN job_event e "
        "ON e.queue = r.queue AND (e.epoch, e.seq) > (r.after_epoch, r.after_seq) AND "
        "(e.epoch, e.seq) < (r.before_epoch, 0)"
    )


def _triggers(dialect: str) -> list[str]:
    if dialect == "sqlite":
        return [
            f"CREATE TRIGGER mirror_loss_no_{verb.lower()} BEFORE {verb} ON mirror_loss "
            "BEGIN SELECT RAISE(ABORT, 'mirror_loss is append-only'); END"
            for verb in ("UPDATE", "DELETE")
        ]
    return [
        (
            "CREATE TRIGGER mirror_loss_append_only BEFORE UPDATE OR DELETE ON mirror_loss "
            "FOR EACH ROW EXECUTE FUNCTION audit_refuse()"
        ),
        (
            "CREATE TRIGGER mirror_loss_no_truncate BEFORE TRUNCATE ON mirror_loss "
            "FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse()"
        ),
    ]
