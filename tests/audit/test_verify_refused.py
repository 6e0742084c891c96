"""`audit verify` exits with 2 if PostgreSQL refuses a query. A refused query proves no violation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from sql_audit.mirror.turn import Mirror
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.command import audit
from tests.kit.outbox import StreamWriter
from tests.kit.schemas import lay_schema


@pytest.fixture
def database(postgres_url: str) -> Iterator[Database]:
    database = Database(postgres_url)
    lay_schema(database)
    yield database
    database.close()


NO_SPACE = (
    "ALTER TABLE job_attempt RENAME TO attempts; CREATE FUNCTION no_space() RETURNS SETOF attempts LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE 'could not write to file: No space left on device' USING ERRCODE = 'disk_full'; END $$; "
    "CREATE VIEW job_attempt AS SELECT * FROM no_space(); COMMIT"
)
"""SQL statements that make each query of job_attempt fail, as if the disk were full."""


@pytest.mark.parametrize(
    ("trouble", "says"),
    [
        ("LOCK TABLE job_attempt", "canceling statement due to statement timeout"),
        ("ALTER TABLE job_attempt RENAME COLUMN task TO work; COMMIT", "task"),
        ("ALTER TABLE job_attempt RENAME TO attempts; COMMIT", "job_attempt"),
        (NO_SPACE, "No space left on device"),
    ],
    ids=["statement timeout", "missing column", "missing table", "full disk"],
)
def test_verify_reports_no_violation_when_postgres_refuses_a_query(
    database: Database,
    writer: StreamWriter,
    make_mirror: Callable[..., Mirror],
    trouble: str,
    says: str,
) -> None:
    writer.life("a", "b")
    auditlog.drain(make_mirror())
    database.close()
    url = database.address.render_as_string(hide_password=False)
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        name = database.address.database
        connection.execute(f'ALTER DATABASE "{name}" SET statement_timeout = 400')
        connection.commit()
        connection.execute(trouble)

        said = audit("verify", "--audit", url)

    (line,) = said.stderr.splitlines()
    assert said.exit_code == 2, said.output
    assert says in line
