"""List entries of jobs that no longer exist. Claims and changes of many jobs skip them page by page."""

import random

import pytest

from rq_core.model.keys import queue_keys
from rq_core.model.table.machine import State
from rq_core.protocol.reads.paging import SKIPPED_MAX, PagedKey
from tests.kit.seed import Seed


def enqueue_and_cancel(seed: Seed, alive: set[int], count: int) -> list[str]:
    """Enqueue ``count`` jobs, and cancel all but those whose numbers are in ``alive``. Return the ids of the live jobs,
    in order."""
    ids = [f"j-{n}" for n in range(count)]
    seed.enqueue(*ids)
    seed.cancel(*(job for n, job in enumerate(ids) if n not in alive))
    return [ids[n] for n in sorted(alive)]


def test_each_claim_skips_a_bounded_number_of_list_entries_of_cancelled_jobs(seed: Seed) -> None:
    enqueue_and_cancel(seed, {2_000}, 2_001)

    first = seed.claim(1, sweep_max=50)
    left = int(seed.meta("tombstones") or 0)
    claims = 1
    assert ((), True) == (first.jobs, first.more)
    while not (jobs := seed.claim(1, sweep_max=50).jobs):
        claims += 1

    # 16 entries were read one by one, and each of the others counted an eighth.
    assert 2_000 - 16 - 35 * 8 - 64 <= left <= 2_000 - 16 - 34 * 8
    assert [job.id for job in jobs] == ["j-2000"]
    assert claims <= 7
    assert seed.meta("tombstones") == "0"


def test_a_claim_takes_the_job_behind_1800_list_entries_of_cancelled_jobs(seed: Seed) -> None:
    enqueue_and_cancel(seed, {1_800}, 1_801)

    assert [job.id for job in seed.claim(1).jobs] == ["j-1800"]
    seed.assert_consistent()


@pytest.mark.parametrize("before", [16, 79, 80, 81, 143, 144, 145, 458])
def test_a_claim_takes_jobs_at_the_edge_of_a_page_of_skipped_list_entries(
    seed: Seed, before: int
) -> None:
    ids = enqueue_and_cancel(seed, {before, before + 1, before + 40}, before + 100)

    assert [job.id for job in seed.claim(10).jobs] == ids
    seed.assert_consistent()


def test_claims_take_jobs_in_order_though_many_list_entries_of_cancelled_jobs_lie_between_the_jobs(
    seed: Seed,
) -> None:
    chosen = random.Random(40)
    for _ in range(8):
        count, alive = chosen.randrange(50, 1_200), set[int]()
        at = 0
        while at < count:
            # Runs of jobs that are gone, each with a run of jobs behind it.
            at += chosen.choice((0, 3, 15, 17, 60, 130, 400))
            run = chosen.choice((1, 2, 20))
            alive |= {n for n in range(at, at + run) if n < count}
            at += run
        ids = enqueue_and_cancel(seed, alive, count)

        claimed: list[str] = []
        held = []
        more = True
        while more:
            answer = seed.claim(chosen.choice((1, 7, 50)), sweep_max=chosen.choice((1, 20, 250)))
            claimed += [job.id for job in answer.jobs]
            held += answer.jobs
            more = answer.more
        assert claimed == ids
        seed.assert_consistent()
        seed.complete(*held)


def test_a_claim_that_skips_list_entries_does_not_read_long_arguments_of_the_jobs_behind_the_entries(
    seed: Seed,
) -> None:
    long = [seed.job(f"long-{n}", args_json='{"text":"%s"}' % ("x" * 50_000)) for n in range(100)]
    ids = [f"j-{n}" for n in range(60)]
    seed.enqueue(*ids)
    seed.enqueue(*long)
    seed.cancel(*ids)
    seed.control.config_resetstat()

    assert [job.id for job in seed.claim(1).jobs] == ["long-0"]

    read = seed.control.info("commandstats")
    # HEXISTS reads no arguments. HMGET reads `meta` and state lines.
    assert read["cmdstat_hexists"]["calls"] <= 64
    assert read["cmdstat_hmget"]["calls"] <= 3
    assert read["cmdstat_lrange"]["calls"] == 1


def test_a_call_that_skips_list_entries_stops_at_the_first_live_job_or_at_its_limit(
    seed: Seed,
) -> None:
    keys = queue_keys("q")
    source = PagedKey("ready:2", frozenset({State.READY}))
    gone = [f"g{n:04}" for n in range(1_200)]
    seed.enqueue(*gone)

    def skip() -> int:
        return int(seed.control.execute_command(*source.skipping(keys)[0]))

    assert skip() == 0
    seed.cancel(*(job for job in gone if job not in ("g1100", "g1101")))
    assert SKIPPED_MAX <= (first := skip()) < SKIPPED_MAX + 64
    assert first + skip() == 1_100
    assert skip() == 0
    assert seed.meta("tombstones") == "98"
    seed.cancel("g1100", "g1101")
    assert skip() == 100
    assert skip() == 0
    assert seed.meta("tombstones") == "0"


def test_no_arguments_of_jobs_are_read_to_skip_list_entries_of_cancelled_jobs(seed: Seed) -> None:
    source = PagedKey("ready:2", frozenset({State.READY}))
    long = [seed.job(f"long-{n}", args_json='{"text":"%s"}' % ("x" * 50_000)) for n in range(63)]
    seed.enqueue(*long, "gone")
    seed.cancel("gone")
    seed.control.config_resetstat()

    assert int(seed.control.execute_command(*source.skipping(queue_keys("q"))[0])) == 0

    read = seed.control.info("commandstats")
    # The state lines are read with one HMGET, and the first job ends the page.
    assert read["cmdstat_hmget"]["calls"] == 1
    assert read.get("cmdstat_hexists", {"calls": 0})["calls"] <= 1


@pytest.mark.damaged
def test_skipping_a_list_entry_does_not_create_the_lost_redis_key_meta_again(seed: Seed) -> None:
    source = PagedKey("ready:2", frozenset({State.READY}))
    seed.enqueue("gone")
    seed.cancel("gone")
    seed.control.delete(queue_keys("q")("meta"))

    assert int(seed.control.execute_command(*source.skipping(queue_keys("q"))[0])) == 1

    assert not seed.control.exists(queue_keys("q")("meta"))
