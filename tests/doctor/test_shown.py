"""Findings of the doctor about the progress and the streams of jobs. The doctor removes data that belong to no job, and
corrects the line of a stream."""

from collections.abc import Iterator

import pytest

from rq_core.doctor import diagnose, repair
from rq_core.model.showing.shown import KEPT_MS
from tests.kit.doctor import look, mend, named
from tests.kit.seed import Seed

ORPHAN = "claim=1 fence=1-2 at=5 says=1 said=1 start=0 from=1 to=1 bytes=14 base=0\n1/2 orphan"


@pytest.fixture
def seed(redis_url: str) -> Iterator[Seed]:
    with Seed(redis_url) as made:
        yield made


@pytest.mark.parametrize(
    "fields",
    [{"nobody": ORPHAN}, {"nobody~1": "claim=1 at=5\nx"}, {"nobody": ORPHAN, "nobody~1": "x"}],
    ids=["line", "chunk", "both"],
)
def test_the_doctor_finds_and_removes_a_progress_field_that_belongs_to_no_job(
    seed: Seed, fields: dict[str, str]
) -> None:
    seed.show(seed.running("a"), says="1/2", chunks=[(1, "one")])
    before = seed.snapshot()["shown"]
    seed.control.hset(seed.keys("shown"), mapping=fields)

    assert named(look(seed)) == {"shown"}
    assert mend(seed) == []
    assert seed.snapshot()["shown"] == before


def test_repair_corrects_the_counts_of_a_stream_after_a_chunk_was_lost(seed: Seed) -> None:
    claim = seed.running("a")
    seed.show(claim, chunks=[(1, "one"), (2, "two")])
    seed.control.hdel(seed.keys("shown"), "a~1")

    assert named(look(seed)) == {"shown"}
    assert mend(seed) == []
    size = len(seed.snapshot()["shown"]["a~2"])
    assert f" bytes={size} " in seed.snapshot()["shown"]["a"]


@pytest.mark.parametrize("end", ["leaves", "dies"])
def test_repair_restores_the_missing_expiry_of_an_ended_stream(seed: Seed, end: str) -> None:
    claim = seed.running("a")
    seed.show(claim, chunks=[(1, "one")])
    seed.complete(claim) if end == "leaves" else seed.fail(claim, verdict="final")
    due = seed.snapshot()["expiring"]["shown|a"]
    seed.control.zrem(seed.keys("expiring"), "shown|a")

    assert named(look(seed)) == {"expiring"}
    assert mend(seed) == []
    assert seed.snapshot()["expiring"]["shown|a"] == due
    seed.advance(KEPT_MS)
    seed.claim()
    assert seed.snapshot()["shown"] == {}


def test_repair_removes_an_expiry_without_a_stream(seed: Seed) -> None:
    seed.show(seed.running("a"), chunks=[(1, "one")])
    seed.control.zadd(seed.keys("expiring"), {"shown|a": 5, "shown|nobody": 5})

    assert named(look(seed)) == {"expiring"}
    assert mend(seed) == []
    assert not [each for each in seed.snapshot()["expiring"] if each.startswith("shown|")]


def test_repair_keeps_a_chunk_that_a_job_emits_after_the_examination(seed: Seed) -> None:
    claim = seed.running("a")
    seed.show(claim, chunks=[(1, "one")])
    seed.control.hset(seed.keys("shown"), "a~2", "claim=1 at=5\nstray")
    found = diagnose(seed.client, seed.queue, sleep=lambda _: None)
    seed.show(claim, chunks=[(2, "two")])
    chunk = seed.snapshot()["shown"]["a~2"]

    assert repair(seed.client, seed.queue, found, by="ada") == []
    assert seed.snapshot()["shown"]["a~2"] == chunk
