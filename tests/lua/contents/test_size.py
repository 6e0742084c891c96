"""Calls with the highest allowed number of jobs, the longest reads, and unusual names."""

import pytest

from rq_core import errors
from rq_core.scripts.script import build_script
from tests.kit.consistency import assert_consistent
from tests.kit.seed import Seed


@pytest.mark.slow
def test_calls_with_ten_thousand_records_are_carried_out(seed: Seed) -> None:
    """A call may have 10,000 records, but Lua's stack has room for only 8,000 values."""
    count = 10_000
    ids = [f"j-{n}" for n in range(count)]
    jobs = [seed.job(i) for i in ids]

    def carry_out(call: object) -> object:
        (value,) = seed.client.run(seed.client.calls.delivery.carry_out([call]))  # type: ignore[list-item]
        assert not isinstance(value, Exception), value
        return value

    def enqueue(batch: list) -> object:
        return carry_out(seed.calls.enqueue.chunk("q", batch))

    assert len(enqueue(jobs).ids) == count  # type: ignore[attr-defined]
    assert len(enqueue(jobs).duplicates) == count  # type: ignore[attr-defined]
    claimed = seed.claim(count, bytes_max=10**9).jobs
    assert ids == [c.id for c in claimed]
    held = [(c.id, c.fence) for c in claimed]
    assert seed.extend(held).lost == ()
    assert len(seed.rollback(*held)) == count
    claimed = seed.claim(count, bytes_max=10**9).jobs
    assert ids == [c.id for c in claimed]
    held = [(c.id, c.fence) for c in claimed]
    assert set(seed.fail(*held, verdict="final").values()) == {"dead"}
    assert len(seed.complete(*held)) == count
    assert set(seed.requeue(*ids).values()) == {"requeued"}
    assert_consistent(seed.snapshot(), whole_log=False)
    assert set(seed.cancel(*ids).values()) == {"cancelled"}
    assert seed.snapshot()["jobs"] == {}


def test_a_claim_reads_the_arguments_of_only_a_few_jobs_more_than_it_returns(seed: Seed) -> None:
    """Each of a hundred jobs has 100 KB of arguments. A claim for 150 KB returns two jobs, and reads at most twelve."""
    big = '{"x":"' + "y" * 100_000 + '"}'
    seed.enqueue(*(f"j-{n}" for n in range(100)), args_json=big)
    made = build_script("claim")
    watched = made.text.replace(
        "function read_many(key, names)",
        "function read_many(key, names)\n"
        "  if key == jobs then redis.call('INCRBY', 'test:specs', #names) end",
    )
    assert watched != made.text
    args = {
        "slot": "s",
        "number": 1,
        "worker": "w",
        "limit": 100,
        "bytes_max": 150_000,
        "sweep_max": 9,
    }
    command = made.command(seed.keys, **args)

    reply = seed.control.execute_command("EVAL", watched, *command[2:])

    assert len(reply[2:]) == 2 * 2
    assert int(seed.control.get("test:specs")) <= 12


HOSTILE = [
    "-", ".", ":", "_", "a", "0", "nil", "null", "job", "slot:x", "A" * 128, "--x", "1.5", "d",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_job_with_unusual_valid_names_runs_dies_and_is_requeued(seed: Seed, name: str) -> None:
    other = seed.of(name)
    other.enqueue(name, task=name, delay_ms=1)
    other.advance(1)
    (claim,) = other.claim(worker=name).jobs
    other.fail(claim, worker=name, verdict="final", reason=name)
    other.client.run(other.client.calls.admin.requeue(name, [name], by=name))
    (claim,) = other.claim(worker=name).jobs
    assert_consistent(other.snapshot())
    assert other.complete(claim, worker=name) == {}
    assert_consistent(other.snapshot())
    assert other.client.run(other.client.calls.reads.counts(name)).running == 0


@pytest.mark.parametrize("queue", ["", "a b", "{a}", "a|b", "ü", "a" * 129, "a\n"])
def test_an_invalid_queue_name_is_refused_before_a_call_is_sent(seed: Seed, queue: str) -> None:
    with pytest.raises(errors.InvalidName):
        seed.of("q").client.run(
            seed.of("q").client.calls.enqueue.many([seed.job("a")._replace(queue=queue)])
        )
    assert seed.control.keys("rqc:*") == []


def test_redis_encodes_the_key_lanes_of_a_queue_with_many_lanes_as_a_hash_table(seed: Seed) -> None:
    """To add or remove a lane in a listpack, Redis' form of small hashes, would cost 17,000 instructions."""
    seed.cap("tenant", 1)
    seed.enqueue(*(seed.job(f"j-{n}", scopes=[f"tenant=k{n}"]) for n in range(100)))

    assert seed.control.object("encoding", seed.keys("lanes")) == "hashtable"
    assert len(seed.snapshot()["lanes"]) == 100
