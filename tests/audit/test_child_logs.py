"""Verify compares a parent with the log of its children's queue, and this log lacks events, or has more than one job
with the id of a child."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from unittest import mock

import pytest
from sqlalchemy import text

from rq_core.app.durable import children
from rq_core.app.durable.children import JobSteps
from rq_core.model.durable.boxes import new_life
from rq_core.model.durable.children import KEEP_MS, child_id
from rq_core.model.job import NewJob, profile, ties_of
from rq_core.model.keys import queue_keys
from rq_core.model.outcome import Outcome, Succeeded
from sql_audit.mirror.reading import BatchLimits
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror, TurnOutcome
from sql_audit.proof.child_logs import MARGIN_MS
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit import families as kit
from tests.kit.families import PARENTS, PARENTS_LEASE_MS, PARTS, START_MS, Family, family
from tests.kit.liar import forge_chain, lying

COUNT: Final = 3
LIFE: Final = "9f3a0b1c22aa0001"
CHILD: Final = [child_id(LIFE, "pages", index) for index in range(COUNT)]
OLD: Final = "zeta"


@pytest.fixture
def of(valkey_url: str) -> Iterator[Family]:
    with (
        mock.patch("rq_core.app.durable.steps.new_life", return_value=LIFE),
        family(valkey_url, COUNT, expires_s=1_000_000.0) as made,
    ):
        yield made


def mirror(of: Family, database: Database, *queues: str) -> None:
    for queue in queues:
        auditlog.drain(Mirror(Outbox(of.client), database, queue))


def go_on(of: Family, *queues: str) -> None:
    """Let the logs of queues go on, far enough for verify to judge what they do not have."""
    of.pass_time(2 * MARGIN_MS)
    for queue in queues:
        enqueue(of, queue)


def enqueue(of: Family, queue: str, **ties: Any) -> None:
    job = NewJob(new_life(), queue, profile("other"), "{}", ties=ties_of(**ties))
    of.run(of.client.calls.enqueue.many([job]))


def end_children(of: Family) -> None:
    """Let the first two children succeed, and the last one fail."""
    of.succeed(of.claim(PARTS))
    of.succeed(of.claim(PARTS))
    of.fail(of.claim(PARTS))


def doubts(database: Database) -> list[str]:
    return [note.says for queue in verify(database).queues.values() for note in queue.notes]


def test_a_wait_for_a_requeued_child_is_no_violation_while_the_mirror_of_its_queue_is_behind(
    of: Family, database: Database
) -> None:
    of.run_parent()
    end_children(of)
    mirror(of, database, PARENTS, PARTS)
    of.pass_time(2 * MARGIN_MS)
    of.run(of.client.calls.families.requeue(PARTS, [CHILD[2]]))
    of.run_parent()
    go_on(of, PARENTS)
    mirror(of, database, PARENTS)

    result = verify(database)

    assert ([], LogVerdict.UNKNOWN) == (result.violations, result.verdict)
    assert any("later events may explain it" in says for says in doubts(database))
    mirror(of, database, PARTS)
    assert verify(database).verdict is LogVerdict.HOLDS


def test_results_that_redis_lost_are_no_violation_while_the_mirror_of_their_queue_is_behind(
    of: Family, database: Database
) -> None:
    of.run_parent()
    end_children(of)
    mirror(of, database, PARENTS, PARTS)
    of.control.delete(*of.control.keys(f"*{{{PARTS}}}*"))
    of.work_off()
    go_on(of, PARENTS)
    mirror(of, database, PARENTS)

    assert [["Gone", "Gone", "Gone"]] == of.got
    assert LogVerdict.UNKNOWN is verify(database).verdict
    go_on(of, PARTS)
    mirror(of, database, PARTS)
    assert [] == verify(database).violations


def test_a_success_that_redis_forgot_for_lack_of_room_is_no_violation(
    of: Family, database: Database
) -> None:
    of.run_parent()
    of.pass_time(KEEP_MS + 1_000)
    end_children(of)
    of.run(of.client.calls.admin.configure(PARTS, {"kept_max_bytes": 400}))
    for _ in range(4):
        enqueue(of, PARTS, keep_ms=90_000_000)
        of.succeed(of.claim(PARTS))
    of.work_off()
    go_on(of, PARENTS, PARTS)
    mirror(of, database, PARENTS, PARTS)

    assert [["Gone", "Gone", "Failed"]] == of.got
    assert [] == verify(database).violations


def run_parent_after_a_killed_run(of: Family, between: Callable[[], None]) -> None:
    """Let a run of the parent enqueue its children in another queue, and be killed. The next run enqueues them too."""

    class Killed(BaseException): ...

    honest: Any = JobSteps._enqueue

    async def enqueue_and_die(self: JobSteps, launch: str, jobs: Sequence[NewJob]) -> bool:
        await honest(self, launch, [job._replace(queue=OLD) for job in jobs])
        raise Killed

    of.run(of.client.calls.admin.configure(PARENTS, {"lease_ms": 1_000}))
    with mock.patch.object(JobSteps, "_enqueue", enqueue_and_die), pytest.raises(Killed):
        of.run_parent()
    between()
    while not of.run_parent():
        of.pass_time(300)
    of.run(of.client.calls.admin.configure(PARENTS, {"lease_ms": PARENTS_LEASE_MS}))


@pytest.mark.parametrize("kept", ["digest", "full"])
def test_children_that_a_killed_run_has_enqueued_in_another_queue_are_no_violation(
    of: Family, database: Database, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    monkeypatch.setattr(kit._Home, "audit_result", kept)
    run_parent_after_a_killed_run(of, lambda: None)
    end_children(of)
    of.work_off()
    go_on(of, PARENTS, PARTS, OLD)
    mirror(of, database, PARENTS, PARTS, OLD)

    assert [["Succeeded", "Succeeded", "Failed"]] == of.got
    assert LogVerdict.HOLDS is verify(database).verdict


def test_a_log_whose_beginning_is_not_mirrored_yet_does_not_lack_children(
    of: Family, database: Database
) -> None:
    of.run_parent()
    end_children(of)
    of.work_off()
    outbox = queue_keys(PARTS)("outbox")
    last = of.control.xrange(outbox)[-1][0]
    of.control.xtrim(outbox, minid=last, approximate=False)
    go_on(of, PARENTS, PARTS)
    mirror(of, database, PARENTS)

    behind = Mirror(Outbox(of.client), database, PARTS, limits=BatchLimits(events=1))
    while behind.turn().outcome is not TurnOutcome.IDLE:
        assert [] == verify(database).violations


def a_dead_child_counts_as_a_success(of: Family) -> None:
    honest: Any = JobSteps._look

    async def look(self: JobSteps, places: Sequence[tuple[str, str]]) -> Mapping[str, Outcome[Any]]:
        ends: dict[str, Outcome[Any]] = await honest(self, places)
        if CHILD[2] in ends:
            ends[CHILD[2]] = Succeeded(CHILD[2], missing="evicted")
        return ends

    of.run_parent()
    end_children(of)
    with mock.patch.object(JobSteps, "_look", look):
        of.work_off()


def test_a_dead_child_that_its_parent_counts_as_a_success_without_a_value_is_found(
    of: Family, database: Database
) -> None:
    a_dead_child_counts_as_a_success(of)
    go_on(of, PARENTS, PARTS)
    mirror(of, database, PARENTS, PARTS)

    says = f"saves the result of child {CHILD[2]}, which did not succeed"
    assert [("I24", says)] == [(each.invariant, each.says) for each in verify(database).violations]


FORGED: Final = {
    "first": "seq = 1",
    "last": "seq = (SELECT MAX(seq) FROM job_event WHERE queue = :queue)",
}


@pytest.mark.parametrize("which", FORGED)
def test_a_forged_time_does_not_hide_that_a_child_did_not_succeed(
    of: Family, database: Database, which: str
) -> None:
    a_dead_child_counts_as_a_success(of)
    go_on(of, PARENTS, PARTS)
    of.run(of.client.calls.admin.configure(PARTS, {"kept_max_bytes": 4_000_000}))
    mirror(of, database, PARENTS, PARTS)
    forged_ms = {"first": of.now_ms + 600_000, "last": START_MS}[which]
    with lying(database) as liar:
        values = {"queue": PARTS, "forged": forged_ms}
        change = f"UPDATE job_event SET at_ms = :forged WHERE queue = :queue AND {FORGED[which]}"
        liar.execute(text(change), values)
        if which == "last":
            liar.execute(
                text("UPDATE mirror_cursor SET at_ms = :forged WHERE queue = :queue"), values
            )
    forge_chain(database)

    assert LogVerdict.UNKNOWN is verify(database).verdict
    says = f"saves the result of child {CHILD[2]}, which did not succeed, if the times of the events are right"
    assert any(says in each for each in doubts(database))


def in_queues(monkeypatch: pytest.MonkeyPatch, queues: Sequence[str]) -> None:
    """Let the parent enqueue its children in these queues, by their positions."""
    honest: Any = children.child_of

    def child_of(call: Any, job_id: str, header: str) -> NewJob:
        made: NewJob = honest(call, job_id, header)
        return made._replace(queue=queues[CHILD.index(job_id)])

    monkeypatch.setattr(children, "child_of", child_of)


def test_an_end_before_a_clock_was_set_back_is_no_violation_if_no_log_shows_the_change(
    of: Family, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_queues(monkeypatch, [OLD, PARTS, PARTS])
    of.run_parent()
    of.pass_time(15 * MARGIN_MS)
    of.succeed(of.claim(OLD))
    of.pass_time(-10 * MARGIN_MS)
    of.succeed(of.claim(PARTS))
    of.succeed(of.claim(PARTS))
    of.work_off()
    mirror(of, database, PARENTS, PARTS, OLD)

    result = verify(database)

    assert ([], LogVerdict.UNKNOWN) == (result.violations, result.verdict)


def test_children_in_several_queues_are_found_if_a_killed_run_has_enqueued_them_elsewhere(
    of: Family, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_parent_after_a_killed_run(of, lambda: in_queues(monkeypatch, [PARTS, "alpha", PARTS]))
    for queue in (PARTS, PARTS, "alpha"):
        of.succeed(of.claim(queue))
    of.work_off()
    go_on(of, PARENTS, PARTS, "alpha", OLD)
    mirror(of, database, PARENTS, PARTS, "alpha", OLD)

    assert [["Succeeded"] * COUNT] == of.got
    assert LogVerdict.HOLDS is verify(database).verdict
