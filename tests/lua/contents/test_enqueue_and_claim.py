"""The keys in Redis after an enqueue and after a claim, as redis-cli shows them."""

import dataclasses
import json
from typing import Any

import pytest

from tests.kit.consistency import assert_consistent
from tests.kit.seed import LEASE_MS, WORKER, Seed, spec
from tests.kit.snapshots import lines_of
from tests.lua.contents.entries import T, entry

DIGEST = "44136fa355b3678a1146ad16f7e8649e"  # of {}


def test_enqueue_stores_and_logs_a_job_and_gives_it_a_place_in_line(seed: Seed) -> None:
    seed.client.run(seed.client.calls.delivery.handshake("q"))

    changes = seed.changes(
        lambda: seed.enqueue(
            seed.job("a"),
            seed.job("b", priority="low", attempts=5, losses=2, task="mail.send"),
            seed.job("c", delay_ms=60_000),
        )
    )

    assert changes == {
        "meta": {"sequence": ("0", "2")},
        "jobs": {
            "a": (None, f"task=t seq=1 since={T}\n{spec()}"),
            "b": (
                None,
                (
                    f"task=mail.send priority=low attempts=5 losses=2 seq=2 since={T}\n"
                    f'{{"attempts":5,{spec("mail.send")[1:]}'
                ),
            ),
            "c": (None, spec()),
        },
        "state": {"c": (None, f"scheduled task=t due={T + 60_000} since={T}")},
        "ready:2": ([], ["a"]),
        "ready:3": ([], ["b"]),
        "scheduled": {"job|c": (None, T + 60_000.0)},
        "wake": ([], ["1"]),
        "outbox": [
            entry(
                1,
                "enqueued",
                f'[["a",1,null,"t","normal",3,3,"{DIGEST}"],'
                f'["b",2,null,"mail.send","low",5,2,"{DIGEST}"],'
                f'["c",null,{T + 60_000},"t","normal",3,3,"{DIGEST}"]]',
                by="c-1",
            )
        ],
    }


def test_a_job_is_due_at_its_given_instant_and_at_once_if_the_instant_has_passed(
    seed: Seed,
) -> None:
    """The due time is exact, even if the call arrives late. A delay would count from the arrival of the call."""
    seed.client.run(seed.client.calls.delivery.handshake("q"))
    ahead, at, past = (
        seed.job(name)._replace(due_ms=due) for name, due in (("a", T + 1), ("b", T), ("c", 1))
    )

    changes = seed.changes(lambda: seed.enqueue(ahead, at, past, seed.job("d")))

    assert lines_of(seed.snapshot()) == {
        "a": f"scheduled task=t due={T + 1} since={T}",
        "b": f"ready task=t seq=1 since={T}",
        "c": f"ready task=t seq=2 since={T}",
        "d": f"ready task=t seq=3 since={T}",
    }
    assert changes["scheduled"] == {"job|a": (None, T + 1.0)}
    (logged,) = changes["outbox"]
    assert f'["a",null,{T + 1},"t"' in str(logged)
    seed.live(1)
    assert [job.id for job in seed.claim(4).jobs] == ["b", "c", "d", "a"]


def test_enqueue_reports_a_duplicate_and_changes_nothing(seed: Seed) -> None:
    """Checks duplicates of a ready job, a scheduled job, a running job and a dead job."""
    seed.dead("dead")
    seed.running("running")
    seed.enqueue("ready")
    seed.enqueue("scheduled", delay_ms=1_000)
    ids = ("ready", "scheduled", "running", "dead")

    changes = seed.changes(lambda: seed.enqueue(*ids, priority="high", delay_ms=5))

    assert changes == {}
    accepted = seed.enqueue("new", *ids, "new")
    assert (("new",), (*ids, "new")) == (accepted.ids, accepted.duplicates)


def test_the_enqueued_event_says_who_enqueued_the_jobs_and_why(seed: Seed) -> None:
    """Checks one call with plain jobs and with jobs that have a priority or a deadline. JSON must escape the reason."""
    jobs = [seed.job("a"), seed.job("b", priority="low"), seed.job("c", expires_in_ms=1_000)]
    why = 'the "provider"\nis down → again'
    for _ in range(2):
        seed.client.run(seed.client.calls.enqueue.many(jobs, by="ann", why=why))
        jobs = [job._replace(id=f"{job.id}-2") for job in jobs]
    seed.enqueue("d")

    told = [(each.by, each.why, len(each.jobs)) for each in seed.entries()[1:]]

    assert told == [("ann", why, 3), ("ann", why, 3), ("c-1", None, 1)]


