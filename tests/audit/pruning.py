"""A mirrored queue with events of many days, whose log tests prove and prune."""

from __future__ import annotations

from sql_audit.mirror.turn import Mirror
from sql_audit.store.connection.database import Database
from sql_audit.upkeep.plan import Rules, plan
from sql_audit.upkeep.prune import PruneResult, prune_logs
from tests.kit import auditlog
from tests.kit.outbox import StreamWriter
from tests.kit.story import Story

DAY = 86_400_000


def days(writer: StreamWriter, number: int) -> None:
    """Let this number of days pass on the test's clock."""
    writer.now_ms += number * DAY


def two_seasons(writer: StreamWriter, mirror: Mirror) -> Story:
    """Run a queue with caps, let a hundred days pass, and run the queue again. Jobs of the first run may end in the
    second."""
    story = Story(writer, seed=5)
    story.run(200)
    auditlog.drain(mirror)
    days(writer, 100)
    story.run(100)
    auditlog.drain(mirror)
    return story


def prune_at(
    database: Database, now_ms: int, *, days_kept: int = 90, **keep: int
) -> list[PruneResult]:
    rules = Rules(days_kept * DAY, {name: number * DAY for name, number in keep.items()})
    return prune_logs(database, plan(database, rules, now_ms=now_ms), by="ada", now_ms=now_ms)


def jobs(database: Database) -> dict[str, str]:
    found = auditlog.rows(database, "SELECT job_id, state FROM job")
    return {row["job_id"]: row["state"] for row in found}
