"""Verify and children that are lost (I25). A true log of a family is accepted, and each lost child is found."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from unittest import mock

import pytest
from sqlalchemy import text

from rq_core.app.durable.children import JobSteps
from rq_core.model.durable.boxes import new_life
from rq_core.model.durable.children import KEEP_MS, child_id, pack_queue
from rq_core.model.job import NewJob, profile
from rq_core.model.keys import queue_keys
from rq_core.model.outcome import Expired, Outcome, Succeeded
from rq_core.model.unique_names import digest_of
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof import families as proof
from sql_audit.proof.child_logs import MARGIN_MS
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.families import PARENT, PARENTS, PARTS, Family, family
from tests.kit.liar import forge_chain, lying

LIFE: Final = "9f3a0b1c22aa0001"
COUNT: Final = 3
PASSES: Final = 3
LAUNCHES: Final = (
    """SELECT detail FROM job_event WHERE type = 'step_saved' AND detail LIKE '%"map:pages"%'"""
)
CHILD: Final = [child_id(LIFE, "pages", index) for index in range(COUNT)]

Look = Callable[[JobSteps, Sequence[tuple[str, str]]], Any]


@pytest.fixture
def of(valkey_url: str) -> Iterator[Family]:
    with (
        mock.patch("rq_core.app.durable.steps.new_life", return_value=LIFE),
        family(valkey_url, COUNT, expires_s=1_000.0) as made,
    ):
        yield made


def go_on(of: Family, *queues: str) -> None:
    """Let the logs of queues go on, far enough for verify to judge what they do not have."""
    of.pass_time(2 * MARGIN_MS)
    for queue in queues:
        job = NewJob(new_life(), queue, profile("other"), "{}")
        of.run(of.client.calls.enqueue.many([job]))


def mirror(of: Family, database: Database, *queues: str) -> None:
    """Let the logs of queues go on, by default those of both, and copy them into SQL."""
    queues = queues or (PARENTS, PARTS)
    go_on(of, *queues)
    for queue in queues:
        auditlog.drain(Mirror(Outbox(of.client), database, queue))


def found(database: Database) -> list[tuple[str, str]]:
    return [(each.invariant, each.says) for each in verify(database).violations]


def lost(database: Database) -> list[str]:
    return [says for invariant, says in found(database) if invariant == "I25"]


def end_children(of: Family) -> None:
    """Let the first two children succeed, and the last one fail."""
    of.succeed(of.claim(PARTS))
    of.succeed(of.claim(PARTS))
    of.fail(of.claim(PARTS))


def run_family(of: Family) -> None:
    of.run_parent()
    end_children(of)
    of.work_off()


def looks(change: Callable[[dict[str, Outcome[Any]]], object]) -> Any:
    """Let the parent read other ends of its children than they have."""
    honest: Look = JobSteps._look

    async def look(self: JobSteps, places: Sequence[tuple[str, str]]) -> dict[str, Outcome[Any]]:
        ends: dict[str, Outcome[Any]] = await honest(self, places)
        change(ends)
        return ends

    return mock.patch.object(JobSteps, "_look", look)


def enqueues(keep: Callable[[Sequence[NewJob]], Sequence[NewJob]]) -> Any:
    """Let the parent enqueue only some of its children."""
    honest: Any = JobSteps._enqueue

    async def enqueue(self: JobSteps, launch: str, jobs: Sequence[NewJob]) -> bool:
        return bool(await honest(self, launch, keep(jobs)))

    return mock.patch.object(JobSteps, "_enqueue", enqueue)


def test_verify_accepts_the_true_log_of_a_family(of: Family, database: Database) -> None:
    run_family(of)
    mirror(of, database)

    result = verify(database)

    assert [["Succeeded", "Succeeded", "Failed"]] == of.got
    assert [] == result.violations
    assert result.verdict is LogVerdict.HOLDS


def test_verify_accepts_a_child_that_succeeds_again_after_its_parent_has_read_its_death(
    of: Family, database: Database
) -> None:
    honest: Any = JobSteps._close

    async def close(self: JobSteps, launch: str, ends: Mapping[int, Outcome[Any]]) -> str:
        of.run(of.client.calls.families.requeue(PARTS, [CHILD[2]]))
        of.succeed(of.claim(PARTS))
        packed: str = await honest(self, launch, ends)
        return packed

    with mock.patch.object(JobSteps, "_close", close):
        run_family(of)
    mirror(of, database)

    assert [["Succeeded", "Succeeded", "Failed"]] == of.got
    assert [] == found(database)


def test_verify_accepts_that_a_parent_finds_no_children_after_their_queue_was_deleted(
    of: Family, database: Database
) -> None:
    of.run_parent()
    end_children(of)
    auditlog.drain(Mirror(Outbox(of.client), database, PARTS))
    of.delete_parts()  # It waits for the mirror.
    auditlog.drain(Mirror(Outbox(of.client), database, PARTS))
    of.delete_parts()
    of.work_off()
    mirror(of, database, PARENTS)

    assert [["Gone"] * COUNT] == of.got
    assert LogVerdict.HOLDS is verify(database).verdict


def test_verify_accepts_children_that_ended_before_the_clock_was_set_back(
    of: Family, database: Database
) -> None:
    of.run_parent()
    of.pass_time(5 * MARGIN_MS)
    end_children(of)
    of.pass_time(-5 * MARGIN_MS + 1)
    of.work_off()
    mirror(of, database)
    mirror(of, database)

    assert [["Succeeded", "Succeeded", "Failed"]] == of.got
    assert [] == lost(database)


def a_success_is_read_as_an_expiry(of: Family) -> None:
    def change(ends: dict[str, Outcome[Any]]) -> None:
        ends.update({i: Expired(i) for i, e in ends.items() if isinstance(e, Succeeded)})

    with looks(change):
        run_family(of)


def a_living_child_is_read_as_expired(of: Family) -> None:
    of.run_parent()
    of.succeed(of.claim(PARTS))
    of.succeed(of.claim(PARTS))
    with looks(lambda ends: ends.setdefault(CHILD[2], Expired(CHILD[2]))):
        of.work_off()


def the_first_child_is_not_enqueued(of: Family) -> None:
    with enqueues(lambda jobs: jobs[1:]):
        of.run_parent()


def the_last_child_is_not_enqueued(of: Family) -> None:
    with enqueues(lambda jobs: jobs[:-1]):
        of.run_parent()


def no_child_is_enqueued(of: Family) -> None:
    with enqueues(lambda _jobs: ()):
        of.run_parent()
    of.work_off()


def an_end_is_never_read(of: Family) -> None:
    of.run_parent()
    end_children(of)
    of.pass_time(2 * MARGIN_MS)
    with looks(lambda ends: ends.pop(CHILD[2], None)):
        of.run_parent()
    assert "parked" == of.parent


def no_claim_wakes_the_parent(of: Family) -> None:
    of.run_parent()
    of.control.zrem(queue_keys(PARENTS)("scheduled"), f"job|{PARENT}")
    for _ in range(PASSES + 1):
        go_on(of, PARENTS)
        assert of.claim(PARENTS) is not None


@pytest.mark.parametrize(
    ("bug", "says"),
    [
        (a_success_is_read_as_an_expiry, f"leaves out the result of child {CHILD[0]}, which has"),
        (a_living_child_is_read_as_expired, f"how all children have ended, and {CHILD[2]} has not"),
        (the_first_child_is_not_enqueued, f"has enqueued child {CHILD[0]}, which the log"),
        (the_last_child_is_not_enqueued, f"has enqueued child {CHILD[2]}, which the log"),
        (no_child_is_enqueued, f"has enqueued child {CHILD[1]}, which the log of queue {PARTS}"),
        (an_end_is_never_read, f"waits for child {CHILD[2]}, which has ended {2 * MARGIN_MS} ms"),
        (no_claim_wakes_the_parent, f"passes over job {PARENT}, which waits for its children"),
    ],
)
def test_verify_finds_a_child_that_a_bug_has_lost(
    of: Family, database: Database, bug: Callable[[Family], None], says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(proof, "PASSES_MAX", PASSES)
    bug(of)
    mirror(of, database)

    told = found(database)

    assert {"I25"} == {invariant for invariant, _ in told}
    assert [each for _, each in told if says in each], told


def rename(database: Database, old: str, new: str) -> None:
    """Change the name of a saved step in SQL."""
    with lying(database) as liar:
        changed = liar.execute(
            text(
                "UPDATE job_event SET detail = REPLACE(detail, :old, :new)"
                " WHERE type = 'step_saved' AND detail LIKE :like"
            ),
            {"old": f'"{old}"', "new": f'"{new}"', "like": f'%"{old}"%'},
        )
        assert changed.rowcount == 1
    forge_chain(database)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("pages=0", "pages.0", [f"leaves out the result of child {CHILD[0]}, which has succeeded"]),
        ("pages=1", "pages=0", [f"leaves out the result of child {CHILD[1]}, which has succeeded"]),
        (
            "pages=1",
            "pages=7",
            [
                "saves the result of child 7, and there are 3",
                f"leaves out the result of child {CHILD[1]}, which has succeeded",
            ],
        ),
    ],
    ids=["dropped", "doubled", "forged"],
)
def test_verify_finds_a_saved_result_whose_child_was_renamed_in_sql(
    of: Family, database: Database, old: str, new: str, says: list[str]
) -> None:
    run_family(of)
    mirror(of, database)
    rename(database, old, new)

    assert sorted(says) == sorted(lost(database))


def forge_digest(database: Database, digest: str) -> None:
    """Change the digest of the event that says which children the parent has enqueued."""
    with lying(database) as liar:
        (said,) = liar.execute(text(LAUNCHES)).scalars().all()
        detail = said.replace(json.loads(said)["digest"], digest)
        liar.execute(
            text("UPDATE job_event SET detail = :detail WHERE detail = :said"),
            {"detail": detail, "said": said},
        )
    forge_chain(database)


@pytest.mark.parametrize("bug", [an_end_is_never_read, a_success_is_read_as_an_expiry])
def test_verify_does_not_prove_children_whose_number_and_queue_sql_hides(
    of: Family, database: Database, bug: Callable[[Family], None]
) -> None:
    bug(of)
    mirror(of, database)
    forge_digest(database, "0" * 32)

    result = verify(database)

    assert [] == result.violations
    (note,) = result.queues[PARENTS].notes
    assert result.verdict is LogVerdict.UNKNOWN
    assert f"map pages of job {PARENT} has child {CHILD[0]}" in note.says


def test_verify_finds_the_result_of_a_child_that_sql_says_was_not_enqueued(
    of: Family, database: Database
) -> None:
    run_family(of)
    mirror(of, database)
    forge_digest(database, digest_of(pack_queue(None, 0)))

    results = [f"saves the result of child {n}, and there are 0" for n in range(2)]
    assert ["waits for child 2 (from 0), and the map has 0 children", *results] == lost(database)


def edit(
    database: Database, kind: str, name: str, change: Callable[[dict[str, Any]], object]
) -> None:
    """Change the facts of the first event of a type about the entry with this name in SQL."""
    query = (
        "SELECT detail FROM job_event WHERE type = :kind AND detail LIKE :like ORDER BY epoch, seq"
    )
    with lying(database) as liar:
        values = {"kind": kind, "like": f'%"{name}"%'}
        said = liar.execute(text(query), values).scalars().first()
        facts = json.loads(said)
        change(facts)
        liar.execute(
            text("UPDATE job_event SET detail = :detail WHERE detail = :said"),
            {"detail": json.dumps(facts, separators=(",", ":")), "said": said},
        )
    forge_chain(database)


def _names_another_box(facts: dict[str, Any]) -> None:
    value = json.dumps({"count": COUNT, "queue": PARTS, "life": "00000000000000aa"})
    facts |= {"value": value, "bytes": len(value), "digest": digest_of(value)}


LAST_WAIT: Final = f"rq_core.child.1.{COUNT - 1}"
LIES: Final[Mapping[str, tuple[str, str, Callable[[dict[str, Any]], object], str]]] = {
    "as a fork copies it": (
        "step_saved", "map:pages", _names_another_box, "names the children of box 00000000000000aa",
    ),
    "of fewer children": (
        "step_saved", "map:pages", lambda facts: facts.update(digest=digest_of(pack_queue(PARTS, 2))),
        "waits for child 2 (from 0), and the map has 2 children",
    ),
    "as another step": (
        "step_saved", "map:pages", lambda facts: facts.update(name="others"),
        "waits for child 2 of the map in entry 1, and the log has no such map before",
    ),
    "waited for as those of another entry": (
        "step_begun", LAST_WAIT, lambda facts: facts.update(name="rq_core.child.9.2"),
        "waits for child 2 of the map in entry 9, and the log has no such map before",
    ),
}  # fmt: skip
"""Lies that SQL tells about the children of a job: the event's type, the entry's name, the change, and the words of
verify."""


@pytest.mark.parametrize("lie", LIES)
def test_verify_finds_children_that_sql_describes_falsely(
    of: Family, database: Database, lie: str
) -> None:
    run_family(of)
    mirror(of, database)
    kind, name, change, says = LIES[lie]
    edit(database, kind, name, change)

    assert [each for each in lost(database) if says in each]


@pytest.mark.parametrize("name", ["pages=0", "pages=join"])
def test_verify_finds_a_result_of_a_child_that_ends_as_a_wait_does(
    of: Family, database: Database, name: str
) -> None:
    run_family(of)
    mirror(of, database)
    edit(
        database,
        "step_saved",
        name,
        lambda facts: [facts.update(digest="over"), facts.pop("bytes"), facts.pop("value", None)],
    )

    says = "ends as a wait or a sleep does, and no wait has such a name"
    assert ("I20", says) in found(database)


def test_verify_finds_a_child_that_sql_does_not_have(of: Family, database: Database) -> None:
    run_family(of)
    mirror(of, database)
    with lying(database) as liar:
        liar.execute(
            text("UPDATE job_event SET job_id = 'another' WHERE job_id = :id"), {"id": CHILD[1]}
        )
    forge_chain(database)

    assert [f"has enqueued child {CHILD[1]}, which the log of queue {PARTS} does not have"] == lost(
        database
    )


def test_verify_does_not_judge_children_whose_log_is_not_in_the_database(
    of: Family, database: Database
) -> None:
    the_last_child_is_not_enqueued(of)
    mirror(of, database, PARENTS)

    assert [] == found(database)


@pytest.mark.parametrize("queue", [PARENTS, PARTS])
def test_verify_does_not_judge_how_children_ended_if_a_log_is_incomplete(
    of: Family, database: Database, queue: str
) -> None:
    a_success_is_read_as_an_expiry(of)
    mirror(of, database)
    with lying(database) as liar:
        liar.execute(text("DELETE FROM mirror_epoch WHERE queue = :queue"), {"queue": queue})
    forge_chain(database)

    assert [] == lost(database)


def test_verify_does_not_judge_a_success_that_redis_may_have_forgotten(
    of: Family, database: Database
) -> None:
    of.run_parent()
    end_children(of)
    of.pass_time(KEEP_MS + 1)
    assert of.claim(PARTS) is None  # It forgets what is over.
    of.work_off()
    mirror(of, database)

    assert [["Gone", "Gone", "Failed"]] == of.got
    assert [] == found(database)