def test_a_job_record_that_refers_to_common_fields_by_an_invalid_number_is_refused(
    seed: Seed,
) -> None:
    call = seed.client.calls.enqueue.chunk(seed.queue, [seed.job("a")], why="again")
    (record,) = call.each
    seed.enqueue("first")
    before = seed.entries()

    for kind in ("0", "2", "again"):
        forged = dataclasses.replace(call, each=[(record[0], kind, *record[2:])])
        with pytest.raises(Exception, match="kind"):
            seed.client.run(seed.client.calls.delivery.call(forged))

    assert seed.entries() == before


def test_the_first_of_two_jobs_with_one_id_in_a_call_is_enqueued(seed: Seed) -> None:
    seed.enqueue(seed.job("a", priority="high"), seed.job("a", delay_ms=9), seed.job("b"))

    snapshot = seed.snapshot()
    assert (["a"], ["b"], {}) == (snapshot["ready:1"], snapshot["ready:2"], snapshot["scheduled"])


def test_a_claim_writes_the_state_line_the_lease_and_the_claimed_event(seed: Seed) -> None:
    seed.enqueue("a", "b")

    changes = seed.changes(lambda: seed.claim(1))

    assert changes == {
        "meta": {"last_activity": (None, str(T))},
        "state": {
            "a": (None, f"running task=t claim=1 fence={T}-2 by=w-1 seq=1 since={T}"),
        },
        "ready:2": (["a", "b"], ["b"]),
        "leases": {"a": (None, T + float(LEASE_MS))},
        "outbox": [entry(2, "claimed", '[["a",1]]')],
    }


def test_the_answer_to_a_claim_has_all_data_that_a_worker_needs(seed: Seed) -> None:
    seed.enqueue("a", args_json='{"x":"ü\\n"}')
    seed.enqueue("later", delay_ms=5_000)
    seed.fail(seed.claim_one("a"))

    claimed = seed.claim()

    ((job),) = claimed.jobs
    assert ("q", "a", 2, 1, 0) == (job.queue, job.id, job.number, job.failures, job.losses)
    assert {"task": "t", "args": {"x": "ü\n"}} == json.loads(job.spec)
    assert job.fence == seed.snapshot()["outbox"][-1][0]
    assert (T, T + 5_000, False) == (claimed.now_ms, claimed.next_due_ms, claimed.more)


def test_claims_take_jobs_by_priority_and_then_by_place_in_line(seed: Seed) -> None:
    for at, priority in enumerate(["low", "normal", "critical", "high", "critical", "low"]):
        seed.enqueue(f"{priority}-{at}", priority=priority)

    order = [seed.claim(1).jobs[0].id for _ in range(6)]

    assert order == ["critical-2", "critical-4", "high-3", "normal-1", "low-0", "low-5"]


SAID: dict[str, tuple[str, dict[str, Any]]] = {
    "attempts": (" attempts=5", {"attempts": 5}),
    "losses": (" losses=1", {"losses": 1}),
    "priority": (" priority=high attempts=5", {"priority": "high", "attempts": 5}),
    "kept": (" keep=1000", {"keep_ms": 1_000}),
    "unique": (" attempts=5 unique=t/a", {"attempts": 5, "name": "t/a"}),
    "remembered": (f" once={T + 5_000} call=d", {"remember_ms": 5_000, "call": "=d"}),
}
"""For each case: the fields that a state line has beside the task, and the producer's options that write the fields."""


