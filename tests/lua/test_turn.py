"""Turns: one call reports successes and claims jobs. The claim may use the places that the reports free."""

from collections.abc import Iterator

import pytest

from rq_core import errors
from tests.kit.seed import LEASE_MS, NO_FENCE, Seed, events_of


@pytest.fixture
def seed(redis_url: str) -> Iterator[Seed]:
    with Seed(redis_url) as made:
        yield made


def events(seed: Seed, since: int) -> list[str]:
    return [str(entry.event) for entry in seed.entries()[since:]]


@pytest.mark.parametrize("scope", ["task=t", "tenant=x", "queue"])
def test_the_script_turn_claims_a_job_for_the_place_in_a_cap_that_the_reported_success_frees(
    seed: Seed, scope: str
) -> None:
    """The worker has one place, under a cap of 1. It need not wait for the wake token of its own report."""
    seed.cap(scope, 1)
    scopes = [] if scope == "queue" else [scope]
    seed.enqueue(*(seed.job(name, scopes=scopes) for name in ("a", "b")))
    (held,) = seed.claim().jobs
    before = len(seed.entries())

    turned = seed.turn(held)

    assert [job.id for job in turned.jobs] == ["b"]
    assert turned.refused == {}
    assert events(seed, before) == ["succeeded", "claimed"]


@pytest.mark.parametrize("size", [1, 3])
def test_a_success_that_is_reported_after_the_lease_has_expired_is_accepted(
    seed: Seed, size: int
) -> None:
    """The success is not refused as stale, so the job does not run again."""
    names = [f"j-{n}" for n in range(size)]
    held = [seed.running(name) for name in names]
    seed.live(LEASE_MS)

    turned = seed.turn(*held)

    assert (turned.jobs, turned.refused) == ((), {})
    for name in names:
        assert events_of(seed.entries(), name) == ["enqueued", "claimed", "succeeded"]


def test_each_claim_that_the_script_turn_ends_frees_one_place_in_the_cap_of_the_queue(
    seed: Seed,
) -> None:
    """One claim ends by a late success, and one because its lease has expired. The turn then claims two jobs."""
    seed.cap("queue", 3)
    reported, lost, kept = map(seed.running, ("reported", "lost", "kept"))
    seed.live(LEASE_MS // 3)
    seed.extend([kept])
    seed.live(LEASE_MS - LEASE_MS // 3)
    seed.enqueue(*(f"j-{n}" for n in range(5)))

    turned = seed.turn(reported)

    assert {job.id for job in turned.jobs} == {"lost", "j-0"}
    assert turned.more is False
    assert set(seed.snapshot()["leases"]) == {"lost", "j-0", kept.id}
    assert lost.fence != turned.jobs[0].fence


def test_the_script_turn_claims_jobs_though_the_reports_in_the_call_are_refused(seed: Seed) -> None:
    held = seed.running("a")
    seed.complete(held)
    stale = seed.running("b")
    seed.enqueue("c")

    turned = seed.turn(held, (stale.id, NO_FENCE))

    assert turned.refused == {"a": "gone", "b": "stale"}
    assert [job.id for job in turned.jobs] == ["c"]
    assert (seed.state("b") or "").startswith("running")


def test_a_job_that_one_call_of_the_script_turn_reports_twice_succeeds_once(seed: Seed) -> None:
    seed.cap("task=t", 2)
    held = seed.running("a", scopes=["task=t"])
    seed.enqueue(*(seed.job(f"j-{n}", scopes=["task=t"]) for n in range(5)))

    turned = seed.turn(held, held)

    assert turned.refused == {"a": "gone"}
    assert len(turned.jobs) == 2
    assert events_of(seed.entries(), "a") == [
        "enqueued", "claimed", "succeeded", "settlement_refused",
    ]  # fmt: skip


def test_on_a_paused_queue_the_script_turn_settles_jobs_but_claims_none(seed: Seed) -> None:
    held = seed.running("a")
    seed.enqueue("b")
    seed.configure(paused=1)

    turned = seed.turn(held)

    assert (turned.jobs, turned.more) == ((), False)
    assert events_of(seed.entries(), "a")[-1] == "succeeded"


def test_the_script_turn_with_limit_0_wakes_a_worker_for_waiting_jobs(seed: Seed) -> None:
    held = seed.running("a")
    seed.enqueue("b")
    seed.take_token()

    turned = seed.turn(held, limit=0)

    assert (turned.jobs, turned.more) == ((), True)
    assert seed.tokens() == 1


def test_the_answer_to_a_claim_has_all_fields_that_a_worker_needs(seed: Seed) -> None:
    """Checks plain, capped and delayed jobs, new or failed. For a new plain job the server sends only the arguments."""
    lanes = {"plain": "", "capped": "2+tenant=x"}
    for name, lane in lanes.items():
        seed.enqueue(name, lane=lane, args_json='{"n":1}')
    seed.enqueue("late", delay_ms=1)
    seed.advance(1)

    first = seed.turn().jobs
    seed.fail(*first)
    again = seed.turn().jobs

    for jobs, counts in ((first, (1, 0, 0)), (again, (2, 1, 0))):
        told = {job.id: (job.number, job.failures, job.losses) for job in jobs}
        assert told == dict.fromkeys(("plain", "capped", "late"), counts)
        assert {job.id: job.lane for job in jobs} == {**lanes, "late": ""}
    assert [job.spec for job in first] == [job.spec for job in again]


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.damaged
def test_the_script_turn_without_a_claim_writes_no_event_if_the_redis_key_jobs_has_a_wrong_type(
    seed: Seed, size: int
) -> None:
    """This turn does not read `jobs`. So it must check the key's type before its first event."""
    held = [seed.running(f"j-{n}") for n in range(size)]
    seed.control.delete(seed.keys("jobs"))
    seed.control.set(seed.keys("jobs"), "x")
    before = seed.control.dump(seed.keys("outbox")), seed.control.dump(seed.keys("state"))

    with pytest.raises(errors.QueueDamaged, match="wrong type"):
        seed.turn(*held)

    assert before == (seed.control.dump(seed.keys("outbox")), seed.control.dump(seed.keys("state")))
