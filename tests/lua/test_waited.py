"""Waiting times: the answer to a claim says how long each job has waited."""

from collections.abc import Iterator

import pytest

from tests.kit.seed import Seed


@pytest.fixture
def seed(redis_url: str) -> Iterator[Seed]:
    with Seed(redis_url) as made:
        yield made


def waited(seed: Seed) -> dict[str, float | None]:
    return {claim.id: claim.waited_s for claim in seed.claim().jobs}


def test_a_first_claim_returns_how_long_each_job_without_a_state_line_has_waited(
    seed: Seed,
) -> None:
    seed.enqueue("early")
    seed.advance(2_500)
    seed.enqueue("late")
    seed.advance(250)

    assert waited(seed) == {"early": 2.75, "late": 0.25}


def test_the_waiting_time_is_unknown_for_a_delayed_job_and_for_a_second_claim(seed: Seed) -> None:
    seed.cap("tenant", 5)
    seed.enqueue(
        seed.job("capped", scopes=["tenant=x"]), seed.job("delayed", delay_ms=10), "again", "dies"
    )
    for claim in seed.claim().jobs:
        if claim.id == "again":
            seed.fail(claim)
        elif claim.id == "dies":
            seed.fail(claim, verdict="final")
        elif claim.id == "capped":
            assert claim.waited_s is None
    seed.advance(60_000)
    seed.requeue("dies")

    assert waited(seed) == {"delayed": None, "again": None, "dies": None}