@pytest.mark.parametrize("first", [[], ["other"]], ids=["like", "unlike"])
@pytest.mark.parametrize("more, options", SAID.values(), ids=SAID)
@pytest.mark.parametrize("long", [False, True], ids=["short", "long"])
def test_a_claimed_job_has_all_optional_fields_of_its_earlier_state_line(
    seed: Seed, more: str, options: dict[str, Any], long: bool, first: list[str]
) -> None:
    """The claim takes other jobs before this job, of the same kind and of other kinds. Later the job is claimed
    again."""
    seed.enqueue(*first, priority=options.get("priority", "normal"))
    arguments = f'{{"text":"{"y" * 500}"}}' if long else "{}"
    ids = ["a", "b", "c"]
    for job_id in ids:
        name = {"name": f"t/{job_id}"} if "name" in options else {}
        seed.enqueue(job_id, args_json=arguments, **{**options, **name})

    claimed = seed.claim().jobs

    def said(job_id: str, number: int) -> str:
        told = more.replace("t/a", f"t/{job_id}")
        return f"task=t{told} claim={number} fence={claimed[0].fence} by={WORKER} seq="

    assert [*first, *ids] == [job.id for job in claimed]
    for at, job_id in enumerate(ids, len(first) + 1):
        assert str(seed.state(job_id)) == f"running {said(job_id, 1)}{at} since={T}"
    assert_consistent(seed.snapshot())
    seed.rollback(claimed[len(first) + 1])
    claimed = seed.claim().jobs
    assert [("b", 2)] == [(job.id, job.number) for job in claimed]
    assert str(seed.state("b")) == f"running {said('b', 2)}{len(first) + 2} since={T}"


@pytest.mark.parametrize("long", [False, True], ids=["short", "long"])
def test_an_old_list_entry_of_a_job_with_a_new_priority_is_skipped(seed: Seed, long: bool) -> None:
    """The Lua pattern for plain jobs does not match the state line of this job, which has further fields."""
    arguments = f'{{"text":"{"y" * 500}"}}' if long else "{}"
    seed.enqueue("a", attempts=5, priority="high", args_json=arguments)
    seed.cancel("a")
    seed.enqueue("a", attempts=5, priority="low", args_json=arguments)
    seed.enqueue("b", attempts=5)

    assert ["b", "a"] == [job.id for job in seed.claim().jobs]


def test_a_rolled_back_job_keeps_its_place_in_line(seed: Seed) -> None:
    seed.enqueue("a", "b", "c", "d")
    a, b, _c = seed.claim(3).jobs
    seed.rollback(b, a)

    assert ["a", "b", "d"] == [c.id for c in seed.claim().jobs]


def test_a_job_that_is_rolled_back_with_a_delay_keeps_its_place_in_line(seed: Seed) -> None:
    """The worker gives the job back as a suspect, which must wait until another job has run. The job has spent no
    attempt."""
    seed.enqueue("a", "b", "c")
    a, _b = seed.claim(2).jobs
    seed.rollback(a, reason="suspect", delay_ms=2_000)

    assert {"job|a": seed.now + 2_000} == seed.snapshot()["scheduled"]
    assert ["c"] == [c.id for c in seed.claim().jobs]
    seed.advance(2_000)
    (again,) = seed.claim().jobs
    assert (again.id, again.failures, again.losses) == ("a", 0, 0)
    assert "seq=1" in seed.state("a")


def test_a_retried_job_keeps_its_place_in_line(seed: Seed) -> None:
    """Checks a retry with a delay and one without. The job keeps the place that it got when it first became ready."""
    seed.enqueue("a", "b", "c")
    a, b = seed.claim(2).jobs
    seed.fail(b)
    seed.fail(a, delay_ms=1_000)
    seed.advance(1_000)

    assert ["a", "b", "c"] == [c.id for c in seed.claim().jobs]


def test_a_job_whose_lease_expired_keeps_its_place_in_line(seed: Seed) -> None:
    seed.enqueue("a", "b", "c")
    seed.claim(2)
    seed.live(LEASE_MS)

    assert ["a", "b", "c"] == [c.id for c in seed.claim().jobs]


def test_a_requeued_job_joins_the_tail_of_its_list(seed: Seed) -> None:
    seed.enqueue("a", "b")
    seed.fail(seed.claim_one("a"), verdict="final")
    seed.requeue("a")
    seed.enqueue("c")

    assert ["b", "a", "c"] == [c.id for c in seed.claim().jobs]


def test_delayed_jobs_join_the_tail_of_their_list_in_the_order_of_their_due_times(
    seed: Seed,
) -> None:
    seed.enqueue("second", delay_ms=2_000)
    seed.enqueue("first", delay_ms=1_000)
    seed.enqueue("waits")
    seed.enqueue("urgent", delay_ms=2_000, priority="critical")
    seed.advance(2_000)

    assert ["urgent", "waits", "first", "second"] == [c.id for c in seed.claim().jobs]


