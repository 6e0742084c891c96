"""Unique names: which live job holds a name, and when another job may take it."""

from collections.abc import Callable
from typing import Any

import pytest

from rq_core.protocol.calls.enqueue import pack_jobs
from tests.kit.consistency import assert_consistent
from tests.kit.seed import LEASE_MS, Seed, events_of
from tests.lua.contents.entries import T, entry

NAME = "t/tenant=acme"
FIELD = f"unique|{NAME}"
DIGEST = "44136fa355b3678a1146ad16f7e8649e"  # of {}
LANES = pytest.mark.parametrize("lane", ["", "2+host=h"])


def holder(seed: Seed) -> str | None:
    found = seed.snapshot()["slots"].get(FIELD)
    return None if found is None else str(found)


def enqueue(seed: Seed, *ids: str, how: str = "keep", **options: Any) -> Any:
    return seed.enqueue(*(seed.job(i, unique=how, name=NAME, **options) for i in ids))


def test_enqueue_writes_a_unique_name_into_the_state_line_the_event_and_the_key_slots(
    seed: Seed,
) -> None:
    seed.client.run(seed.client.calls.delivery.handshake("q"))
    found = enqueue(seed, "a")
    (told,) = [e for e in seed.snapshot()["outbox"] if e[1]["type"] == "enqueued"]

    assert ("a",) == found.ids
    assert f"ready task=t unique={NAME} seq=1 since={T}" == seed.state("a")
    assert told == entry(
        1,
        "enqueued",
        f'[["a",1,null,"t","normal",3,3,"{DIGEST}",null,null,null,"{NAME}"]]',
        by="c-1",
    )
    assert "a" == holder(seed)


@LANES
def test_a_job_keeps_its_unique_name_through_retries_and_rollbacks(seed: Seed, lane: str) -> None:
    enqueue(seed, "a", lane=lane)
    for settle in (seed.fail, seed.rollback):
        (claim,) = seed.claim().jobs
        assert (("b", "a"),) == enqueue(seed, "b").held
        settle(claim)
        assert (("b", "a"),) == enqueue(seed, "b").held
    assert "a" == holder(seed)
    assert seed.state("b") is None


def end_by_success(seed: Seed) -> None:
    seed.complete(*seed.claim().jobs)


def end_by_a_turn(seed: Seed) -> None:
    seed.turn(*seed.claim().jobs)


def end_by_a_final_failure(seed: Seed) -> None:
    seed.fail(*seed.claim().jobs, verdict="final")


def end_by_an_unknown_task(seed: Seed) -> None:
    seed.rollback(*seed.claim().jobs, reason="unknown_task", unknown_max=1)


def end_by_poison(seed: Seed) -> None:
    for _ in range(3):
        seed.claim()
        seed.live(LEASE_MS)
    seed.claim(0)


def end_by_cancel(seed: Seed) -> None:
    seed.cancel("a")


def end_by_cancelling(seed: Seed) -> None:
    (claim,) = seed.claim().jobs
    seed.cancel("a")
    seed.fail(claim)


def end_by_cancelling_and_a_lost_lease(seed: Seed) -> None:
    seed.claim()
    seed.cancel("a")
    seed.live(LEASE_MS)
    seed.claim(0)


def end_by_its_deadline(seed: Seed) -> None:
    seed.advance(86_400_000)
    seed.claim(0)


ENDS = [value for name, value in list(globals().items()) if name.startswith("end_by")]


@LANES
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_each_end_of_a_job_frees_its_unique_name(
    seed: Seed, end: Callable[[Seed], None], lane: str
) -> None:
    enqueue(seed, "a", lane=lane, expires_in_ms=86_400_000)
    end(seed)

    assert holder(seed) is None
    assert_consistent(seed.snapshot())
    assert ("b",) == enqueue(seed, "b").ids
    assert "b" == holder(seed)


def test_a_refused_settlement_frees_no_unique_name(seed: Seed) -> None:
    enqueue(seed, "a")
    (claim,) = seed.claim().jobs
    seed.rollback(claim)

    assert {"a": "stale"} == seed.complete(claim)
    assert "a" == holder(seed)


@pytest.mark.damaged
def test_the_end_of_a_job_does_not_free_a_name_that_another_job_now_holds(seed: Seed) -> None:
    """An operator has changed the holder of the name in the key `slots` by hand."""
    enqueue(seed, "a")
    seed.control.hset(seed.keys("slots"), FIELD, "b")
    seed.complete(*seed.claim().jobs)

    assert "b" == holder(seed)


