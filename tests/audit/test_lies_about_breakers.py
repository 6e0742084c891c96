"""`audit verify` finds lies about breakers that a test plants with SQL in the log of a real queue."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import text

from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.store.connection.database import Database
from tests.audit.restore.jobs import claim, complete
from tests.audit.test_breakers_kept import COOLDOWN, FAMILY, SCOPE, Fragile
from tests.kit import auditlog
from tests.kit.agreement import drain
from tests.kit.fleet import QUEUE
from tests.kit.liar import forge_chain, lying
from tests.kit.servers import RedisServer

Row = dict[str, Any]


class Log:
    """The log of a scope that two failures paused, that its probe opened, and that an operator paused."""

    def __init__(self, fragile: Fragile) -> None:
        self.database = fragile.database
        client = fragile.client
        fragile.enqueue("a", "b", "c", "d")
        held = claim(client, 2)
        for job_id in sorted(held):
            fragile.clock.advance(10)
            fragile.fail({job_id: held[job_id]}, 3_600_000)
        fragile.clock.advance(COOLDOWN)
        complete(client, claim(client, 2))
        fragile.clock.advance(10)
        complete(client, claim(client, 2))
        client.run(client.calls.pauses.pause(QUEUE, SCOPE, for_ms=5_000, by="ada"))
        drain(client, self.database)

    def rows(self, event: str) -> list[Row]:
        return [row for row in auditlog.events(self.database, QUEUE) if row["type"] == event]

    def change(self, row: Row, **values: Any) -> None:
        told = ", ".join(f"{name} = :{name}" for name in values)
        where = "queue = :q AND epoch = :e AND seq = :s AND ordinal = :o"
        key = {"q": row["queue"], "e": row["epoch"], "s": row["seq"], "o": row["ordinal"]}
        with lying(self.database) as connection:
            connection.execute(text(f"UPDATE job_event SET {told} WHERE {where}"), values | key)

    def change_detail(self, row: Row, **facts: Any) -> None:
        detail = json.loads(row["detail"]) | facts
        said = json.dumps(detail, ensure_ascii=False, separators=(",", ":"))
        self.change(row, detail=said)


def excepted_failure(log: Log) -> None:
    """The first of the two failures did not count."""
    error = {"type": "E", "message": "no", "excepted": FAMILY}
    log.change_detail(log.rows("retried")[0], error=error)


def early_first_failure(log: Log) -> None:
    """The first failure was not within the window."""
    row = log.rows("retried")[0]
    for each in auditlog.events(log.database, QUEUE):
        if each["seq"] <= row["seq"]:
            log.change(each, at_ms=each["at_ms"] - 90_000)


def missing_pause(log: Log) -> None:
    """The second failure paused nothing: instead of the pause, the log has another event."""
    row = log.rows("scope_paused")[0]
    fence = json.loads(row["detail"])["fence"]
    said = json.dumps({"fence": fence, "taken": "tokens:1"}, separators=(",", ":"))
    log.change(row, type="cost_settled", detail=said)


def early_probe(log: Log) -> None:
    """The probe began before the end of the pause."""
    row = log.rows("claimed")[2]
    for each in auditlog.events(log.database, QUEUE):
        if row["seq"] <= each["seq"]:
            log.change(each, at_ms=each["at_ms"] - 100)


def second_probe(log: Log) -> None:
    """The probe had not ended when the next job began."""
    row = log.rows("succeeded")[0]
    fence = json.loads(row["detail"])["fence"]
    said = {"fence": fence, "outcome": "complete", "reason": "stale"}
    detail = json.dumps(said, separators=(",", ":"))
    log.change(row, type="settlement_refused", worker="w-9", claim=None, detail=detail)


def short_pause(log: Log) -> None:
    row = log.rows("scope_paused")[0]
    log.change_detail(row, until_ms=row["at_ms"] + COOLDOWN - 1)


def nobody(log: Log) -> None:
    log.change(log.rows("pause_changed")[0], worker=None)


LIES: dict[str, tuple[Callable[[Log], None], str]] = {
    "excepted": (excepted_failure, f"pauses {SCOPE} at failure 1, and it allows 2"),
    "early": (early_first_failure, f"pauses {SCOPE} at failure 1, and it allows 2"),
    "missing": (missing_pause, f"is failure 2 in {SCOPE}, which allows 2, and does not pause it"),
    "in the pause": (early_probe, f"claimed 90 ms before the pause of {SCOPE} ends"),
    "two probes": (second_probe, f"claimed while the probe of {SCOPE} runs"),
    "short": (short_pause, f"pauses {SCOPE} for 29999 ms, and must for 30000"),
    "nobody": (nobody, "names no actor"),
}


@pytest.fixture
def log(start_redis: Callable[..., RedisServer], database: Database) -> Iterator[Log]:
    fragile = Fragile(start_redis(), database)
    yield Log(fragile)
    fragile.close()


@pytest.mark.parametrize("lie", LIES)
def test_verify_finds_false_or_missing_events_about_a_breaker_in_sql(log: Log, lie: str) -> None:
    """The test computes the chain again, as an attacker with all rights could."""
    assert verify(log.database).verdict is LogVerdict.HOLDS
    tell, says = LIES[lie]
    tell(log)
    forge_chain(log.database)

    result = verify(log.database)

    assert result.verdict is LogVerdict.VIOLATED
    said = [found.says for found in result.violations]
    assert says in said, said
