"""The keys in Redis after a job has shown its progress and a stream, and after the job has ended."""

from itertools import pairwise

import pytest

from rq_core.model.showing.shown import CHUNKS_MAX, KEPT_MS, STREAM_BYTES_MAX, chunk_field
from rq_core.protocol.reads.shown_reads import PAGE, StreamPlace
from tests.kit.seed import NO_FENCE, Seed
from tests.lua.contents.entries import T

START = StreamPlace(0, 0, None)


def line(
    says: str = "",
    *,
    claim: int = 1,
    fence: str = f"{T}-2",
    at: int = T,
    says_claim: int | None = None,
    said: int = 0,
    start: int = 0,
    kept: tuple[int, int] = (1, 0),
    size: int = 0,
    base: int = 0,
    end: str = "",
) -> str:
    head = f"claim={claim} fence={fence} at={at} says={claim if says_claim is None else says_claim}"
    place = f"said={said} start={start} from={kept[0]} to={kept[1]}"
    text = f"{head} {place} bytes={size} base={base}{end}"
    return f"{text}\n{says}" if says else text


def chunk(text: str, claim: int = 1) -> str:
    return f"claim={claim} at={T}\n{text}"


def field_of(seed: Seed, field: str = "a") -> str:
    return str(seed.control.hget(seed.keys("shown"), field))


def read(
    seed: Seed, job_id: str, place: StreamPlace = START
) -> tuple[list[tuple[int, str, int]], StreamPlace]:
    """Read a stream up to its present end. Return the chunks as (number, text, missed), and the reader's new place.

    ``missed`` says how many chunks directly before this chunk are gone.
    """
    found: list[tuple[int, str, int]] = []
    while True:
        look = seed.client.run(seed.client.calls.reads.stream(seed.queue, job_id, place))
        found += [(each.number, each.text, each.missed) for each in look.chunks]
        place = look.place
        if place.upto >= look.last:
            return found, place


def test_the_first_progress_report_in_a_queue_writes_the_line_of_its_job_and_switches_the_feature_on(
    seed: Seed,
) -> None:
    claim = seed.running("a")

    changes = seed.changes(lambda: seed.show(claim, says="1/3 up", chunks=[(1, "one"), (2, "two")]))

    size = len(chunk("one")) + len(chunk("two"))
    assert changes == {
        "meta": {"shows": (None, "1")},
        "shown": {
            "a": (None, line("1/3 up", at=T, said=1, kept=(1, 2), size=size)),
            "a~1": (None, chunk("one")),
            "a~2": (None, chunk("two")),
        },
    }


def test_a_report_of_progress_that_is_repeated_or_late_changes_nothing(seed: Seed) -> None:
    claim = seed.running("a")
    seed.show(claim, says="2/3", number=2, chunks=[(1, "one"), (2, "two")])

    assert {} == seed.changes(lambda: seed.show(claim, says="1/3", chunks=[(1, "one"), (2, "two")]))


def test_only_the_worker_that_holds_the_claim_can_report_a_progress_or_stream_chunks(
    seed: Seed,
) -> None:
    claim = seed.running("a")
    seed.show(claim, says="1/3")
    seed.enqueue("waits")

    for held, worker, why in (
        ((claim.id, NO_FENCE), "w-1", "stale"),
        ((claim.id, claim.fence), "w-2", "stale"),
        (("waits", claim.fence), "w-1", "stale"),
        (("nobody", claim.fence), "w-1", "gone"),
    ):
        before = seed.snapshot()
        shown = seed.show(held, says="3/3", number=9, chunks=[(9, "x")], worker=worker)
        assert shown == {held[0]: why}
        assert seed.snapshot() == before


def test_the_chunks_of_the_next_claim_continue_the_numbers_of_the_claim_before(seed: Seed) -> None:
    first = seed.running("a")
    seed.show(first, says="1/3", chunks=[(1, "one"), (2, "two")])
    seed.fail(first)
    second = seed.claim_one("a")

    assert {"a": "2"} == seed.show(second, chunks=[(1, "again")], claim=2)

    assert read(seed, "a")[0] == [(1, "one", 0), (2, "two", 0), (3, "again", 0)]
    look = seed.client.run(seed.client.calls.reads.stream(seed.queue, "a", START))
    assert [(each.claim, each.begins_claim) for each in look.chunks] == [
        (1, True),
        (1, False),
        (2, True),
    ]


