"""The script restore.lua. It restores jobs with their fields, under their caps, at new places in line."""

import json

import pytest

from rq_core import errors
from rq_core.model.events import fold_all
from rq_core.model.job import spec_of
from rq_core.model.table.machine import State
from rq_core.model.unique_names import digest_of
from tests.kit.seed import Seed, events_of, spec


def test_a_restored_job_keeps_its_counters_and_its_lane(seed: Seed) -> None:
    """The claim that was lost with the job spends no attempt."""
    facts = {
        "priority": "high", "max_attempts": 5, "max_losses": 2, "lane": "1+tenant=a", "claims": 3,
        "failures": 1, "losses": 1, "unknown": 2,
    }  # fmt: skip
    gone = {"fence": "1-1", "worker": "w-9", "seq": 77, "since_ms": 5, "reason": "final"}

    outcome = seed.restore(seed.lost("a", State.RUNNING, **facts, **gone))

    assert outcome == {"a": "restored"}
    assert seed.state("a") == (
        "ready task=t priority=high attempts=5 losses=2 lane=1+tenant=a claim=3 failed=1 lost=1 "
        f"unknown=2 seq=1 since={seed.now}"
    )
    assert seed.control.hget(seed.keys("jobs"), "a") == spec()
    (entry,) = [e for e in seed.entries() if e.event == "restored"]
    assert entry.jobs[0].fields == {
        "id": "a", "seq": 1, "due_ms": None, "target": "ready", "task": "t", "digest": digest_of("{}"),
        "enqueued_ms": None, "reason": None, "expires_ms": None,
        "unique_name": None, "once_ms": None, "call_digest": None, "name_stands": None, "keep_ms": None,
        "life": None, "base": None, "waits": None, "cost": None, **facts,
    }  # fmt: skip
    (claim,) = seed.claim().jobs
    assert (claim.number, claim.failures, claim.losses, claim.lane) == (4, 1, 1, "1+tenant=a")


def test_restored_jobs_join_the_tail_in_the_order_of_the_call(seed: Seed) -> None:
    """Other jobs may have their old places by now."""
    seed.enqueue("here")

    seed.restore(*(seed.lost(name, seq=0) for name in ("c", "a", "b")))
    seed.enqueue("later")

    assert [claim.id for claim in seed.claim().jobs] == ["here", "c", "a", "b", "later"]


def test_caps_hold_for_restored_jobs(seed: Seed) -> None:
    seed.cap("tenant", 1)
    seed.running("holds", scopes=["tenant=a"])

    seed.restore(*(seed.lost(f"{t}-{n}", lane=f"2+tenant={t}") for t in "ab" for n in (1, 2)))

    seed.assert_consistent()
    assert [claim.id for claim in seed.claim().jobs] == ["b-1"]


def test_a_restored_scheduled_job_waits_until_its_due_time(seed: Seed) -> None:
    seed.take_token()

    seed.restore(seed.lost("later", State.SCHEDULED, due_ms=seed.now + 500, failures=1))

    assert seed.tokens() == 1
    assert seed.claim().next_due_ms == seed.now + 500
    seed.advance(500)
    assert [claim.id for claim in seed.claim().jobs] == ["later"]


def test_a_dead_job_is_restored_as_dead_and_can_be_requeued(seed: Seed) -> None:
    seed.restore(seed.lost("dead", State.DEAD, reason="attempts", failures=3, claims=3))

    assert seed.claim().jobs == ()
    assert [job.id for job in seed.client.run(seed.client.calls.reads.dead(seed.queue)).jobs] == [
        "dead"
    ]
    assert seed.requeue("dead") == {"dead": "requeued"}
    (claim,) = seed.claim().jobs
    assert (claim.number, claim.failures) == (4, 0)


@pytest.mark.parametrize("kind", ["plain", "in a lane", "scheduled", "dead"])
def test_a_restore_removes_an_ended_job_that_an_old_snapshot_brought_back_and_all_its_index_entries(
    seed: Seed, kind: str
) -> None:
    if kind == "dead":
        seed.dead("a")
    else:
        seed.enqueue(
            "a",
            scopes=["tenant=a"] if kind == "in a lane" else (),
            delay_ms=500 if kind == "scheduled" else 0,
        )
    seed.enqueue("behind", scopes=["tenant=a"] if kind == "in a lane" else ())

    assert seed.restore(seed.revived("a")) == {"a": "removed"}

    seed.assert_consistent()
    seed.advance(1_000)
    assert [claim.id for claim in seed.claim().jobs] == ["behind"]
    (entry,) = [e for e in seed.entries() if e.event == "removed"]
    assert entry.jobs[0].fields == {"id": "a", "reason": "succeeded"}


