"""Kept results in the log. The log has the digest of each result, and the whole result if the task asks for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rq_core.model.outcome import Succeeded
from rq_core.model.result_encoding import FULL, VALUE_MAX, pack_result
from rq_core.model.unique_names import digest_of
from rq_core.protocol.reads.result_reads import Absent
from tests.kit.seed import Seed

HOUR = 3_600_000
VALUE = '{"name": "Ærø/\\n", "size": [1, 2.50]}'
DIGEST = digest_of(VALUE)
TURN = pytest.mark.parametrize("turn", [False, True], ids=["complete", "turn"])


def succeeded(seed: Seed) -> list[list[Any]]:
    """Return the fields of each job in the last event ``succeeded``."""
    bodies = [e["jobs"] for _, e in seed.snapshot()["outbox"] if e["type"] == "succeeded"]
    found: list[list[Any]] = json.loads(bodies[-1])
    return found


def finish(seed: Seed, *ids: str, value: str = VALUE, kept: str = FULL, turn: bool = False) -> Any:
    """Claim the enqueued jobs, and let each succeed with this result. Return the fence of the first job."""
    claims = seed.claim(len(ids)).jobs
    assert set(ids) == {claim.id for claim in claims}
    values = dict.fromkeys(range(1, len(ids) + 1), pack_result(value, kept))
    (seed.turn if turn else seed.complete)(*claims, values=values)
    return claims[0].fence


@TURN
def test_the_log_has_the_digest_of_a_result(seed: Seed, turn: bool) -> None:
    seed.attach()
    seed.enqueue("a", keep_ms=HOUR)
    fence = finish(seed, "a", kept="digest", turn=turn)

    assert [["a", fence, DIGEST]] == succeeded(seed)
    assert {"a": VALUE} == seed.snapshot()["returned"]


@TURN
def test_the_log_has_the_whole_result_if_the_job_asks_for_it(seed: Seed, turn: bool) -> None:
    seed.attach()
    seed.enqueue("a", keep_ms=HOUR, audit_result=FULL)
    fence = finish(seed, "a", turn=turn)
    after = seed.snapshot()

    assert [["a", fence, DIGEST, VALUE]] == succeeded(seed)
    assert f"task=t audit=full until={seed.now + HOUR} bytes=" in after["results"]["a"]


def test_jobs_that_one_call_ends_have_their_own_results_in_the_log(seed: Seed) -> None:
    seed.attach()
    seed.enqueue("a", "b", "c", keep_ms=HOUR)
    seed.enqueue("plain")
    held = {claim.id: claim for claim in seed.claim().jobs}
    order = [held["plain"], held["b"], ("gone", held["a"].fence), held["a"], held["c"]]
    values = {
        1: pack_result('"no"'),
        2: pack_result('"b"'),
        3: pack_result('"no"'),
        4: pack_result('"a"', FULL),
        5: "!not_json",
    }
    seed.complete(*order, values=values)
    fence = held["a"].fence

    assert [
        ["plain", fence],
        ["b", fence, digest_of('"b"')],
        ["a", fence, digest_of('"a"'), '"a"'],
        ["c", fence],
    ] == succeeded(seed)


def test_a_queue_without_a_mirror_logs_only_the_digest_of_a_result(seed: Seed) -> None:
    """The outbox of such a queue has only recent events. Redis keeps the result even without a log."""
    seed.enqueue("a", keep_ms=HOUR, audit_result=FULL)
    fence = finish(seed, "a")

    assert [["a", fence, DIGEST]] == succeeded(seed)
    assert "audit=full" not in seed.snapshot()["results"]["a"]


def test_a_queue_with_a_full_backlog_logs_only_the_digest_of_a_result(seed: Seed) -> None:
    """Running jobs must still end. Their events are then as short as possible."""
    seed.attach()
    seed.enqueue("a", "b", keep_ms=HOUR, audit_result=FULL)
    seed.configure(backlog_max_bytes=int(seed.snapshot()["meta"]["backlog_bytes"]) + 1_000)
    claims = seed.claim(2).jobs
    long = '"' + "x" * 1_000 + '"'
    seed.complete(claims[0], values={1: pack_result(long, FULL)})
    assert [["a", claims[0].fence, digest_of(long), long]] == succeeded(seed)
    seed.complete(claims[1], values={1: pack_result(long, FULL)})

    assert [["b", claims[1].fence, digest_of(long)]] == succeeded(seed)
    assert {"a", "b"} == seed.snapshot()["returned"].keys()


def test_the_longest_allowed_result_is_logged_unchanged(seed: Seed) -> None:
    seed.attach()
    value = '"' + "\\u0000é/" * (VALUE_MAX // 10) + '"'
    assert len(value.encode()) < VALUE_MAX
    seed.enqueue("a", keep_ms=HOUR, audit_result=FULL)
    finish(seed, "a", value=value)

    assert [digest_of(value), value] == succeeded(seed)[0][2:]


@pytest.mark.damaged
def test_a_poll_for_an_evicted_or_expired_result_returns_the_last_entry_of_the_outbox(
    seed: Seed,
) -> None:
    """Checks an evicted and an expired result. Once the mirror has copied the returned entry, SQL has both results."""
    seed.attach()
    long = '"' + "x" * 1_000 + '"'
    seed.enqueue("evicted", keep_ms=HOUR, audit_result=FULL)
    finish(seed, "evicted", value=long)
    seed.configure(kept_max_bytes=2_200)
    seed.enqueue("over", keep_ms=HOUR + 1, audit_result=FULL)
    finish(seed, "over", value=long)
    # A look goes by the server's own clock.
    line = seed.snapshot()["results"]["over"].replace(f" until={seed.now + HOUR + 1}", " until=1")
    seed.control.hset(seed.keys("results"), "over", line)
    found = seed.client.run(seed.client.calls.endings.look("q", ["evicted", "over"]))
    last = seed.snapshot()["outbox"][-1][0]
    upto = tuple(map(int, last.split("-")))

    assert all(isinstance(each, Absent) and each.logged == upto for each in found.values())
    assert {
        "evicted": Succeeded("evicted", missing="evicted"),
        "over": Succeeded("over", missing="expired"),
    } == {i: each.known for i, each in found.items() if isinstance(each, Absent)}
