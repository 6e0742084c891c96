"""The statements and queries in docs/how-to/audit-log.md, carried out on a log."""

import hashlib
import re
from pathlib import Path

import psycopg
import pytest

from sql_audit.mirror.turn import Mirror
from sql_audit.store.connection.database import Database
from sql_audit.store.schema.tables import metadata
from tests.audit.conftest import QUEUE
from tests.kit import auditlog
from tests.kit.outbox import StreamWriter
from tests.kit.schemas import lay_schema

README = (Path(__file__).parents[2] / "docs" / "how-to" / "audit-log.md").read_text()
QUERIES = re.findall(r"```sql\n(.*?)```", README, re.DOTALL)


def test_the_page_of_queries_has_at_least_five_queries() -> None:
    assert len(QUERIES) >= 5


@pytest.mark.parametrize("query", QUERIES, ids=range(1, len(QUERIES) + 1))
def test_the_documented_queries_return_rows(
    query: str, writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    # After the minute from which on the queries ask.
    writer.now_ms = 1_795_515_000_000
    writer.life("a", "b")
    fence = writer.jobs("claimed", ["c", 1])
    writer.jobs("lease_expired", ["c", fence, "w-1", 1, "ready"], by="w-2")
    fence = writer.jobs("claimed", ["c", 2])
    writer.jobs("rolled_back", ["c", fence, None, "stopping"])
    fence = writer.jobs("claimed", ["d", 1], ["e", 1, [["tenant=acme", 2]]])
    writer.jobs("retried", ["d", fence, None, 1, {"type": "ValueError", "message": "no"}])
    breaker = "send.host@60s:failures=h1"
    writer.jobs("enqueued", ["f", 1, None, "send", "normal", 9, 3, "d", f"2+{breaker}"])
    fence = writer.jobs("claimed", ["f", 1, [[breaker, 1, 60_000, 30_000]]])
    writer.jobs("scope_paused", ["f", fence, breaker, writer.now_ms + 30_000])
    writer.now_ms -= 1  # The pause and its failure are of one call.
    writer.jobs("retried", ["f", fence, None, 1, {"type": "OSError", "message": "no"}])
    auditlog.drain(mirror)

    assert auditlog.rows(database, query.rstrip().rstrip(";")) != []


def test_the_page_about_the_audit_log_describes_every_table() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE)) == set(metadata.tables)


def test_a_digest_can_be_checked_with_psql_and_no_other_program(
    writer: StreamWriter, postgres_url: str
) -> None:
    database = Database(postgres_url)
    lay_schema(database)
    error = {"type": "ValueError", "message": "tab\t back\\slash ü"}
    writer.life("a", "b")
    writer.jobs("died", ["a", None, "final", 1, error])
    auditlog.drain(Mirror(writer.source, database, QUEUE))
    batch = auditlog.one(database, "SELECT * FROM mirror_batch")
    database.close()
    copy_out = (
        f"COPY (SELECT * FROM job_event WHERE queue = '{QUEUE}' AND (epoch, seq) BETWEEN "
        f"({batch['first_epoch']}, {batch['first_seq']}) AND "
        f"({batch['last_epoch']}, {batch['last_seq']}) ORDER BY epoch, seq, ordinal) TO STDOUT"
    )

    with (
        psycopg.connect(postgres_url.replace("+psycopg", "")) as connection,
        connection.cursor() as cursor,
        cursor.copy(copy_out.encode()) as copy,
    ):
        said = b"".join(bytes(part) for part in copy)

    assert hashlib.sha256(said).hexdigest() == batch["digest"]