def test_a_restore_does_not_remove_a_job_that_an_old_snapshot_brought_back_and_that_changed_meanwhile(
    seed: Seed,
) -> None:
    """The caller has read an older state of the job. The answer says that it has changed."""
    seed.enqueue("a", "b")
    record = seed.revived("a")
    seed.cancel("a")
    seed.advance(1)
    seed.enqueue("a")

    assert seed.restore(record, seed.revived("b")) == {"a": "ready", "b": "removed"}
    assert [claim.id for claim in seed.claim().jobs] == ["a"]


def test_a_lost_job_gets_a_baseline_event_in_the_log_before_its_restored_event(
    seed: Seed,
) -> None:
    seed.enqueue("a", delay_ms=5_000)
    seed.control.hdel(seed.keys("state"), "a")
    seed.control.zrem(seed.keys("scheduled"), "job|a")

    seed.restore(seed.lost("a", State.SCHEDULED, due_ms=seed.now + 5_000, missing=True))

    assert events_of(seed.entries(), "a") == ["enqueued", "baseline", "restored"]
    assert fold_all(seed.entries())[1] == []


def test_a_restore_call_that_does_not_name_the_last_restore_is_refused(seed: Seed) -> None:
    seed.enqueue("other")
    seed.restore(seed.lost("a"))
    last = seed.meta("restored")
    seed.complete(*seed.claim().jobs)

    with pytest.raises(errors.RestoredMeanwhile, match=str(last)):
        seed.client.run(seed.client.calls.audit.restore(seed.queue, [seed.lost("a")], after="-"))

    assert seed.state("a") is None
    assert last is not None
    answer = seed.client.run(
        seed.client.calls.audit.restore(seed.queue, [seed.lost("b")], after=last)
    )
    assert answer.last == seed.meta("restored") != last


def test_a_restore_without_changes_does_not_count_as_the_last_restore(seed: Seed) -> None:
    seed.enqueue("a")

    assert seed.restore(seed.lost("a"), seed.revived("nobody")) == {"a": "ready", "nobody": "gone"}
    assert seed.meta("restored") is None


def test_a_restore_is_refused_while_the_backlog_is_full(seed: Seed) -> None:
    seed.attach()
    seed.configure(backlog_max_jobs=1)

    with pytest.raises(errors.AuditBacklogFull):
        seed.restore(seed.lost("a"))


# What enqueue keeps, so that there is something to restore.


@pytest.mark.parametrize("scopes", [(), ("tenant=a",)])
def test_an_enqueued_event_has_the_arguments_if_the_producer_asks_for_them(
    seed: Seed, scopes: tuple[str, ...]
) -> None:
    args_json = '{"a":"/é\\u0000\\ud83d\\"\\\\","n":12345678901234567890,"f":1.50}'
    written = f'{{"task":"t","args":{args_json}}}'
    size = len(written.encode())

    seed.enqueue("kept", args_json=args_json, scopes=scopes, spec_max=size)
    seed.enqueue("too-long", args_json=args_json, scopes=scopes, spec_max=size - 1)
    seed.enqueue("later", args_json=args_json, scopes=scopes, spec_max=size, delay_ms=5)
    seed.enqueue("digest", args_json=args_json, scopes=scopes)

    told = {job.job_id: job.fields["spec"] for entry in seed.entries() for job in entry.jobs}
    assert told == {"kept": written, "too-long": None, "later": written, "digest": None}
    assert spec_of(seed.control.hget(seed.keys("jobs"), "kept")) == written  # type: ignore[arg-type]
    assert json.loads(written)["args"]["n"] == 12345678901234567890


def test_jobs_with_and_without_logged_arguments_are_logged_in_separate_entries(seed: Seed) -> None:
    """The entries have the order in which the call names the jobs."""
    bounds = (0, 0, 100, 0)

    seed.enqueue(*(seed.job(str(n), spec_max=bound) for n, bound in enumerate(bounds)))

    entries = [[job.job_id for job in entry.jobs] for entry in seed.entries() if entry.jobs]
    assert entries == [["0", "1"], ["2"], ["3"]]
