"""Prune removes only old jobs of a proven log. The remaining log can still be proven."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from sql_audit.errors import NotProven
from sql_audit.mirror.reading import BatchLimits
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.log import kept_rows
from sql_audit.proof.record import record_proofs
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.store.chain import found_text
from sql_audit.store.connection.copy import copy_text
from sql_audit.store.connection.database import Database
from sql_audit.store.partitions import create_ahead
from sql_audit.store.schema.tables import mirror_prune
from sql_audit.upkeep.plan import Rules, plan
from sql_audit.upkeep.prune import prune_logs, remove
from tests.audit.conftest import QUEUE
from tests.audit.pruning import DAY, days, jobs, prune_at, two_seasons
from tests.kit import auditlog
from tests.kit.command import audit
from tests.kit.liar import lying
from tests.kit.outbox import StreamWriter, enqueue
from tests.kit.story import Story


@pytest.fixture
def small(make_mirror: Callable[..., Mirror]) -> Mirror:
    """Return a mirror that writes small batches, between which a prune can cut the log."""
    return make_mirror(limits=BatchLimits(events=20))


def test_prune_removes_old_jobs_and_verify_proves_the_rest(
    writer: StreamWriter, small: Mirror, database: Database
) -> None:
    two_seasons(writer, small)
    before = jobs(database)
    events = len(auditlog.events(database, QUEUE))
    cut_ms = writer.now_ms - 90 * DAY
    old = {
        row["job_id"]
        for row in auditlog.rows(
            database, "SELECT job_id FROM job WHERE since_ms < :t AND state IN "
            "('succeeded', 'cancelled', 'discarded', 'pruned')", t=cut_ms,
        )
    }  # fmt: skip

    (done,) = prune_at(database, writer.now_ms)

    assert len(old) > 20
    assert set(before) - set(jobs(database)) == old
    assert done.jobs == len(old)
    left = auditlog.events(database, QUEUE)
    assert len(left) == events - done.events
    assert {row["job_id"] for row in left}.isdisjoint(old)
    attempts = auditlog.rows(database, "SELECT DISTINCT job_id FROM job_attempt")
    assert {row["job_id"] for row in attempts}.isdisjoint(old)
    result = verify(database)
    assert result.verdict is LogVerdict.HOLDS, result.queues
    says = result.queues[QUEUE].says
    assert f"complete through epoch {writer.epoch}, number {writer.seq}" in says
    assert f"from after {done.cut}" in says
    assert "after a prune at" in says
    assert "by ada" in says


def test_a_prune_that_removes_no_jobs_writes_no_record(
    writer: StreamWriter, small: Mirror, database: Database
) -> None:
    """Checks that the record of an earlier prune stays."""
    two_seasons(writer, small)
    (first,) = prune_at(database, writer.now_ms)
    recorded = auditlog.rows(database, "SELECT * FROM mirror_prune")
    assert first.jobs > 0

    assert prune_at(database, writer.now_ms) == []
    assert auditlog.rows(database, "SELECT * FROM mirror_prune") == recorded


def test_verify_still_counts_the_jobs_that_held_a_place_in_a_cap_when_the_log_was_pruned(
    writer: StreamWriter, small: Mirror, database: Database
) -> None:
    """Checks that the replay of the remaining log begins with the jobs and claims that were alive at the cut."""
    story = two_seasons(writer, small)
    whole = verify(database)
    prune_at(database, writer.now_ms)
    cut = verify(database)
    assert cut.queues[QUEUE].live == whole.queues[QUEUE].live > 0

    # From here on the queue cheats: each scope takes more than it may.
    story.slack = 3
    story.run(150)
    auditlog.drain(small)

    assert verify(database).queues[QUEUE].counts.get("I3", 0) > 0


def test_each_outcome_has_its_own_retention(
    writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    writer.life("old-done")
    enqueue(writer, "old-dead", "alive", "dropped", "dead-in-redis")
    fence = writer.jobs("claimed", ["old-dead", 1], ["dead-in-redis", 1])
    writer.jobs(
        "died", ["old-dead", fence, "final", 1, None], ["dead-in-redis", fence, "final", 1, None]
    )
    writer.jobs("pruned", ["old-dead"])
    writer.jobs("cancelled", ["dropped", None], why="not needed")
    auditlog.drain(mirror)
    days(writer, 20)
    writer.life("new-done")
    auditlog.drain(mirror)
    writer.life("last")
    auditlog.drain(mirror)

    prune_at(database, writer.now_ms, days_kept=90, succeeded=7, dead=365)
    assert set(jobs(database)) == {
        "old-dead", "alive", "dropped", "dead-in-redis", "new-done", "last",
    }  # fmt: skip
    assert verify(database).verdict is LogVerdict.HOLDS

    # What is kept longer leaves in its time, although nothing new is old enough.
    now = writer.now_ms + 80 * DAY
    prune_at(database, now, days_kept=90, succeeded=1000, dead=365)
    assert set(jobs(database)) == {"old-dead", "alive", "dead-in-redis", "new-done", "last"}
    prune_at(database, now, days_kept=1000, dead=90)
    assert set(jobs(database)) == {"alive", "dead-in-redis", "new-done", "last"}
    assert verify(database).verdict is LogVerdict.HOLDS


def test_pruning_a_log_with_gaps_needs_the_consent_of_the_operator(
    writer: StreamWriter, small: Mirror, database: Database
) -> None:
    writer.life("a")
    writer.seq += 1  # one entry is lost
    writer.life("b")
    writer.raw({"type": "nonsense", "by": "x"})
    writer.life("c")
    auditlog.drain(small)
    # Behind a gap the mirror has Redis begin an epoch with a baseline.
    writer.begin(writer.epoch + 1_000, "replid_changed", f"{writer.epoch + 2}-1")
    days(writer, 100)
    writer.life("d")
    auditlog.drain(small)
    result = verify(database)
    assert result.verdict is LogVerdict.UNKNOWN

    with pytest.raises(NotProven, match="--accept-gaps"):
        prune_at(database, writer.now_ms)
    cuts = plan(database, Rules(90 * DAY), now_ms=writer.now_ms)
    prune_logs(database, cuts, by="ada", now_ms=writer.now_ms, accept_unknown=True)

    assert set(jobs(database)) == {"d"}
    assert auditlog.rows(database, "SELECT * FROM quarantine") == []
    after = verify(database)
    assert after.violations == []


def test_prune_refuses_a_violated_log_despite_a_recorded_proof(
    writer: StreamWriter, small: Mirror, database: Database
) -> None:
    """Checks a forged record of a proof, which the role of a verifier may insert. Prune verifies the log again."""
    Story(writer, seed=3, slack=4).run(300)
    auditlog.drain(small)
    days(writer, 100)
    writer.life("later")
    auditlog.drain(small)
    result = verify(database)
    assert result.verdict is LogVerdict.VIOLATED
    record_proofs(database, result)
    assert auditlog.rows(database, "SELECT * FROM mirror_proof") == []
    before = auditlog.events(database, QUEUE)
    lie(
        database,
        "INSERT INTO mirror_proof (queue, at_ms, verdict, epoch, seq, batch, head, events) "
        "SELECT queue, at_ms, 'holds', epoch, seq, batch, head, events FROM mirror_cursor",
    )

    with pytest.raises(NotProven, match="is violated"):
        prune_at(database, writer.now_ms)

    assert auditlog.events(database, QUEUE) == before


def test_events_can_be_deleted_only_during_a_recorded_prune(
    writer: StreamWriter, small: Mirror, database: Database
) -> None:
    two_seasons(writer, small)
    (cut,) = plan(database, Rules(90 * DAY), now_ms=writer.now_ms)
    seen: list[str] = []

    def refused(where: str) -> None:
        with database.writing(wait=True) as connection:
            assert connection is not None
            with pytest.raises(DBAPIError, match="append-only"):
                connection.execute(text(f"DELETE FROM job_event WHERE {where}"))

    beyond = f"(epoch, seq) > ({cut.at.epoch}, {cut.at.seq})"
    refused("1 = 1")

    def on_step(step: str) -> None:
        seen.append(step)
        if step == "removed":
            refused(beyond)
            with database.writing(wait=True) as connection:
                assert connection is not None
                with pytest.raises(DBAPIError, match="append-only"):
                    connection.execute(text("UPDATE job_event SET at_ms = 1"))

    prune_logs(database, [cut], by="ada", now_ms=writer.now_ms, on_step=on_step)

    refused("1 = 1")
    assert "removed" in seen or "month" in seen


@pytest.mark.parametrize("step", ["begun", "removed", "month", "batches", "quarantine"])
def test_the_next_prune_completes_a_prune_whose_process_died(
    step: str,
    writer: StreamWriter,
    small: Mirror,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sql_audit.upkeep.prune.JOBS_AT_ONCE", 7)
    create_old_months(database, writer)
    two_seasons(writer, small)
    cuts = plan(database, Rules(90 * DAY), now_ms=writer.now_ms)
    expected = set(jobs(database))

    class Died(Exception):
        pass

    def die(at: str) -> None:
        if at == step:
            raise Died

    try:
        prune_logs(database, cuts, by="ada", now_ms=writer.now_ms, on_step=die)
    except Died:
        half = verify(database)
        assert half.violations == []
        assert half.verdict is LogVerdict.UNKNOWN
        assert "under way, or was interrupted" in half.queues[QUEUE].notes[0].says
    else:
        assert (step, database.dialect) in {("month", "sqlite"), ("removed", "postgresql")}

    prune_at(database, writer.now_ms)

    assert len(jobs(database)) < len(expected)
    assert verify(database).verdict is LogVerdict.HOLDS
    assert (
        auditlog.rows(database, "SELECT batch FROM mirror_batch WHERE batch <= :n", n=cuts[0].batch)
        == []
    )


def create_old_months(database: Database, writer: StreamWriter) -> None:
    """Create the partitions of past months that a mirror would have created in those months."""
    create_ahead(database, writer.now_ms)


def lie(database: Database, *statements: str) -> None:
    """Change rows that the database protects from changes."""
    with lying(database) as connection:
        for statement in statements:
            connection.execute(text(statement))


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE job_event SET worker = 'x' WHERE {kept}",
        "DELETE FROM job_event WHERE {kept}",
        "UPDATE job_event SET worker = 'x' WHERE {after}",
        "DELETE FROM job_event WHERE {after}",
        "UPDATE mirror_prune SET actor = 'eve' WHERE kind = 'done'",
        "UPDATE mirror_prune SET batch = batch + 100 WHERE kind = 'done'",
        "UPDATE mirror_prune SET batch = cut_batch WHERE kind = 'done'",
        "DELETE FROM mirror_prune WHERE kind = 'begun'",
    ],
)
def test_verify_finds_a_change_to_the_events_or_the_record_of_a_prune(
    change: str, writer: StreamWriter, small: Mirror, database: Database
) -> None:
    two_seasons(writer, small)
    (done,) = prune_at(database, writer.now_ms)
    epoch, seq = done.cut.split("-")
    kept = auditlog.rows(
        database, "SELECT seq FROM job_event WHERE (epoch, seq) <= (:e, :s) AND ordinal = 0 "
        "ORDER BY seq", e=int(epoch), s=int(seq),
    )  # fmt: skip
    where = {
        "kept": f"seq = {kept[len(kept) // 2]['seq']}",
        "after": f"seq = {int(seq) + 5}",
    }

    lie(database, change.format(**where))

    found = verify(database)
    assert found.verdict is LogVerdict.VIOLATED
    assert "I7" in found.queues[QUEUE].counts


def test_verify_proves_a_saved_head_only_if_its_batch_was_not_pruned(
    writer: StreamWriter, small: Mirror, database: Database
) -> None:
    two_seasons(writer, small)
    heads = [
        r["head"] for r in auditlog.rows(database, "SELECT head FROM mirror_batch ORDER BY batch")
    ]
    (cut,) = plan(database, Rules(90 * DAY), now_ms=writer.now_ms)

    (done,) = prune_logs(database, [cut], by="ada", now_ms=writer.now_ms)

    assert verify(database, heads=[done.head]).verdict is LogVerdict.HOLDS
    before = verify(database, heads=[heads[0]])
    assert before.verdict is LogVerdict.UNKNOWN
    assert "it was pruned, or" in before.queues[QUEUE].notes[-1].says


def test_a_saved_head_from_before_a_forged_prune_proves_nothing(
    writer: StreamWriter, small: Mirror, database: Database
) -> None:
    """Checks an attacker who may write all tables, rewrites old jobs, and forges the record of a prune."""
    two_seasons(writer, small)
    known = [
        r["head"] for r in auditlog.rows(database, "SELECT head FROM mirror_batch ORDER BY batch")
    ]
    (cut,) = plan(database, Rules(90 * DAY), now_ms=writer.now_ms)
    lie(database, "UPDATE job_event SET worker = 'x' WHERE type = 'enqueued' AND seq < 40")
    (done,) = remove(database, [cut], by="ada", now_ms=writer.now_ms)
    # Nobody can tell it from a true one by what is in SQL.
    assert verify(database, heads=[done.head]).verdict is LogVerdict.HOLDS

    for head in (known[-1], cut.head):
        found = verify(database, heads=[head])
        assert found.verdict is LogVerdict.UNKNOWN
        assert "is older than the record of the prune" in found.queues[QUEUE].notes[-1].says


@pytest.mark.parametrize("batch", ["the cut", "the last"])
def test_verify_finds_rewritten_events_despite_forged_records_of_a_prune(
    batch: str, writer: StreamWriter, small: Mirror, database: Database
) -> None:
    """Checks rewritten events whose batches were deleted. The forged records name the true head of the chain."""
    two_seasons(writer, small)
    (cut,) = plan(database, Rules(90 * DAY), now_ms=writer.now_ms)
    *_, known = auditlog.rows(database, "SELECT batch, head FROM mirror_batch ORDER BY batch")
    lie(
        database,
        "UPDATE job_event SET worker = 'x' WHERE type = 'enqueued' AND seq < 40",
        f"DELETE FROM mirror_batch WHERE batch <= {cut.batch}",
    )
    kept = [row for rows in kept_rows(database, QUEUE, cut.at) for row in rows]
    with database.readers.connect() as connection:
        found = "".join(found_text(connection, QUEUE, range(cut.batch + 1)))
    digest = hashlib.sha256((copy_text(kept) + found).encode()).hexdigest()
    row = {
        "queue": QUEUE, "batch": cut.batch if batch == "the cut" else known["batch"], "at_ms": writer.now_ms,
        "actor": "ada", "rules": cut.rules, "epoch": cut.at.epoch, "seq": cut.at.seq, "cut_at_ms": cut.at_ms,
        "cut_batch": cut.batch, "head": cut.head, "through_entries": cut.through_entries,
        "through_events": cut.through_events, "jobs": 0, "events": 0, "kept_events": len(kept), "kept_digest": digest,
    }  # fmt: skip
    with lying(database) as connection:
        for kind in ("begun", "done"):
            connection.execute(mirror_prune.insert(), row | {"kind": kind})

    assert verify(database).verdict is LogVerdict.VIOLATED
    assert verify(database, heads=[known["head"]]).verdict is LogVerdict.VIOLATED


def test_the_mirror_continues_between_the_transactions_of_a_prune(
    writer: StreamWriter,
    small: Mirror,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sql_audit.upkeep.prune.JOBS_AT_ONCE", 5)
    story = two_seasons(writer, small)
    told: list[int] = []

    def on_step(_step: str) -> None:
        story.run(5)
        told.append(auditlog.drain(small))

    prune_logs(
        database, plan(database, Rules(90 * DAY), now_ms=writer.now_ms), by="ada",
        now_ms=writer.now_ms, on_step=on_step,
    )  # fmt: skip

    assert len(told) > 5
    assert min(told) > 0
    assert verify(database).verdict is LogVerdict.HOLDS


def test_the_prune_command_reports_the_removed_jobs_and_explains_refusals(
    writer: StreamWriter, small: Mirror, audit_url: str, database: Database
) -> None:
    writer.now_ms = int(time.time() * 1000) - 101 * DAY
    two_seasons(writer, small)
    command = ["prune", "--audit", audit_url, "--older-than", "90d"]

    dry = audit(*command, "--dry-run", "--json")
    before = jobs(database)
    done = audit(*command, "--keep", "dead=1y", "--by", "ada", "--json")

    assert done.exit_code == 0, done.output
    would: Any = json.loads(dry.output)["queues"][0]
    did: Any = json.loads(done.output)["queues"][0]
    assert would["jobs"] == did["jobs"] == len(before) - len(jobs(database)) > 0
    assert would["cut"] == did["cut"]
    checked = audit("verify", "--audit", audit_url, "--head", did["head"])
    assert checked.exit_code == 0
    assert "after a prune at" in checked.output
    row = auditlog.one(database, "SELECT * FROM mirror_prune WHERE kind = 'done'")
    assert (row["actor"], row["jobs"], row["events"]) == ("ada", did["jobs"], did["events"])


def test_the_prune_command_uses_the_singular_for_one_job(
    writer: StreamWriter, mirror: Mirror, audit_url: str, database: Database
) -> None:
    """Checks that the command does not print "1 jobs would be removed"."""
    at = ("--audit", audit_url)
    writer.now_ms = int(time.time() * 1000) - 101 * DAY
    writer.life("a")
    auditlog.drain(mirror)
    days(writer, 100)
    enqueue(writer, "b")
    auditlog.drain(mirror)
    audit("verify", *at)

    would = audit("prune", *at, "--older-than", "90d", "--dry-run").output
    done = audit("prune", *at, "--older-than", "90d").output

    assert "mail: 1 job would be removed, up to" in would
    assert "mail: 1 job and its 3 events were removed, up to" in done
    assert "; 1 event is kept there\n" in done


@pytest.mark.parametrize("said", ["90", "d", "-1d", "1.5d", "9999999d", "1q", ""])
def test_an_invalid_time_span_is_refused(said: str, audit_url: str) -> None:
    result = audit("prune", "--audit", audit_url, "--older-than", said)

    assert result.exit_code == 2
    assert "is not a time span" in result.output