def test_a_claim_promotes_due_jobs_even_if_it_may_take_none(seed: Seed) -> None:
    """A claim first promotes due jobs, however few jobs the worker asks for."""
    seed.enqueue("a", delay_ms=1_000)
    seed.enqueue("b", delay_ms=1_001)
    seed.advance(1_000)
    seed.take_token()

    changes = seed.changes(lambda: seed.claim(0))

    assert changes == {
        "meta": {"last_activity": (None, str(T + 1_000)), "sequence": ("0", "1"),
                 "no_reap_before": (str(T + LEASE_MS), str(T + 1_000 + LEASE_MS))},
        "state": {
            "a": (
                f"scheduled task=t due={T + 1_000} since={T}",
                f"ready task=t seq=1 since={T + 1_000}",
            )
        },
        "ready:2": ([], ["a"]),
        "scheduled": {"job|a": (T + 1_000.0, None)},
        "wake": ([], ["1"]),
        "outbox": [entry(3, "promoted", '[["a",1]]', at=T + 1_000)],
    }  # fmt: skip


def test_a_claim_takes_at_most_its_limit_and_reports_whether_jobs_are_left(
    seed: Seed,
) -> None:
    seed.enqueue("a", "b", "c")

    first, second = seed.claim(2), seed.claim(2)

    assert ([2, 1], [True, False]) == (
        [len(c.jobs) for c in (first, second)],
        [c.more for c in (first, second)],
    )


def test_a_claim_stops_at_its_byte_limit_but_takes_at_least_one_job(seed: Seed) -> None:
    big = '{"x":"' + "y" * 1_000 + '"}'
    seed.enqueue("a", "b", "c", "d", args_json=big)

    taken = [[c.id for c in seed.claim(bytes_max=size).jobs] for size in (1, 2_000, 0, 10_000)]

    assert [["a"], ["b", "c"], [], ["d"]] == taken


def test_a_claim_handles_at_most_sweep_max_expired_leases_and_at_most_sweep_max_due_jobs(
    seed: Seed,
) -> None:
    """The limit applies to expired leases and to due jobs separately. Later claims handle the remaining jobs."""
    for n in range(5):
        seed.running(f"lost-{n}")
    seed.live(LEASE_MS)
    seed.enqueue(*(f"due-{n}" for n in range(5)), delay_ms=1)
    seed.advance(1)
    seed.take_token()

    seed.claim(0, sweep_max=2)

    kinds = [(str(e.event), len(e.jobs)) for e in seed.entries()[-2:]]
    assert kinds == [("lease_expired", 2), ("promoted", 2)]
    assert seed.tokens() == 1
    seed.claim(0, sweep_max=100)
    kinds = [(str(e.event), len(e.jobs)) for e in seed.entries()[-2:]]
    assert kinds == [("lease_expired", 3), ("promoted", 3)]


def test_a_claim_skips_a_bounded_number_of_list_entries_without_a_job(seed: Seed) -> None:
    ids = [f"t-{n}" for n in range(30)]
    seed.enqueue(*ids, "alive")
    seed.cancel(*ids)
    assert seed.meta("tombstones") == "30"

    first = seed.claim(1, sweep_max=10)
    left = int(seed.meta("tombstones") or 0)
    second = seed.claim(1, sweep_max=100)

    assert ((), True) == (first.jobs, first.more)
    assert 10 <= 30 - left <= 12
    assert ["alive"] == [c.id for c in second.jobs]
    assert seed.meta("tombstones") == "0"


def test_a_job_that_was_cancelled_and_enqueued_again_is_claimed_once(seed: Seed) -> None:
    """The ready list has two entries with this id: one of the cancelled job, and one of the new job."""
    seed.enqueue("a", "b")
    seed.cancel("a")
    seed.enqueue("a")

    claimed = [c.id for c in seed.claim().jobs]

    assert sorted(claimed) == ["a", "b"]
    snapshot = seed.snapshot()
    assert snapshot["ready:2"] == []


def test_a_list_entry_of_a_job_whose_priority_is_now_different_is_skipped(seed: Seed) -> None:
    seed.enqueue("a", priority="critical")
    seed.cancel("a")
    seed.enqueue("a", priority="low")
    seed.enqueue("b")

    assert ["b", "a"] == [c.id for c in seed.claim().jobs]


def test_a_job_with_two_list_entries_is_claimed_once(seed: Seed) -> None:
    """The old entry is left from a cancelled job with the same id."""
    seed.enqueue("a", "b")
    seed.cancel("a")
    seed.enqueue("a", "c")

    claimed = seed.claim()

    assert sorted(job.id for job in claimed.jobs) == ["a", "b", "c"]