def test_the_progress_of_an_earlier_claim_keeps_the_number_of_that_claim(seed: Seed) -> None:
    first = seed.running("a")
    seed.show(first, says="5/10 half", chunks=[(1, "one")])
    seed.fail(first)
    second = seed.claim_one("a")
    seed.show(second, chunks=[(1, "again")], claim=2)

    found = seed.client.run(seed.client.calls.reads.shown(seed.queue, "a")).progress
    assert found is not None
    assert (found.done, found.claim) == (5, 1)
    seed.show(second, says="1/10 begun", claim=2)
    found = seed.client.run(seed.client.calls.reads.shown(seed.queue, "a")).progress
    assert found is not None
    assert (found.done, found.claim) == (1, 2)
    seed.assert_consistent()


@pytest.mark.parametrize(
    "field",
    [
        f"claim=1 fence=1-2 at=5 says=1 said=1 start=0 from=1 to={10**15} bytes=9 base=0",
        f"claim=1 fence=1-2 at=5 says=1 said=1 start={'9' * 400} from={'9' * 400} to={'9' * 400} bytes=9 base=0",
        f"claim=1 fence=1-2 at=5 says=1 said=1 start=0 from=1 to=3 bytes={'9' * 400} base=0",
        "claim=1",
        b"\xff",
        "x" * 100_000,
    ],
)
def test_a_progress_line_that_no_script_can_have_written_is_replaced(
    seed: Seed, field: str | bytes
) -> None:
    claim = seed.running("a")
    seed.show(claim, says="1/3", chunks=[(1, "one")])
    seed.control.hset(seed.keys("shown"), "a", field)

    assert {"a": "0"} == seed.show(claim, says="2/3", number=2, chunks=[(1, "one"), (2, "two")])

    assert [text for _, text, _ in read(seed, "a")[0]] == ["one", "two"]
    seed.assert_consistent()
    seed.complete(claim)
    seed.advance(KEPT_MS)
    seed.claim()
    assert seed.snapshot()["shown"] == {}


def test_a_job_keeps_its_last_thousand_chunks_and_readers_learn_how_many_they_missed(
    seed: Seed,
) -> None:
    claim = seed.running("a")
    seed.show(claim, chunks=[(n, str(n)) for n in range(1, 6)])
    got, place = read(seed, "a")
    for first in range(6, 6 + 3 * PAGE * 2, PAGE * 2):
        seed.show(claim, chunks=[(n, str(n)) for n in range(first, first + PAGE * 2)])

    late, _ = read(seed, "a", place)

    last = 5 + 3 * PAGE * 2
    assert [number for number, _, _ in got + late] == [
        *range(1, 6),
        *range(last - CHUNKS_MAX + 1, last + 1),
    ]
    assert sum(missed for _, _, missed in late) == last - CHUNKS_MAX - 5
    assert len(seed.snapshot()["shown"]) == CHUNKS_MAX + 1
    seed.assert_consistent()


def test_a_job_keeps_a_mebibyte_of_chunks(seed: Seed) -> None:
    claim, text = seed.running("a"), "x" * 16_000
    for first in range(1, 101, 10):
        seed.show(claim, chunks=[(n, text) for n in range(first, first + 10)])

    kept = [each for each in seed.snapshot()["shown"] if each != "a"]
    assert len(kept) == STREAM_BYTES_MAX // len(chunk(text))
    assert chunk_field("a", 100) in kept
    seed.assert_consistent()


def test_a_reader_learns_of_chunks_that_the_worker_left_out(seed: Seed) -> None:
    claim = seed.running("a")
    seed.show(claim, chunks=[(1, "one")])
    seed.show(claim, chunks=[(700, "seven hundred")])
    seed.show(claim, chunks=[(5_000, "last")])

    assert read(seed, "a", StreamPlace(1, 1, 1))[0] == [(5_000, "last", 4_998)]


@pytest.mark.parametrize("end", ["complete", "cancel", "expire"])
def test_the_progress_of_a_job_is_removed_when_the_job_ends(seed: Seed, end: str) -> None:
    claim = seed.running("a", **({"expires_in_ms": 60_000} if end == "expire" else {}))
    seed.show(claim, says="1/3 up")
    if end == "complete":
        seed.complete(claim)
    else:
        seed.fail(claim)
        seed.cancel("a") if end == "cancel" else seed.advance(60_001)
        seed.claim()
    if end == "expire":
        seed.prune("a")

    assert seed.snapshot()["shown"] == {}
    seed.assert_consistent()


