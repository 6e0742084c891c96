"""`audit verify` finds each table, index, trigger, function or view that differs from the migration."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable

import pytest
from sqlalchemy import text

from sql_audit.mirror.turn import Mirror
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.outbox import StreamWriter

LYING_VIEW = (
    "DROP VIEW waiting_by_lane;; CREATE VIEW waiting_by_lane AS SELECT queue, lane, 0 AS waiting, "
    "NULL AS oldest_ready_at FROM job"
)
LACKING_INDEX = (
    "CREATE INDEX job_event_job ON job_event (job_id, queue, epoch, seq) WHERE job_id <> 'a'"
)
LACKING = "CREATE INDEX lacking ON job (task) WHERE job_id <> 'a'"
NOT_CHECKED = (
    "ALTER TABLE mirror_batch DROP CONSTRAINT mirror_batch_from_one, "
    "ADD CONSTRAINT mirror_batch_from_one CHECK (batch > 0)"
)
ON_BOTH = [
    (LYING_VIEW, "view waiting_by_lane has another definition"),
    ("DROP VIEW job_readable", "view job_readable is missing"),
    ("DROP INDEX job_event_job", "index job_event_job"),
]
ON_POSTGRES = [
    (
        "DROP TRIGGER quarantine_append_only ON quarantine",
        "trigger quarantine_append_only on quarantine is missing",
    ),
    (
        "ALTER TABLE job_event DISABLE TRIGGER USER",
        "trigger job_event_append_only on job_event is disabled",
    ),
    (
        "ALTER TABLE job_event_default DISABLE TRIGGER USER",
        "trigger job_event_append_only on job_event_default is disabled",
    ),
    (
        "CREATE OR REPLACE FUNCTION audit_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN OLD; END $$",
        "function audit_refuse has another definition",
    ),
    (
        "CREATE TRIGGER more BEFORE INSERT ON job FOR EACH ROW EXECUTE FUNCTION audit_refuse()",
        "trigger more on job was added",
    ),
    ("ALTER TABLE job ENABLE ROW LEVEL SECURITY", "job has row-level security"),
    ("CREATE POLICY few ON job USING (job_id <> 'a')", "policy few on job was added"),
    (
        "CREATE RULE none AS ON DELETE TO job_event_default DO INSTEAD NOTHING",
        "rule none on job_event_default was added",
    ),
    ("CREATE TABLE more () INHERITS (job)", "more adds rows to table job"),
    ("ALTER TABLE job DROP CONSTRAINT job_state", "constraint job_state of table job is missing"),
    (
        f"{NOT_CHECKED} NOT VALID",
        "constraint mirror_batch_from_one of table mirror_batch has another definition",
    ),
    ("ALTER TABLE job ALTER COLUMN state DROP NOT NULL", "column job.state has another definition"),
    (
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'job_alive'::regclass",
        "index job_alive of table job is not valid",
    ),
    (
        # As an index that was built over fewer rows and then passed off as whole.
        f"{LACKING};; UPDATE pg_index SET indpred = NULL WHERE indexrelid = 'lacking'::regclass",
        "index lacking of table job has 1 rows, there are 2",
    ),
    (
        "ALTER VIEW job_event_readable RENAME COLUMN worker TO who",
        "view job_event_readable has another definition",
    ),
    (
        "ALTER DATABASE {name} SET session_replication_role = replica",
        "session_replication_role is set",
    ),
]
ON_SQLITE = [
    ("DROP TRIGGER job_event_no_delete", "trigger job_event_no_delete is missing"),
    (
        "CREATE TRIGGER more AFTER INSERT ON job BEGIN SELECT 1; END",
        "trigger more on job was added",
    ),
    (LACKING_INDEX, "index job_event_job has another definition"),
]


def lie(database: Database, statements: str) -> None:
    with database.writing(wait=True) as connection:
        assert connection is not None
        if database.dialect == "postgresql":
            connection.execute(text("SET LOCAL allow_system_table_mods = on"))
        for statement in statements.split(";; "):
            name = f'"{database.address.database}"'
            connection.exec_driver_sql(statement.replace("{name}", name))
        connection.commit()


@pytest.fixture
def log(writer: StreamWriter, make_mirror: Callable[..., Mirror], database: Database) -> Database:
    writer.life("a", "b")
    auditlog.drain(make_mirror())
    result = verify(database)
    assert (result.verdict, result.problems) == (LogVerdict.HOLDS, [])
    return database


@pytest.mark.slow
def test_verify_names_a_schema_object_that_differs_from_the_migration(log: Database) -> None:
    """Plants one difference after another in the same log. Verify must name each new difference."""
    of_one = ON_POSTGRES if log.dialect == "postgresql" else ON_SQLITE
    for statements, says in (*ON_BOTH, *of_one):
        lie(log, statements)

        problems = verify(log).problems

        assert any(says in each for each in problems), (says, problems)


def test_verify_finds_an_index_in_which_a_job_is_missing(log: Database) -> None:
    """Checks an index without one of its rows, which hides a job from `history`."""
    path = log.path
    log.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (honest,) = connection.execute(
            "SELECT sql FROM sqlite_master WHERE name = 'job_event_job'"
        ).fetchone()
        connection.execute("DROP INDEX job_event_job")
        connection.execute(LACKING_INDEX)
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_master SET sql = ? WHERE name = 'job_event_job'", (honest,)
        )
        connection.commit()

    problems = verify(log).problems

    assert any("missing from index job_event_job" in each for each in problems), problems