@LANES
@pytest.mark.parametrize("delay_ms", [0, 5_000])
def test_a_waiting_job_can_be_replaced_by_a_job_with_the_same_unique_name(
    seed: Seed, lane: str, delay_ms: int
) -> None:
    enqueue(seed, "a", lane=lane, delay_ms=delay_ms)
    found = enqueue(seed, "b", how="replace", lane=lane)

    assert (("b",), (("b", "a"),)) == (found.ids, found.replaced)
    assert ["enqueued", "replaced"] == events_of(seed.entries(), "a")
    assert ["enqueued"] == events_of(seed.entries(), "b")
    assert (seed.state("a"), holder(seed)) == (None, "b")
    assert_consistent(seed.snapshot())
    assert ["b"] == [c.id for c in seed.claim().jobs]


@pytest.mark.parametrize("waits_again", [False, True])
def test_a_job_that_was_claimed_cannot_be_replaced_by_a_job_with_the_same_unique_name(
    seed: Seed, waits_again: bool
) -> None:
    enqueue(seed, "a")
    (claim,) = seed.claim().jobs
    if waits_again:
        seed.rollback(claim)

    assert (("b", "a"),) == enqueue(seed, "b", how="replace").held
    assert "a" == holder(seed)


@pytest.mark.parametrize(("how", "stands"), [("keep", 0), ("reject", 0), ("replace", 249)])
def test_only_one_of_many_jobs_with_the_same_unique_name_in_a_call_is_enqueued(
    seed: Seed, how: str, stands: int
) -> None:
    jobs = [seed.job(f"j-{n}", unique=how, name=NAME) for n in range(250)]
    found = seed.enqueue(*jobs)
    one = jobs[stands].id

    assert (one,) == found.ids
    assert [(job.id, one) for job in jobs if job.id != one] == list(found.held)
    assert (1, one) == (len(seed.snapshot()["jobs"]), holder(seed))


@pytest.mark.parametrize("holds", ["nothing", "a job that waits", "a job that runs"])
def test_the_second_job_of_a_call_with_the_same_id_may_replace_only_a_waiting_job_with_its_own_unique_name(
    seed: Seed, holds: str
) -> None:
    """Two jobs of the call have one id. The last job of the call replaces the first of them, so the second may be
    enqueued under its own name."""
    if holds != "nothing":
        seed.enqueue("holder", name="t/b")
    if holds == "a job that runs":
        seed.claim_one("holder")

    accepted = seed.enqueue(
        seed.job("twice", unique="replace", name="t/a"),
        seed.job("twice", unique="replace", name="t/b"),
        seed.job("last", unique="replace", name="t/a"),
    )

    held = [("twice", "last"), *([("twice", "holder")] if holds == "a job that runs" else [])]
    assert held == list(accepted.held)
    assert ("twice" in accepted.ids) == (holds != "a job that runs")
    assert (("twice", "holder") in accepted.replaced) == (holds == "a job that waits")


def test_a_duplicate_id_is_reported_as_a_duplicate_even_if_the_unique_name_is_held_too(
    seed: Seed,
) -> None:
    enqueue(seed, "a")
    found = enqueue(seed, "a", "b", "b", how="replace")

    assert (("b",), ("a", "b")) == (found.ids, found.duplicates)
    assert (("b", "a"),) == found.replaced


def test_a_job_that_is_discarded_for_its_cap_takes_no_unique_name(seed: Seed) -> None:
    seed.cap("host=h", 0)
    found = enqueue(seed, "a", lane="2+host=h", full="discard|host=h")

    assert (("a", "host=h"),) == found.discarded
    assert holder(seed) is None


def test_a_dead_job_can_be_requeued_only_if_its_unique_name_is_free(seed: Seed) -> None:
    enqueue(seed, "a")
    end_by_a_final_failure(seed)
    enqueue(seed, "b")

    assert {"a": "held"} == seed.requeue("a")
    seed.complete(*seed.claim().jobs)
    assert {"a": "requeued"} == seed.requeue("a")
    assert "a" == holder(seed)
    assert (("b", "a"),) == enqueue(seed, "b").held


def test_only_one_of_two_dead_jobs_with_the_same_unique_name_is_requeued(seed: Seed) -> None:
    for job_id in ("a", "b"):
        enqueue(seed, job_id)
        end_by_a_final_failure(seed)

    assert {"a": "requeued", "b": "held"} == seed.requeue("a", "b")


def test_a_lost_job_is_not_restored_while_another_job_holds_its_name(seed: Seed) -> None:
    enqueue(seed, "b")

    assert {"a": "held"} == seed.restore(seed.lost("a", unique_name=NAME))
    seed.complete(*seed.claim().jobs)
    lost = [seed.lost(i, unique_name=NAME) for i in ("a", "c")]
    assert {"a": "restored", "c": "held"} == seed.restore(*lost)
    assert "a" == holder(seed)


HOLDERS: dict[str, Callable[[Seed], Any]] = {
    "ready": lambda s: enqueue(s, "a"),
    "ready in a lane": lambda s: enqueue(s, "a", lane="2+host=h"),
    "scheduled": lambda s: enqueue(s, "a", delay_ms=5_000),
    "running": lambda s: s.running("a", name=NAME),
    "cancelling": lambda s: s.cancelling("a", name=NAME),
}


