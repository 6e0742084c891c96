"""The queries in docs/how-to/steps.md and docs/how-to/waits.md, carried out on the log of a durable job."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.seed import Seed

PAGES = Path(__file__).parents[2] / "docs" / "how-to"


def queries(page: str) -> list[str]:
    """Return the queries of a page, in order."""
    found = re.findall(r"```sql\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)
    return [each.rstrip().rstrip(";") for each in found]


@pytest.fixture
def log(valkey_url: str, database: Database) -> Iterator[Database]:
    """Yield the log of the job `o-1`. Its first claim began `ship` and failed, the second one saved `ship`, and the
    third one took an approval and runs `mail`, which is begun."""
    with Seed(valkey_url) as seed:
        mirror = Mirror(Outbox(seed.client), database, seed.queue)
        auditlog.drain(mirror)
        claim = seed.running("o-1")
        seed.save(claim)
        seed.save(claim, what="begin", entry=2, name="ship")
        seed.fail(claim)
        seed.live(60_000)
        claim = seed.claim_one("o-1")
        seed.save(claim, entry=2, name="ship")
        seed.wait(claim, entry=3)
        seed.park(claim, waits="3")
        seed.signal("o-1")
        claim = seed.claim_one("o-1")
        seed.wait(claim, "1", entry=3, what="take")
        seed.save(claim, what="begin", entry=4, name="mail")
        auditlog.drain(mirror)
        yield database


def rows(log: Database, query: str) -> list[dict[str, Any]]:
    if log.dialect == "postgresql":
        # As the pages say.
        query = re.sub(r"json_extract\((\w+\.detail), '\$\.(\w+)'\)", r"\1::jsonb ->> '\2'", query)
    return auditlog.rows(log, query)


def test_the_documented_query_of_saved_steps_names_the_claim_of_each_step(log: Database) -> None:
    saved, _ = queries("steps.md")

    assert [("charge", 1), ("ship", 2), ("approval", 3)] == [
        (each["step"], each["claim"]) for each in rows(log, saved)
    ]


def test_the_documented_query_of_steps_in_doubt_names_the_claim_that_began_each_step(
    log: Database,
) -> None:
    _, in_doubt = queries("steps.md")

    assert [("ship", 1, "retried", True), ("mail", 3, None, False)] == [
        (each["step"], each["claim"], each["outcome"], each["saved_at"] is not None)
        for each in rows(log, in_doubt)
    ]


@pytest.mark.slow
def test_the_documented_query_of_approvals_names_the_sender_and_the_claim_of_each_signal(
    log: Database,
) -> None:
    (approvals,) = queries("waits.md")

    assert [("ann", "asked", 3)] == [
        (each["sent_by"], each["why"], each["claim"]) for each in rows(log, approvals)
    ]
