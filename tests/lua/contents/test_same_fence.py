"""Two claims with the same fence, which a loss of Redis can cause. Only the worker of the claim in force may settle
it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from tests.kit.failover import fail_over, raw_client
from tests.kit.seed import Seed
from tests.lua.contents.entries import T

REPORTS: Final[dict[str, Callable[..., dict[str, str]]]] = {
    "complete": lambda seed, *held, worker: seed.complete(*held, worker=worker),
    "turn": lambda seed, *held, worker: dict(seed.turn(*held, limit=0, worker=worker).refused),
    "fail": lambda seed, *held, worker: seed.fail(*held, worker=worker),
    "rollback": lambda seed, *held, worker: seed.rollback(*held, worker=worker),
}
"""The calls that report the end of a claim. Each returns the outcomes by job, without the jobs that succeeded."""


@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
@pytest.mark.parametrize("report", REPORTS)
def test_only_the_worker_that_made_a_claim_can_settle_the_claim(
    seed: Seed, report: str, *, several: bool
) -> None:
    """The settlement of the stale worker is refused, and that of the other worker is accepted."""
    claim = seed.running("a")
    claims = [claim, seed.running("b")] if several else [claim]
    before = seed.state("a")
    outcome = {"fail": "ready", "rollback": "ready"}.get(report)

    told = REPORTS[report](seed, *claims, worker="w-stale")
    assert told == {each.id: "stale" for each in claims}
    assert seed.state("a") == before
    told = REPORTS[report](seed, *claims, worker="w-1")
    assert told == ({each.id: outcome for each in claims} if outcome else {})
    assert [str(e.event) for e in seed.entries()].count("settlement_refused") == 1


def test_a_worker_whose_name_is_a_prefix_of_the_claiming_workers_name_cannot_settle(
    seed: Seed,
) -> None:
    seed.enqueue("a")
    claim = seed.claim_one("a", worker="w-10")

    assert seed.complete(claim, worker="w-1") == {"a": "stale"}
    assert seed.complete(claim, worker="w-10") == {}


def test_no_fencing_token_of_a_claim_is_assigned_twice_if_redis_loads_a_snapshot_twice(
    seed: Seed,
) -> None:
    """Each load begins a new epoch. The snapshot's epoch is ahead of the clock, and the two epochs must still
    differ."""
    seed.enqueue("a")
    seed.clock.set(T - 10**6)
    with raw_client(seed.control) as raw:
        snapshot = {key: raw.dump(key) for key in raw.keys("rqc:*")}
        fences = []
        for _ in range(2):
            raw.delete(*raw.keys("rqc:*"))
            for key, value in snapshot.items():
                raw.restore(key, 0, value)
            fail_over(seed.control)
            fences.append(seed.claim_one("a").fence)

    assert len(set(fences)) == 2


def test_a_queue_that_was_behind_its_mirror_assigns_no_fencing_token_twice(seed: Seed) -> None:
    epochs = []
    for queue in ("one", "two"):
        each = seed.of(queue)
        each.enqueue("a")
        each.client.run(each.client.calls.audit.attach(queue, "db-1", known=T + 10**6))
        epochs.append(int(each.meta("epoch") or 0))
        fail_over(seed.control)

    assert min(epochs) > T + 10**6
    assert len(set(epochs)) == 2


def test_a_new_epoch_equals_the_time_of_the_clock_if_the_clock_has_advanced(seed: Seed) -> None:
    seed.enqueue("a")
    seed.advance(1)
    fail_over(seed.control)
    seed.enqueue("b")

    assert seed.meta("epoch") == str(T + 1)
