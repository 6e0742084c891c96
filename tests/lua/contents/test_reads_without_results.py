"""Reads without results: of what a job has saved, and of how jobs have ended."""

import json

import pytest

from rq_core.model.durable.boxes import StepEntry
from rq_core.model.outcome import Failed, Gone, Succeeded
from rq_core.model.result_encoding import pack_result
from rq_core.protocol.reads import box_reads
from rq_core.protocol.reads.result_reads import PAGE, UNREAD, Absent
from tests.kit.seed import LIFE, Seed

LONG = json.dumps("r" * 10_000)


def heads(seed: Seed, life: str = LIFE) -> dict[str, StepEntry] | None:
    return seed.client.run(seed.client.calls.reads.heads(seed.queue, life))


def test_a_read_of_steps_without_results_has_the_values_of_internal_entries_but_no_results_of_steps(
    seed: Seed,
) -> None:
    claim = seed.running("a")
    values = {
        "map:render": '{"count":2,"queue":"q"}', "render=0": LONG, "render=join": '{"1":["dead","",""]}',
        "rq_core.flow.stop-1": "[1]", "charge": LONG,
    }  # fmt: skip
    for number, (name, value) in enumerate(values.items(), 1):
        seed.save(claim, entry=number, name=name, value=value)
    seed.save(claim, entry=6, name="begun", what="begin")

    found = heads(seed)

    assert found is not None
    assert [*found] == [*values, "begun"]
    kept = {name: entry.value for name, entry in found.items()}
    assert kept == values | {"render=0": None, "charge": None, "begun": None}
    assert [entry.is_saved for entry in found.values()] == [True] * 5 + [False]


@pytest.mark.parametrize(("entries", "size"), [(7, 10**9), (10**9, 25_000), (7, 25_000)])
def test_all_saved_steps_are_read_without_results_although_each_read_returns_a_limited_number(
    seed: Seed, monkeypatch: pytest.MonkeyPatch, entries: int, size: int
) -> None:
    claim = seed.running("a")
    for number in range(1, 31):
        seed.save(claim, entry=number, name=f"step-{number}", value=LONG)
    monkeypatch.setattr(box_reads, "HEADS", entries)
    monkeypatch.setattr(box_reads, "HEAD_BYTES", size)
    monkeypatch.setattr(box_reads, "_CHUNK", 3)

    found = heads(seed)

    assert found is not None
    assert [*found] == [f"step-{number}" for number in range(1, 31)]


def test_a_read_of_steps_without_results_finds_nothing_if_redis_lacks_the_steps(seed: Seed) -> None:
    assert heads(seed) is None


@pytest.mark.damaged
def test_a_saved_step_that_is_missing_or_unreadable_is_left_out_of_a_read_without_results(
    seed: Seed,
) -> None:
    claim = seed.running("a")
    for number in range(1, 5):
        seed.save(claim, entry=number, name=f"step-{number}")
    seed.control.hdel(seed.keys("boxes"), f"{LIFE}|2")
    seed.control.hset(seed.keys("boxes"), f"{LIFE}|3", "no entry\nat all")

    assert [*(heads(seed) or {})] == ["step-1", "step-4"]


def test_outcomes_without_results_say_how_each_job_ended(seed: Seed) -> None:
    seed.enqueue(*(seed.job(each, keep_ms=60_000) for each in ("long", "none", "dead")))
    long, none, dead = seed.claim().jobs
    seed.complete(long, none, values={1: pack_result(LONG)})
    seed.fail(dead, verdict="final")
    seed.enqueue("alive")
    ids = ["long", "none", "dead", "alive", "gone"]

    found = seed.client.run(seed.client.calls.endings.outcomes(seed.queue, ids))

    assert [*sorted(found)] == ["dead", "gone", "long", "none"]
    assert found["long"] == Succeeded("long", missing=UNREAD)
    assert isinstance(found["none"], Succeeded)
    assert isinstance(found["dead"], Failed)
    assert isinstance(found["gone"], Gone | Absent)


def test_one_poll_for_outcomes_asks_for_a_bounded_number_of_jobs(seed: Seed) -> None:
    ids = [f"gone-{n}" for n in range(PAGE + 1)]

    assert len(seed.client.run(seed.client.calls.endings.outcomes(seed.queue, ids))) == PAGE