def test_a_dead_job_keeps_its_progress_until_it_is_pruned(seed: Seed) -> None:
    claim = seed.running("a")
    seed.show(claim, says="1/3 up")
    seed.fail(claim, verdict="final")

    assert field_of(seed) == line("1/3 up", at=T, said=1)
    seed.prune("a")
    assert seed.snapshot()["shown"] == {}


def test_the_chunks_of_an_ended_job_are_kept_for_an_hour(seed: Seed) -> None:
    claim = seed.running("a")
    seed.show(claim, says="1/3", chunks=[(1, "one")])
    seed.complete(claim)
    size = len(chunk("one"))

    assert field_of(seed) == line(at=T, said=1, kept=(1, 1), size=size, end=f" left={T}")
    assert seed.snapshot()["expiring"]["shown|a"] == T + KEPT_MS
    assert read(seed, "a")[0] == [(1, "one", 0)]
    seed.assert_consistent()
    seed.advance(KEPT_MS)
    seed.claim()
    assert seed.snapshot()["shown"] == {}
    assert "shown|a" not in seed.snapshot()["expiring"]


def test_each_claim_removes_only_a_few_expired_streams(seed: Seed) -> None:
    names = [f"job-{n}" for n in range(6)]
    for name in names:
        claim = seed.running(name)
        for first in (1, 301):
            seed.show(claim, chunks=numbered(*["x"] * 300, first=first))
        seed.complete(claim)
    seed.advance(KEPT_MS)

    left = [len(seed.snapshot()["shown"])]
    while left[-1]:
        seed.claim()
        left.append(len(seed.snapshot()["shown"]))
        seed.assert_consistent()

    assert [before - after for before, after in pairwise(left)] == [2 * 601] * 3
    assert not [each for each in seed.snapshot()["expiring"] if each.startswith("shown|")]


def test_a_requeued_job_continues_its_stream(seed: Seed) -> None:
    claim = seed.running("a")
    seed.show(claim, chunks=[(1, "one")])
    seed.fail(claim, verdict="final")
    assert seed.snapshot()["expiring"]["shown|a"] == T + KEPT_MS
    seed.requeue("a")

    again = seed.claim_one("a")
    seed.show(again, chunks=[(1, "again")], claim=2)

    assert "shown|a" not in seed.snapshot()["expiring"]
    assert read(seed, "a")[0] == [(1, "one", 0), (2, "again", 0)]
    seed.assert_consistent()


def test_another_job_with_the_same_id_begins_a_new_stream(seed: Seed) -> None:
    claim = seed.running("a")
    seed.show(claim, says="3/3", chunks=[(1, "one"), (2, "two")])
    seed.complete(claim)
    other = seed.running("a")

    assert {"a": "2"} == seed.show(other, chunks=[(1, "new")])

    assert read(seed, "a")[0] == [(3, "new", 0)]
    assert {"a", "a~3"} == set(seed.snapshot()["shown"])
    assert "shown|a" not in seed.snapshot()["expiring"]
    seed.assert_consistent()


def test_chunks_emitted_after_the_stream_was_lost_have_higher_numbers_than_chunks_already_read(
    seed: Seed,
) -> None:
    claim = seed.running("a")
    seed.show(claim, chunks=[(1, "one"), (2, "two")])
    seed.control.delete(seed.keys("shown"))

    assert {"a": "40"} == seed.show(claim, chunks=[(3, "three")], start=40)

    assert read(seed, "a", StreamPlace(42, 42, 1))[0] == [(43, "three", 0)]


def numbered(*texts: str, first: int = 1) -> list[tuple[int, str]]:
    return list(enumerate(texts, first))