@pytest.mark.parametrize("stands", HOLDERS)
def test_a_job_continues_without_its_name_after_an_operator_freed_the_name(
    seed: Seed, stands: str
) -> None:
    HOLDERS[stands](seed)
    line = seed.state("a") or ""

    assert {NAME: "a"} == seed.free(NAME)
    assert line.replace(f" unique={NAME}", "") == seed.state("a")
    (told,) = [e for e in seed.entries() if e.event == "freed"]
    assert [{"id": "a", "unique_name": NAME}] == [each.fields for each in told.jobs]
    assert_consistent(seed.snapshot())
    assert ("b",) == enqueue(seed, "b").ids
    seed.cancel("a")
    assert "b" == holder(seed)


def test_freeing_a_unique_name_that_no_job_holds_changes_nothing(seed: Seed) -> None:
    enqueue(seed, "a")

    assert {} == seed.changes(lambda: seed.free("t/tenant=other"))


def test_a_dead_job_is_requeued_without_the_name_that_an_operator_freed(seed: Seed) -> None:
    claim = seed.running("a", name=NAME)
    seed.free(NAME)
    enqueue(seed, "b")
    seed.fail(claim, verdict="final")

    assert {"a": "requeued"} == seed.requeue("a")
    assert "b" == holder(seed)


def test_the_digest_of_the_arguments_does_not_depend_on_the_unique_name(seed: Seed) -> None:
    kinds, records = pack_jobs([seed.job("a", unique="keep", name=NAME), seed.job("b")])

    assert '{"unique":"keep"}' in kinds
    assert [f"{DIGEST} {NAME}", DIGEST] == [record[2] for record in records]


OVERDUE: dict[str, Callable[[Seed, str], Any]] = {
    "ready": lambda s, lane: enqueue(s, "old", lane=lane, expires_in_ms=1_000),
    "scheduled": lambda s, lane: enqueue(s, "old", lane=lane, expires_in_ms=1_000, delay_ms=999),
    "retried": lambda s, lane: s.fail(
        s.running("old", lane=lane, name=NAME, expires_in_ms=1_000), delay_ms=500
    ),
}


@LANES
@pytest.mark.parametrize("how", ["keep", "reject", "replace"])
@pytest.mark.parametrize("stands", OVERDUE)
def test_a_job_takes_the_name_of_a_job_that_is_past_its_deadline(
    seed: Seed, stands: str, how: str, lane: str
) -> None:
    """The overdue job will never run, so no caller may be answered with it."""
    OVERDUE[stands](seed, lane)
    seed.advance(999)
    assert "old" == holder(seed)
    seed.advance(1)
    found = enqueue(seed, "new", how=how, lane=lane)

    assert (("new",), (), ()) == (found.ids, found.held, found.replaced)
    assert "new" == holder(seed)
    assert_consistent(seed.snapshot())
    assert ["new"] == [claim.id for claim in seed.claim().jobs]
    assert ["freed", "expired"] == events_of(seed.entries(), "old")[-2:]
    assert "new" == holder(seed)


def test_a_job_past_its_deadline_keeps_its_name_if_the_next_job_is_discarded(seed: Seed) -> None:
    enqueue(seed, "old", expires_in_ms=1_000)
    seed.cap("host=h", 0)
    seed.advance(1_000)
    enqueue(seed, "new", lane="2+host=h", full="discard|host=h")

    assert "old" == holder(seed)
    assert "freed" not in events_of(seed.entries(), "old")


def test_a_running_job_keeps_its_name_past_its_deadline(seed: Seed) -> None:
    seed.running("old", name=NAME, expires_in_ms=1_000)
    seed.advance(1_000)

    assert (("new", "old"),) == enqueue(seed, "new", how="replace").held


def test_a_requeued_job_takes_its_name_from_a_job_past_its_deadline(seed: Seed) -> None:
    for job_id in ("a", "b"):
        enqueue(seed, job_id)
        end_by_a_final_failure(seed)
    enqueue(seed, "old", expires_in_ms=1_000)
    seed.advance(1_000)

    assert {"a": "requeued", "b": "held"} == seed.requeue("a", "b")
    assert "a" == holder(seed)
    assert_consistent(seed.snapshot())
    assert ["a"] == [claim.id for claim in seed.claim().jobs]
    assert ["enqueued", "freed", "expired"] == events_of(seed.entries(), "old")


def test_a_restored_job_takes_its_name_from_a_job_past_its_deadline(seed: Seed) -> None:
    enqueue(seed, "old", expires_in_ms=1_000)
    seed.advance(1_000)

    assert {"a": "restored"} == seed.restore(seed.lost("a", unique_name=NAME))
    assert "a" == holder(seed)
    assert_consistent(seed.snapshot())
    seed.claim()
    assert ["enqueued", "freed", "expired"] == events_of(seed.entries(), "old")
