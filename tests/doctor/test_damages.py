"""The doctor compares a queue with its outbox, and finds each kind of damage in the table of damages.

The doctor repairs the damage for which the log has the data.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

import pytest

from tests.kit.consistency import assert_consistent
from tests.kit.damages import DAMAGES, fill
from tests.kit.doctor import look, mend
from tests.kit.seed import Seed


@pytest.fixture
def seed(valkey_url: str) -> Iterator[Seed]:
    """Yield a seed with a filled queue, on one engine. The doctor's findings do not depend on the engine."""
    with Seed(valkey_url) as made:
        fill(made)
        yield made


def contents(seed: Seed) -> dict[str, object]:
    """Return the data of a queue, without the outbox, the key `meta` and the wake tokens. Each repair may change
    these."""
    moves = {"outbox", "meta", "wake"}
    return {key: value for key, value in seed.snapshot().items() if key not in moves}


def test_an_undamaged_queue_has_no_findings(seed: Seed) -> None:
    assert look(seed) == []
    assert_consistent(seed.snapshot())


@pytest.mark.parametrize("name", DAMAGES)
def test_the_doctor_finds_and_repairs_planted_damage(seed: Seed, name: str) -> None:
    """Checks also that the doctor leaves damage unchanged that only an operator can repair."""
    damage, before = DAMAGES[name], contents(seed)
    damage.plant(seed)
    planted = contents(seed)

    assert any(damage.says in found.says for found in look(seed))
    left = mend(seed)

    assert bool(left) is not damage.is_mended
    assert contents(seed) == (before if damage.is_mended else planted)
    if damage.is_mended:
        assert_consistent(seed.snapshot())


def gap(seed: Seed, at: str) -> None:
    seed.control.xdel(seed.keys("outbox"), at)


def unreadable(seed: Seed, at: str) -> None:
    """Write the outbox again, with an unknown type in the entry ``at``, as if a later release had written the entry."""
    entries = seed.snapshot()["outbox"]
    seed.control.delete(seed.keys("outbox"))
    for entry_id, fields in entries:
        told = fields | {"type": "news"} if entry_id == at else fields
        seed.control.xadd(seed.keys("outbox"), told, id=entry_id)


@pytest.mark.parametrize("hide", [gap, unreadable])
def test_repair_does_not_change_a_running_job_whose_claim_is_missing_in_the_log(
    seed: Seed, hide: Callable[[Seed, str], None]
) -> None:
    """Checks that the job stays running. By the log it is ready, and a ready job would run a second time."""
    line = seed.state("runs")
    assert line is not None
    hide(seed, line.partition(" fence=")[2].partition(" ")[0])

    mend(seed)

    assert seed.state("runs") == line
    assert "runs" in seed.snapshot()["leases"]


def test_repair_does_not_change_a_running_job_whose_claim_event_has_an_invalid_number(
    seed: Seed,
) -> None:
    epoch = seed.meta("epoch")
    seed.control.xadd(seed.keys("outbox"), {"colour": "blue"}, id=f"{epoch}-{2**63}")
    (claimed,) = seed.claim(1).jobs
    line = seed.state(claimed.id)

    mend(seed)

    assert seed.state(claimed.id) == line
    assert claimed.id in seed.snapshot()["leases"]


def test_the_command_that_the_doctor_prints_restores_the_version_of_a_limit(seed: Seed) -> None:
    """Checks that the limit has its old version again. With a wrong version, verify would reject a true log later."""
    before = contents(seed)
    DAMAGES["another version of a limit"].plant(seed)

    (found,) = look(seed)
    command = found.says.partition("`redis-cli ")[2].partition("` sets it back")[0]
    seed.control.execute_command(*shlex.split(command))  # type: ignore[no-untyped-call]

    assert contents(seed) == before


@pytest.mark.parametrize("shortened", [False, True])
def test_a_dead_job_is_not_pruned_before_its_retention_ends(
    valkey_url: str, *, shortened: bool
) -> None:
    """Checks a time of 1 ms that a client wrote. While a shorter retention was in force, such a time was right."""
    with Seed(valkey_url) as seed:
        if shortened:
            seed.configure(dead_retention_ms=0)
            seed.configure(dead_retention_ms=86_400_000)
        seed.dead("a")
        seed.assert_consistent()
        mark, when = "dead|a", seed.snapshot()["expiring"]["dead|a"]
        early = seed.now if shortened else 1
        seed.control.zadd(seed.keys("expiring"), {mark: early})

        found = look(seed)
        mend(seed)

        assert [] == found if shortened else found
        assert (early if shortened else when) == seed.snapshot()["expiring"][mark]
        if not shortened:
            seed.claim()
            assert str(seed.state("a")).startswith("dead ")