@pytest.mark.parametrize("has_looked", [True, False], ids=["reads on", "comes back"])
def test_a_reader_gets_all_chunks_of_a_new_claim_though_a_failover_has_set_their_numbers_back(
    seed: Seed, has_looked: bool
) -> None:
    """A failover has taken the last chunks that the reader got."""
    first = seed.running("a")
    seed.show(first, chunks=numbered("one", "two"))
    before = seed.snapshot()["shown"]
    seed.show(first, chunks=numbered("lost", "lost", "lost", first=3))
    got, place = read(seed, "a")
    # The failover takes the last three chunks.
    seed.control.delete(seed.keys("shown"))
    seed.control.hset(seed.keys("shown"), mapping=before)
    seed.fail(first)
    if not has_looked:
        # This reader has only the number.
        place = StreamPlace(5, 5, None)
        assert read(seed, "a", place)[0] == []
        _, place = read(seed, "a", place)
    second = seed.claim_one("a")

    assert {"a": "2"} == seed.show(second, chunks=numbered("again"), claim=2)

    assert len(got) == 5
    later, place = read(seed, "a", place)
    assert later == [(3, "again", 0)]
    seed.show(second, chunks=numbered("more", first=2), claim=2)
    assert read(seed, "a", place)[0] == [(4, "more", 0)]


@pytest.mark.parametrize("has_looked", [True, False], ids=["reads on", "comes back"])
def test_a_reader_gets_the_chunks_of_a_new_job_after_the_stream_of_the_old_job_has_expired(
    seed: Seed, has_looked: bool
) -> None:
    claim = seed.running("a")
    seed.show(claim, chunks=numbered("one", "two"))
    _, place = read(seed, "a")
    seed.complete(claim)
    seed.advance(KEPT_MS)
    seed.claim()
    other = seed.running("a")
    if not has_looked:
        _, place = read(seed, "a", StreamPlace(2, 2, None))
    seed.show(other, chunks=numbered("new"))

    look = seed.client.run(seed.client.calls.reads.stream(seed.queue, "a", place))
    assert [(c.number, c.text, c.begins_claim, c.missed) for c in look.chunks] == [
        (1, "new", True, 0)
    ]


def test_a_chunk_that_is_emitted_after_a_loss_of_the_stream_is_read_once(seed: Seed) -> None:
    claim = seed.running("a")
    seed.show(claim, chunks=numbered("one", "two"))
    _, place = read(seed, "a")
    seed.control.delete(seed.keys("shown"))

    assert read(seed, "a", place)[0] == []
    assert read(seed, "a", StreamPlace(2, 2, None))[0] == []
    seed.show(claim, chunks=numbered("three", first=3))

    assert read(seed, "a", place)[0] == [(3, "three", 0)]
    assert read(seed, "a", StreamPlace(2, 2, None))[0] == [(3, "three", 0)]


def test_a_reader_gets_no_chunk_twice_from_a_server_with_older_data(seed: Seed) -> None:
    first = seed.running("a")
    seed.show(first, chunks=numbered("one", "two"))
    behind = seed.snapshot()["shown"]
    seed.fail(first)
    second = seed.claim_one("a")
    seed.show(second, chunks=numbered("again"), claim=2)
    got, place = read(seed, "a")
    now = seed.snapshot()["shown"]
    seed.control.delete(seed.keys("shown"))
    seed.control.hset(seed.keys("shown"), mapping=behind)
    late, place = read(seed, "a", place)
    seed.control.hset(seed.keys("shown"), mapping=now)

    assert late + read(seed, "a", place)[0] == []
    assert len(got) == 3


def test_a_stream_is_over_only_if_its_job_ended_before_the_read(seed: Seed) -> None:
    reads = seed.client.calls.reads
    claim = seed.running("a")
    seed.show(claim, chunks=[(n, "x") for n in range(1, PAGE + 11)])
    look = seed.client.run(reads.stream(seed.queue, "a", START))
    assert (len(look.chunks), look.is_over) == (PAGE, False)
    seed.complete(claim)

    look = seed.client.run(reads.stream(seed.queue, "a", START))
    assert (len(look.chunks), look.is_over) == (PAGE, False)
    look = seed.client.run(reads.stream(seed.queue, "a", look.place))
    assert (len(look.chunks), look.is_over) == (10, True)


def test_the_redis_key_shown_is_deleted_with_its_queue(seed: Seed) -> None:
    claim = seed.running("a")
    seed.show(claim, chunks=[(1, "one")])
    seed.complete(claim)

    seed.client.run(seed.calls.deletion.delete(seed.queue, by="operator"))

    assert not seed.control.exists(seed.keys("shown"))
